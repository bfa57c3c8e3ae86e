"""What no schedule can beat: every job needs its own time at its best, and all jobs together need the cluster's."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.policies.base import Floats, Policy


def fastest(setup: ClusterSetup, policy: Policy, *, anywhere: bool = False) -> tuple[Floats, Floats]:
    """By kind: the most steps per second that it can have here, whoever it is beside and however its accelerators lie;
    and the most per accelerator. Of an elastic policy, as whatever kind of the same model is best. With `anywhere` it
    does not matter in which servers accelerators are, as by the older rules."""
    found, widths = setup.throughputs, np.array([width for _, width in setup.throughputs.kinds])
    # Measured rates over several servers, or beside another job, are not always lower.
    alone = found.alone if anywhere else setup.rates()
    rates = np.maximum(alone, found.spread)
    if policy.packs and found.pairs is not None:
        rates = np.maximum(rates, found.pairs.max(axis=1))
    rates = np.where((setup.counts >= widths[:, None]) & (alone > 0), rates, 0.0)
    best = rates.max(axis=1, initial=0.0)
    each = best / widths
    if getattr(policy, "elastic", False):
        names, model = np.unique([name for name, _ in found.kinds], return_inverse=True)
        for values in (best, each):
            top = np.zeros(len(names))
            np.maximum.at(top, model, values)
            values[:] = top[model]
    return best, each


def least_makespan_s(setup: ClusterSetup, policy: Policy, *, anywhere: bool = False) -> float:
    """A lower bound of the makespan of jobs that are all known; 0 for jobs without end.

    A job cannot end before its arrival and its best time, and unless jobs share accelerators nobody can do more than
    all of them at their best for the work at hand. Jobs that can never run are sent away at once, and need nothing.
    """
    jobs = setup.jobs
    if not isinstance(jobs, list) or not jobs or setup.window is not None:
        return 0.0
    index = setup.throughputs.index()
    best, each = fastest(setup, policy, anywhere=anywhere)
    longest_s = work_s = 0.0
    for job in jobs:
        kind = index.get((job.model, job.width), -1)
        if kind < 0:
            return 0.0
        if best[kind] > 0:
            longest_s = max(longest_s, job.arrival_s + job.steps / float(best[kind]))
            work_s += job.steps / float(each[kind])
        else:
            longest_s = max(longest_s, job.arrival_s)
    return longest_s if policy.packs else max(longest_s, work_s / float(setup.counts.sum()))
