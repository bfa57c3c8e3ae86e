"""The supervisor: events in, actions out; no clock, no process."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.live.replan import replanner
from dovetail.pipeline.live.supervisor import (
    Action,
    Assign,
    Broke,
    Delivered,
    Erred,
    Event,
    Feed,
    FinishRun,
    Halt,
    Joined,
    Kill,
    LaunchHosts,
    Lived,
    Lost,
    Patience,
    Prepared,
    Stirred,
    Supervisor,
)
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan

HOSTS = ["a", "b", "c"]
PATIENCE = Patience(window=4, warm_up=1, heartbeat_limit_s=5.0, start_limit_s=100.0)


def _plan(hosts: Sequence[str] = HOSTS, constraints: Constraints | None = None, layers: int = 6) -> Plan:
    device = DeviceClass(name="t", type="t", hosts=list(hosts), bw_mbps=1e6, mem_mib=100.0, time_s=[1.0] * layers)
    problem = Pipeline(
        model="m",
        layers=layers,
        mem_mib=[1.0] * layers,
        cut_bytes=[8] * (layers + 1),
        classes=[device],
        batch_size=1,
        dtype="torch.float32",
    )
    found = plan(problem, "throughput", constraints)
    assert isinstance(found, Plan)
    return found


class Table:
    """A supervisor, and a world that does at once what it asks for."""

    def __init__(self, made: Plan, total: int = 100, patience: Patience = PATIENCE) -> None:
        self.supervisor = Supervisor(made, total, replanner(made), patience)
        self.now = 0.0
        self.actions: list[Action] = []
        self._do(self.supervisor.handle([], self.now))

    def tell(self, *events: Event, now: float | None = None) -> list[Action]:
        self.now = self.now if now is None else now
        mark = len(self.actions)
        self._do(self.supervisor.handle(events, self.now))
        return self.actions[mark:]

    def _do(self, actions: Sequence[Action]) -> None:
        self.actions += actions
        for action in actions:
            if isinstance(action, LaunchHosts):
                self._do(self.supervisor.handle([Joined(host) for host in action.hosts], self.now))
            elif isinstance(action, Assign):
                ready = [Prepared(host, action.generation) for host in action.plan.hosts]
                self._do(self.supervisor.handle(ready, self.now))

    def beat(self, **seconds: float) -> list[Action]:
        """A second passes, and every host says that it lives; some, how long a microbatch took."""
        self.now += 1.0
        generation = self.supervisor.generation
        beats = [
            Lived(host, generation, (seconds[host],) if host in seconds else ()) for host in self.supervisor.plan.hosts
        ]
        return self.tell(*beats)


def test_a_run_from_start_to_end() -> None:
    made = _plan()
    supervisor = Supervisor(made, 2, replanner(made), PATIENCE)
    assert supervisor.handle([], 0.0) == [LaunchHosts(("a", "b", "c"))]
    assert supervisor.handle([Joined("b"), Joined("a")], 1.0) == []
    assert supervisor.handle([Joined("c")], 2.0) == [Assign(1, made)]
    assert supervisor.handle([Prepared("c", 1), Prepared("a", 1)], 3.0) == []
    assert supervisor.handle([Prepared("b", 1)], 3.0) == [Feed(1)]
    assert supervisor.handle([Delivered(1)], 4.0) == []
    assert supervisor.handle([Delivered(2)], 4.0) == [FinishRun()]
    assert supervisor.handle([Lost("a", "it was told to stop")], 5.0) == []


def test_a_dead_host_is_planned_around() -> None:
    table = Table(_plan())
    kill, halt, assign, feed = table.tell(Lost("b", "killed"))
    assert kill == Kill("b", "killed")
    assert halt == Halt("b: killed")
    assert isinstance(assign, Assign)
    assert assign.generation == 2
    assert assign.plan.hosts == ["a", "c"]
    assert feed == Feed(2)
    assert table.tell(Lost("b", "again")) == []  # news of the dead change nothing


def test_what_belongs_to_an_older_layout_changes_nothing() -> None:
    table = Table(_plan())
    table.tell(Lost("b", "killed"))
    assert table.tell(Prepared("a", 1), Broke("a", 1, "closed"), Lived("c", 1, (9.0,) * 20)) == []
    table.now += 4
    table.tell(Lived("a", 2), Lived("c", 2))
    table.now += 4
    assert table.tell(Lived("a", 2), Lived("c", 2)) == []


def test_silence_is_death_but_not_while_loading() -> None:
    table = Table(_plan())
    assert table.tell(Lived("a", 1), Lived("c", 1), now=4.9) == []
    actions = table.tell(now=5.1)
    assert actions[:2] == [Kill("b", "no heartbeat for 5 s"), Halt("b: no heartbeat for 5 s")]
    made = _plan()
    loading = Supervisor(made, 5, replanner(made), PATIENCE)
    loading.handle([], 0.0)
    loading.handle([Joined(host) for host in HOSTS], 0.0)
    assert loading.handle([], 20.0) == []
    assert Kill("a", "no heartbeat for 30 s") in loading.handle([], 31.0)


@pytest.mark.parametrize("joined", [True, False])
def test_a_process_that_is_stopped_while_it_loads_is_dead(joined: bool) -> None:
    """Heartbeats may stay away while it loads, but its machine says that it is not stopped; until it does not."""
    made = _plan()
    loading = Supervisor(made, 5, replanner(made), PATIENCE)
    loading.handle([], 0.0)
    loading.handle([Joined(host) for host in HOSTS] if joined else [], 0.0)
    for now in range(1, 60):
        assert loading.handle([Stirred(host) for host in HOSTS], now) == []
    others = [Stirred("a"), Stirred("c")]
    for now in range(60, 65):
        assert loading.handle(others, now) == []
    assert loading.handle(others, 64.1)[:2] == [Kill("b", "it was stopped for 5 s"), Halt("b: it was stopped for 5 s")]


def test_once_it_is_fed_a_process_must_speak_for_itself() -> None:
    table = Table(_plan())
    others = [Lived("a", 1), Lived("c", 1)]
    for now in range(1, 6):
        assert table.tell(*others, Stirred("b"), now=now) == []
    assert table.tell(*others, Stirred("b"), now=5.1)[0] == Kill("b", "no heartbeat for 5 s")


def test_a_process_that_never_joins_is_dead() -> None:
    made = _plan()
    supervisor = Supervisor(made, 5, replanner(made), PATIENCE)
    supervisor.handle([], 0.0)
    supervisor.handle([Joined("a"), Joined("b")], 1.0)
    beats = [Lived("a"), Lived("b")]
    for now in range(2, 100):
        assert supervisor.handle(beats, now) == []
    assert supervisor.handle(beats, 101.0)[:2] == [
        Kill("c", "was not ready after 100 s"),
        Halt("c: was not ready after 100 s"),
    ]


def test_a_spare_host_is_launched_when_it_is_needed() -> None:
    table = Table(_plan(constraints=Constraints(max_stages=2)))
    assert table.actions[0] == LaunchHosts(("a", "b"))
    actions = table.tell(Lost("a", "killed"))
    assert LaunchHosts(("c",)) in actions
    assert actions[-1] == Feed(2)


def test_a_pin_to_a_dead_host_is_dropped() -> None:
    table = Table(_plan(constraints=Constraints(first="b")))
    assert table.supervisor.plan.hosts[0] == "b"
    assert table.tell(Lost("b", "killed"))[-1] == Feed(2)


def test_no_plan_left() -> None:
    table = Table(_plan())
    table.tell(Lost("a", "killed"))
    table.tell(Lost("b", "killed"))
    (kill, finish) = table.tell(Lost("c", "killed"))
    assert kill == Kill("c", "killed")
    assert finish == FinishRun("c: killed; no plan is left: all hosts are dead")


def test_a_plan_without_its_problem_cannot_be_replaced() -> None:
    made = _plan()
    made.problem = None
    finish = Table(made).tell(Lost("a", "killed"))[-1]
    assert isinstance(finish, FinishRun)
    assert "make it again" in finish.why


def test_a_layer_that_cannot_run_ends_the_run() -> None:
    assert Table(_plan()).tell(Erred("b", "out of memory"))[-1] == FinishRun("b (layers 3 to 4): out of memory")


def test_a_broken_connection_alone_is_tried_again_but_not_for_ever() -> None:
    table = Table(_plan())
    for generation in (2, 3, 4):
        assert table.tell(Broke("a", generation - 1, "reset")) == []
        table.beat()
        table.now += 4.5
        actions = table.beat()
        assert actions[0] == Halt("a connection broke: a: reset")
        assert actions[-1] == Feed(generation)
    table.tell(Broke("a", 4, "reset"))
    table.beat()
    table.now += 4.5
    assert table.beat() == [FinishRun("a connection broke: a: reset")]


def test_a_broken_connection_with_a_death_is_one_change() -> None:
    table = Table(_plan())
    table.tell(Broke("a", 1, "reset"))
    table.tell(Lost("b", "killed"))
    for _ in range(20):
        assert table.beat() == []
    assert table.supervisor.generation == 2


def _measure(table: Table, rounds: int, **seconds: float) -> list[Action]:
    return [action for _ in range(rounds) for action in table.beat(**seconds)]


def test_a_slow_host_gets_fewer_layers() -> None:
    table = Table(_plan(layers=9))
    assert _measure(table, 10, a=3.0, b=3.0, c=3.0) == []
    actions = _measure(table, 9, a=3.0, b=6.0, c=3.0)
    assert isinstance(actions[0], Halt)
    assert actions[0].why.startswith("b takes 2.00 times")
    stages = {stage.host: stage for stage in table.supervisor.plan.stages}
    assert stages["b"].layers[1] == stages["b"].layers[0]  # one layer left of three
    again = {host: stage.compute_s for host, stage in stages.items()}
    assert _measure(table, 20, **again) == []  # as slow as it is now known to be


def test_a_wrong_profile_is_no_slowness() -> None:
    """All take five times as long as planned, from the start."""
    assert _measure(Table(_plan()), 40, a=10.0, b=10.0, c=10.0) == []


def test_a_change_that_gains_nothing_is_not_made() -> None:
    table = Table(_plan(["a"]))
    _measure(table, 10, a=6.0)
    assert _measure(table, 40, a=60.0) == []


def test_slowness_can_be_ignored() -> None:
    table = Table(_plan(), patience=Patience(slow_factor=0))
    _measure(table, 20, a=2.0, b=2.0, c=2.0)
    assert _measure(table, 20, a=2.0, b=50.0, c=2.0) == []


def test_a_single_slow_microbatch_is_no_slowness() -> None:
    table = Table(_plan())
    _measure(table, 10, a=2.0, b=2.0, c=2.0)
    for _ in range(10):
        assert table.beat(a=2.0, b=50.0, c=2.0) == []
        assert _measure(table, 3, a=2.0, b=2.0, c=2.0) == []


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_happens_it_ends_or_feeds_a_plan_of_living_hosts(data: st.DataObject) -> None:
    hosts = ["a", "b", "c", "d"]
    table = Table(_plan(hosts), total=10)
    dead: set[str] = set()
    for _ in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(["lost", "broke", "beat", "slow", "delivered"]))
        host = data.draw(st.sampled_from(hosts))
        generation = data.draw(st.integers(1, table.supervisor.generation))
        if kind == "lost":
            dead.add(host)
            table.tell(Lost(host, "killed"))
        elif kind == "broke":
            table.tell(Broke(host, generation, "reset"))
        elif kind == "delivered":
            table.tell(Delivered(data.draw(st.integers(0, 9))))
        else:
            table.beat(**({host: 30.0} if kind == "slow" else {}))
        last = [action for action in table.actions if isinstance(action, Assign | Feed | FinishRun)][-1]
        if isinstance(last, FinishRun):
            assert table.tell(Lost(host, "killed")) == []
            return
        assert isinstance(last, Feed)
        assert last.generation == table.supervisor.generation
        assert not dead & set(table.supervisor.plan.hosts)
    generations = [action.generation for action in table.actions if isinstance(action, Feed)]
    assert generations == list(range(1, len(generations) + 1))
