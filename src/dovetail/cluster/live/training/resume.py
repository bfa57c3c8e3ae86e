"""What a process needs beside its model to go on exactly where another stopped: its place in the data, and the state of
the random number generators that the program has imported."""

from __future__ import annotations

import os
import pickle
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = ".dovetail"  # in the checkpoint folder


class Position(NamedTuple):
    """After `steps` of the job, `given` batches of this pass over the loader were given out; None between two passes.
    `pass_random` are the generators as they were when the pass began, `random` as they were at the end. `kept` is what
    the program does not save itself (`keepers.py`)."""

    steps: int
    width: int
    given: int | None
    pass_random: dict[str, Any]
    random: dict[str, Any]
    kept: list[list[Any]]


def write_position(folder: Path, rank: int, position: Position) -> None:
    place = folder / FOLDER
    place.mkdir(parents=True, exist_ok=True)
    temporary = place / f"rank-{rank}.{os.getpid()}"
    temporary.write_bytes(pickle.dumps(tuple(position)))
    temporary.replace(place / f"rank-{rank}")


def read_position(folder: Path, rank: int) -> Position | None:
    try:
        return Position(*pickle.loads((folder / FOLDER / f"rank-{rank}").read_bytes()))
    except FileNotFoundError:
        return None


def random_states() -> dict[str, Any]:
    """Of every generator that is there; nothing is imported for it."""
    states: dict[str, Any] = {}
    if (random := sys.modules.get("random")) is not None:
        states["random"] = random.getstate()
    if (numpy := sys.modules.get("numpy.random")) is not None:
        states["numpy"] = numpy.get_state()
    if (torch := sys.modules.get("torch")) is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Generators that the process before had are imported if this one has not come to it yet: they go on here too."""
    if "random" in states:
        import_module("random").setstate(states["random"])
    if "numpy" in states:
        import_module("numpy.random").set_state(states["numpy"])
    if "torch" in states:
        torch = import_module("torch")
        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"])
