"""Leases as a live journal tells of them: where and beside whom, what was reported, and what they cost beside work."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isclose

from msgspec import Struct

CLOSE = 1e-6  # relative: what is measured so near to what was told is that
Place = tuple[int, int, int, bool]  # kind, type, the kind beside or -1, over several servers
Begun = tuple[int, int, bool]  # kind, type, whether it was planned ahead


class LeaseStretch(Struct):
    """A job in one place and company, from so many steps on. Reports are (seconds, steps)."""

    place: Place
    from_s: float
    steps: float
    to_s: float = inf
    reports: list[tuple[float, float]] = []

    def worked(self) -> tuple[float, float]:
        """Steps and seconds between the first and the last report of work there."""
        inside = [(t, steps) for t, steps in self.reports if t <= self.to_s and steps > self.steps]
        if len(inside) < 2:
            return 0.0, 0.0
        return inside[-1][1] - inside[0][1], inside[-1][0] - inside[0][0]

    @property
    def brought(self) -> float:
        return self.reports[-1][1] - self.steps if self.reports else 0.0


class LeaseStay(Struct):
    """A lease from its start to its end, in whichever company."""

    job: int
    begun: Begun
    price_s: float  # as it was thought
    stretches: list[LeaseStretch]
    before: LeaseStay | None = None  # the same job's
    failed: bool = False

    @property
    def seconds(self) -> float:
        return self.stretches[-1].to_s - self.stretches[0].from_s

    @property
    def told(self) -> bool:
        """Whether its last word was heard: what it had done in the end."""
        last = self.stretches[-1]
        return not self.failed and bool(last.reports) and last.reports[-1][0] >= last.to_s

    def cost_s(self, rates: Mapping[Place, float]) -> float | None:
        """What it took beside its work, if that can be told."""
        if not self.told or (self.before is not None and not (self.before.told or self.before.failed)):
            return None
        known = all(rates.get(each.place, 0.0) > 0 for each in self.stretches)
        if not known or sum(each.brought for each in self.stretches) <= 0:
            return None
        found = self.seconds - sum(each.brought / rates[each.place] for each in self.stretches)
        return self.price_s if isclose(found, self.price_s, rel_tol=CLOSE, abs_tol=CLOSE) else found
