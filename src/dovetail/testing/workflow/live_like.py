"""Live runs on virtual time: calls take as long as they like, workers die, GPUs go and come back, people change their
minds. Everything else is that of a live run: its words, its scheduler, its guard, its journal.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any

from msgspec import Struct

from dovetail.core.errors import DovetailError
from dovetail.core.events import (
    Added,
    Arrived,
    Asked,
    Failed,
    Finished,
    Grew,
    Observed,
    Order,
    Prepare,
    PrepareEnded,
    Settled,
    Start,
    Stimulus,
    Stop,
)
from dovetail.core.journal import Header, Observer, Writer
from dovetail.core.loop.agenda import LIVE_ORDER, Agenda, TotalOrder
from dovetail.core.loop.engine import Scheduler, simulate
from dovetail.core.loop.executor import chance
from dovetail.core.loop.replay import replay_journal
from dovetail.core.resources import Device, Pool
from dovetail.testing.workflow.random_workloads import RandomWorkload, options_of, policies_for, random_case, read_case
from dovetail.workflow.capacity import BACK, EMPTIED, GONE
from dovetail.workflow.check import check_journal
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.gpus.residents import Residents
from dovetail.workflow.gpus.sharing import FIRST_TOKEN, TOKENS
from dovetail.workflow.inputs.growth.agenda import GrowingAgenda
from dovetail.workflow.inputs.seeded_random import SeededRandom
from dovetail.workflow.live.figures import LiveFigures
from dovetail.workflow.live.guard import LiveGuard
from dovetail.workflow.metrics import tokens_of
from dovetail.workflow.problem import WorkflowProblem
from dovetail.workflow.scheduler import WorkflowScheduler
from dovetail.workflow.simulate import new_scheduler

Key = tuple[str, str]


class Reality(Struct, frozen=True, kw_only=True):
    """How far what happens is from what is expected. `spread` is that of single runs and loads (log-normal), `wrong` by
    how many times a model's speed, or what a load takes, may be unlike what the file says; the others are chances: of a
    call to fail, of a load to fail, of a request to be cancelled."""

    spread: float = 0.3
    wrong: float = 3.0
    failure_rate: float = 0.0
    load_failure_rate: float = 0.0
    cancel_rate: float = 0.0
    mishaps: tuple[Mishap, ...] = ()
    joining: tuple[tuple[float, Added], ...] = ()


class Mishap(Struct, frozen=True):
    """Something happens to a GPU: its worker dies and is back at once, or it is away for a while. Without one the whole
    service is started anew: all that runs is lost."""

    at_s: float
    gpu: int | None
    away_s: float = 0.0


class _Call:
    """A node that runs: what is still to come of it."""

    __slots__ = ("coming", "start")

    def __init__(self, start: Start) -> None:
        self.start = start
        self.coming: list[Stimulus] = []


class LiveLikeExecutor:
    """Carries starts out as a live executor does, on virtual time. What happens depends on the seed and names alone."""

    def __init__(self, header: Header, reality: Reality, seed: int) -> None:
        facts = WorkflowFacts.of(header, Path("journal"))
        self._pool, self._reality, self._seed = header.pool, reality, seed
        self._residents = Residents(header.pool, facts.models, facts.costs, facts.table)
        self._calls: dict[Key, _Call] = {}
        self._loading: dict[tuple[int, ...], float] = {}  # until when a window is loaded
        self._preloads: dict[int, tuple[Prepare, list[Stimulus]]] = {}
        self._away: set[int] = set()
        self._attempts: dict[Key, int] = {}
        self._arrived: dict[str, Arrived] = {}
        self._sizes: dict[str, dict[str, float]] = {}
        self._graphs, self._rates = header.build_graphs(), facts.table
        self._agenda: Agenda = TotalOrder()

    def report_to(self, agenda: Agenda) -> None:
        self._agenda = agenda

    def restore(self, desired: Mapping[Key, tuple[int, ...]], now: float) -> None:
        for job, task in desired:
            self._agenda.push(now, Failed(job, task, "it was lost in a restart", lost=True))

    def carry(self, orders: Sequence[Order], now: float) -> None:
        for order in orders:
            if isinstance(order, Start):
                self._start(order, now)
            elif isinstance(order, Prepare):
                self._prepare(order, now)
            elif isinstance(order, Stop):
                self._end((order.job, order.task), now, order.why, lost=False)

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        """As an observer it sees what has come of what it reported."""
        for event in events:
            if isinstance(event, Finished | Failed):
                self._calls.pop((event.job, event.task), None)
            elif isinstance(event, Arrived):
                self._arrived[event.job] = event
                tasks = self._graphs[event.of].tasks if event.of in self._graphs else ()
                self._sizes[event.job] = dict(zip([task.name for task in tasks], event.sizes, strict=False))
            elif isinstance(event, Grew):
                names = [task.name for task in event.tasks]
                self._sizes[event.job] |= dict(zip(names, event.sizes, strict=True))
            elif isinstance(event, PrepareEnded):
                self._prepared(event, t)
            elif isinstance(event, Added):
                self._pool = self._pool.joined(event.devices, event.types)
                self._residents.extend(self._pool)

    def mishap(self, mishap: Mishap, now: float) -> list[Stimulus]:
        """What is reported at once when it happens: all in one step, as a worker's death is."""
        gpu = mishap.gpu
        if gpu is None:
            return self._restart()
        if gpu in self._away:
            return []
        self._residents.clear(gpu)
        out: list[Stimulus] = [Observed(GONE if mishap.away_s else EMPTIED, {"gpus": [gpu], "why": "its worker died"})]
        for (job, task), call in list(self._calls.items()):
            if gpu in call.start.devices:
                self._forget((job, task))
                out.append(Failed(job, task, "its worker died", lost=True))
        out += self._lose_preloads({gpu}, "its worker died")
        for window in [window for window in self._loading if gpu in window]:
            del self._loading[window]
        if mishap.away_s:
            self._away.add(gpu)
        return out

    def _restart(self) -> list[Stimulus]:
        gpus = [gpu for gpu in range(len(self._pool)) if gpu not in self._away]
        for gpu in gpus:
            self._residents.clear(gpu)
        self._loading.clear()
        lost = list(self._calls)
        for key in lost:
            self._forget(key)
        why = "the service was restarted"
        ended = [
            *[Failed(*key, why, lost=True) for key in lost],
            *self._lose_preloads(set(range(len(self._pool))), why),
        ]
        return [Observed(EMPTIED, {"gpus": gpus, "why": why}), *ended]

    def back(self, gpu: int) -> list[Stimulus]:
        self._away.discard(gpu)
        return [Observed(BACK, {"gpus": [gpu]})]

    # --- preloads ---------------------------------------------------------------------------------

    def _prepare(self, order: Prepare, now: float) -> None:
        alone_s = self._residents.setup(order.devices, order.kind)
        self._residents.load(order.devices, order.kind)
        ready_s = now + alone_s * self._factor("load", order.kind) * self._luck("load", "preload", order.id)
        self._loading[order.devices] = ready_s
        coming: list[Stimulus] = [PrepareEnded(order.id)]
        if chance(self._seed, "preload fails", order.id) < self._reality.load_failure_rate:
            emptied = Observed(EMPTIED, {"gpus": list(order.devices), "why": "a load failed"})
            coming = [emptied, PrepareEnded(order.id, "out of memory")]
        self._preloads[order.id] = (order, coming)
        for stimulus in coming:
            self._agenda.push(ready_s, stimulus)

    def _prepared(self, event: PrepareEnded, now: float) -> None:
        """With a load that fails goes what waits for it."""
        order, _ = self._preloads.pop(event.id, (None, []))
        if order is not None and event.why:
            for gpu in order.devices:
                self._residents.clear(gpu)
            for key in [key for key, call in self._calls.items() if call.start.devices == order.devices]:
                self._end(key, now, event.why, lost=True)

    def _lose_preloads(self, gpus: set[int], why: str) -> list[Stimulus]:
        lost = [id for id, (order, _) in self._preloads.items() if not gpus.isdisjoint(order.devices)]
        for id in lost:
            for stimulus in self._preloads.pop(id)[1]:
                self._agenda.cancel(stimulus)
        return [PrepareEnded(id, why) for id in lost]

    # --- calls ------------------------------------------------------------------------------------

    def _start(self, start: Start, now: float) -> None:
        key, reality = (start.job, start.task), self._reality
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        call = self._calls[key] = _Call(start)
        warm = all(start.kind in self._residents.held[gpu] for gpu in start.devices)
        alone_s = 0.0 if warm else self._residents.setup(start.devices, start.kind)
        self._residents.load(start.devices, start.kind)
        ready_s = max(now, self._loading.get(start.devices, now))
        if not warm:
            ready_s = now + alone_s * self._factor("load", start.kind) * self._luck("load", *key, attempt)
            self._loading[start.devices] = ready_s
            if chance(self._seed, "load fails", *key, attempt) < reality.load_failure_rate:
                for gpu in start.devices:
                    self._residents.clear(gpu)
                emptied = Observed(EMPTIED, {"gpus": list(start.devices), "why": "a load failed"})
                self._tell(call, ready_s, emptied, Failed(*key, "out of memory", lost=True))
                return
        if ready_s > now:
            self._tell(call, ready_s, Settled(*key, start.devices))
        run_s = self._alone_s(start) * self._factor("run", start.kind) * self._luck("run", *key, attempt)
        if chance(self._seed, "call fails", *key, attempt) < reality.failure_rate:
            self._tell(call, ready_s + run_s / 2, Failed(*key, "the call failed"))
            return
        self._tell(call, ready_s + run_s * 0.2, Observed(FIRST_TOKEN, {"job": start.job, "task": start.task}))
        reads, writes = tokens_of(self._arrived[start.job], start.task)
        counted = Observed(TOKENS, {"job": start.job, "task": start.task, "input": reads, "output": writes})
        self._tell(call, ready_s + run_s, *([counted] if writes else []), Finished(*key))

    def _alone_s(self, start: Start) -> float:
        """By its size, and half as long again if others are there: what is expected has no part in it."""
        size = self._sizes[start.job][start.task]
        speeds, rates = self._pool.speeds, self._rates
        types = [(gpu, self._pool.devices[gpu].type) for gpu in start.devices]
        speed = min([rates.rate(start.kind, t, len(types)) or speeds[gpu] for gpu, t in types], default=1.0)
        shares = any(call.start.devices == start.devices for call in self._calls.values() if call.start is not start)
        return size / speed * (1.5 if shares and types else 1.0)

    def _tell(self, call: _Call, at_s: float, *stimuli: Stimulus) -> None:
        for stimulus in stimuli:
            call.coming.append(stimulus)
            self._agenda.push(at_s, stimulus)

    def _end(self, key: Key, now: float, why: str, lost: bool) -> None:
        self._forget(key)
        self._agenda.push(now, Failed(*key, why, lost))

    def _forget(self, key: Key) -> None:
        for stimulus in self._calls.pop(key).coming:
            self._agenda.cancel(stimulus)

    def _factor(self, what: str, model: str) -> float:
        """By how many times all of a model's calls, or its loads, are slower than the file says."""
        drawn = 2 * chance(self._seed, what, model) - 1
        return float(self._reality.wrong**drawn)

    def _luck(self, *names: object) -> float:
        return math.exp(self._reality.spread * (2 * chance(self._seed, *names) - 1))


class LiveAgenda(TotalOrder):
    """What comes next of a live-like run. What is reported at one instant is taken in the order in which it was; what
    befalls GPUs is known only then."""

    def __init__(
        self, arrivals: Iterable[tuple[float, Arrived | Asked]], executor: LiveLikeExecutor, mishaps: Sequence[Mishap]
    ) -> None:
        super().__init__(arrivals)
        self._executor = executor
        self._mishaps = sorted(mishaps, key=lambda mishap: mishap.at_s, reverse=True)
        self._returns: list[tuple[float, int]] = []

    def push(self, at_s: float, stimulus: Stimulus) -> None:
        heapq.heappush(self._heap, (at_s, LIVE_ORDER[type(stimulus)], next(self._count), stimulus))

    def pop(self) -> tuple[float, list[Stimulus]] | None:
        while (now := self.peek()) is not None or self._returns:
            befalls = self._mishaps[-1].at_s if self._mishaps and now is not None else inf
            returns = min(self._returns)[0] if self._returns else inf
            if min(befalls, returns) > (inf if now is None else now):
                break
            if returns <= befalls:
                at_s, gpu = min(self._returns)
                self._returns.remove((at_s, gpu))
                happens = self._executor.back(gpu)
            else:
                mishap = self._mishaps.pop()
                at_s, happens = mishap.at_s, self._executor.mishap(mishap, mishap.at_s)
                if happens and mishap.away_s and mishap.gpu is not None:
                    self._returns.append((at_s + mishap.away_s, mishap.gpu))
            for stimulus in happens:
                self.push(at_s, stimulus)
        return super().pop()


def run_live_like(
    problem: WorkflowProblem,
    policy: str,
    journal: Path,
    reality: Reality,
    *,
    options: Mapping[str, Any] | None = None,
    retries: int = 2,
    lost_retries: int = 20,
    seed: int = 0,
    seen: Callable[[WorkflowScheduler], Scheduler] = lambda scheduler: scheduler,
) -> None:
    """Run a problem as if it were live, and write its journal. `seen` may put something around the scheduler."""
    facts = {"retries": retries, "lost_retries": lost_retries}
    header = problem.header(policy, options or {}, seed, live=True, **facts)
    scheduler, guard, figures = new_scheduler(header), LiveGuard(header), LiveFigures(header)
    executor = LiveLikeExecutor(header, reality, seed)
    said: list[tuple[float, Arrived | Asked]] = [*problem.requests.arrivals(), *_cancels(problem, reality, seed)]
    agenda: Agenda = LiveAgenda(sorted(said, key=lambda entry: entry[0]), executor, reality.mishaps)
    observers: list[Observer] = [figures, executor]
    for at_s, added in reality.joining:
        agenda.push(at_s, added)
    if problem.growth:
        agenda = growing = GrowingAgenda(agenda, problem.growth, problem.graphs, problem.requests.later, seed)
        observers.append(growing)
    with Writer(journal, header) as writer:
        steps, end_s = simulate(
            seen(scheduler), problem.pool, problem.graphs, (), executor, [*observers, writer], agenda, guard
        )
        writer.end(steps + 1, end_s, figures.summary())


def _cancels(problem: WorkflowProblem, reality: Reality, seed: int) -> list[tuple[float, Asked]]:
    """Some requests are wanted no more, some of them twice, some when they are long closed."""
    found = []
    for at_s, request in problem.requests.arrivals():
        if chance(seed, "cancel", request.job) < reality.cancel_rate:
            after_s = 60 * chance(seed, "when", request.job) ** 2
            found.append((at_s + after_s, Asked(request.job, "cancel")))
            if chance(seed, "twice", request.job) < 0.3:
                found.append((at_s + 2 * after_s, Asked(request.job, "cancel")))
    return found


def random_reality(seed: int, pool: Pool) -> Reality:
    """All that may befall a run, of this number."""
    rng = SeededRandom(seed + (1 << 50))
    mishaps = [
        Mishap(100 * rng.random(), rng.between(0, len(pool) - 1), rng.choice((0.0, 0.0, 40 * rng.random())))
        for _ in range(rng.choice((0, 0, 2, 8)))
    ]
    if rng.random() < 0.3:
        mishaps += [Mishap(80 * rng.random(), None) for _ in range(rng.between(1, 3))]
    joining = []
    if rng.random() < 0.3:
        joined = tuple(
            Device(len(pool) + i, rng.choice([d.type for d in pool.devices]), rng.between(0, 1))
            for i in range(rng.between(1, 3))
        )
        joining.append((90 * rng.random(), Added("a node joined", joined)))
    return Reality(
        spread=rng.choice((0.0, 0.3, 1.0)),
        wrong=rng.choice((1.0, 1.5, 5.0)),
        failure_rate=rng.choice((0.0, 0.0, 0.1)),
        load_failure_rate=rng.choice((0.0, 0.0, 0.1)),
        cancel_rate=rng.choice((0.0, 0.2)),
        mishaps=tuple(mishaps),
        joining=tuple(joining),
    )


def live_case(seed: int) -> RandomWorkload:
    """A random case as it can be live: requests arrive, some of them again and again so that something can be learned,
    and nobody knows when GPUs come and go."""
    case = random_case(seed)
    rows = [
        row | {"request_id": f"{row['request_id']}_{again}", "timestamp": row["timestamp"] + 25.0 * again}
        for again in range((1, 1, 4, 8)[seed % 4])
        for row in case.rows
    ]
    return case._replace(rows=rows, mode="online", gpus_over_time=None)


def check_live_case(seed: int, folder: Path) -> list[str]:
    """What is wrong with a case run as if it were live, under every policy that can be; nothing if all is well."""
    case = live_case(seed)
    problem = read_case(case, folder)
    reality = random_reality(seed, problem.pool)
    found = []
    for policy in policies_for(case):
        journal, options = folder / f"{policy}.jsonl", options_of(policy, seed)
        try:
            run_live_like(problem, policy, journal, reality, options=options, retries=case.retries, seed=seed)
        except DovetailError as error:
            found.append(f"case {seed}, {policy}: {error}")
            continue
        report = check_journal(journal, problem.source.config)
        found += [f"case {seed}, {policy}: {fault.code}: {fault.where}: {fault.message}" for fault in report.faults]
        if (difference := replay_journal(journal).difference) is not None:
            found.append(f"case {seed}, {policy}: decided otherwise when replayed: {difference}")
    return found
