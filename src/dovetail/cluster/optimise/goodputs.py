"""What adaptive jobs are believed to gain in every configuration, from what they have seen."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dovetail.cluster.goodput.application import MOST_WIDTH
from dovetail.cluster.goodput.batch import best_batch
from dovetail.cluster.policies.base import AdaptiveJobs, Floats, Ints, Problem


class Configurations(NamedTuple):
    """Ways to run a job: so many accelerators of a type, in as few servers as possible."""

    on: Ints
    nodes: Ints
    width: Ints


def configurations(counts: Ints, per_server: Ints) -> Configurations:
    """Per type 1, 2, 4, ... accelerators up to a whole server, then whole servers only.

    >>> configurations(np.array([16]), np.array([8])).width.tolist()
    [1, 2, 4, 8, 16]
    """
    rows = []
    for on, (count, size) in enumerate(zip(counts.tolist(), per_server.tolist(), strict=True)):
        inside = [1 << power for power in range(size.bit_length()) if 1 << power < size]
        widths = [*inside, *range(size, MOST_WIDTH + 1, size)]
        rows += [(on, -(-width // size), width) for width in widths if width <= count]
    return Configurations(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)


class Goodputs:
    """Goodput of every job in every configuration, 0 where it may not run; remembered while nothing new is known."""

    def __init__(self) -> None:
        self._ways = b""
        self._rows: dict[int, tuple[bytes, Floats]] = {}  # by id: what is known, and what follows

    def table(self, problem: Problem, ways: Configurations, planned: Ints) -> Floats:
        """Jobs x configurations; `planned` are the largest total batches that are counted on. A job that never ran may
        have one accelerator of any type, and all types look alike to it."""
        known = problem.adaptive
        assert known is not None
        widest = known.widest.max(axis=1, initial=0)
        if (now := np.stack(ways).tobytes()) != self._ways:
            self._ways, self._rows = now, {}
        facts = np.stack([known.grad_sqr, known.grad_var, widest, planned], axis=1)
        keys = [row.tobytes() + numbers.tobytes() for row, numbers in zip(facts, known.numbers, strict=True)]
        kept = [self._rows.get(job, (b"",))[0] for job in problem.ids.tolist()]
        new = np.array([key != old for key, old in zip(keys, kept, strict=True)]) & (known.application >= 0)
        if rows := np.flatnonzero(new).tolist():
            found = _goodput(problem.types, known, np.array(rows), ways, planned, widest)
            for job, row in zip(rows, found, strict=True):
                self._rows[int(problem.ids[job])] = keys[job], row
        nothing = np.zeros(len(ways.on))
        self._rows = {job: self._rows.get(job, (b"", nothing)) for job in problem.ids.tolist()}
        return np.array([row for _, row in self._rows.values()]).reshape(problem.jobs, len(ways.on))


def _goodput(
    types: tuple[str, ...], known: AdaptiveJobs, rows: Ints, ways: Configurations, planned: Ints, widest: Ints
) -> Floats:
    """The same for these jobs, anew."""
    least_local, most_local, one_gpu = limits(types, known)
    application = known.application[rows]
    widths = [known.applications[of].most_width(int(widest[job])) for of, job in zip(application, rows, strict=True)]
    largest = np.array([one.most for one in known.applications])[application]
    splits = np.asarray(least_local[application])[:, ways.on] * ways.width <= largest[:, None]
    runs = splits & (np.asarray(most_local[application])[:, ways.on] > 0)
    fitted = ~np.isnan(known.numbers[rows, :, 0])
    never = np.logical_not(fitted.any(axis=1, keepdims=True))
    source = np.where(fitted[:, ways.on], ways.on, fitted.argmax(axis=1)[:, None])  # whose fit tells
    job, at = np.nonzero(runs & (ways.width <= np.array(widths)[:, None]) & ~never)
    by, of, row = source[job, at], application[job], rows[job]
    same = by == ways.on[at]
    best = best_batch(
        known.numbers[row, by],
        known.grad_sqr[row],
        known.grad_var[row],
        np.where(same, ways.nodes[at], -(-ways.width[at] // known.per_server[by])),
        ways.width[at],
        initial=np.array([one.initial for one in known.applications])[of],
        most=planned[row],
        least_local=least_local[of, by],
        most_local=most_local[of, by],
    )
    found = np.where(never & runs & (ways.width == 1), 1.0, 0.0)
    found[job, at] = best.goodput * np.where(same, 1.0, one_gpu[of, ways.on[at]] / one_gpu[of, by])
    return found


def limits(types: tuple[str, ...], known: AdaptiveJobs) -> Floats:
    """Least and largest local batch, and speed of one accelerator, by application and type; 0 where it does not run."""
    found = np.zeros((3, len(known.applications), len(types)))
    for of, application in enumerate(known.applications):
        for on, name in enumerate(types):
            if (profile := application.types.get(name)) is not None:
                found[:, of, on] = profile.least_local, profile.most_local, profile.one_gpu
    return found
