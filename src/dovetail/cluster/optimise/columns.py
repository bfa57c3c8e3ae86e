"""The ways to spend time that a cluster offers a class of jobs: a type alone, or a type shared with another class."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.policies.base import Floats, Ints

SQUARE_FREE = 3  # 4 j + 3 is never a square, so its root is irrational


@dataclass(slots=True)
class Columns:
    """One option per position. `b` is -1 where class `a` runs alone; a class beside itself has `a == b`.

    A unit of an option is a unit of time of one accelerator group of type `type`: two jobs are served by it if it is
    shared. Rates are steps per second of a member.
    """

    a: Ints
    b: Ints
    type: Ints
    rate_a: Floats
    rate_b: Floats

    def __len__(self) -> int:
        return len(self.a)

    def joined(self, more: Columns) -> Columns:
        return Columns(*[np.concatenate([getattr(self, name), getattr(more, name)]) for name in self.__slots__])

    def only(self, those: NDArray[np.bool_]) -> Columns:
        return Columns(*[getattr(self, name)[those] for name in self.__slots__])

    def tie_break(self, number: Floats) -> Floats:
        """A fixed value in [0, 1) per option, unrelated between options: the last tie-break. `number` is by class."""
        other = np.where(self.b < 0, 0.0, number[self.b])  # in a pair, nobody is first
        return tie_break_of(number[self.a], other, self.type)


def tie_break_of(one: Floats, other: Floats, on: Ints | int) -> Floats:
    """The same, of two classes with these numbers on a type."""
    mixed = 1.0 + 9973.0 * (one + other) + 7919.0 * one * other
    value: Floats = np.modf(mixed * np.sqrt(4.0 * on + SQUARE_FREE))[0]
    return value


def alone(classes: Ints, rates: Floats) -> Columns:
    """Every one of these classes on every type that it runs on; `rates` are by class and type."""
    of, on = np.nonzero(rates[classes] > 0)
    a = classes[of]
    return Columns(a, np.full(len(a), -1), on, rates[a, on], np.zeros(len(a)))


def shared(classes: Ints, kind: Ints, width: Ints, rates: Floats, pair_rates: Floats) -> Columns:
    """Every pair of any class and one of these that could be better than taking turns.

    If two jobs together reach no more than taking turns would (the sum of their rates, each over its rate alone, is at
    most 1), some split of the time between them is at least as good for both: such pairs are left out.
    """
    a, b = (grid.ravel() for grid in np.meshgrid(np.arange(len(kind)), classes, indexing="ij"))
    fits = (width[a] == width[b]) & ((a < classes[0]) | (a <= b))
    return _worth_it(a[fits], b[fits], kind, rates, pair_rates)


def beside_itself(classes: Ints, kind: Ints, width: Ints, rates: Floats, pair_rates: Floats) -> Columns:
    """The same, of pairs within one of these classes."""
    return _worth_it(classes, classes, kind, rates, pair_rates)


def _worth_it(a: Ints, b: Ints, kind: Ints, rates: Floats, pair_rates: Floats) -> Columns:
    of_a, of_b = pair_rates[kind[a], kind[b]], pair_rates[kind[b], kind[a]]
    with np.errstate(divide="ignore", invalid="ignore"):
        together = of_a / rates[a] + of_b / rates[b]
    both_run = (of_a > 0) & (of_b > 0) & (rates[a] > 0) & (rates[b] > 0)
    of, on = np.nonzero(both_run & (together > 1 + 1e-12))
    return Columns(a[of], b[of], on, of_a[of, on], of_b[of, on])
