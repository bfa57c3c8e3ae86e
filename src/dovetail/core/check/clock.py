"""How far stamps may be wrong against each other, and how often a run needs that to hold together."""

from __future__ import annotations

from dovetail.core.findings import TOLERANCE, close
from dovetail.core.journal import Clock


class Allowance:
    """The clock's error and no more.

    >>> allowance = Allowance(Clock("measured offset", 0.02))
    >>> allowance.close(5.0, 5.01), allowance.close(5.0, 5.03), allowance.note()
    (True, False, "1 record lies inside the clock's error of 0.02 s (measured offset), the largest by 0.01 s")
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.records, self.largest_s = 0, 0.0

    def exceeded(self, from_s: float, to_s: float) -> bool:
        """Whether two stamps lie further apart than their error can tell."""
        return to_s - from_s > self.clock.error_s + TOLERANCE * max(1.0, abs(from_s))

    def used(self, gap_s: float) -> None:
        """A record is as it should be only if stamps were wrong by so much."""
        if gap_s > 0:
            self.records += 1
            self.largest_s = max(self.largest_s, gap_s)

    def close(self, found_s: float, expected_s: float) -> bool:
        """Equal but for rounding and the error of the clock."""
        if close(found_s, expected_s):
            return True
        low, high = sorted((found_s, expected_s))
        good = not self.exceeded(low, high)
        if good:
            self.used(high - low)
        return good

    def note(self) -> str | None:
        """How much of the error was needed, in words."""
        if not self.records:
            return None
        lie = "record lies" if self.records == 1 else "records lie"
        clock = f"the clock's error of {self.clock.error_s:g} s ({self.clock.source})"
        return f"{self.records} {lie} inside {clock}, the largest by {self.largest_s:.3g} s"
