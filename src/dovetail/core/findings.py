"""What is wrong, as data: which rule, where, and what was found instead of what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

TOLERANCE = 1e-9
_SHOWN = 3  # faults that a report shows of itself
_ROUNDING = 1e-6  # of bounds that an LP gives, and of sums over many tasks


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
    """All faults are counted, the first few of each code are kept. `notes` are what else is to be said of the check;
    `interrupted` says that the run did not end, so that what only its end can tell is no fault.

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
        self.notes: list[str] = []
        self.interrupted = False
        self._limit = limit
        self._place = place
        self._at: tuple[int, float] | None = None

    def at(self, n: int, t: float) -> None:
        """The step that is looked at from now on."""
        self._at = (n, t)

    def nowhere(self) -> None:
        """What follows concerns no step."""
        self._at = None

    def add(self, code: str, who: str, message: str, at: tuple[int, float] | None = None) -> None:
        """`at` is the step and the time of what is wrong, if that is not what is looked at now."""
        count = self.counts[code] = self.counts.get(code, 0) + 1
        if count <= self._limit:
            at = at or self._at
            place = self._place(*at) if at else ""
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
        """Of a run that did not end no bound is told: it might still keep it."""
        told = {key: value for key, value in counted.items() if not (faults.interrupted and key.startswith("bound_"))}
        return cls(log, kind, not faults.counts, faults.counts, faults.first, [*faults.notes, *notes], told)

    def __repr__(self) -> str:
        """In a few lines; all of it is in the fields."""
        counts = ", ".join(f"{count} {code}" for code, count in self.faults_by_code.items())
        told = [f"<Report {'valid' if self.valid else f'not valid ({counts})'}: {self.log}>"]
        return "\n".join(told + [f"{each.code} {each.where}: {each.message}" for each in self.faults[:_SHOWN]])


def compare(claimed: Mapping[str, Any], counted: Mapping[str, float], faults: Findings, code: str = "summary") -> None:
    """A fault for each claimed figure that differs from what was counted; what was not counted is not compared."""
    for key, expected in counted.items():
        if key not in claimed:
            continue
        found = claimed[key]
        if not isinstance(found, int | float) or isinstance(found, bool) or not close(found, expected):
            faults.add(code, key, f"found {found}, expected {expected}")


# What is bounded, by the names of the recount where these differ.
_FIGURES = {"mean_s": "avg_request_s", "median_s": "median_request_s", "p99_s": "p99_request_s"}


def check_bounds(
    claims: Mapping[str, Any], counted: Mapping[str, float], faults: Findings, error_s: float = 0.0
) -> None:
    """A fault for each lower bound (`bound_...`) among the claims that the run beat by more than its clock's error; one
    for each figure, however many bounds are held against it.

    >>> faults = Findings()
    >>> check_bounds({"bound_makespan_s": 9.0, "bound_jct_s": 2.0}, {"makespan_s": 8.5, "jct_s": 2.0}, faults)
    >>> [(finding.code, finding.where, finding.message) for finding in faults.first]
    [('bound', 'makespan_s', 'found 8.5, expected at least 9.0')]
    """
    for key, least in claims.items():
        name = key.removeprefix("bound_")
        found = counted.get(_FIGURES.get(name, name))
        if name == key or found is None or isinstance(least, bool) or not isinstance(least, int | float):
            continue
        if any(fault.code == "bound" and fault.where == name for fault in faults.first):
            continue
        if found < least - error_s - _ROUNDING * abs(least):
            faults.add("bound", name, f"found {found}, expected at least {least}")
