"""What is wrong, as data: which rule, where, and what was found instead of what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

TOLERANCE = 1e-9


def close(found: float, expected: float) -> bool:
    """Equal but for rounding: to 1e-9, relative for large numbers."""
    return abs(found - expected) <= TOLERANCE * max(1.0, abs(expected))


class Finding(Struct, frozen=True):
    """One thing that is wrong: which rule (see `CODES`), where, and what was found instead of what."""

    code: str
    where: str
    message: str


def _step(n: int, t: float) -> str:
    return f"step {n} at {t:.6g} s"


class Findings:
    """All faults are counted, the first few of each code are kept.

    >>> faults = Findings(limit=1)
    >>> faults.at(7, 2.5)
    >>> for gpu in (0, 1):
    ...     faults.add("overlap", "req_1/a", f"device {gpu} is held")
    >>> faults.counts, faults.first
    ({'overlap': 2}, [Finding(code='overlap', where='step 7 at 2.5 s: req_1/a', message='device 0 is held')])
    """

    def __init__(self, limit: int = 20, place: Callable[[int, float], str] = _step) -> None:
        self.counts: dict[str, int] = {}
        self.first: list[Finding] = []
        self._limit = limit
        self._place = place
        self._at: tuple[int, float] | None = None

    def at(self, n: int, t: float) -> None:
        """The step that is looked at from now on."""
        self._at = (n, t)

    def nowhere(self) -> None:
        """What follows concerns no step."""
        self._at = None

    def add(self, code: str, who: str, message: str) -> None:
        count = self.counts[code] = self.counts.get(code, 0) + 1
        if count <= self._limit:
            place = self._place(*self._at) if self._at else ""
            self.first.append(Finding(code, ": ".join(filter(None, (place, who))), message))

    def take(self, other: Findings) -> None:
        """Count what another collector found as well."""
        for code, count in other.counts.items():
            self.counts[code] = self.counts.get(code, 0) + count
        self.first += other.first


class Report(Struct, frozen=True):
    """What a check came to. `notes` say what could not be checked, `counted` are the figures as recounted."""

    log: str
    kind: str
    valid: bool
    faults_by_code: dict[str, int]
    faults: list[Finding]
    notes: list[str]
    counted: dict[str, float]

    @classmethod
    def of(cls, log: str, kind: str, faults: Findings, notes: Sequence[str], counted: Mapping[str, float]) -> Report:
        return cls(log, kind, not faults.counts, faults.counts, faults.first, list(notes), dict(counted))


def compare(claimed: Mapping[str, Any], counted: Mapping[str, float], faults: Findings, code: str = "summary") -> None:
    """A fault for each claimed figure that differs from what was counted; what was not counted is not compared."""
    for key, expected in counted.items():
        if key not in claimed:
            continue
        found = claimed[key]
        if not isinstance(found, int | float) or isinstance(found, bool) or not close(found, expected):
            faults.add(code, key, f"found {found}, expected {expected}")
