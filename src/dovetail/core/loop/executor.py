"""The simulated executor: how long a started task really takes, and whether it fails. Seeded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from statistics import NormalDist

from dovetail.core.events import Change, Failed, Finished, Order, Pause, Prepare, PrepareEnded, Start, Stimulus, Stop
from dovetail.core.loop.agenda import Agenda, TotalOrder

_NORMAL = NormalDist()


def chance(seed: int, *names: object) -> float:
    """A number in (0, 1) that depends on the seed and the names alone, so that all policies draw alike.

    >>> chance(1, "req_1", "node") == chance(1, "req_1", "node")
    True
    """
    text = "\0".join(map(str, (seed, *names))).encode()
    return _between(int.from_bytes(blake2b(text, digest_size=8).digest(), "big") >> 12)


def _between(bits: int) -> float:
    """52 bits as a number in (0, 1): one bit more, and the largest would be rounded to 1."""
    return (bits + 0.5) / (1 << 52)


class SimExecutor:
    """Runs on virtual time. `noise` is the relative spread of durations (log-normal, mean 1), `failure_rate` the chance
    that an attempt fails half-way through what is left of it. Without both, everything takes exactly as long as was
    expected."""

    def __init__(self, seed: int = 0, noise: float = 0.0, failure_rate: float = 0.0) -> None:
        self._seed = seed
        self._noise = noise
        self._failure_rate = failure_rate
        self._attempts: dict[tuple[str, str], int] = {}
        self._plain = not noise and not failure_rate
        self._coming: dict[
            tuple[str, str], tuple[float, Stimulus]
        ] = {}  # reported ends, of which a change takes one back
        self._many = 1024
        self._agenda: Agenda = TotalOrder()

    def report_to(self, agenda: Agenda) -> None:
        self._agenda = agenda

    def carry(self, orders: Sequence[Order], now: float) -> None:
        coming, push = self._coming, self._agenda.push
        for order in orders:
            if isinstance(order, Start):
                end = coming[order.job, order.task] = self.start(order, now)
                push(*end)
            elif isinstance(order, Prepare):
                push(now + order.setup_s, PrepareEnded(order.id))
            else:
                self._change(order, now)
        if len(coming) > self._many:
            self._coming = {key: end for key, end in coming.items() if end[0] >= now}
            self._many = 2 * len(self._coming) + 1024

    def _change(self, order: Change, now: float) -> None:
        key = (order.job, order.task)
        if (old := self._coming.pop(key, None)) is not None:
            self._agenda.cancel(old[1])
        if (new := self.change(order, now)) is not None:
            self._coming[key] = new
            self._agenda.push(*new)

    def restore(self, desired: Mapping[tuple[str, str], tuple[int, ...]], now: float) -> None:
        """What runs in a simulation is lost with it."""
        for job, task in desired:
            self._agenda.push(now, Failed(job, task, "it was lost in a restart"))

    def start(self, order: Start, now: float) -> tuple[float, Stimulus]:
        if self._plain:
            return now + order.setup_s + order.run_s, Finished(order.job, order.task)
        key = (order.job, order.task)
        self._attempts[key] = self._attempts.get(key, 0) + 1
        names = ("batch", order.batch) if order.batch else key
        return self._end(key, now + order.setup_s, order.run_s, names)

    def change(self, order: Change, now: float) -> tuple[float, Stimulus] | None:
        key = (order.job, order.task)
        if isinstance(order, Stop):
            return now, Failed(*key, order.why)
        if isinstance(order, Pause):
            return None
        return self._end(key, now, order.run_s, key)

    def _end(self, key: tuple[str, str], now: float, run_s: float, names: tuple[object, ...]) -> tuple[float, Stimulus]:
        if self._noise:
            sigma = math.sqrt(math.log1p(self._noise**2))
            run_s *= math.exp(sigma * _NORMAL.inv_cdf(chance(self._seed, "noise", *names)) - sigma**2 / 2)
        if self._failure_rate:
            attempt = self._attempts[key]
            if chance(self._seed, "failure", *key, attempt) < self._failure_rate:
                return now + run_s / 2, Failed(*key, "injected failure")
        return now + run_s, Finished(*key)
