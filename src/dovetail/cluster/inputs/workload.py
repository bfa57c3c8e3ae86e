"""Jobs and how fast they run: what readers of traces and generators give, and what the simulator takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dovetail.cluster.policies.base import Floats


class TrainingStart(NamedTuple):
    """How a job's training is started: `%s` in the command is the data's folder, `steps_flag` carries the steps."""

    command: str
    folder: str = ""
    steps_flag: str = ""
    needs_data: bool = False


@dataclass(slots=True, frozen=True, kw_only=True)
class Job:
    """A training job as it arrives."""

    id: int
    model: str  # with its batch size, as the throughputs name it
    width: int = 1  # accelerators at once
    steps: float = 0.0
    arrival_s: float = 0.0
    weight: float = 1.0
    due_s: float | None = None  # after its arrival
    duration_s: float | None = None  # alone on the reference type, where that is known
    entity: str = ""
    name: str = ""
    phases: tuple[tuple[float, str], ...] = ()  # steps that are done when each ends, and the model that it runs as
    start: TrainingStart | None = None  # where a trace says it; alike ones are one object


_BATCH = " (batch size "


def at_batch(name: str, batch: int) -> str:
    """What a model is called that is trained with a batch.

    >>> at_batch("LM", 20), batch_of("LM (batch size 20)"), batch_of("A3C")
    ('LM (batch size 20)', ('LM', 20), None)
    """
    return f"{name}{_BATCH}{batch})"


def batch_of(model: str) -> tuple[str, int] | None:
    """The name and the batch of a model, if it says one."""
    name, found, rest = model.partition(_BATCH)
    return (name, int(rest[:-1])) if found and rest.endswith(")") and rest[:-1].isdecimal() else None


@dataclass(slots=True)
class Throughputs:
    """Steps per second by kind (model and width) and accelerator type.

    `spread` is the rate of a wide job whose accelerators are in several servers; `pairs[a, b]` that of `a` beside `b`.
    """

    types: tuple[str, ...]
    kinds: list[tuple[str, int]]
    alone: Floats  # kinds x types
    spread: Floats  # kinds x types
    pairs: Floats | None = None  # kinds x kinds x types
    source: str = "given"  # or measured, estimated

    def index(self) -> dict[tuple[str, int], int]:
        return {kind: i for i, kind in enumerate(self.kinds)}

    def of_types(self, types: tuple[str, ...], called: tuple[str, ...] = ()) -> Throughputs:
        """The same for these types, in this order, which may be called otherwise."""
        at = [self.types.index(name) for name in types]
        pairs = None if self.pairs is None else np.ascontiguousarray(self.pairs[:, :, at])
        return Throughputs(called or types, self.kinds, self.alone[:, at], self.spread[:, at], pairs, self.source)
