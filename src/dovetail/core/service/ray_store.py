"""Large values in Ray's object store: they go from node to node, and never through the service."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any
from uuid import uuid4

import numpy as np


class ObjectKeeper:
    """An actor beside the service's driver. It owns what is kept, which so outlives the process that put it there, and
    has a copy of it, which so outlives the node."""

    def __init__(self) -> None:
        self._kept: dict[str, Any] = {}
        self._copies: dict[str, Any] = {}

    def keep(self, key: str, wrapped: Sequence[Any]) -> None:
        self._kept[key] = wrapped[0]

    def copy(self, key: str) -> None:
        """Ray does not let go of a copy that somebody looks at, and finds it when the first one is lost."""
        with suppress(KeyError):
            self._copies[key] = import_module("ray").get(self._kept[key])
            if key not in self._kept:  # dropped meanwhile
                del self._copies[key]

    def find(self, key: str) -> list[Any]:
        """The reference, wrapped, since Ray resolves one that is not; nothing if it is not kept."""
        return [self._kept[key]] if key in self._kept else []

    def drop(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._kept.pop(key, None)
            self._copies.pop(key, None)


class RayStore:
    """The object store as a process on a node sees it: bytes by key."""

    def __init__(self, keeper: Any) -> None:
        self._ray: Any = import_module("ray")
        self._keeper = keeper

    def gpus(self) -> tuple[str, ...]:
        """The GPUs that Ray gave to this process."""
        return tuple(self._ray.get_runtime_context().get_accelerator_ids().get("GPU", ()))

    def put(self, value: bytes) -> str:
        key = uuid4().hex
        reference = self._ray.put(np.frombuffer(value, np.uint8), _owner=self._keeper)  # bytes would be copied out
        self._ray.get(self._keeper.keep.remote(key, [reference]))
        self._keeper.copy.remote(key)
        return key

    def get(self, key: str) -> memoryview:
        """Raises KeyError if it was dropped, or an error of Ray's if it is lost."""
        found = self._ray.get(self._keeper.find.remote(key))
        if not found:
            raise KeyError(f"{key}: nothing is kept under this key")
        return memoryview(self._ray.get(found[0]))
