"""How many copies of a program to run at once: it is measured alone, and side by side until the machine is full."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from dovetail.host.live.measure import Measurement, measure, processors, run_together_s, variables

_WORTH = 0.97  # of the best throughput: below that, fewer at once are not worth their shorter runs


class CoRuns(Struct, frozen=True):
    """Copies of a program that filled the machine, so many at once; `alone_s` is how long one takes by itself."""

    cores: int
    at_once: int
    alone_s: float
    together_s: float

    @property
    def per_h(self) -> float:
        return 3600 * self.at_once / self.together_s

    @property
    def slowed(self) -> float:
        """How many times as long a copy takes beside the others as alone, on as many cores: what is not cores but is
        shared, as memory bandwidth."""
        return self.together_s / self.alone_s


class Recommendation(Struct, frozen=True):
    """What was measured of a program, alone and side by side, and what to do about it."""

    alone: Measurement
    rows: list[CoRuns]

    @property
    def best(self) -> CoRuns:
        """The fewest at once among those that bring about the most programs per hour.

        >>> alone = Measurement("train", [])
        >>> Recommendation(alone, [CoRuns(1, 4, 9.0, 10.0), CoRuns(2, 2, 5.0, 5.1), CoRuns(4, 1, 4.0, 4.0)]).best.cores
        2
        """
        most = max(row.per_h for row in self.rows)
        return max((row for row in self.rows if row.per_h >= _WORTH * most), key=lambda row: row.cores)

    def summary(self) -> dict[str, Any]:
        rows = [
            {name: getattr(row, name) for name in ("cores", "at_once", "alone_s", "together_s", "slowed", "per_h")}
            for row in self.rows
        ]
        best = {"cores": self.best.cores, "at_once": self.best.at_once}
        return {"name": self.alone.name, "rows": rows, "recommended": best, "curve": self.alone.curve}


def recommend(
    *command: str,
    cores: Sequence[int] | None = None,
    repeats: int = 1,
    name: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Recommendation:
    """Measure how a program's speed depends on its cores, and with how many copies at once most of them get done.

    On each number of cores it is run alone, and then as often side by side as there is room, each copy on processors of
    its own.

    Parameters
    ----------
    cores
        Numbers of cores; by default 1, 2, 4 and so on up to all that there are.
    repeats
        Runs on each; the median counts, of those side by side the best.
    name
        What the program is called; by default as its command.
    progress
        Is told how many runs are done, and of how many.
    """
    cpus = processors()
    tell = progress or (lambda done, of: None)
    alone = measure(*command, cores=cores, repeats=repeats, name=name, progress=lambda done, of: tell(done, 2 * of))
    rows, runs = [], 2 * repeats * len(alone.runs)
    for i, each in enumerate(alone.runs):
        count = each.cores
        places = [cpus[j : j + count] for j in range(0, len(cpus) - count + 1, count)]
        together_s = each.median_s
        if len(places) > 1:
            together_s = min(run_together_s(command, places, variables(count)) for _ in range(repeats))
        rows.append(CoRuns(count, len(places), each.median_s, together_s))
        tell(runs // 2 + repeats * (i + 1), runs)
    return Recommendation(alone, rows)
