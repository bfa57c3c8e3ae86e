"""Large values in Ray's object store: they go from node to node, and never through the service."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any
from uuid import uuid4

import numpy as np

_FIRST_COPY_S = 20.0  # a node that is gone may be long in being known to be


class ObjectKeeper:
    """An actor beside the service's driver that knows what is kept. What a process puts into Ray's store is lost with
    that process, so a copy is made here before anybody is told of it; the first one stays, near to whoever reads it
    next."""

    def __init__(self) -> None:
        self._kept: dict[str, list[Any]] = {}
        self._gone: set[str] = set()  # processes

    def keep(self, key: str, wrapped: Sequence[Any]) -> None:
        if _owner(key) not in self._gone:
            self._kept[key] = list(wrapped)

    def copy(self, key: str) -> None:
        ray: Any = import_module("ray")
        if key in self._kept:
            own = ray.put(ray.get(self._kept[key][0]))
            if (kept := self._kept.get(key)) is not None:
                kept.append(own)

    def find(self, key: str) -> list[Any]:
        """References, in a list since Ray resolves those that are not; none if it is not kept."""
        return list(self._kept.get(key, ()))

    def drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._kept.pop(key, None)

    def abandon(self, owner: str, known: Sequence[str]) -> None:
        """A process is gone: of what it kept, nobody will ever ask for what it did not live to tell of."""
        self._gone.add(owner)
        self.drop([key for key in list(self._kept) if _owner(key) == owner and key not in known])


def _owner(key: str) -> str:
    """The process that kept something, by its key."""
    return key.partition("/")[0]


class RayStore:
    """The object store as a process on a node sees it: bytes by key."""

    def __init__(self, keeper: Any, owner: str = "") -> None:
        self._ray: Any = import_module("ray")
        self._keeper, self._owner = keeper, owner

    def gpus(self) -> tuple[str, ...]:
        """The GPUs that Ray gave to this process."""
        return tuple(self._ray.get_runtime_context().get_accelerator_ids().get("GPU", ()))

    def put(self, value: bytes) -> str:
        key = f"{self._owner}/{uuid4().hex}"
        reference = self._ray.put(np.frombuffer(value, np.uint8))  # bytes would be copied when they are read
        self._ray.get(self._keeper.keep.remote(key, [reference]))
        self._ray.get(self._keeper.copy.remote(key))
        return key

    def get(self, key: str) -> memoryview:
        """Raises LookupError if it was dropped, or an error of Ray's if all copies are lost."""
        found = self._ray.get(self._keeper.find.remote(key))
        for reference in found[:-1]:
            with suppress(self._ray.exceptions.RayError):
                return memoryview(self._ray.get(reference, timeout=_FIRST_COPY_S))
        for reference in found[-1:]:
            return memoryview(self._ray.get(reference))
        raise LookupError(f"nothing is kept under {key}")
