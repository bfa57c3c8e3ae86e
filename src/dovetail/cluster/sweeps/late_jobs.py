"""Which deadlines are missed, and which of them no schedule could keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.policies.base import Ints, Policy
from dovetail.cluster.sweeps.plan_bounds import ALMOST, MeasuredJobs

_NAMED = 5  # jobs in a sentence


class LateJob(Struct, kw_only=True):
    """A job that misses its deadline. `least_s` is what it takes at its best on all there may be, if it never waits: if
    that is more than `due_s`, it is `impossible` with any number of accelerators. It is infinite where it cannot run:
    it is of `width`, and of no type there may be more than `most`. `took_s` is what it took, None if it never ended or
    nothing was simulated."""

    job: int
    name: str = ""
    seed: int
    due_s: float
    least_s: float
    impossible: bool = False
    width: int = 1
    most: int = 1
    took_s: float | None = None


def late_jobs(seed: int, jobs: MeasuredJobs, counts: Ints, took_s: Mapping[int, float] | None) -> list[LateJob]:
    """Those of one seed: whoever took longer than it had, and whoever cannot take less on these accelerators.

    `took_s` has the times of all jobs that were late by the simulation; None if there was none."""
    least_s, taken = jobs.best_s(counts), took_s or {}
    never = np.isfinite(jobs.due_s) & (least_s > jobs.due_s * ALMOST)
    late = [i for i, job in enumerate(jobs.ids.tolist()) if never[i] or job in taken]
    return [
        LateJob(
            job=int(jobs.ids[i]),
            name=jobs.names[i],
            seed=seed,
            due_s=float(jobs.due_s[i]),
            least_s=float(least_s[i]),
            impossible=bool(never[i]),
            width=1 if jobs.elastic else int(jobs.width[i]),
            most=int(counts.max(initial=0)),
            took_s=time_s if np.isfinite(time_s := taken.get(int(jobs.ids[i]), np.inf)) else None,
        )
        for i in late
    ]


def impossible_deadlines(setup: ClusterSetup, policy: Policy) -> list[LateJob]:
    """Jobs whose deadlines nothing keeps here. Those of jobs that are drawn as they come are not known."""
    jobs = setup.jobs if isinstance(setup.jobs, list) else []
    if all(job.due_s is None for job in jobs):
        return []
    return late_jobs(setup.seed, MeasuredJobs(setup, policy), setup.counts, None)


def late_sentences(late: Sequence[LateJob]) -> list[str]:
    """In words: first those that no schedule keeps, then the others; the shortest of time first.

    >>> never = LateJob(job=3, name="lm", seed=0, due_s=600, least_s=1250, impossible=True)
    >>> for sentence in late_sentences([never, LateJob(job=5, seed=0, due_s=90, least_s=40, took_s=95)]):
    ...     print(sentence)
    1 deadline cannot be kept by any schedule: job 3 'lm' (due after 600 s, takes 1,250 s at its best)
    1 more is missed: job 5 (due after 90 s, took 95 s)
    >>> wide = LateJob(job=3, seed=0, due_s=600, least_s=np.inf, impossible=True, width=8, most=4)
    >>> for sentence in late_sentences([wide, LateJob(job=5, seed=0, due_s=89.999, least_s=40, took_s=90.0)]):
    ...     print(sentence.partition(": ")[2])
    job 3 (due after 600 s, needs 8 accelerators of a type, of which there are at most 4)
    job 5 (due after 89.999 s, took 90.000 s)
    """
    hopeless = [each for each in late if each.impossible]
    others = [each for each in late if not each.impossible]
    found = []
    if hopeless:
        found.append(
            f"{_deadlines(len(hopeless))} cannot be kept by any schedule: "
            + _listed(hopeless, [_hopeless(each) for each in hopeless])
        )
    if others:
        more = f"{len(others)} more {'is' if len(others) == 1 else 'are'}" if hopeless else _are(len(others))
        took = [_times(each.due_s, each.took_s, "took {}") for each in others]
        found.append(f"{more} missed: {_listed(others, took)}")
    return found


def _deadlines(count: int) -> str:
    return "1 deadline" if count == 1 else f"{count:,} deadlines"


def _are(count: int) -> str:
    return f"{_deadlines(count)} {'is' if count == 1 else 'are'}"


def _hopeless(each: LateJob) -> str:
    if np.isfinite(each.least_s):
        return _times(each.due_s, each.least_s, "takes {} at its best")
    if each.width > each.most:
        more = f", needs {each.width:,} accelerators of a type, of which there are at most {each.most:,}"
    else:
        more = ", runs on no type here"
    return _times(each.due_s) + more


def _times(due_s: float, took_s: float | None = None, more: str = "") -> str:
    """What a job had and what it took, with as many digits as tell them apart."""
    if took_s is None:
        return f"due after {due_s:,.0f} s"
    digits = next((n for n in range(9) if f"{due_s:.{n}f}" != f"{took_s:.{n}f}"), 9)
    return f"due after {due_s:,.{digits}f} s, " + more.format(f"{took_s:,.{digits}f} s")


def _listed(late: Sequence[LateJob], times: Sequence[str]) -> str:
    """The first few, by the time that they have too little of."""
    several = len({each.seed for each in late}) > 1
    order = sorted(range(len(late)), key=lambda i: (late[i].due_s - (late[i].took_s or late[i].least_s), late[i].job))
    told = [
        f"job {late[i].job}"
        + (f" {late[i].name!r}" if late[i].name else "")
        + (f" of seed {late[i].seed}" if several else "")
        + f" ({times[i]})"
        for i in order[:_NAMED]
    ]
    left = len(late) - len(told)
    return ", ".join(told) + (f", and {left:,} more" if left else "")
