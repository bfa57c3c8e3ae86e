"""The order of the data for a job whose number of ranks may change from lease to lease."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

from dovetail.core.errors import InputError


class ElasticBatches:
    """Batches of indices, for a DataLoader's `batch_sampler`. Which samples a step takes depends on `seed` and the
    number of the step alone: epoch e is a shuffle of all by seed and e, a step takes the next `batch` of it, and rank r
    of w every w-th of these, from the r-th on. What is left of an epoch is dropped.

    >>> list(ElasticBatches(8, batch=4, rank=0, width=1))
    [[0, 2, 5, 7], [6, 3, 1, 4]]
    >>> second = ElasticBatches(8, batch=4, rank=1, width=2)
    >>> second.resume_at(1)
    >>> list(second)
    [[3, 4]]
    """

    def __init__(
        self, samples: int, batch: int, seed: int = 0, rank: int | None = None, width: int | None = None
    ) -> None:
        self.samples, self.batch, self.seed = samples, batch, seed
        self.rank = int(os.environ.get("RANK", "0")) if rank is None else rank
        self.width = int(os.environ.get("WORLD_SIZE", "1")) if width is None else width
        if not 0 < batch <= samples or batch % self.width:
            expected = f"a multiple of the {self.width} ranks, at most the {samples} samples"
            raise InputError(f"batch: found {batch}, expected {expected}")
        self._step = 0

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self.samples // self.batch

    def resume_at(self, step: int) -> None:
        """The next pass begins with this step of the job, and ends with its epoch."""
        self._step = step

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = divmod(self._step, len(self))
        self._step = (epoch + 1) * len(self)
        order = list(range(self.samples))
        random.Random(f"{self.seed}.{epoch}").shuffle(order)
        for step in range(first, len(self)):
            yield order[step * self.batch : (step + 1) * self.batch][self.rank :: self.width]
