"""What a job of `paced --trace` tells of itself: every step that its processes began, and which lease's steps its last
checkpoint has. From both follows whether each step is there once, and what work was lost."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.cluster.live.checkpoints import JobFolder


class TracedStep(NamedTuple):
    """A step of a process, when it began by the monotonic clock."""

    at_s: float
    epoch: int
    rank: int
    step: int
    type: str


class LostWork(NamedTuple):
    """Steps that a lease did and that no checkpoint has; in seconds of work where it ran."""

    epoch: int
    steps: int
    seconds: float


class JobWitness:
    """
    >>> steps = [TracedStep(float(i), 1, 0, i, "a") for i in range(1, 7)]
    >>> steps += [TracedStep(float(i + 4), 2, 0, i, "a") for i in range(4, 11)]
    >>> witness = JobWitness(steps, {1: 3, 2: 10})
    >>> witness.faults(10), witness.lost({"a": 1.0})
    ([], [LostWork(epoch=1, steps=3, seconds=3.0)])
    """

    def __init__(self, traced: Sequence[TracedStep], kept: Mapping[int, int]) -> None:
        self.kept = kept  # by epoch, its last step
        epochs = defaultdict[int, list[TracedStep]](list)
        for row in traced:
            epochs[row.epoch].append(row)
        self._epochs = dict(sorted(epochs.items()))
        self.starts = len({(row.epoch, row.rank) for row in traced})

    def faults(self, steps: int) -> list[str]:
        """What is wrong about the history of a job of so many steps."""
        found = []
        last = list(self.kept.values())
        if [*self.kept] != sorted(self.kept) or last != sorted(last):
            found.append(f"leases are out of order in its checkpoint: {self.kept}")
        if last[-1:] != [steps]:
            found.append(f"its last checkpoint has {last[-1:]} steps, not {steps}")
        before, over_s = 0, 0.0
        for epoch, rows in self._epochs.items():
            done = [row.step for row in rows if row.rank == 0]
            if done != [*range(before + 1, before + 1 + len(done))]:
                found.append(f"epoch {epoch} did {len(done)} steps, {done[0]} to {done[-1]}, after {before} were saved")
            if self.kept.get(epoch, 0) > before + len(done):
                found.append(f"epoch {epoch} saved step {self.kept[epoch]}, and did up to {before + len(done)}")
            if rows[0].at_s < over_s:
                found.append(f"epoch {epoch} did a step {over_s - rows[0].at_s:.2f} s before an earlier one its last")
            before, over_s = self.kept.get(epoch, before), max(over_s, *(row.at_s for row in rows))
        return found

    def lost(self, rates: Mapping[str, float]) -> list[LostWork]:
        """By lease; rates are steps per second by type."""
        before, found = 0, []
        for epoch, rows in self._epochs.items():
            before = self.kept.get(epoch, before)
            steps = max((row.step for row in rows if row.rank == 0), default=before) - before
            if steps > 0:
                found.append(LostWork(epoch, steps, steps / rates[rows[0].type]))
        return found


def read_witness(trace: Path, folder: Path) -> JobWitness:
    """Of a job by its trace and its folder."""
    lines = [line.split() for line in trace.read_text().splitlines()] if trace.exists() else []
    steps = [TracedStep(float(at_s), int(epoch), int(rank), int(step), on) for at_s, epoch, rank, step, on in lines]
    kept = JobFolder(folder).current()
    by = [] if kept is None else json.loads((kept.path / "paced.json").read_text())["by"]
    return JobWitness(steps, dict(by))
