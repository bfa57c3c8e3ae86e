"""Every figure of a cluster run, from its records alone: completion times, use, cost, deadlines, fairness."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf, nan
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from dovetail.cluster.bounds import parts_of
from dovetail.cluster.header import ClusterFacts
from dovetail.cluster.policies.base import Floats, Ints
from dovetail.cluster.rounding.details import RunDetails
from dovetail.cluster.rounding.records import CHANGED, KEPT, MOVED
from dovetail.core.events import Rows
from dovetail.core.results.charts import Chart, Series, as_fact


class ClusterFigures(Struct, kw_only=True):
    """What a run gave. Times are seconds; of a window, only its jobs count for completion times and fairness."""

    jobs: int
    completed: int
    rejected: int
    makespan_s: float  # from the first arrival, or by the older rules from 0 s, as is all that is counted over time
    avg_jct_s: float
    bound_avg_jct_s: float  # if every job had had its best accelerators from its arrival on
    median_jct_s: float
    p95_jct_s: float
    avg_jct_low_s: float | None  # of jobs with the usual weight, and with more
    avg_jct_high_s: float | None
    utilization: float
    utilization_by_type: dict[str, float]
    total_cost: float
    slo_violations: int
    slo_jobs: int
    rho_mean: float  # completion time over that with an equal share of the cluster
    rho_p95: float
    rho_max: float
    jain: float  # of 1/rho: 1 if all were treated alike
    envy: float | None  # share of pairs of jobs where one would rather have the other's part, over allocations
    leases: int
    avg_jct_by_model_s: dict[str, float]
    cancelled: int | None = None  # of live runs
    given_up: int | None = None
    restarts: int | None = None  # of jobs that have an application's profile, without first starts
    accelerator_hours: float | None = None  # that these jobs held, pauses counted


FAIRNESS = "Finish-time fairness"  # the chart that needs no leases
_WHERE_THERE_ARE = ("restarts", "accelerator_hours", "cancelled", "given_up")  # figures that not every run has


class ClusterResult(Struct, kw_only=True):
    """What a simulation gave, and what it took."""

    figures: ClusterFigures
    rounds: int
    allocations: int
    policy_s: float  # CPU seconds that the policy took
    cpu_s: float
    bound_makespan_s: float
    completion_s: dict[int, float]
    cost_by_type: dict[str, float] = {}


_LEARNED = ("kinds", "learned", "costs", "joined")

_UNKNOWN: dict[str, float] = {  # what columns over jobs hold until it is known
    "kind": 0,
    "runs_as": 0,
    "steps": 0.0,
    "arrival": nan,
    "weight": 1.0,
    "due": inf,
    "end": nan,
    "equal": 0.0,  # steps with an equal share, up to its arrival; later, during its stay
    "equal_steps": 0.0,  # what it has to do, in steps as it begins
    "best_s": 0.0,
}


class ClusterMetrics:
    """Follows a run. Jobs have ids from 0 on, so columns over ids hold what is known of each."""

    def __init__(
        self,
        types: tuple[str, ...],
        counts: Ints,
        kinds: Sequence[tuple[str, int]],
        rates: Floats,
        window: tuple[int, int] | None = None,
        charge_pairs_fully: bool = False,
        fastest: Floats | None = None,
        details: RunDetails | None = None,
        live: ClusterFacts | None = None,
        from_first_arrival: bool = True,
    ) -> None:
        """With `live` facts: kinds, rates and accelerators become more as the run goes on, and no bound is known. A run
        is counted from its first arrival, or from 0 s."""
        self.details = details
        self._live = live
        self._closed = {"rejected": 0, "cancelled": 0, "given_up": 0}
        self._joined: list[tuple[int, float]] = []  # types of accelerators that joined, and when
        self._begins_s = inf if from_first_arrival else 0.0
        self._ended_s = 0.0  # when the last lease or job ended
        self._types = types
        self._counts = counts
        self._kinds = kinds
        self._rates = rates
        self._fastest = rates.max(axis=1, initial=0.0) if fastest is None else fastest
        self._widths = np.array([width for _, width in kinds], dtype=np.int64)
        self._window = window
        self._pair_charge = 1.0 if charge_pairs_fully else 0.5
        self._jobs: dict[str, Any] = {name: np.full(64, unknown) for name, unknown in _UNKNOWN.items()}
        self._known = 0
        self._rejected = 0
        self._active = 0
        self._since = 0.0
        self._equal: Floats = np.zeros(len(kinds))
        self._equal_rate: Floats = np.zeros(len(kinds))
        self._equal_shares: dict[int, Floats] = {}
        self._busy: Floats = np.zeros(len(types))
        self._cost: Floats = np.zeros(len(types))
        self._prices: Floats = np.zeros(len(types))
        self._price_s: list[float] = []  # when prices changed, and what they were from then on
        self._price_list: list[Floats] = []
        self._leases = 0
        self._starts, self._started = 0, set[int]()  # of jobs with a profile: how often, and which
        self._envy: list[float] = []
        self.now = 0.0

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self.now = t
        for event in events:
            if type(event) is Rows:
                self._see(event.of, event.columns)

    def _see(self, of: str, columns: dict[str, Any]) -> None:
        if self.details is not None:
            self.details.see(of, columns, self.now)
        if self._live is not None and of in ("stopped", "completed"):
            self._ended_s = max(self._ended_s, *columns["to_s" if of == "stopped" else "at_s"])
        if of == "stopped":
            self._stopped(columns)
        elif of == "started":
            self._leases += len(columns["id"])
            if "local" in columns:
                moves = np.asarray(columns["id"])[~np.isin(columns["why"], (KEPT, CHANGED, MOVED))]
                self._starts += len(moves)
                self._started.update(moves.tolist())
            if "kind" in columns:
                self._jobs["runs_as"][columns["id"]] = columns["kind"]
        elif of == "arrived":
            self._arrived(columns)
        elif of == "completed":
            self._completed(columns)
        elif of in self._closed:
            self._rejected_jobs(columns)
            self._closed[of] += len(columns["id"])
        elif self._live is not None and of in _LEARNED:
            self._learn(of, columns, self._live)
        elif of == "prices":
            self._prices = np.asarray(columns["price"], dtype=np.float64)
            self._price_s.append(self.now)
            self._price_list.append(self._prices)
        elif of == "used":
            self._used(columns)
        elif of == "envy":
            self._envy += columns["share"]

    def _learn(self, of: str, columns: dict[str, Any], facts: ClusterFacts) -> None:
        """What becomes known while a run goes on holds from now on."""
        self._change(max(self.now, self._since), 0)
        facts.learn(of, columns)
        if of == "joined":
            self._joined += ((on, self.now) for on in columns["on"])
        more = len(facts.kinds) - len(self._equal)
        self._equal = np.pad(self._equal, (0, more))
        self._counts = np.array(facts.counts)
        self._kinds, self._rates = facts.kinds, np.array(facts.alone).reshape(len(facts.kinds), len(facts.types))
        self._widths = np.array([width for _, width in facts.kinds], dtype=np.int64)
        self._fastest = np.full(len(facts.kinds), inf)
        self._equal_shares.clear()
        self._equal_rate = self._equal_share(self._active)

    def _grow(self, size: int) -> None:
        room = len(self._jobs["kind"])
        if size <= room:
            return
        for name, column in self._jobs.items():
            grown = np.full(max(size, 2 * room), _UNKNOWN[name])
            grown[:room] = column
            self._jobs[name] = grown

    def _arrived(self, columns: dict[str, Any]) -> None:
        ids, at_s = np.asarray(columns["id"]), np.asarray(columns["at_s"], dtype=np.float64)
        if self._begins_s == inf:  # jobs come in order of time
            self._begins_s = float(at_s.min())
        self._grow(int(ids.max()) + 1)
        self._known = max(self._known, int(ids.max()) + 1)
        jobs = self._jobs
        jobs["runs_as"][ids] = columns["kind"]
        jobs["kind"][ids], jobs["steps"][ids], jobs["arrival"][ids] = columns["kind"], columns["steps"], at_s
        if "weight" in columns:
            jobs["weight"][ids] = columns["weight"]
        if "due_s" in columns:
            jobs["due"][ids] = columns["due_s"]
        jobs["equal_steps"][ids] = columns["steps"]
        jobs["best_s"][ids] = jobs["steps"][ids] / np.maximum(self._fastest[columns["kind"]], 1e-300)
        if "phases" in columns:
            self._in_phases(columns)
        for job, kind, at in zip(ids.tolist(), columns["kind"], at_s.tolist(), strict=True):
            self._change(at, 1)
            jobs["equal"][job] = self._equal[kind]

    def _in_phases(self, columns: dict[str, Any]) -> None:
        """Jobs that run as one kind after another: what they have to do, and their best time."""
        equal, jobs = self._equal_share(int(self._counts.sum())), self._jobs
        keys = (columns[key] for key in ("id", "steps", "kind", "phases"))
        for job, steps, kind, phases in zip(*keys, strict=True):
            parts = parts_of(steps, kind, phases)
            jobs["best_s"][job] = sum(part / max(self._fastest[k], 1e-300) for part, k in parts)
            if equal[kind] > 0:
                jobs["equal_steps"][job] = sum(part * equal[kind] / max(equal[k], 1e-300) for part, k in parts)

    def _change(self, at_s: float, by: int) -> None:
        """The number of active jobs changes: settle what an equal share would have brought every kind until now."""
        if at_s > self._since:
            self._equal += (at_s - self._since) * self._equal_rate
            self._since = at_s
        self._active += by
        self._equal_rate = self._equal_share(self._active)

    def _equal_share(self, jobs: int) -> Floats:
        """Steps per second of every kind with one of so many equal shares of the cluster."""
        if jobs not in self._equal_shares:
            portion = self._counts / max(jobs, 1) / self._widths[:, None]
            portion /= np.maximum(1.0, portion.sum(axis=1))[:, None]
            self._equal_shares[jobs] = (portion * self._rates).sum(axis=1)
        return self._equal_shares[jobs]

    def _stopped(self, columns: dict[str, Any]) -> None:
        ids, on = np.asarray(columns["id"]), np.asarray(columns["on"])
        seconds = np.asarray(columns["to_s"]) - np.asarray(columns["from_s"])
        held = seconds * self._widths[self._jobs["runs_as"][ids]]
        paired, types = np.asarray(columns["beside"]) >= 0, len(self._types)
        charged = held
        if paired.any():
            charged = np.where(paired, held * self._pair_charge, held)
            held = np.where(paired, held * 0.5, held)
        self._busy += np.bincount(on, held, minlength=types)
        if len(self._price_s) > 1 and self._pair_charge < 1:
            spent = charged * np.array([self._mean_price(j, a, b) for j, a, b in _leases(columns)])
            self._cost += np.bincount(on, spent, minlength=types) / 3600
        else:
            self._cost += np.bincount(on, charged, minlength=types) * self._prices / 3600

    def _mean_price(self, j: int, from_s: float, to_s: float) -> float:
        """What an accelerator of a type cost per hour between two times."""
        first = max(bisect_right(self._price_s, from_s) - 1, 0)
        if from_s >= self._price_s[-1] or to_s <= from_s:
            return float(self._prices[j])
        begins = [from_s, *self._price_s[first + 1 :]]
        lasting = np.diff([*np.minimum(begins, to_s), to_s])
        return float(lasting @ [price[j] for price in self._price_list[first:]]) / (to_s - from_s)

    def cost_by_type(self) -> dict[str, float]:
        """What accelerators of every type cost while they were held."""
        return dict(zip(self._types, self._cost.tolist(), strict=True))

    def _used(self, columns: dict[str, Any]) -> None:
        """Seconds of accelerators by type, where there are shares of time instead of leases."""
        used = np.asarray(columns["accelerator_s"])
        self._busy += used
        self._cost += used * self._prices / 3600

    def _completed(self, columns: dict[str, Any]) -> None:
        jobs = self._jobs
        for job, at in zip(np.asarray(columns["id"]).tolist(), np.asarray(columns["at_s"]).tolist(), strict=True):
            self._change(at, -1)
            jobs["end"][job] = at
            jobs["equal"][job] = self._equal[jobs["kind"][job]] - jobs["equal"][job]

    def _rejected_jobs(self, columns: dict[str, Any]) -> None:
        for _ in columns["id"]:
            self._change(self._since, -1)
            self._rejected += 1

    def figures(self) -> ClusterFigures:
        jobs = self._measured()
        done = np.isfinite(jobs["end"])
        jct = (jobs["end"] - jobs["arrival"])[done]
        good = self.rho()
        fairness = 1 / good
        heavy = jobs["weight"][done] > 1
        due = np.isfinite(jobs["due"])
        late = due & ~(jobs["end"] - jobs["arrival"] <= jobs["due"])
        models: dict[str, list[float]] = {}
        for kind, time_s in zip(jobs["kind"][done].tolist(), jct.tolist(), strict=True):
            models.setdefault(self._kinds[kind][0], []).append(time_s)
        end_s = self.now if self._live is None else self._ended_s  # a service stays when all is done
        span_s = max(end_s - self._begins_s, 0.0)
        capacity = self._counts * span_s
        for on, at_s in self._joined:
            capacity[on] -= min(max(at_s - self._begins_s, 0.0), span_s)
        use = np.divide(self._busy, capacity, out=np.zeros_like(self._busy), where=capacity > 0)
        total = float(capacity.sum())
        return ClusterFigures(
            jobs=int(np.isfinite(jobs["arrival"]).sum()),
            completed=int(np.isfinite(self._jobs["end"]).sum()),
            rejected=self._rejected,
            makespan_s=span_s,
            avg_jct_s=_mean(jct),
            bound_avg_jct_s=_mean(jobs["best_s"][done]),
            median_jct_s=_quantile(jct, 0.5),
            p95_jct_s=_quantile(jct, 0.95),
            avg_jct_low_s=_mean(jct[~heavy]) if heavy.any() else None,
            avg_jct_high_s=_mean(jct[heavy]) if heavy.any() else None,
            utilization=float(self._busy.sum()) / total if total else 0.0,
            utilization_by_type=dict(zip(self._types, use.tolist(), strict=True)),
            total_cost=float(self._cost.sum()),
            slo_violations=int(late.sum()),
            slo_jobs=int(due.sum()),
            rho_mean=_mean(good),
            rho_p95=_quantile(good, 0.95),
            rho_max=_quantile(good, 1.0),
            jain=float(fairness.sum() ** 2 / (len(fairness) * (fairness**2).sum())) if len(fairness) else 1.0,
            envy=sum(self._envy) / len(self._envy) if self._envy else None,
            leases=self._leases,
            cancelled=None if self._live is None else self._closed["cancelled"],
            given_up=None if self._live is None else self._closed["given_up"],
            avg_jct_by_model_s={name: sum(times) / len(times) for name, times in sorted(models.items())},
            restarts=self._starts - len(self._started) if self._started else None,
            accelerator_hours=float(self._busy.sum()) / 3600 if self._started else None,
        )

    def _measured(self) -> dict[str, Any]:
        """What is known of the jobs that count."""
        first, end = self._window or (0, self._known)
        return {name: column[first : min(end, self._known)] for name, column in self._jobs.items()}

    def rho(self) -> Floats:
        """Of every measured and completed job, its completion time over that with an equal share of the cluster."""
        jobs = self._measured()
        done = np.isfinite(jobs["end"]) & (jobs["steps"] > 0)
        rho: Floats = jobs["equal"][done] / jobs["equal_steps"][done]
        return rho[rho > 0]

    def rho_of(self, job: int) -> float | None:
        """The same of one job, measured or not; None if it was not completed or had nothing to do."""
        jobs = self._jobs
        if job >= self._known or not np.isfinite(jobs["end"][job]) or not jobs["steps"][job] > 0:
            return None
        return float(jobs["equal"][job] / jobs["equal_steps"][job])

    @property
    def arrived(self) -> int:
        """How many jobs have arrived, measured or not."""
        return int(np.isfinite(self._jobs["arrival"]).sum())

    def completion_times(self) -> dict[int, float]:
        """Seconds from arrival to completion of every job that was completed."""
        known = np.flatnonzero(np.isfinite(self._jobs["end"]))
        took = (self._jobs["end"] - self._jobs["arrival"])[known]
        return dict(zip(known.tolist(), took.tolist(), strict=True))


def _leases(columns: dict[str, Any]) -> Iterator[tuple[int, float, float]]:
    named = (np.asarray(columns[name]).tolist() for name in ("on", "from_s", "to_s"))
    return zip(*named, strict=True)


def _mean(values: Floats) -> float:
    return float(values.mean()) if len(values) else 0.0


def _quantile(values: Floats, q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else 0.0


def metrics_for(facts: ClusterFacts) -> ClusterMetrics:
    facts, live = facts.own(), facts.clock == "live"
    fastest = np.full(len(facts.kinds), inf) if live else None if facts.fastest is None else np.array(facts.fastest)
    return ClusterMetrics(
        tuple(facts.types),
        np.array(facts.counts),
        facts.kinds,
        np.array(facts.alone).reshape(len(facts.kinds), len(facts.types)),
        facts.window,
        fastest=fastest,
        details=RunDetails(facts.types, list(facts.entities), facts.window, facts.restart_s, facts.from_first_arrival),
        live=facts if live else None,
        from_first_arrival=facts.from_first_arrival,
    )


def closing(metrics: ClusterMetrics) -> dict[str, Any]:
    """What the journal's last line claims."""
    return summary(metrics) | details_of(metrics) | as_fact(charts(metrics))


def summary(metrics: ClusterMetrics) -> dict[str, Any]:
    """The figures that the journal's last line claims."""
    return by_name(metrics.figures())


def by_name(figures: ClusterFigures) -> dict[str, Any]:
    """Figures by name; those of jobs with profiles, and of live runs, only where there are some."""
    found = asdict(figures)
    return {name: value for name, value in found.items() if value is not None or name not in _WHERE_THERE_ARE}


def details_of(metrics: ClusterMetrics) -> dict[str, Any]:
    """What the journal's last line claims beside the figures."""
    return {} if metrics.details is None else metrics.details.figures() | {"cost_by_type": metrics.cost_by_type()}


def charts(metrics: ClusterMetrics) -> list[Chart]:
    """How fairly jobs were treated, as a distribution for reports, and the details of the run, where there are any."""
    more = [] if metrics.details is None else metrics.details.charts(metrics.now)
    rho = metrics.rho()
    if not len(rho):
        return more
    shares = np.linspace(0, 1, 101)
    points = list(zip(np.quantile(rho, shares).tolist(), (100 * shares).tolist(), strict=True))
    rho_axis, wide = "rho: completion time over that with equal shares", bool(rho.max() > 8 * rho.min())
    return [Chart(FAIRNESS, rho_axis, "jobs with at most that, %", [Series("jobs", points)], wide), *more]
