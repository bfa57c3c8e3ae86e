"""What no schedule can beat: every job needs its own time at its best, and all jobs together need the cluster's."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.setup import Setup


def least_makespan_s(setup: Setup, packs: bool) -> float:
    """A lower bound of the makespan of jobs that are all known; 0 for jobs without end.

    A job cannot end before its arrival and its best time, and unless jobs share accelerators nobody can do more than
    all of them at their best for the work at hand.
    """
    jobs = setup.jobs
    if not isinstance(jobs, list) or not jobs or setup.window is not None:
        return 0.0
    index = setup.throughputs.index()
    kinds = np.array([index.get((job.model, job.width), -1) for job in jobs])
    if (kinds < 0).any():
        return 0.0
    rates = np.maximum(setup.rates(), 0.0) * (setup.counts > 0)
    best = rates.max(axis=1)[kinds]
    if (best <= 0).any():
        return 0.0
    steps = np.array([job.steps for job in jobs])
    arrivals = np.array([job.arrival_s for job in jobs])
    longest = float((arrivals + steps / best).max())
    # Work in units of a job's best accelerator-seconds: an accelerator of its best type does one per second.
    width = np.array([job.width for job in jobs])
    work = steps / best * width
    return longest if packs else max(longest, float(work.sum()) / float(setup.counts.sum()))
