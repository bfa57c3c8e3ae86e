"""Live runs on a clock of their own: jobs work as fast as they like, fail, are cancelled, nodes go and come, and the
service is started anew in the middle. Everything else is that of a live run: its loop, its state machine, its journal.
"""

from __future__ import annotations

import heapq
import pickle
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from msgspec import Struct

from dovetail.cluster.check import check_journal
from dovetail.cluster.header import facts_of, header
from dovetail.cluster.inputs.prices import constant
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.live.loop import LiveLoop, RowsInbox
from dovetail.cluster.metrics import closing, metrics_for
from dovetail.cluster.policies import make
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.leases import HeldLease
from dovetail.cluster.rounding.replayed import as_read
from dovetail.cluster.rounds import Rounds
from dovetail.cluster.rules import RoundRules
from dovetail.core import registry
from dovetail.core.events import Rows
from dovetail.core.journal import Header, Writer
from dovetail.core.loop.replay import replay_journal

_MOST_ROUNDS = 40


class ClusterTrouble(Struct, frozen=True, kw_only=True):
    """What goes wrong, as chances: of a lease whose process fails, of a job to be poisonous or cancelled, of a node to
    be away or drained for a while. The service is started anew `restarts` times; the loop wakes late by up to `late` of
    a round."""

    failing: float = 0.1
    unsaved: float = 0.1  # of a lease whose end is not saved
    poisonous: float = 0.1
    cancelled: float = 0.1
    away: float = 0.3
    drained: float = 0.2
    restarts: int = 2
    noise: float = 0.5  # by which part of it a rate may be another than was thought
    late: float = 0.05
    learns: bool = True  # rates and costs turn out to be others than was thought
    ahead_s: float | None = None  # what a start costs that was planned ahead, if that is known from the beginning
    policies: tuple[str, ...] = ()  # that the run changes to, one after the other


class EmulatedTime(RowsInbox):
    """An inbox that jumps to whatever comes next: what happens at a time, or when the loop wants to be woken."""

    def __init__(self, late_s: float, rng: Random) -> None:
        super().__init__()
        self._late_s, self._rng = late_s, rng
        self._coming: list[tuple[float, int, Any]] = []
        self._n = 0
        self.now = 0.0
        self.halted = False

    def clock(self) -> float:
        return self.now

    def at(self, at_s: float, what: Any) -> None:
        """Rows that come then, or a function that is called then and gives some."""
        self._n += 1
        heapq.heappush(self._coming, (max(at_s, self.now), self._n, what))

    def take(self, timeout_s: float | None) -> list[Rows] | None:
        wake_s = inf if timeout_s is None else self.now + timeout_s + self._rng.choice((0.0, self._rng.random()))
        wake_s = wake_s if timeout_s is None else min(wake_s, self.now + timeout_s + self._late_s)
        if self.halted or (not self._coming and wake_s == inf):
            return None
        self.now = max(self.now, min(wake_s, self._coming[0][0] if self._coming else inf))
        taken: list[Rows] = []
        while self._coming and self._coming[0][0] <= self.now:
            what = heapq.heappop(self._coming)[2]
            taken += what() if callable(what) else [what]
        return taken


class _Worker(Struct):
    """A process: where it is, since when it works at which rate, from how many steps on."""

    job: int
    epoch: int
    devices: tuple[int, ...]
    beside: int
    begins_s: float
    rate: float
    steps: float


class EmulatedAgents:
    """Carries leases out on emulated time: processes that work, save, fail and end. They outlive the service."""

    def __init__(self, time: EmulatedTime, rng: Random, trouble: ClusterTrouble, rules: RoundRules) -> None:
        self._time, self._rng, self._trouble = time, rng, trouble
        self._round_s, self._restart_s = rules.round_s, rules.restart_s
        self.workers: dict[int, _Worker] = {}
        self.saved: dict[int, float] = {}
        self.steps: dict[int, float] = {}
        self.poisonous: set[int] = set()
        self._rates: list[list[float]] = []
        self.faults: list[str] = []

    def carry(self, rows: Sequence[Rows], now: float, ends_s: float) -> None:
        if self.workers and not ends_s > now:
            self.faults.append(f"at {now} s leases were to last until {ends_s} s")
        for each in as_read(list(rows)):
            if each.of == "arrived":
                for job, steps in zip(each.columns["id"], each.columns["steps"], strict=True):
                    self.steps[job] = steps
                    if self._rng.random() < self._trouble.poisonous:
                        self.poisonous.add(job)
            elif each.of == "kinds":
                self._rates += each.columns["alone"]
            elif each.of == "started":
                self._start(each.columns, now)
            elif each.of == "stopped":
                for job in each.columns["id"]:
                    self._stop(job, now)

    def restore(self, leases: Mapping[int, HeldLease], now: float, ends_s: float, drained: Iterable[int]) -> None:
        for job in self.workers.keys() - leases.keys():
            self.faults.append(f"at {now} s job {job} was forgotten by a restart")
        for job, lease in leases.items():
            worker = self.workers.get(job)
            if worker is None:
                self._time.at(now, records.exited([job], [lease.epoch], ["it was not found again"]))
            elif (worker.epoch, worker.devices) != (lease.epoch, lease.devices):
                self.faults.append(f"at {now} s job {job} is {worker}, restored as {lease}")

    def close(self) -> None: ...

    def lose(self, devices: Sequence[int]) -> None:
        """A node is gone, and what ran there with it."""
        for job, worker in list(self.workers.items()):
            if not set(devices).isdisjoint(worker.devices):
                del self.workers[job]

    def _start(self, columns: Mapping[str, Any], now: float) -> None:
        besides = columns.get("beside") or [-1] * len(columns["id"])
        prices = columns.get("setup_s") or [self._restart_s] * len(columns["id"])
        keys = (columns[name] for name in ("id", "devices", "epoch", "kind", "on"))
        for job, devices, epoch, kind, on, beside, price_s in zip(*keys, besides, prices, strict=True):
            before = self.workers.get(job)
            if before is not None and before.epoch == epoch:
                before.beside = beside
                continue
            if before is not None:
                self.faults.append(f"at {now} s job {job} ran twice at once, as {before.epoch} and {epoch}")
            others = {w.job for w in self.workers.values() if not set(w.devices).isdisjoint(devices)} - {beside}
            if others:
                self.faults.append(f"at {now} s job {job} was started on {devices}, where {others} run")
            wrong = self._rng.uniform(-1.0, 1.0) * self._trouble.noise
            rate = max(self._rates[kind][on], 0.1) * (1 + wrong) * (0.6 if beside >= 0 else 1.0)
            begins_s = now + price_s * (1 + wrong)
            self.workers[job] = _Worker(job, epoch, tuple(devices), beside, begins_s, rate, self.saved.get(job, 0.0))
            self._expect(self.workers[job], now)

    def _expect(self, worker: _Worker, now: float) -> None:
        """What comes of a process: reports, its failure, its end."""
        rng, time = self._rng, self._time
        if worker.job in self.poisonous or rng.random() < self._trouble.failing:
            soon = worker.job in self.poisonous
            time.at(now + rng.random() * self._round_s * (0.1 if soon else 1.0), lambda: self._fail(worker))
        ends_s = worker.begins_s + (self.steps[worker.job] - worker.steps) / worker.rate
        time.at(ends_s, lambda: self._complete(worker))
        time.at(now + rng.uniform(0.1, 0.4) * self._round_s, lambda: self._report(worker))

    def _runs(self, worker: _Worker) -> bool:
        return self.workers.get(worker.job) is worker

    def _done(self, worker: _Worker) -> float:
        worked_s = max(self._time.now - worker.begins_s, 0.0)
        return min(worker.steps + worked_s * worker.rate, self.steps[worker.job])

    def _told(self, worker: _Worker) -> Rows:
        return records.progress([worker.job], [worker.epoch], [self._done(worker)], [self.saved.get(worker.job, 0.0)])

    def _report(self, worker: _Worker) -> list[Rows]:
        if not self._runs(worker):
            return []
        if self._rng.random() < 0.4 and worker.job not in self.poisonous:
            self.saved[worker.job] = self._done(worker)
        self._time.at(self._time.now + self._rng.uniform(0.1, 0.5) * self._round_s, lambda: self._report(worker))
        return [self._told(worker)]

    def _fail(self, worker: _Worker) -> list[Rows]:
        if not self._runs(worker):
            return []
        del self.workers[worker.job]
        return [records.exited([worker.job], [worker.epoch], ["exit code 1"])]

    def _complete(self, worker: _Worker) -> list[Rows]:
        if not self._runs(worker) or self._done(worker) < self.steps[worker.job] * (1 - 1e-9):
            return []
        del self.workers[worker.job]
        self.saved[worker.job] = self.steps[worker.job]
        return [self._told(worker), records.completed([worker.job])]

    def _stop(self, job: int, now: float) -> None:
        """The end of a lease: what was done is saved, mostly, and told a little later."""
        worker = self.workers.pop(job, None)
        if worker is None:
            return
        if job not in self.poisonous and self._rng.random() >= self._trouble.unsaved:
            self.saved[job] = self._done(worker)
        told = records.progress([job], [worker.epoch], [self._done(worker)], [self.saved.get(job, 0.0)])
        self._time.at(now + self._rng.choice((0.0, 0.05, 0.6)) * self._round_s, told)


class _Steps:
    """An observer that keeps all steps, as a store does."""

    def __init__(self) -> None:
        self.kept: list[tuple[int, float, list[Rows]]] = []

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        self.kept.append((n, t, as_read(list(events))))


class LiveLikeRun:
    """One run of a number: its cluster, its jobs, its trouble, and what came of it."""

    def __init__(
        self,
        seed: int,
        policy: str,
        rules: RoundRules | None = None,
        trouble: ClusterTrouble | None = None,
        wide: bool = True,
    ) -> None:
        self.rng = rng = Random(f"{seed} {policy}")
        self.policy, self.trouble = policy, trouble or ClusterTrouble()
        self.rules = rules or RoundRules(
            round_s=100.0,
            restart_s=rng.choice((0.0, 5.0)),
            decide_at=rng.choice((0.5, 0.5, 0.25, 1.0)),
            spares=rng.random() < 0.5,
            priority=rng.choice(("owed", "owed", "fraction")),
            global_queue=rng.random() < 0.2,
        )
        self.types = tuple(f"t{j}" for j in range(rng.randint(1, 3)))
        self.entities = {"e0": 1.0, "e1": 2.0} if rng.random() < 0.3 else {}
        none = np.zeros((0, len(self.types)))
        self.setup = ClusterSetup(
            counts=np.zeros(len(self.types), dtype=np.int64),
            per_server=np.array([rng.choice((1, 2, 4)) for _ in self.types]),
            throughputs=Throughputs(self.types, [], none, none, np.zeros((0, 0, len(self.types)))),
            prices=constant(self.types, {}),
            jobs=(),
            entities=self.entities,
            seed=seed,
        )
        self.time = EmulatedTime(self.trouble.late * self.rules.round_s, rng)
        self.agents = EmulatedAgents(self.time, rng, self.trouble, self.rules)
        self.steps = _Steps()
        self.devices = 0
        self._servers = 0
        self._kinds: dict[tuple[str, int], int] = {}
        names = (policy, *self.trouble.policies)
        self._wide = wide and not any(getattr(make(name), "narrow", False) for name in names)
        self._plan()

    # --- what happens ---------------------------------------------------------------------------------------

    def _plan(self) -> None:
        rng, time, round_s = self.rng, self.time, self.rules.round_s
        time.at(0.0, lambda: [self._node() for _ in range(rng.randint(1, 4))])
        for _ in range(rng.choice((0, 1))):
            time.at(rng.uniform(0, 6) * round_s, lambda: [self._node()])
        now_s = 0.0
        jobs = rng.randint(2, 12)
        time.at(_MOST_ROUNDS * round_s, records.cancelled([*range(1, jobs + 1)]))  # those who find no place
        for job in range(jobs):
            now_s += rng.choice((0.0, round_s / 2, rng.expovariate(1 / round_s)))
            time.at(now_s, self._arrival(job + 1, now_s))
            if rng.random() < self.trouble.cancelled:
                time.at(now_s + rng.uniform(0, 8) * round_s, records.cancelled([job + 1]))
        for k, name in enumerate(self.trouble.policies):
            time.at((k + 1) * rng.uniform(1.5, 4) * round_s, records.policy(name))
        for _ in range(self.trouble.restarts):
            time.at(rng.uniform(0.2, 12) * round_s, self._halt)
        for k in range(4):
            if self.trouble.learns:
                time.at((k + 1) * rng.uniform(0.5, 3) * round_s, self._learn)
            if rng.random() < self.trouble.away:
                time.at((k + 1) * rng.uniform(0.5, 4) * round_s, self._lose)
            if rng.random() < self.trouble.drained:
                time.at((k + 1) * rng.uniform(0.5, 4) * round_s, self._drain)

    def _node(self) -> Rows:
        count, on, first = self.rng.randint(1, 4), self.rng.randrange(len(self.types)), self.devices
        count = count if self._wide else int(self.setup.per_server[on])  # all servers alike, as simulations have them
        self.devices += count
        self._servers += 1
        return records.joined([*range(first, first + count)], [on] * count, [self._servers - 1] * count)

    def _arrival(self, job: int, now_s: float) -> Any:
        rng = self.rng
        model, width = f"m{rng.randrange(3)}", rng.choice((1, 1, 1, 2, 4)) if self._wide else 1
        columns: dict[str, Any] = {"id": [job], "steps": [round(10 ** rng.uniform(1.5, 3), 3)]}
        if rng.random() < 0.3:
            columns |= {"weight": [rng.choice((1.0, 5.0))], "due_s": [rng.choice((None, 10.0, 2000.0))], "name": ["x"]}
        if self.entities:
            columns["entity"] = [rng.randrange(2)]

        def come() -> list[Rows]:
            known = self._kinds.get((model, width))
            found = [] if known is not None else self._new_kinds(model, width)
            return [*found, Rows("arrived", columns | {"kind": [self._kinds[model, width]]})]

        return come

    def _new_kinds(self, model: str, width: int) -> list[Rows]:
        """A model that becomes known, at the widths that it may have."""
        widths = sorted({1, width, *((2, 4) if self._wide else ())} - {w for m, w in self._kinds if m == model})
        for each in widths:
            self._kinds[model, each] = len(self._kinds)
        alone = [[self.rng.choice((0.0, 1.0, 3.0)) * each**0.8 for _ in self.types] for each in widths]
        for rates in alone:
            rates[self.rng.randrange(len(rates))] = 2.0
        found = [records.kinds([model] * len(widths), widths, alone, [[r * 0.7 for r in rates] for rates in alone])]
        if (ahead_s := self.trouble.ahead_s) is not None:
            places = [(self._kinds[model, each], on) for each in widths for on in range(len(self.types))]
            kinds, on = (list(column) for column in zip(*places, strict=True))
            found.append(records.costs(kinds, on, [ahead_s] * len(places), [True] * len(places)))
        return found

    def _learn(self) -> list[Rows]:
        """Rates, rates of pairs and costs turn out to be others than was thought."""
        if not self._kinds:
            return []
        rng, count = self.rng, len(self._kinds)
        kinds, on = [rng.randrange(count) for _ in range(2)], rng.randrange(len(self.types))
        a, b = rng.choice([(a, b) for (_, w), a in self._kinds.items() for (_, v), b in self._kinds.items() if w == v])
        both = [(a, b), (b, a)][: 1 + (a != b)]
        return [
            records.learned(kinds[:1], [on], [rng.uniform(0.5, 6.0)], [rng.random() < 0.3]),
            records.learned_pairs([x for x, _ in both], [y for _, y in both], [on] * len(both), [2.0] * len(both)),
            records.costs(kinds[1:], [on], [rng.uniform(0.0, 20.0)], rng.choice((None, [False], [True]))),
        ]

    def _lose(self) -> list[Rows]:
        if not self.devices:
            return []
        first = self.rng.randrange(self.devices)
        gone = [*range(first, min(first + self.rng.choice((1, 2)), self.devices))]
        self.agents.lose(gone)
        self.time.at(self.time.now + self.rng.uniform(0.1, 3) * self.rules.round_s, records.mended(gone))
        return [records.failed(gone)]

    def _drain(self) -> list[Rows]:
        if not self.devices:
            return []
        device = self.rng.randrange(self.devices)
        self.time.at(self.time.now + self.rng.uniform(0.1, 3) * self.rules.round_s, records.undrained([device]))
        return [records.drained([device])]

    def _halt(self) -> list[Rows]:
        self.time.halted = True
        return []

    # --- the service ------------------------------------------------------------------------------------------

    def header(self) -> Header:
        return header(self.setup, make(self.policy), self.policy, {}, self.rules, "changes", "live")

    def _rounds(self) -> Rounds:
        return Rounds(self.setup, make(self.policy), self.rules, reported=True)

    def run(self, journal: Path) -> list[str]:
        """Run to the end, with all its restarts, and write the journal; what is wrong with it."""
        loop = LiveLoop(self._rounds(), self.agents, self.time.clock, [self.steps], self.time)
        for turn in range(1000):
            loop.run()
            if not self.time.halted:
                break
            self.time.halted = False
            self.time.now += self.rng.choice((0.0, 0.3, 2.5)) * self.rules.round_s  # nobody is there
            if turn % 2:
                loop = LiveLoop(self._rounds(), self.agents, self.time.clock, [self.steps], self.time)
                loop.follow(self.steps.kept)
            else:
                loop.step([records.saved()])
                kept: Rounds = pickle.loads(pickle.dumps(loop.rounds))
                loop = LiveLoop(kept, self.agents, self.time.clock, [self.steps], self.time, loop.n)
        self._write(journal, loop)
        found = [f"{fault.code}: {fault.where}: {fault.message}" for fault in check_journal(journal).faults]
        agreement = replay_journal(journal)
        if agreement.difference is not None:
            found.append(f"replayed: {agreement.difference}")
        return [*self.agents.faults, *found]

    def _write(self, journal: Path, loop: LiveLoop) -> None:
        first = self.header()
        metrics = metrics_for(facts_of(first))
        end_s = self.time.now
        last = loop.rounds.close(end_s)
        steps = [*self.steps.kept, *([(loop.n + 1, end_s, last)] if last else [])]
        with Writer(journal, first) as writer:
            for n, t, rows in steps:
                writer.step(n, t, rows)
                metrics.step(n, t, rows)
            metrics.step(len(steps) + 1, end_s, [])
            writer.end(len(steps) + 1, end_s, closing(metrics))


def live_policies() -> list[str]:
    """All that are registered."""
    return registry.names("cluster")
