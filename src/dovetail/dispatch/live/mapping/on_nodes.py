"""Whole shards for each device of a Ray cluster: it reads them, calls the function and writes them where it is."""

from __future__ import annotations

import pickle
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dovetail.core.errors import DovetailError
from dovetail.core.service.ray_start import import_ray
from dovetail.dispatch.inputs.devices import NodeDevice
from dovetail.dispatch.live.mapping.dataset import MANIFEST, FileDataset, IndexedDataset
from dovetail.dispatch.live.mapping.manifest import MapManifest
from dovetail.dispatch.live.mapping.shard_files import write_rows


class ShardTask:
    """A function over the numbers of shards. `make` makes the dispatcher of one device, with these options."""

    def __init__(
        self,
        make: Callable[..., Any],
        function: Any,
        options: dict[str, Any],
        dataset: FileDataset | IndexedDataset,
        manifest: MapManifest,
        out: Path,
    ) -> None:
        pickled = import_ray("the ray back end").cloudpickle.dumps  # also what a user's script defines
        self._call = pickled((make, function, options, dataset))
        self._manifest, self._out = manifest, out.absolute()
        self._seen = (self._out / MANIFEST).read_bytes()
        self._path = list(sys.path)

    def on(self, device: NodeDevice) -> Callable[[Tensor], Tensor]:
        """Called where the device is."""
        try:
            same = (self._out / MANIFEST).read_bytes() == self._seen
        except OSError:
            same = False
        if not same:
            where = f"node {socket.gethostname()} of the Ray cluster"
            raise DovetailError(f"{where} needs the folder {self._out} as this machine has it: it is not the same")
        sys.path += [place for place in self._path if place not in sys.path]
        make, function, options, dataset = pickle.loads(self._call)
        inner = make(function, NodeDevice(device.place), **options)

        def call(numbers: Tensor) -> Tensor:
            ranges = [dataset.ranges[number] for number in numbers.tolist()]
            for shard in ranges:
                write_rows(self._manifest.path(self._out, shard.number), inner.run(dataset.read(shard)))
            return torch.tensor([len(shard) for shard in ranges])

        return call
