"""Random draws that are the same for a seed on every run, machine and Python version."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class SeededRandom:
    """Random draws from `random()` alone: its sequence for a seed never changes between Python versions, that of the
    library's distributions may.

    >>> [SeededRandom(7).between(1, 6), SeededRandom(7).choice("abc"), round(SeededRandom(7).exponential(10), 3)]
    [2, 'a', 3.913]
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed).random

    def normal(self, mean: float, std: float) -> float:
        return mean + std * math.sqrt(-2.0 * math.log(1.0 - self.random())) * math.cos(2.0 * math.pi * self.random())

    def exponential(self, mean: float) -> float:
        return -mean * math.log(1.0 - self.random())

    def between(self, least: int, most: int) -> int:
        return least + int(self.random() * (most - least + 1))

    def choice(self, items: Sequence[T]) -> T:
        return items[int(self.random() * len(items))]
