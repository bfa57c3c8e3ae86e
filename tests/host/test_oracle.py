"""Schedules against a second scheduler, written from the rules in another way: every program's cores over time."""

from __future__ import annotations

from math import floor, inf
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dovetail.core.events import Arrived
from dovetail.host.inputs.workload import Workload
from dovetail.host.metrics import Programs
from dovetail.host.options import HostOptions
from dovetail.host.policies.max_prop import proportional
from dovetail.host.program import program_graph
from dovetail.host.simulate import run

CORES = 8
Job = tuple[float, int, float, int]  # arrives, asks for, core-seconds, priority


class Reference:
    """One thing after the other, with lists of jobs: no view, no assignment objects, no instructions."""

    def __init__(self, jobs: list[Job], options: HostOptions) -> None:
        self.jobs, self.options = jobs, options
        self.left = [work for _, _, work, _ in jobs]
        self.has = [0] * len(jobs)
        self.ran = [0.0] * len(jobs)
        self.turn = [0.0] * len(jobs)
        self.turns: list[int] = []  # whose turn began, in this order, again and again
        self.rank = [priority for *_, priority in jobs]  # how urgent it was when it last started
        self.since = [arrives for arrives, *_ in jobs]
        self.queue: list[int] = []
        self.running: list[int] = []
        self.fresh: set[int] = set()  # who was admitted at this instant: it is not paused at once
        self.away: set[int] = set()  # who was paused at this instant
        self.told: list[list[tuple[float, int]]] = [[] for _ in jobs]
        self.now = 0.0

    def run(self) -> list[list[tuple[float, int]]]:
        """For each job (when, how many cores from then on), the last of them its end."""
        coming = sorted(range(len(self.jobs)), key=lambda j: (self.jobs[j][0], j))
        while coming or self.running:
            ends = {j: self.now + self.left[j] / self.has[j] for j in self.running}
            times = [*ends.values(), self.next_turn(), self.next_age()] + [self.jobs[j][0] for j in coming[:1]]
            after = min(times)
            for j in self.running:
                self.left[j] -= self.has[j] * (after - self.now)
                self.ran[j] += after - self.now
            self.now = after
            before = list(self.has)
            for j in [j for j in self.running if ends[j] == after]:
                self.running.remove(j)
                self.has[j] = 0
            while coming and self.jobs[coming[0]][0] == after:
                self.queue.append(coming.pop(0))
            self.decide()
            for j, cores in enumerate(self.has):
                if cores != before[j]:
                    self.told[j].append((self.now, cores))
        return self.told

    def next_turn(self) -> float:
        ends = [self.turn[j] + self.options.quantum_s for j in self.running]
        return min(ends) if ends and self.options.plan == "rr" else inf

    def next_age(self) -> float:
        step = self.options.age_step_s
        if step is None:
            return inf
        young = [j for j in self.queue if self.aged(j) <= self.jobs[j][3]]  # one step beyond the most urgent counts too
        return min((self.since[j] + (self.aged(j) + 1) * step for j in young), default=inf)

    def aged(self, j: int) -> int:
        step = self.options.age_step_s
        return 0 if step is None else floor((self.now - self.since[j]) / step + 1e-9)

    def urgency(self, j: int) -> int:
        return max(self.jobs[j][3] - self.aged(j), 0)

    def decide(self) -> None:
        order = list(self.running)
        self.fresh.clear()
        self.away.clear()
        had, ranks, since = list(self.has), list(self.rank), list(self.since)
        if self.options.plan == "rr":
            over = [j for j in self.running if self.turn[j] + self.options.quantum_s <= self.now]
            over.sort(key=lambda j: self.turns[::-1].index(j), reverse=True)
            waits = bool(self.queue)
            for j in over:
                self.turn[j] = self.now
                if waits:
                    self.pause(j)
        while self.queue and self.admit(self.first()):
            pass
        self.share()
        there = [j for j in order if j in self.running and (j not in self.away or self.has[j] == had[j])]
        self.running = there + [j for j in self.running if j not in there]  # who goes on as it was was never paused
        for j in there:
            self.rank[j], self.since[j] = ranks[j], since[j]

    def first(self) -> int:
        if self.options.plan == "priority":
            return min(self.queue, key=lambda j: (self.urgency(j), j))
        return min(self.queue) if self.options.plan == "fcfs" else self.queue[0]

    def admit(self, j: int) -> bool:
        asked, free = self.jobs[j][1], CORES - sum(self.has)
        need = asked if self.options.assign == "strict" else 1
        room = CORES - len(self.running) if self.options.assign == "max_prop" else free
        if room < need and not self.make_room(j, need - room):
            return False
        free = CORES - sum(self.has)
        self.queue.remove(j)
        self.running.append(j)
        self.fresh.add(j)
        self.rank[j] = self.urgency(j)
        self.turn[j] = self.now
        self.turns.append(j)
        self.has[j] = {"strict": asked, "always_attend": min(asked, free), "max_prop": 0}[self.options.assign]
        return True

    def make_room(self, j: int, need: int) -> bool:
        """Pause the less urgent until it suffices; nobody if it never does."""
        if not self.options.preemptive or self.options.plan != "priority":
            return False
        less = [v for v in self.running if self.rank[v] > self.urgency(j) and v not in self.fresh]
        asked, ran = (lambda v: self.jobs[v][1]), (lambda v: -round(self.ran[v], 6))
        keys = (asked, ran) if self.options.victim == "smallest" else (ran, asked)
        less.sort(key=lambda v: (keys[0](v), keys[1](v), v))
        chosen = []
        while less and need > 0:
            chosen.append(less.pop(0))
            need -= 1 if self.options.assign == "max_prop" else self.has[chosen[-1]]
        if need > 0:
            return False
        for v in chosen:
            self.pause(v)
        return True

    def pause(self, j: int) -> None:
        self.away.add(j)
        self.running.remove(j)
        self.queue.append(j)
        self.has[j] = 0
        self.since[j] = self.now

    def share(self) -> None:
        asked = [self.jobs[j][1] for j in self.running]
        if self.options.assign == "max_prop" and self.running:
            shares = proportional(asked, [1] * len(asked), [CORES] * len(asked), CORES)
            for j, share in zip(self.running, shares, strict=True):
                self.has[j] = share
        elif self.options.assign == "always_attend":
            for j in sorted(self.running):  # by arrival
                self.has[j] += min(self.jobs[j][1] - self.has[j], CORES - sum(self.has))


def ours(jobs: list[Job], options: HostOptions) -> list[list[tuple[float, int]]]:
    arrivals = tuple(
        (at_s, Arrived(str(i), "p", (work,), facts={"cores": asked, "priority": priority}))
        for i, (at_s, asked, work, priority) in enumerate(jobs)
    )
    programs = Programs(CORES)
    run(Workload(CORES, arrivals, {"p": program_graph("p", CORES)}), options, [programs])
    told = []
    for i in range(len(jobs)):
        stretches = programs.stretches[str(i)]
        changes = [(s.from_s, len(s.cores)) for s in stretches] + [(stretches[-1].to_s, 0)]
        told.append([c for c, before in zip(changes, [(0.0, 0), *changes], strict=False) if c[1] != before[1]])
    return told


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 40), preemptive=st.booleans(), victim=st.sampled_from(["longest", "smallest"]))
@example(seed=225, preemptive=True, victim="longest")  # one is paused and taken back at the same instant
@example(seed=1176, preemptive=True, victim="longest")  # two ran equally long, in other pieces
@pytest.mark.parametrize("plan", ["fcfs", "priority", "rr"])
@pytest.mark.parametrize("assign", ["strict", "always_attend", "max_prop"])
def test_every_schedule_is_that_of_the_rules(plan: str, assign: str, seed: int, preemptive: bool, victim: str) -> None:
    rng = Random(seed)
    now, jobs = 0.0, []
    for _ in range(rng.randint(1, 14)):
        now += rng.choice((0.0, rng.uniform(0, 20)))
        jobs.append((now, rng.randint(1, CORES), rng.uniform(1, 300), rng.randrange(5)))
    options = HostOptions(
        plan=plan,
        assign=assign,
        preemptive=preemptive,
        victim=victim,  # type: ignore[arg-type]
        quantum_s=rng.uniform(3, 20),
        age_step_s=rng.choice((None, rng.uniform(3, 20))) if plan == "priority" else None,
    )
    for i, (found, expected) in enumerate(zip(ours(jobs, options), Reference(jobs, options).run(), strict=True)):
        assert [cores for _, cores in found] == [cores for _, cores in expected], (i, found, expected)
        assert [t for t, _ in found] == pytest.approx([t for t, _ in expected])


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 24),
    asked=st.integers(1, CORES),
    work=st.floats(1, 400),
    gap_s=st.sampled_from([0.0, 0.5, 7.0]),
)
@example(count=20, asked=1, work=100.0, gap_s=0.0)
@pytest.mark.parametrize("assign", ["strict", "always_attend", "max_prop"])
def test_turns_are_fair(assign: str, count: int, asked: int, work: float, gap_s: float) -> None:
    """Of equal programs that came together, or nearly, none has run for more than a quantum longer than another."""
    options = HostOptions(plan="rr", assign=assign, quantum_s=10.0)
    jobs = [(i * gap_s / count, asked, work, 0) for i in range(count)]
    found = ours(jobs, options)
    for now in sorted({t for changes in found for t, _ in changes}):
        there = [changes for changes in found if changes[-1][0] > now]
        ran = [_ran_s(changes, now) for changes in there]
        assert max(ran, default=0) - min(ran, default=0) <= options.quantum_s + gap_s + 1e-6, (now, ran)


def _ran_s(changes: list[tuple[float, int]], now: float) -> float:
    ends = [min(t, now) for t, _ in changes[1:]]
    return sum(max(end - t, 0) for (t, cores), end in zip(changes, ends, strict=False) if cores)
