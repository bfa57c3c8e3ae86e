"""When jobs of Shockwave's traces change their batch: epochs of gradient noise scale (`gns`) and of `accordion`.

Facts of Shockwave's simulator (NSDI'23; uw-mad-dash/shockwave @ 8a44f4a, scheduler/utils.py and scheduler.py, MIT).
Under `gns` a batch doubles at each of the epochs of a table; under `accordion` it is the model's largest outside of
critical epochs. Batches that have no throughputs are not taken.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby

from dovetail.cluster.inputs.workload import at_batch, batch_of
from dovetail.core.errors import InputError

MODES = ("static", "gns", "accordion")
_SAMPLES = {"ResNet-18": 50000, "ResNet-50": 100000, "Transformer": 10000, "LM": 59675, "Recommendation": 117907}
_MOST = {"ResNet-18": 256, "ResNet-50": 128, "LM": 80, "Recommendation": 8192}
_MOST_EPOCHS = 100_000  # of a job that changes for ever
_SETTLED = 300  # epochs, after which no batch changes unless it does so for ever
_DOUBLES: dict[tuple[str, int, int], tuple[int, ...]] = {  # by model, width and first batch: epochs
    ("ResNet-18", 1, 16): (31, 41, 51, 71),
    ("ResNet-18", 1, 32): (21, 31, 51),
    ("ResNet-18", 1, 64): (11, 31),
    ("ResNet-18", 1, 128): (11,),
    ("ResNet-18", 2, 16): (21, 31, 91, 111),
    ("ResNet-18", 2, 32): (11, 21, 41),
    ("ResNet-18", 2, 64): (21, 41),
    ("ResNet-18", 2, 128): (41,),
    ("ResNet-18", 4, 16): (11, 21, 81, 91),
    ("ResNet-18", 4, 32): (21, 31, 61),
    ("ResNet-18", 4, 64): (11, 61),
    ("ResNet-18", 4, 128): (11,),
    ("ResNet-50", 1, 64): (101,),
    ("ResNet-50", 2, 32): (101, 111),
    ("ResNet-50", 2, 64): (81,),
    ("ResNet-50", 4, 32): (131, 221),
    ("ResNet-50", 4, 64): (191,),
    ("LM", 1, 5): (31, 41, 61, 71),
    ("LM", 1, 10): (11, 21, 41),
    ("LM", 1, 20): (11, 41),
    ("LM", 1, 40): (11,),
    ("LM", 2, 5): (31, 51, 61, 71),
    ("LM", 2, 10): (11, 31, 41),
    ("LM", 2, 20): (31, 41),
    ("LM", 2, 40): (11,),
    ("LM", 4, 5): (11, 31, 71, 91),
    ("LM", 4, 10): (11, 31, 61),
    ("LM", 4, 20): (11, 61),
    ("LM", 4, 40): (61,),
    ("Recommendation", 1, 512): (21, 41, 71, 91),
    ("Recommendation", 1, 1024): (21, 51, 91),
    ("Recommendation", 1, 2048): (21, 41),
    ("Recommendation", 1, 4096): (41,),
}


def _critical(model: str, batch: int, epoch: int) -> bool:
    """Whether accordion keeps the first batch in an epoch."""
    if model == "ResNet-18":
        return epoch < (20 if batch == 256 else 10) or 150 <= epoch < 160 or 250 <= epoch < 260
    if model == "ResNet-50":
        return epoch % 30 < 10
    if model == "Recommendation":
        return epoch < {512: 30, 1024: 30, 2048: 40}.get(batch, 10)
    return epoch < 10


def batch_at(model: str, width: int, batch: int, mode: str, epoch: int) -> int:
    """The batch of an epoch, of a model that begins with `batch`.

    >>> [batch_at("LM", 1, 10, "gns", epoch) for epoch in (0, 11, 40, 41)]
    [10, 20, 40, 80]
    >>> [batch_at("ResNet-50", 2, 16, "accordion", epoch) for epoch in (9, 10, 30)]
    [16, 128, 16]
    """
    most = _MOST.get(model, batch)
    if mode == "gns":
        doubled = sum(epoch >= at for at in _DOUBLES.get((model, width, batch), ()))
        return min(batch << doubled, max(most, batch))
    return batch if mode == "static" or _critical(model, batch, epoch) else max(most, batch)


def phases_of(
    model: str, width: int, mode: str, steps: float, take: Callable[[str, float], str]
) -> tuple[tuple[float, str], ...]:
    """What is done when each phase of a job ends, in steps at its first batch, and what it runs as; none if it never
    changes.

    `take` is told a model and how many first steps one of its steps is worth, and gives what it is called, or nothing.
    """
    found = batch_of(model)
    if found is None or mode == "static" or found[0] not in _SAMPLES:
        return ()
    name, first = found
    samples = _SAMPLES[name]
    per_epoch = -(-samples // first)
    phases: list[tuple[float, str]] = []
    count = int(-(-steps // per_epoch))
    repeats = mode == "accordion" and name == "ResNet-50"
    if repeats and count > _MOST_EPOCHS:
        raise InputError(f"expected at most {_MOST_EPOCHS:,} epochs of {per_epoch:,} steps, found {steps:g} steps")
    count = count if repeats else min(count, _SETTLED)
    for batch, same in groupby(range(count), lambda epoch: batch_at(name, width, first, mode, epoch)):
        epochs = max(same) + 1
        end = steps if epochs == count else float(epochs * per_epoch)
        other = at_batch(name, batch)
        runs_as = model if other == model else take(other, per_epoch / -(-samples // batch))
        runs_as = runs_as or (phases[-1][1] if phases else model)
        if phases and phases[-1][1] == runs_as:
            phases.pop()
        phases.append((end, runs_as))
    return tuple(phases) if len(phases) > 1 else ()
