"""What no schedule can beat: every job needs its own time at its best, and all jobs together need the cluster's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dovetail.cluster.goodput.application import Application
from dovetail.cluster.inputs.setup import AdaptiveKinds, ClusterSetup, begins_s
from dovetail.cluster.policies.base import Floats, Ints, Policy


def fastest(setup: ClusterSetup, policy: Policy, *, anywhere: bool = False) -> tuple[Floats, Floats]:
    """By kind: the most steps per second that it can have here, whoever it is beside and however its accelerators lie;
    and the most per accelerator. Of an elastic policy, as whatever kind of the same model is best. With `anywhere` it
    does not matter in which servers accelerators are, as by the older rules."""
    found, widths = setup.throughputs, np.array([width for _, width in setup.throughputs.kinds])
    if setup.adaptive is not None:
        return _fastest_adaptive(setup, setup.adaptive, widths, getattr(policy, "elastic", False))
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


def _fastest_adaptive(
    setup: ClusterSetup, adaptive: AdaptiveKinds, widths: Ints, elastic: bool
) -> tuple[Floats, Floats]:
    """The same of jobs that go through the epochs of an application: each epoch at its best, whatever the batch."""
    best, each = np.zeros((2, len(widths)))
    most = int(widths.max(initial=1))
    for i, of in enumerate(adaptive.applications):
        rates = best_rates(setup, of, most).max(axis=0)
        kinds = np.flatnonzero(adaptive.application == i)
        work = np.diff(of.progress, prepend=0.0)
        per_accelerator = rates / np.arange(1, most + 1)[:, None]
        if elastic:
            rates[:], per_accelerator[:] = rates.max(axis=0), per_accelerator.max(axis=0)
        for found, speeds in ((best, rates), (each, per_accelerator)):
            seconds = np.divide(work, speeds, out=np.full(speeds.shape, np.inf), where=speeds > 0).sum(axis=1)
            found[kinds] = of.size / seconds[widths[kinds] - 1]
    return best, each


def best_rates(setup: ClusterSetup, of: Application, most: int) -> Floats:
    """By type, width up to `most`, and epoch: progress per second of an application that nothing can beat here."""
    found = np.zeros((len(setup.types), most, len(of.progress)))
    for j, (on, size, count) in enumerate(zip(setup.types, setup.per_server, setup.counts, strict=True)):
        if on in of.types:
            here = of.best_rates(on, int(size), min(most, int(count)))
            found[j, : len(here)] = here
    return found


def parts_of(steps: float, kind: int, phases: Sequence[tuple[float, int]] = ()) -> list[tuple[float, int]]:
    """How many steps a job does as which kind.

    >>> parts_of(10.0, 3), parts_of(10.0, 3, [(4.0, 3), (12.0, 5)])
    ([(10.0, 3)], [(4.0, 3), (6.0, 5)])
    """
    ends = [0.0, *(end for end, _ in phases[:-1]), steps]
    kinds = [of for _, of in phases] or [kind]
    return [(max(end - begin, 0.0), of) for begin, end, of in zip(ends[:-1], ends[1:], kinds, strict=True)]


def least_makespan_s(setup: ClusterSetup, policy: Policy, *, anywhere: bool = False) -> float:
    """A lower bound of the makespan of jobs that are all known, from the first arrival; 0 for jobs without end.

    A job cannot end before its arrival and its best time, and unless jobs share accelerators nobody can do more than
    all of them at their best for the work at hand. Jobs that can never run are sent away at once, and need nothing.
    With `anywhere`, from 0 s, as by the older rules.
    """
    jobs = setup.jobs
    if not isinstance(jobs, list) or not jobs or setup.window is not None:
        return 0.0
    index = setup.throughputs.index()
    best, each = fastest(setup, policy, anywhere=anywhere)
    longest_s = work_s = 0.0
    first_s = 0.0 if anywhere else begins_s(jobs)
    for job in jobs:
        kind = index.get((job.model, job.width), -1)
        if kind < 0:
            return 0.0
        if best[kind] > 0:
            parts = parts_of(job.steps, kind, [(end, index[of, job.width]) for end, of in job.phases])
            longest_s = max(longest_s, job.arrival_s - first_s + sum(part / float(best[k]) for part, k in parts))
            work_s += sum(part / float(each[k]) for part, k in parts)
        else:
            longest_s = max(longest_s, job.arrival_s - first_s)
    return longest_s if policy.packs else max(longest_s, work_s / float(setup.counts.sum()))
