"""Which leases may begin, whatever is decided and agents say, in any order: never two of a job, and never two on an
accelerator that are not meant to share it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import hypothesis.strategies as st
from hypothesis import example, given
from msgspec.structs import replace

from dovetail.cluster.live.agent_runs import Margins, NodeRun
from dovetail.cluster.live.lease_book import RAN_OUT, LeaseBook
from dovetail.cluster.live.nodes import ClusterNode, NodeAccelerator
from dovetail.cluster.live.processes import RankExit
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.live.wire import AgentBeat, LeaseState, NodeLease, NodeLeases, TrainingCommand
from dovetail.core.events import Rows
from tests.cluster.live.agents import due, planned, started, stopped

MARGINS = Margins(1.0, 1.0)
ROUND_S = 10.0


@dataclass
class Node:
    """An agent without processes: runs that begin, stop with their leases, and are gone when a test says so."""

    name: str
    runs: dict[tuple[int, int], NodeRun] = field(default_factory=dict)
    number: int = 0
    seen: int = -1
    sent: dict[int, float] = field(default_factory=dict)

    def beat(self, now: float) -> AgentBeat:
        self.number += 1
        self.sent[self.number] = now
        states = tuple(run.state(now) for run in self.runs.values())
        return AgentBeat(self.name, self.number, self.seen, states, (4000,))

    def hear(self, answer: NodeLeases, now: float) -> None:
        self.seen = answer.beat
        for key in answer.over:
            self.runs.pop(key, None)
        wanted = set()
        for lease in answer.leases:
            key = (lease.job, lease.epoch)
            wanted.add(key)
            if key in self.runs and self.runs[key].gone and self.runs[key].is_elsewhere(lease):
                del self.runs[key]
            if key not in self.runs and not lease.end:
                self.runs[key] = NodeRun(lease, lease.epoch, started=True)
            if key in self.runs:
                self.runs[key].told(lease, self.sent[answer.beat], now, ROUND_S)
                self.free(self.runs[key])
        for key, run in self.runs.items():
            if key not in wanted and not run.gone:
                run.unwanted(now)

    def free(self, run: NodeRun) -> None:
        before = [self.runs[key] for key in run.lease.after if key in self.runs]
        waits = run.granted is not None and not run.begun and not run.dropped
        if waits and all(each.gone or not each.begun for each in before):
            run.begin()

    def pass_time(self, now: float) -> None:
        """What a shim does: who is to be killed by now is gone."""
        for run in list(self.runs.values()):
            if now >= run.limits(MARGINS).kill and not run.gone:
                self.end(run, now)

    def end(self, run: NodeRun, now: float) -> None:
        for rank in run.ranks:
            run.ended(rank, RankExit(code=0), now)
        run.gone = True
        if run.dropped:
            del self.runs[run.key]
        for each in self.runs.values():
            self.free(each)

    def working(self, now: float) -> list[NodeRun]:
        return [run for run in self.runs.values() if run.begun and not run.gone]


class World:
    """Two nodes of two accelerators each, and a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rows: list[Rows] = []
        self.asked: list[tuple[int, int]] = []
        settings = ClusterSettings(grace=MARGINS.grace_s / ROUND_S, kill_after=MARGINS.kill_after_s / ROUND_S)
        self.book = LeaseBook(
            settings,
            ROUND_S,
            lambda job: TrainingCommand(("train",), "/x"),
            self.rows.append,
            lambda job, epoch, copy: self.asked.append((job, epoch)),
        )
        self.nodes = [Node("a"), Node("b")]
        for i, node in enumerate(self.nodes):
            accelerators = (NodeAccelerator("v100"),) * 2
            self.book.add_node(ClusterNode(node.name, accelerators), range(2 * i, 2 * i + 2), 0.0)
        self.holders: dict[int, int] = {}  # the job that has an accelerator, as decided
        self.epochs: dict[int, int] = {}

    def decide(self, *rows: Rows) -> None:
        self.book.carry(rows, self.now, self.now + ROUND_S)

    def place(self, job: int, device: int | None) -> None:
        """A job is to be on this accelerator, or on none; whoever was there leaves."""
        rows = []
        for at, holder in list(self.holders.items()):
            if at == device or holder == job:
                rows.append(stopped(holder))
                del self.holders[at]
        if device is not None:
            self.epochs[job] = self.epochs.get(job, 0) + 1
            self.holders[device] = job
            rows.append(started(job, self.epochs[job], (device,)))
        self.decide(*rows)

    def ready(self, job: int, device: int) -> None:
        """A job that waits is to be kept ready for this accelerator, and no other job."""
        jobs = [] if job in self.holders.values() else [job]
        epochs = [self.epochs.get(each, 0) + 1 for each in jobs]
        self.decide(Rows("spares", {"id": jobs, "devices": [[device]] * len(jobs), "epoch": epochs}, True))

    def prepare(self) -> None:
        while self.asked:
            self.book.prepared(*self.asked.pop(), 0, "", self.now)

    def talk(self, node: Node) -> None:
        self.book.heard(node.beat(self.now), self.now)
        self.book.nodes[node.name].news = True
        if (answer := self.book.answer(self.book.nodes[node.name], self.now)) is not None:
            node.hear(answer, self.now)

    def move(self, seconds: float) -> None:
        self.now += seconds
        for node in self.nodes:
            node.pass_time(self.now)
        self.book.tick(self.now, slept=False)

    def check(self) -> None:
        working = [(node, run) for node in self.nodes for run in node.working(self.now)]
        jobs = [run.lease.job for _, run in working]
        assert len(set(jobs)) == len(jobs), "a job twice at once"
        places = [(node.name, place) for node, run in working for place in run.lease.places]
        assert len(set(places)) == len(places), "two jobs on an accelerator"


_MOVES = st.one_of(
    st.tuples(st.just("place"), st.integers(1, 4), st.one_of(st.none(), st.integers(0, 3))),
    st.tuples(st.just("ready"), st.integers(1, 4), st.integers(0, 3)),
    st.tuples(st.just("talk"), st.integers(0, 1)),
    st.tuples(st.just("prepare")),
    st.tuples(st.just("end"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("move"), st.sampled_from([0.5, 3.0, 12.0, 40.0])),
)


@given(st.lists(_MOVES, max_size=60))
@example([("ready", 1, 3), ("talk", 1), ("end", 1, 0), ("talk", 1), ("place", 1, 2)])  # gone before its turn, elsewhere
@example(  # told of as gone, and not to be begun
    [("ready", 3, 1), ("talk", 0), ("place", 3, 0), ("prepare",), ("end", 0, 0), ("talk", 0), ("place", 1, 0)]
)
@example([("place", 1, 0), ("talk", 0), ("move", 12.0), ("place", 2, None), ("prepare",), ("talk", 0), ("place", 1, 0)])
def test_no_job_and_no_accelerator_is_ever_used_twice(moves: list[Any]) -> None:
    world = World()
    for what, *words in moves:
        if what == "talk":
            world.talk(world.nodes[words[0]])
        elif what == "end":
            node = world.nodes[words[0]]
            if runs := [run for run in node.runs.values() if not run.gone]:
                node.end(runs[words[1] % len(runs)], world.now)
        else:
            getattr(world, what)(*words)
        world.check()
    for _ in range(6):  # then all is quiet, and whoever ought to run does
        world.move(3.0)
        world.decide()
        world.prepare()
        for node in world.nodes:
            world.talk(node)
        world.check()
    gone = {row.columns["id"][0] for row in world.rows if row.of in ("exited", "completed")}
    working = {run.lease.job for node in world.nodes for run in node.working(world.now)}
    assert set(world.holders.values()) - gone <= working


def test_who_was_stopped_could_not_say_a_word() -> None:
    world = World()
    world.place(1, 0)
    world.prepare()
    (node, _) = world.nodes
    world.talk(node)
    world.talk(node)
    (run,) = node.runs.values()
    run.begin(0.0)
    run.greet(0, 0.0)
    run.heard, run.round_s, later = 0.0, ROUND_S, 10 * ROUND_S
    run.goes_on(later)
    run.end = later + ROUND_S
    assert not run.hangs(later)
    run.end = 2 * later
    assert run.hangs(later + 6 * ROUND_S)


def test_what_is_drained_is_known_after_a_restart() -> None:
    world = World()
    world.book.restore({}, 0.0, ROUND_S, ROUND_S, drained=[0, 1])
    world.place(1, 0)
    world.prepare()
    (node, _) = world.nodes
    for _ in range(2):
        world.talk(node)
    world.place(1, None)
    (lease,) = world.book.leases.values()
    world.book.nodes[node.name].states[lease.key] = LeaseState(1, 1, "paused", granted=True)
    world.book.settle(0.0)
    assert lease.end == "stop"


def a_lease_that_ran_out() -> tuple[World, Node]:
    """The service was stopped, and the process left when its lease was over."""
    world = World()
    world.place(1, 0)
    world.prepare()
    (node, _) = world.nodes
    for _ in range(2):
        world.talk(node)
    (run,) = node.working(world.now)
    world.now += ROUND_S + 0.5
    node.end(run, world.now)
    return world, node


def test_a_lease_that_nobody_renewed_is_told_of_once() -> None:
    world, node = a_lease_that_ran_out()
    world.talk(node)
    world.talk(node)
    exited = [rows.columns for rows in world.rows if rows.of == "exited"]
    assert exited == [{"id": [1], "epoch": [1], "why": [RAN_OUT]}]


def test_a_lease_that_nobody_could_renew_on_a_node_in_trouble_is_not_told_of() -> None:
    world, node = a_lease_that_ran_out()
    world.book.heard(replace(node.beat(world.now), trouble="its folder was removed"), world.now)
    assert not [rows for rows in world.rows if rows.of == "exited"]
    assert [rows.columns["device"] for rows in world.rows if rows.of == "failed"] == [[0, 1]]


def test_a_beat_that_waited_brings_no_time() -> None:
    """Seconds count from when the beat was sent: who reads it late grants less, never more."""
    world = World()
    world.place(1, 0)
    world.prepare()
    (node, _) = world.nodes
    world.talk(node)
    late = node.beat(world.now)
    world.now += 3 * ROUND_S
    world.decide()
    world.book.heard(late, world.now)
    answer = world.book.answer(world.book.nodes["a"], world.now)
    assert answer is not None
    node.hear(answer, world.now)
    (run,) = node.runs.values()
    assert run.end is not None
    assert run.end <= ROUND_S
    assert run.left_s(world.now) == 0.0


def test_who_is_planned_to_stop_keeps_its_end() -> None:
    world = World()
    world.place(1, 0)
    world.now = 5.0
    world.decide(planned(1, 0, ()), due("plan"))
    assert world.book.leases[1, 1].ends == ROUND_S
    world.place(2, 1)
    assert world.book.leases[2, 1].ends == 5.0 + ROUND_S


def test_a_lease_that_begins_in_the_step_that_plans_it_away_ends_with_the_round() -> None:
    world = World()
    away = Rows("planned", {"id": [1], "on": [0], "devices": [[1]], "epoch": [2]}, True)
    world.book.carry([started(1, 1, (0,)), due("plan"), away], 0.0, 2 * ROUND_S)
    assert begins(world, 1)
    assert world.book.leases[1, 1].ends == ROUND_S


def test_a_process_that_knows_of_fewer_saved_steps_than_there_are_has_done_no_fewer() -> None:
    world = World()
    world.decide(started(1, 2, (0,)))
    for epoch, steps, saved in ((1, 30, 25), (2, 10, 10)):  # its agent found it before the other one had saved
        world.book.heard(AgentBeat("a", epoch, -1, (LeaseState(1, epoch, "running", steps, saved),), ()), 0.0)
        world.book.flush()
    told = [rows.columns for rows in world.rows if rows.of == "progress"]
    assert [(each["epoch"], each["steps"], each["saved"]) for each in told] == [([1], [30], [25]), ([2], [25], [25])]


@dataclass
class Held:
    epoch: int
    devices: tuple[int, ...]
    beside: int = -1


def begins(world: World, job: int) -> bool:
    for _ in range(3):
        world.prepare()
        for node in world.nodes:
            world.talk(node)
    return any(run.lease.job == job for node in world.nodes for run in node.working(world.now))


def test_a_lease_on_a_node_that_nobody_names_yet_is_waited_for() -> None:
    world = World()
    world.book.restore({1: Held(3, (9,))}, 0.0, ROUND_S, ROUND_S)
    assert [(rows.of, rows.columns) for rows in world.rows] == [("failed", {"device": [9]})]  # not a failure of the job
    world.decide(stopped(1), started(1, 4, (0,)))
    assert not begins(world, 1)
    world.now += 2 * ROUND_S + 3.0
    world.decide()
    assert begins(world, 1)


def test_without_a_journal_older_leases_are_waited_for_until_all_nodes_are_met() -> None:
    world = World()
    world.book.restore({}, 0.0, ROUND_S, 5 * ROUND_S)  # rounds were longer before
    world.decide(started(1, 4, (0,)))
    world.talk(world.nodes[0])
    world.prepare()
    assert not world.asked
    world.now = 9 * ROUND_S
    world.decide()
    assert not world.asked
    assert begins(world, 1)  # now that the other node has spoken


def test_an_agents_first_word_after_a_start_mends_its_node() -> None:
    world = World()
    world.talk(world.nodes[0])
    world.talk(world.nodes[0])
    assert [(rows.of, rows.columns) for rows in world.rows] == [("mended", {"device": [0, 1]})]


def test_a_node_that_ray_has_lost_goes_on_as_long_as_its_agent_is_heard_of() -> None:
    world = World()
    for node in world.nodes:
        world.talk(node)
    world.rows.clear()
    world.book.lose_node("a")
    for _ in range(10):
        world.move(1.0)
        world.talk(world.nodes[0])
        world.talk(world.nodes[1])
    assert not world.rows
    world.move(3.0)
    assert [(rows.of, rows.columns) for rows in world.rows] == [("failed", {"device": [0, 1]})]  # others may be silent


def test_a_lease_of_a_job_that_is_forgotten_ends_all_the_same() -> None:
    world = World()
    known = {1: TrainingCommand(("train",), "/x", "lm"), 2: TrainingCommand(("train",), "/x")}
    world.book._commands = known.__getitem__
    world.decide(started(1, 1, (0,), 2), started(2, 1, (0,), 1))
    known.clear()
    world.prepare()
    world.book.heard(world.nodes[0].beat(0.0), 0.0)
    answer = world.book.answer(world.book.nodes["a"], 0.0)
    assert answer is not None
    assert [lease.beside for lease in answer.leases] == ["2", "lm"]


def test_a_turn_without_a_word_is_a_failure_of_a_job_that_has_counted_steps() -> None:
    def after(counts: bool, end: float, exit: RankExit) -> str:
        lease = NodeLease(7, 2, (0,), (0,), (-1,), "v100", 1, TrainingCommand(("train",), "/x"), counts=counts)
        run = NodeRun(lease, 2, started=True, round_s=ROUND_S, granted=end)
        run.begin(0.0)
        run.ended(0, exit, end)
        return run.verdict(MARGINS, end, kept=False)

    told = RankExit(signal=15)
    assert after(True, ROUND_S, told) == "it has not asked for its lease"
    assert after(False, ROUND_S, told) == ""
    assert after(True, ROUND_S / 2, told) == ""  # it may not have had the time


def test_who_has_saved_all_steps_may_leave_without_a_word() -> None:
    world = World()
    command = TrainingCommand(("train",), "/x", total_steps=40)
    world.book = LeaseBook(
        ClusterSettings(), ROUND_S, lambda job: command, world.rows.append, lambda job, epoch, copy: None
    )
    node = world.nodes[0]
    world.book.add_node(ClusterNode("a", (NodeAccelerator("v100"),)), range(1), 0.0)
    world.decide(started(1, 2, (0,)))
    for saved, counts in ((0, False), (39, True), (40, False)):
        world.book.prepared(1, 2, saved, "", 0.0)
        world.book.heard(node.beat(0.0), 0.0)
        answer = world.book.answer(world.book.nodes["a"], ROUND_S)
        assert answer is not None
        assert [lease.counts for lease in answer.leases] == [counts]
