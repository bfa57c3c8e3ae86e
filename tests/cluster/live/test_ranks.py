"""Several ranks in lockstep: whatever happens to their agent, none of them stops alone."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.cluster.live.agent_runs import NodeRun
from dovetail.cluster.live.training import lease as training_lease
from dovetail.cluster.live.training.lease import TrainingLease
from dovetail.cluster.live.training.process_line import AgentLostError
from dovetail.cluster.live.wire import Done, Lease, NodeLease, Renew, StopAt, TrainingCommand
from tests.cluster.live.agent_double import AgentDouble
from tests.waiting import until


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DOVETAIL_WORLD_SIZE", "2")
    monkeypatch.delenv("DOVETAIL_RENEW_AT", raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


class Agent:
    """Of two ranks, with rounds of 1 s; from some time on it knows when their lease ends for good. While it is stopped
    nobody is answered."""

    def __init__(self, clock: Clock, ends_s: float, last_s: float, stopped: list[tuple[float, float]]) -> None:
        self.clock, self._ends_s, self._last_s, self._stopped = clock, ends_s, last_s, stopped
        self.lines = [Line(self, rank) for rank in range(2)]
        self.run = NodeRun(self._lease(), 1)
        self._told()
        self.run.begin()

    def _lease(self) -> NodeLease:
        now = self.clock.now
        ends_s = self._ends_s if now >= self._last_s or self._ends_s <= 1 else min(int(now) + 1.0, self._ends_s)
        last = now >= self._last_s
        command = TrainingCommand(("train",), "folder")
        more = {"go": True, "seconds": ends_s - now, "last": last}
        return NodeLease(1, 1, (0, 1), (0, 1), (-1, -1), "a", 2, command, **more)  # type: ignore[arg-type]

    def _told(self) -> None:
        self.run.told(self._lease(), self.clock.now, self.clock.now, 1.0)

    def goes_on(self, within_s: float) -> bool:
        """Whether it answers in time; it takes as long as it is stopped."""
        for begin, end in self._stopped:
            if begin <= self.clock.now < end:
                self.clock.now += min(within_s, end - self.clock.now)
                return self.clock.now >= end
        return True

    def renew(self, rank: int, steps: int, seconds: float, stop: bool) -> Lease:
        self._told()
        self.run.reported(rank, steps, seconds)
        before = self.run.stop_steps
        answer = self.run.renew(rank, self.clock.now, stop)
        assert isinstance(answer, Lease)
        if self.run.stop_steps != before:
            for line in self.lines:
                line.stop = self.run.stop_steps
        return answer


class Line:
    beside = None
    stop: int | None = None

    def __init__(self, agent: Agent, rank: int) -> None:
        self.agent, self.rank = agent, rank

    def hello(self) -> dict[str, Any]:
        return self._dict(self.agent.run.offer(self.agent.clock.now))

    def ask(self, what: str, within_s: float, **asked: Any) -> dict[str, Any] | None:
        if not self.agent.goes_on(within_s):
            return None
        return self._dict(self.agent.renew(self.rank, **asked)) if what == "renew" else {}

    def tell(self, what: str, **_: Any) -> bool:
        return self.agent.goes_on(0.0)

    def listen(self) -> None:
        pass

    def _dict(self, answer: Lease | Done) -> dict[str, Any]:
        found: dict[str, Any] = msgspec.to_builtins(answer)
        return found


def test_who_is_refused_at_the_end_asks_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it is ended, or long after that nobody did."""
    clock = Clock()
    agent, asked = Agent(clock, 1.0, 0.0, []), [0]

    def refuse(what: str, within_s: float, **_: Any) -> dict[str, Any]:
        asked[0] += 1
        clock.now += 0.001
        return {"ok": False, "why": "expected hello first"}

    def sleep(seconds: float) -> None:
        clock.now += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(training_lease, "_ORPHAN_S", 10.0)
    lease = TrainingLease(agent.lines[0], clock)  # type: ignore[arg-type]
    monkeypatch.setattr(agent.lines[0], "ask", refuse)
    clock.now = 2.0
    with pytest.raises(AgentLostError, match="nobody answers"):
        lease.go_on()
    assert 1 < asked[0] < 250


@given(
    ends_s=st.floats(0.3, 3),
    before_s=st.floats(0, 0.5),
    stops=st.lists(st.tuples(st.floats(0, 3), st.floats(0.01, 1)), max_size=3),
    step_s=st.floats(0.003, 0.1),
    apart_s=st.floats(0, 0.1),
    first=st.lists(st.booleans(), min_size=1, max_size=8),
    told_s=st.floats(0, 4),
    who=st.integers(0, 1),
)
def test_ranks_in_lockstep_stop_at_the_same_step(
    ends_s: float,
    before_s: float,
    stops: list[tuple[float, float]],
    step_s: float,
    apart_s: float,
    first: list[bool],
    told_s: float,
    who: int,
) -> None:
    """The agent is stopped now and then, so that leases that it gives end at unlike times by the ranks' clocks; one of
    them begins later, either comes first to the next step; one is told to terminate."""
    clock = Clock()
    stopped = [(begin, begin + for_s) for begin, for_s in stops]
    agent = Agent(clock, ends_s, ends_s - before_s, stopped)
    ranks = []
    for line in agent.lines:
        ranks.append(TrainingLease(line, clock))  # type: ignore[arg-type]
        clock.now += apart_s
    for step in range(3000):
        order = ranks if first[step % len(first)] else ranks[::-1]
        if clock.now > told_s:
            ranks[who]._told_to_stop = True
        goes = []
        for rank in order:
            goes.append(rank.go_on())
            clock.now += step_s / 10
        assert len(set(goes)) == 1, (step, goes)
        if not goes[0]:
            break
        for rank in ranks:
            rank.steps += 1
        clock.now += step_s
    assert all(rank.done for rank in ranks)


def test_who_gets_no_answer_at_the_end_waits_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_lease, "_SHORTEST_ANSWER_S", 0.01)
    clock = Clock()
    with AgentDouble(tmp_path, [Lease(8.0), Lease(0.0, steps=10, last=True)], clock) as agent:
        lease = TrainingLease(agent.line(), clock)
        lease.steps = 8
        agent.silent = True
        before = len(agent.asked)

        def late() -> float:
            agent.silent = len(agent.asked) < before + 3
            return 8.0

        lease._clock = late
        assert lease.go_on()  # it has asked at least three times
        assert lease.stop_steps == 10


def test_who_is_left_alone_for_good_saves_for_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_lease, "_SHORTEST_ANSWER_S", 0.01)
    clock = Clock()
    with AgentDouble(tmp_path, [Lease(8.0)], clock) as agent:
        lease = TrainingLease(agent.line(), clock)
    clock.now = 8.0 + 3601.0
    with pytest.raises(AgentLostError, match="nobody answers where its agent was"):
        lease.go_on()


def test_where_all_stop_is_heard_unasked(tmp_path: Path) -> None:
    clock = Clock()
    with AgentDouble(tmp_path, [Lease(8.0)], clock) as agent:
        lease = TrainingLease(agent.line(1), clock)
        assert lease.go_on()
        agent.say(StopAt(3))

        def hears() -> bool:
            return lease.go_on() and lease.stop_steps == 3

        until(hears)
        lease.steps = 2
        assert lease.go_on()
        lease.steps = 3
        assert not lease.go_on()
    assert agent.of(Renew) == []


def test_a_rank_that_dials_anew_hears_where_all_stop(tmp_path: Path) -> None:
    clock = Clock()
    with AgentDouble(tmp_path, [Lease(8.0), Lease(8.0, steps=1)], clock) as agent:
        lease = TrainingLease(agent.line(1), clock)
        agent.hang_up()
        assert lease.go_on()  # nobody is there, and time is left
        agent.open_again()
        lease.steps = 1
        assert not lease.go_on()
    assert agent.of(Renew) == []
