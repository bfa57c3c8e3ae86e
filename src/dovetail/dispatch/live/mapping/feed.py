"""Shards as one long batch: chunks of them are handed out while the next shard is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from math import inf
from threading import Lock
from typing import Any

from dovetail.core.errors import InputError
from dovetail.dispatch.inputs.batch import Source, as_source
from dovetail.dispatch.inputs.trees import mapped
from dovetail.dispatch.live.assembly import BatchOutput
from dovetail.dispatch.live.mapping.dataset import ShardRange


class LoadedShard:
    """A shard that was read: where its items are among all that are handed out, and where its results go."""

    def __init__(self, shard: ShardRange, source: Source, start: int, output: BatchOutput) -> None:
        self.shard, self.source, self.start, self.output = shard, source, start, output
        self.stop = start + len(shard)
        self._left = len(shard)
        self.given_up = False  # a chunk failed for good: it will never be whole

    def add(self, start: int, stop: int, result: Any) -> bool:
        """Take the result of a chunk; whether it was the last."""
        self.output.write(start - self.start, stop - self.start, result)
        self._left -= stop - start
        return not self._left


class ShardFeed:
    """Source and cursor in one. No chunk spans two shards. One is read ahead, and `most` are held of those given up."""

    def __init__(
        self,
        contents: Iterator[tuple[ShardRange, Any]],
        total: int | None,
        output: Callable[[Source], BatchOutput],
        most: int = 64,
    ) -> None:
        self.total = total
        self._contents, self._output, self._most = contents, output, most
        self._lock = Lock()
        self._loaded: list[LoadedShard] = []
        self._at = self._end = 0  # of what is handed out, and of the shards that were read
        self._over = False
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="dovetail shards")
        self._ahead = self._read()
        self.tree: Any = None  # one item, for who asks where tensors are
        try:
            if self._load():
                self.tree = mapped(_own, self._loaded[0].source.slice(0, 1))
        except BaseException:
            self.close()
            raise

    def _read(self) -> Future[tuple[ShardRange, Any] | None]:
        return self._reader.submit(next, self._contents, None)

    def _load(self) -> bool:
        """Have the next shard, if there is one."""
        found = self._ahead.result()
        self._over = found is None
        if found is None:
            return False
        shard, content = found
        source = as_source(content)
        if source.total != len(shard):
            raise InputError(f"{shard}: expected {len(shard)} rows, found {source.total}")
        loaded = LoadedShard(shard, source, self._end, self._output(source))
        with self._lock:
            lost = [each for each in self._loaded if each.given_up][: -self._most]
            self._loaded = [*(each for each in self._loaded if each not in lost), loaded]
        self._end = loaded.stop
        self._ahead = self._read()
        return True

    @property
    def remaining(self) -> float:
        if self._over:
            return 0
        return inf if self.total is None else self.total - self._at

    def take(self, n: int) -> tuple[int, int]:
        start = self._at
        if start == self._end and (self._over or not self._load()):
            return start, start
        self._at = min(start + n, self._end)
        return start, self._at

    def fetch(self, start: int, n: int) -> int:
        """How many items of those that were read are there."""
        return max(0, min(n, self._end - start))

    def at(self, item: int) -> LoadedShard | None:
        """The shard that an item is in; None if it is written already."""
        return next((each for each in self._loaded if each.start <= item < each.stop), None)

    def slice(self, start: int, stop: int) -> Any:
        loaded = self.at(start)
        if loaded is None:  # a second copy of a chunk, which comes too late to count
            return self.tree
        return loaded.source.slice(start - loaded.start, stop - loaded.start)

    def forget(self, stop: int) -> None:
        """A shard is held until it is written."""

    def give_up(self, start: int) -> None:
        """The chunk that begins there failed for good."""
        if (loaded := self.at(start)) is not None:
            loaded.given_up = True

    def written(self, loaded: LoadedShard) -> None:
        with self._lock:
            self._loaded = [each for each in self._loaded if each is not loaded]

    def close(self) -> None:
        """Wait for what is being read; nothing more will be."""
        self._reader.shutdown(wait=True, cancel_futures=True)


def _own(leaf: Any) -> Any:
    return leaf.clone() if hasattr(leaf, "clone") else leaf
