"""When servers fail and come back, drawn from the means that the cluster's file gives, for as long as a run lasts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from math import ceil, inf
from operator import attrgetter
from random import Random

from dovetail.cluster.inputs.cluster_spec import ClusterSpec
from dovetail.cluster.inputs.csv_rows import MOST_WHOLE
from dovetail.cluster.inputs.setup import Outage
from dovetail.core.errors import InputError

_TWO_YEARS_S = 2 * 365 * 86400.0


@dataclass(slots=True, frozen=True)
class RandomFailures:
    """The outages of all servers in order of time, the same each time they are gone through; all servers are there at
    the beginning.

    >>> from itertools import islice
    >>> from dovetail.cluster.inputs.cluster_spec import parse_cluster
    >>> list(RandomFailures(parse_cluster("a100=16"), seed=0))
    []
    >>> failing = parse_cluster({"types": {"a100": {"count": 2, "failure_s": 86400}}})
    >>> [(round(each.at_s), each.devices) for each in islice(RandomFailures(failing, seed=0, begins_s=1e6), 3)]
    [(1018379, (1,)), (1045714, (1,)), (1066336, (1,))]
    """

    spec: ClusterSpec
    seed: int
    begins_s: float = 0.0

    def __post_init__(self) -> None:
        spec = self.spec
        columns = (spec.types, spec.counts, spec.per_server, spec.failure_s, spec.repair_s)
        for name, count, size, mean_s, repair_s in zip(*columns, strict=True):
            expected = ceil(count / size) * _TWO_YEARS_S / (mean_s + repair_s)
            if expected > MOST_WHOLE:
                raise InputError(
                    f"cluster: {name}: expected at most {MOST_WHOLE:,} failures in two years, found a failure_s of "
                    f"{mean_s:g} for {ceil(count / size):,} servers: some {expected:.2g}"
                )

    def __iter__(self) -> Iterator[Outage]:
        servers, first = [], 0
        for at, name in enumerate(self.spec.types):
            for number, size in enumerate(self.spec.servers(name)):
                if self.spec.failure_s[at] < inf:
                    servers.append(self._of_a_server(at, number, tuple(range(first, first + size))))
                first += size
        return merge(*servers, key=attrgetter("at_s"))

    def _of_a_server(self, at: int, number: int, devices: tuple[int, ...]) -> Iterator[Outage]:
        """Each server draws for itself: more servers, or other types, leave those that were there as they are."""
        rng, now_s = Random(f"{self.seed} {self.spec.types[at]} {number}"), self.begins_s
        failure_s, repair_s = self.spec.failure_s[at], self.spec.repair_s[at]
        while True:
            now_s += rng.expovariate(1 / failure_s)
            back_s = now_s + (rng.expovariate(1 / repair_s) if repair_s else 0.0)
            yield Outage(now_s, back_s, devices)
            now_s = back_s
