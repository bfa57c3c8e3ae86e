"""A simulation saved between two rounds, and taken up again there: the same bytes come out as if it had never stopped.

The file is a pickle, of which only numbers, arrays, this level's own classes and the policy's are loaded.
"""

from __future__ import annotations

import io
import pickle
from contextlib import suppress
from inspect import isfunction
from pathlib import Path
from typing import Any

from dovetail.cluster.inputs.learned_rates import LearnedRates
from dovetail.cluster.metrics import ClusterMetrics
from dovetail.cluster.policies import FunctionPolicy
from dovetail.cluster.policies.base import Policy
from dovetail.cluster.virtual_time import VirtualTime
from dovetail.core.errors import InputError
from dovetail.core.files.output import written_whole
from dovetail.core.files.reading import open_bytes

_MAGIC = b"dovetail cluster checkpoint 7\n"
_MODULES = ("dovetail.cluster.", "dovetail.solve.")
_NAMES = {
    *(f"builtins.{name}" for name in ("bool", "bytearray", "complex", "dict", "float", "frozenset", "int", "list")),
    *(f"builtins.{name}" for name in ("range", "set", "slice", "str", "tuple")),
    *(f"collections.{name}" for name in ("Counter", "OrderedDict", "defaultdict", "deque")),
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
    try:
        content = pickle.dumps(things, protocol=5)
    except Exception as error:  # of somebody's policy
        raise InputError(f"{path}: cannot be kept: {type(error).__name__}: {error}") from error
    with written_whole(path) as file:
        file.write(_MAGIC + content)


def refuse_unsavable(policy: Policy, name: str) -> None:
    """Refuse a policy that a checkpoint cannot keep or would not give again, before there is one."""
    own = _users_own(policy)
    fault = _saving_fault(policy, own)
    if not fault:
        return
    if isfunction(own):
        raise InputError(
            f"policy {name}: a checkpoint cannot keep it: {fault}; give a function of a module's top level"
        )
    state = None
    with suppress(Exception):
        state = own.__getstate__()
    faults = {key: _saving_fault(value, own) for key, value in state.items()} if isinstance(state, dict) else {}
    at, why = next((each for each in faults.items() if each[1]), ("", fault))
    what = f"its attribute {at!r}" if at else "it"
    raise InputError(
        f"policy {name}: a checkpoint cannot keep {what}: {why}; attributes may be "
        "numbers, text, arrays, their containers and objects of classes of its own file: leave others out in "
        "__getstate__, or run it without a checkpoint"
    )


def _users_own(policy: Policy) -> Any:
    """The policy as it was given: an object or a function."""
    while isinstance(policy, LearnedRates):
        policy = policy.policy
    return policy.function if isinstance(policy, FunctionPolicy) else policy


def _saving_fault(thing: Any, own: Any) -> str:
    try:
        _OwnClasses(pickle.dumps(thing, protocol=5), own).load()
    except Exception as error:
        return str(error) or type(error).__name__
    return ""


class _OwnClasses(pickle.Unpickler):
    def __init__(self, content: bytes, own: Any) -> None:
        super().__init__(io.BytesIO(content))
        self._own = own
        self._also = type(own).__module__

    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in _NAMES:
            return super().find_class(module, name)
        if isfunction(self._own) and (module, name) == (self._own.__module__, self._own.__qualname__):
            return self._own
        # Only classes made there: what else a module can be asked for (functions, other modules) would be called.
        if module.startswith(_MODULES) or module == self._also:
            found = super().find_class(module, name)
            if isinstance(found, type) and found.__module__ == module:
                return found
        raise pickle.UnpicklingError(f"it holds {module}.{name}")


def load(path: Path, identity: bytes, policy: Policy) -> tuple[VirtualTime, ClusterMetrics, int]:
    """The simulation, its figures so far, and how long its journal was."""
    things = recall(path, policy)
    if len(things) != 4:
        raise InputError(f"{path}: not a checkpoint of a cluster simulation")
    found, written, simulation, metrics = things
    if found != identity:
        raise InputError(f"{path}: is a checkpoint of another run (jobs, cluster, policy, rules or seed differ)")
    return simulation, metrics, written


def recall(path: Path, policy: Policy) -> Any:
    """What was saved; also of the classes of the policy's module."""
    with open_bytes(path) as file:
        content = file.read()
    if not content.startswith(_MAGIC):
        raise InputError(f"{path}: not a checkpoint of a cluster")
    try:
        return _OwnClasses(content[len(_MAGIC) :], _users_own(policy)).load()
    except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, IndexError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a checkpoint that this version can read: {error}") from None
