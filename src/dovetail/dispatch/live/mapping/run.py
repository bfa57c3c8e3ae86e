"""A dispatcher's function over a dataset larger than memory, from shards to shards, gone on with after a kill.

On one node, chunks go to whichever device is free while the next shard is read and the last one written. On a Ray
cluster every device takes whole shards.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError, check_functions, within
from dovetail.core.files.document import as_path
from dovetail.dispatch.live.mapping.dataset import FileDataset, IndexedDataset, MapDataset, ShardRange, as_dataset
from dovetail.dispatch.live.mapping.feed import ShardFeed
from dovetail.dispatch.live.mapping.fingerprint import fingerprint, name_of
from dovetail.dispatch.live.mapping.manifest import MapManifest, taken
from dovetail.dispatch.live.mapping.on_nodes import ShardTask
from dovetail.dispatch.live.mapping.shard_files import check_format, write_rows

Told = Callable[[int, int | None], None]


class MapReport(Struct, frozen=True):
    """What a map did: shards and items that are there now, those that were there before, and what each device did."""

    out: Path
    shards: int
    items: int
    shards_before: int
    items_before: int
    seconds: float
    devices: dict[str, int]  # items; on a Ray cluster shards

    @property
    def rate(self) -> float:
        """Items per second of this run."""
        return (self.items - self.items_before) / self.seconds if self.seconds else 0.0


def map_over(
    dispatcher: Any, dataset: Any, out: Any, items: int | None, to: str | None, progress: Told | None
) -> MapReport:
    """See `Dispatcher.map`."""
    within("items", items, "1 or more", 1, whole=True)
    check_functions(progress=progress)
    folder = as_path(out, "out")
    if dispatcher.dim != 0:
        raise InputError(f"dim {dispatcher.dim}: shards are cut along dimension 0")
    given = as_dataset(dataset, items)
    if isinstance(given, FileDataset) and folder.exists() and folder.samefile(given.folder):
        raise InputError(f"{folder}: is the folder of the input; name another output")
    to = check_format(to or (given.ranges[0].file.rpartition(".")[2] if given.ranges else "") or "safetensors")
    function = dispatcher.given
    hooks = {name: getattr(dispatcher, name) for name in ("preprocess", "postprocess", "reduce", "join")}
    options = {"items": given.items, "to": to}
    options |= {name: fingerprint(hook) for name, hook in hooks.items() if hook is not None}
    named = {"name": name_of(function), "fingerprint": fingerprint(function)}
    manifest = MapManifest(named, given.about, options, given.ranges)
    with taken(folder):
        manifest.begin(folder)
        return _Mapping(dispatcher, function, hooks, given, manifest, folder).run(progress)


class _Mapping:
    """One run over what is missing."""

    def __init__(
        self,
        dispatcher: Any,
        function: Any,
        hooks: dict[str, Any],
        dataset: MapDataset,
        manifest: MapManifest,
        out: Path,
    ) -> None:
        self._dispatcher, self._function, self._hooks = dispatcher, function, hooks
        self._dataset, self._manifest, self._out = dataset, manifest, out
        self._done = manifest.done(out)

    def _before(self) -> list[ShardRange]:
        return [each for each in self._dataset.ranges or () if each.number in self._done]

    def run(self, progress: Told | None) -> MapReport:
        begun = perf_counter()
        devices: dict[str, int] = {}
        missing = {each.number for each in self._manifest.shards or ()} - self._done
        if missing or not self._manifest.complete:
            carry_out = self._on_nodes if self._dispatcher._backend == "ray" else self._here
            devices = carry_out(progress or (lambda done, total: None))
            self._complete()
        shards = self._manifest.shards or []
        before = [each for each in shards if each.number in self._done]
        items, items_before = sum(map(len, shards)), sum(map(len, before))
        return MapReport(self._out, len(shards), items, len(before), items_before, perf_counter() - begun, devices)

    def _complete(self) -> None:
        self._manifest.shards = shards = self._dataset.ranges or []
        numbers, found = {each.number for each in shards}, self._manifest.done(self._out)
        if found - numbers:  # of an iterable that was longer before
            more = self._manifest.path(self._out, min(found - numbers))
            raise InputError(f"{more}: lies behind the end of the dataset, {len(shards)} shards; name another folder")
        left = numbers - found
        if left:
            raise DovetailError(f"{self._out}: {len(left)} of {len(shards)} shards are missing, such as {min(left)}")
        self._manifest.complete = True
        self._manifest.write(self._out)

    def _here(self, tell: Told) -> dict[str, int]:
        """Chunks of all shards that are missing, over the devices of this node."""
        ranges = self._dataset.ranges
        total = None if ranges is None else sum(map(len, ranges))
        done = sum(map(len, self._before()))
        left = None if total is None else total - done
        feed = ShardFeed(self._dataset.contents(self._done), left, self._dispatcher._output)
        try:
            if not feed.remaining:
                return {}
            for start, stop, result in self._dispatcher.stream(feed, ordered=False, cursor=feed):
                loaded = feed.at(start)
                if loaded is not None and loaded.add(start, stop, result):
                    write_rows(self._manifest.path(self._out, loaded.shard.number), loaded.output.result())
                    feed.written(loaded)
                    done += len(loaded.shard)
                    tell(done, total)
        except Exception as error:
            for failure in getattr(getattr(error, "outcome", None), "failures", [])[:1]:
                if (loaded := feed.at(failure.start)) is not None:
                    failure.error.add_note(f"in {loaded.shard}; the shards that are done stay")
            raise
        finally:
            feed.close()
        return {device.name: device.items for device in self._dispatcher.report.devices}

    def _on_nodes(self, tell: Told) -> dict[str, int]:
        """Every device of the cluster takes whole shards; those of a node that dies are done by others."""
        own, dataset = self._dispatcher, self._dataset
        if not isinstance(dataset, FileDataset | IndexedDataset):
            raise InputError("dataset: several nodes need one that can be read at any place; found an iterable")
        total, done = sum(map(len, dataset.ranges)), sum(map(len, self._before()))
        missing = [each.number for each in dataset.ranges if each.number not in self._done]
        if not missing:
            return {}
        sizes = {device.size for device in own.devices}
        options = {**self._hooks, "cache": False, "sizes": sizes.pop() if len(sizes) == 1 else None}
        task = ShardTask(type(own), self._function, options, dataset, self._manifest, self._out)
        errors = {"retries": own.retries, "on_error": own.on_error}
        spread = type(own)(task, pool=own.pool, sizes=1, backup=False, cache=False, **errors)
        for piece in spread.stream(torch.tensor(missing), ordered=False):
            done += int(piece.value.sum())
            tell(done, total)
        return {device.name: device.items for device in spread.report.devices}
