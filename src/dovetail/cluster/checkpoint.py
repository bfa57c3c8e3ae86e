"""A simulation saved between two rounds, and taken up again there: the same bytes come out as if it had never stopped.

The file is a pickle, of which only numbers, arrays, this level's own classes and the policy's are loaded.
"""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

from dovetail.cluster.metrics import ClusterMetrics
from dovetail.cluster.policies.base import Policy
from dovetail.cluster.virtual_time import VirtualTime
from dovetail.core.errors import InputError
from dovetail.core.files.output import written_whole
from dovetail.core.files.reading import open_bytes

_MAGIC = b"dovetail cluster checkpoint 6\n"
_MODULES = ("dovetail.cluster.", "dovetail.solve.")
_NAMES = {
    "builtins.range",
    "builtins.set",
    "builtins.slice",
    "msgspec._utils.rebuild",
    "random.Random",
    *(f"numpy.{name}" for name in ("ndarray", "dtype")),
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("_reconstruct", "scalar")),
    *(f"numpy.{core}.numeric._frombuffer" for core in ("core", "_core")),
    *(f"numpy.random._pickle.{name}" for name in ("__generator_ctor", "__bit_generator_ctor")),
    *(f"numpy.random.bit_generator.{name}" for name in ("SeedSequence", "__pyx_unpickle_SeedSequence")),
    "numpy.random._pcg64.PCG64",
}


def save(path: Path, simulation: VirtualTime, metrics: ClusterMetrics, identity: bytes, written: int) -> None:
    """Save a simulation. `identity` is the journal's header, `written` how many bytes its journal has so far."""
    keep(path, (identity, written, simulation, metrics))


def keep(path: Path, things: Any) -> None:
    """Save what `recall` gives again."""
    with written_whole(path) as file:
        file.write(_MAGIC + pickle.dumps(things, protocol=5))


def renewed(policy: Policy) -> Policy:
    """The policy as it would be if it were loaded from a checkpoint.

    A program that starts cold may break a tie otherwise than a warm one, so a run must go on with what it saved.
    """
    again: Policy = pickle.loads(pickle.dumps(policy, protocol=5))
    return again


class _OwnClasses(pickle.Unpickler):
    def __init__(self, content: bytes, also: str) -> None:
        super().__init__(io.BytesIO(content))
        self._also = also

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in _NAMES:
            return super().find_class(module, name)
        # Only classes made there: what else a module can be asked for (functions, other modules) would be called.
        if module.startswith(_MODULES) or module == self._also:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def load(path: Path, identity: bytes, policy: Policy) -> tuple[VirtualTime, ClusterMetrics, int]:
    """The simulation, its figures so far, and how long its journal was."""
    things = recall(path, type(policy).__module__)
    if len(things) != 4:
        raise InputError(f"{path}: not a checkpoint of a cluster simulation")
    found, written, simulation, metrics = things
    if found != identity:
        raise InputError(f"{path}: is a checkpoint of another run (jobs, cluster, policy, rules or seed differ)")
    return simulation, metrics, written


def recall(path: Path, also: str = "") -> Any:
    """What was saved; also of the classes of another module."""
    with open_bytes(path) as file:
        content = file.read()
    if not content.startswith(_MAGIC):
        raise InputError(f"{path}: not a checkpoint of a cluster")
    try:
        return _OwnClasses(content[len(_MAGIC) :], also).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a checkpoint that this version can read: {error}") from None
