"""What reports show beside a run's figures: entities, deadlines, prices and moves, over time and in sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dovetail.cluster.policies.base import Floats
from dovetail.core.results.charts import Chart, Series

_PARTS = 256  # of time, at most
_POINTS = 500  # of a line
_HOUR = 3600.0


class OverTime:
    """Amounts of several things in equal parts of time from `begins_s` on, whose length doubles as time goes on.

    >>> amounts = OverTime(1)
    >>> amounts.spread(0, 0.0, 120.0, 2.0)
    >>> amounts.part_s, amounts.values[0, :3].tolist()
    (60.0, [120.0, 120.0, 0.0])
    """

    def __init__(self, count: int) -> None:
        self.begins_s = 0.0
        self.part_s = 60.0
        self.values: Floats = np.zeros((count, _PARTS))
        self.last = 0

    def reach(self, until_s: float) -> None:
        """Time goes on until then."""
        until_s -= self.begins_s
        while until_s > self.part_s * _PARTS:
            self.values[:, : _PARTS // 2] = self.values[:, ::2] + self.values[:, 1::2]
            self.values[:, _PARTS // 2 :] = 0.0
            self.part_s *= 2
            self.last //= 2
        self.last = max(self.last, self._part(until_s))

    def spread(self, i: int, from_s: float, to_s: float, many: float) -> None:
        """So many from one time to another, in seconds times many."""
        self.reach(to_s)
        from_s, to_s = from_s - self.begins_s, to_s - self.begins_s
        for part in range(self._part(from_s), self._part(to_s) + 1):
            inside = min(to_s, (part + 1) * self.part_s) - max(from_s, part * self.part_s)
            self.values[i, part] += max(inside, 0.0) * many

    def count(self, i: int, at_s: float, many: float) -> None:
        self.reach(at_s)
        self.values[i, self._part(at_s - self.begins_s)] += many

    def _part(self, since_s: float) -> int:
        return min(max(int(since_s / self.part_s), 0), _PARTS - 1)

    def rates(self, i: int) -> list[tuple[float, float]]:
        """The amount per second in each part, by hours."""
        parts = self.values[i, : self.last + 1] / self.part_s
        return [((self.begins_s + (k + 0.5) * self.part_s) / _HOUR, float(value)) for k, value in enumerate(parts)]

    def sums(self, i: int) -> list[tuple[float, float]]:
        """The amount so far, by hours."""
        total = np.cumsum(self.values[i, : self.last + 1])
        return [((self.begins_s + (k + 1) * self.part_s) / _HOUR, float(value)) for k, value in enumerate(total)]


class RunDetails:
    """Follows a run; `entities` are names, `restart_s` what a start costs where a row does not say so. Time is counted
    from the first arrival, or from 0 s."""

    def __init__(
        self,
        types: Sequence[str],
        entities: Sequence[str],
        window: tuple[int, int] | None,
        restart_s: float,
        from_first_arrival: bool = True,
    ) -> None:
        self._types, self._entities, self._window, self._restart_s = list(types), list(entities), window, restart_s
        self._entity: dict[int, int] = {}
        self._due: dict[int, float] = {}  # time allowed, of measured jobs with a deadline
        self._arrived: dict[int, float] = {}
        self._place: dict[int, tuple[int, Any]] = {}  # type and devices of a job's last lease
        self._held = OverTime(len(self._entities))
        self._moves = OverTime(3)
        self._width: dict[int, float] = {}
        self._took: dict[int, list[float]] = {}  # by entity: completion times
        self._late: dict[int, int] = {}  # by entity: jobs with a deadline that have not kept it so far
        self._slack: list[float] = []
        self._prices: list[tuple[float, list[float]]] = []
        self._again_s = 0.0
        self._begins = from_first_arrival  # with the first arrival that is to come

    def see(self, of: str, columns: dict[str, Any], now: float) -> None:
        if of == "started":
            self._started(columns, now)
        elif of == "stopped" and self._entities:
            for job, begun, over in zip(columns["id"], columns["from_s"], columns["to_s"], strict=True):
                self._held.spread(
                    self._entity.get(int(job), 0), float(begun), float(over), self._width.get(int(job), 0.0)
                )
        elif of == "arrived":
            self._arrive(columns)
        elif of == "completed":
            for job, at_s in zip(columns["id"], columns["at_s"], strict=True):
                self._completed(int(job), float(at_s))
        elif of == "prices":
            self._prices.append((now, np.asarray(columns["price"], dtype=float).tolist()))
        elif of == "failed":
            self._moves.count(2, now, sum(map(len, columns["jobs"])))

    def _arrive(self, columns: dict[str, Any]) -> None:
        ids = [int(job) for job in columns["id"]]
        if self._begins:
            self._begins = False
            self._held.begins_s = self._moves.begins_s = float(min(columns["at_s"]))
        if self._entities and "entity" in columns:
            self._entity.update(zip(ids, map(int, columns["entity"]), strict=True))
        self._arrived.update(zip(ids, map(float, columns["at_s"]), strict=True))
        for job, due_s in zip(ids, columns.get("due_s") or (), strict=False):
            if due_s is not None and np.isfinite(due_s) and self._measured(job):
                self._due[job] = float(due_s)
                entity = self._entity.get(job, 0)
                self._late[entity] = self._late.get(entity, 0) + 1

    def _started(self, columns: dict[str, Any], now: float) -> None:
        ids, besides, setups = columns["id"], columns.get("beside"), columns.get("setup_s")
        moved = again = 0
        for i, (job, on, devices) in enumerate(zip(ids, columns["on"], columns["devices"], strict=True)):
            name, place = int(job), (int(on), tuple(devices))
            shared = besides is not None and besides[i] >= 0
            self._width[name] = len(place[1]) * (0.5 if shared else 1.0)
            before = self._place.get(name)
            self._place[name] = place
            if before is None or before == place:
                continue
            moved += before[0] != place[0]
            again += before[0] == place[0]
            self._again_s += self._restart_s if setups is None else float(setups[i])
        self._moves.count(0, now, moved)
        self._moves.count(1, now, again)

    def _completed(self, job: int, at_s: float) -> None:
        if not self._measured(job):
            return
        took_s = at_s - self._arrived.get(job, at_s)
        entity = self._entity.get(job, 0)
        if self._entities:
            self._took.setdefault(entity, []).append(took_s)
        if job in self._due:
            self._slack.append(took_s / max(self._due[job], 1e-9))
            self._late[entity] -= took_s <= self._due[job]

    def _measured(self, job: int) -> bool:
        return self._window is None or self._window[0] <= job < self._window[1]

    def figures(self) -> dict[str, Any]:
        """What is claimed beside the figures, where there is something."""
        moves = self._moves.values.sum(axis=1)
        found: dict[str, Any] = {}
        if moves[:2].any():
            found = {
                "moves_to_other_types": int(moves[0]),
                "moves_within_types": int(moves[1]),
                "moves_s": self._again_s,
            }
        for i, name in enumerate(self._entities):
            took = self._took.get(i, [])
            found.setdefault("accelerator_hours_by_entity", {})[name] = float(self._held.values[i].sum()) / _HOUR
            found.setdefault("avg_jct_by_entity_s", {})[name] = sum(took) / len(took) if took else 0.0
            if self._due:
                found.setdefault("late_by_entity", {})[name] = self._late.get(i, 0)
        return found

    def charts(self, end_s: float) -> list[Chart]:
        """Lines over time, up to the end of the run, and how deadlines were kept."""
        found = []
        for amounts in (self._held, self._moves):
            amounts.reach(end_s)
        if self._entities:
            lines = [Series(name, self._held.rates(i)) for i, name in enumerate(self._entities)]
            found.append(Chart("Accelerators by entity", "time, h", "accelerators held", lines))
        if self._slack:
            shares = np.linspace(0, 1, 101)
            points = zip(np.quantile(self._slack, shares).tolist(), (100 * shares).tolist(), strict=True)
            wide = max(self._slack) > 8 * min(self._slack) > 0
            axis = "completion time over the time until the deadline: above 1, it was missed"
            found.append(Chart("Deadlines", axis, "jobs with at most that, %", [Series("jobs", list(points))], wide))
        if len(self._prices) > 1:
            found.append(Chart("Prices", "time, h", "price per accelerator and hour", self._price_lines(end_s)))
        if self._moves.values.any():
            names = ("to another type", "within a type", "by failures")
            lines = [Series(name, self._moves.sums(i)) for i, name in enumerate(names) if self._moves.values[i].any()]
            found.append(Chart("Moves", "time, h", "jobs moved so far", lines))
        return found

    def _price_lines(self, end_s: float) -> list[Series]:
        """Prices as stairs: each holds until the next one."""
        kept = self._prices[:: max(len(self._prices) // _POINTS, 1)]
        lines = []
        for j, name in enumerate(self._types):
            points: list[tuple[float, float]] = []
            for at_s, prices in kept:
                if points:
                    points.append((at_s / _HOUR, points[-1][1]))
                points.append((at_s / _HOUR, prices[j]))
            points.append((max(end_s, kept[-1][0]) / _HOUR, points[-1][1]))
            lines.append(Series(name, points))
        return lines
