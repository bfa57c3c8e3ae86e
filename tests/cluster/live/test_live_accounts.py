"""What jobs are charged with: the time of their leases, and none in which no service ran."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from rich.console import Console

from dovetail.cli.cluster.control import screen
from dovetail.cluster.explain import explain
from dovetail.cluster.header import facts_of, header
from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.live.agent_runs import Margins, NodeRun
from dovetail.cluster.live.cluster_memory import NODE, STORE
from dovetail.cluster.live.jobs import JobStatus, JobTable, SubmittedJob
from dovetail.cluster.live.lease_book import RAN_OUT, LeaseBook
from dovetail.cluster.live.nodes import ClusterNode, KnownNode, emulated_node
from dovetail.cluster.live.processes import RankExit
from dovetail.cluster.live.service import ClusterService
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.live.specs import job_spec
from dovetail.cluster.live.wire import AgentBeat, LeaseState, NodeLease, TrainingCommand
from dovetail.cluster.metrics import metrics_for, summary
from dovetail.cluster.policies import make
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.leases import HeldLease
from dovetail.cluster.rounds import Rounds
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Reader, Writer
from dovetail.core.loop.replay import replay_journal
from dovetail.core.service.log_lines import LogLines
from dovetail.core.service.store import Store
from dovetail.journals import check_journal
from tests.cluster.conftest import FixedPrices, Make, Table
from tests.cluster.live.agents import due, started, stopped
from tests.cluster.live.carrier_double import CarrierDouble
from tests.waiting import until

POLICY = "max_min_fairness_perf"
RULES = RoundRules(round_s=100.0, restart_s=10.0, decide_at=0.5)


class WrittenRun:
    """Three jobs for two accelerators, and a journal of what becomes of them."""

    def __init__(self, path: Path) -> None:
        none = np.zeros((0, 1))
        setup = ClusterSetup(
            counts=np.zeros(1, dtype=np.int64),
            per_server=np.array([2]),
            throughputs=Throughputs(("fast",), [], none, none),
            prices=FixedPrices([1.0]),
            jobs=(),
        )
        self.rounds = Rounds(setup, make(POLICY), RULES, reported=True)
        self.path, self.n = path, 0
        self.writer = Writer(path, header(setup, make(POLICY), POLICY, {}, RULES, "changes", "live"))
        self.step(0.0, records.joined([0, 1], [0, 0], [0, 0]), records.kinds(["cnn"], [1], [[2.0]]))
        ids, at_s = [1, 2, 3], [0.0] * 3
        self.step(0.0, Rows("arrived", {"id": ids, "kind": [0] * 3, "steps": [9e9] * 3, "at_s": at_s}))

    def step(self, now: float, *rows: Rows) -> list[Rows]:
        """What the loop does at an instant."""
        happened = [*self.rounds.lapsed(now), *rows, *self.rounds.due(now)]
        return self.write(now, self.rounds.handle(happened, now))

    def write(self, now: float, found: list[Rows]) -> list[Rows]:
        if found:
            self.n += 1
            self.writer.step(self.n, now, found)
        return found

    def until(self, until_s: float) -> None:
        while self.rounds.next_s <= until_s:
            self.step(self.rounds.next_s)

    def close(self) -> None:
        """The journal is valid, and is decided again alike."""
        self.writer.close()
        report = check_journal(self.path)
        assert [str(fault) for fault in report.faults] == []
        assert replay_journal(self.path).difference is None

    def served_s(self) -> dict[int, float]:
        found = dict.fromkeys((1, 2, 3), 0.0)
        for _, _, rows in Reader(self.path).rows():
            for each in rows:
                if isinstance(each, Rows) and each.of == "stopped":
                    keys = (each.columns[name] for name in ("id", "from_s", "to_s"))
                    for job, from_s, to_s in zip(*keys, strict=True):
                        found[job] += to_s - from_s
        return found


def test_a_lease_ends_in_the_accounts_when_it_ended_and_not_when_the_service_is_back(tmp_path: Path) -> None:
    """The service is killed at half time, after the next round was planned, and comes back twenty rounds later."""
    run = WrittenRun(tmp_path / "run.jsonl")
    run.until(150.0)
    held, ends_s = set(run.rounds.leases()), run.rounds.ends_s
    leaving = held & set(run.rounds._leaving)
    assert (len(held), len(leaving), ends_s) == (2, 1, 300.0)
    found = run.step(2150.0)
    assert [rows.of for rows in found[:1]] == ["lapsed"]
    told = dict(zip(found[0].columns["id"], found[0].columns["at_s"], strict=True))
    assert told == {job: 200.0 if job in leaving else 300.0 for job in held}
    run.step(2160.0, *run.rounds.lapsed(2160.0, leaves=True))
    run.close()
    assert sum(run.served_s().values()) == 200.0 + 100.0 + 200.0 + 2 * 10.0
    metrics = metrics_for(facts_of(Reader(run.path).header))
    for n, t, rows in Reader(run.path).rows():
        metrics.step(n, t, rows)
    assert summary(metrics)["utilization"] == pytest.approx(520.0 / (2 * 2160.0))
    story = explain(Reader(run.path), str(min(leaving)))
    assert [lease.end for lease in story.leases if lease.to_s == 200.0] == ["there was no service to renew it"]
    assert (200.0, 2150.0) in [(wait.from_s, wait.to_s) for wait in story.waits]


@pytest.mark.parametrize("leaves", [True, False])
def test_nobody_is_owed_less_because_it_ran_when_the_service_stopped(tmp_path: Path, leaves: bool) -> None:
    """What jobs are owed after a gap is the same however long it was, and everything goes on at once."""
    found = []
    for gap_s in (30.0, 9000.0):
        run = WrittenRun(tmp_path / f"{gap_s}.jsonl")
        run.until(430.0)
        end_s = run.rounds.ends_s
        if leaves:
            end_s = 430.0
            run.write(end_s, run.rounds.handle(run.rounds.lapsed(end_s, leaves=True), end_s))
            assert (run.rounds.leases(), run.rounds.next_s) == ({}, end_s)
        told = [rows.of for rows in run.step(end_s + gap_s)]
        assert ("lapsed" in told, "due" in told) == (not leaves, True)
        found.append((run.rounds.jobs.owed[:, 0].tolist(), list(run.rounds.leases())))
        run.close()
    assert found[0] == found[1]
    assert len(found[0][1]) == 2


def test_a_job_that_lost_its_node_goes_on_at_once_where_there_is_room(tmp_path: Path) -> None:
    """And not with the next round; both of its accelerators are lost in one step, so neither is a place to go to."""
    run = WrittenRun(tmp_path / "run.jsonl")
    run.step(10.0, records.joined([2, 3], [0, 0], [1, 1]))
    run.step(20.0, records.cancelled([3]))
    held = run.rounds.leases()
    assert {lease.devices for lease in held.values()} == {(0,), (1,)}
    found = run.step(30.0, records.failed([0, 1]))
    assert [rows.of for rows in found] == ["failed", "stopped", "failed", "stopped", "started", "started"]
    assert {lease.devices for lease in run.rounds.leases().values()} == {(2,), (3,)}
    run.step(40.0, records.failed([2]))
    assert {lease.devices for lease in run.rounds.leases().values()} == {(3,)}
    run.close()


def test_simulated_jobs_go_on_at_once_too(make_setup: Make) -> None:
    rounds = Rounds(make_setup([], counts=(2, 0)), Table({0: [1.0, 0.0]}), RoundRules(round_s=100.0, restart_s=10.0))
    rounds.handle([Rows("arrived", {"id": [0], "kind": [0], "steps": [500.0], "at_s": [0.0]})], 0.0)
    found = rounds.handle([records.failed([0])], 30.0)
    assert [rows.of for rows in found] == ["failed", "stopped", "started"]
    assert rounds.leases()[0].devices == (1,)


def table(*rows: Rows) -> JobStatus:
    """What is told of job 1, of 100 steps, after these things happened to its first lease."""
    jobs = JobTable(["fast"])
    spec = job_spec({"command": ["train"], "steps": 100.0, "model": "m"})
    jobs.add(SubmittedJob(id=1, spec=spec, digest="", created=0.0), "")
    jobs.step(0.0, [Rows("arrived", {"id": [1], "kind": [0], "steps": [100.0], "at_s": [0.0]})])
    jobs.step(0.0, [Rows("started", {"id": [1], "on": [0], "devices": [[0]], "why": [0], "epoch": [1]}, True)])
    jobs.step(5.0, rows)
    return jobs.told(1, 5.0)


STOPPED = Rows("stopped", {"id": [1], "on": [0], "beside": [-1], "from_s": [0.0], "to_s": [5.0], "steps": [20.0]}, True)
WORKED = records.progress([1], [1], [45.0], [20.0])


@pytest.mark.parametrize(
    ("rows", "done"),
    [
        ([WORKED], 45.0),
        ([WORKED, STOPPED], 45.0),
        ([WORKED, records.exited([1], [1], ["exit code 1"]), STOPPED], 20.0),
        ([WORKED, records.exited([1], [0], ["an earlier process"])], 45.0),
        ([WORKED, Rows("failed", {"device": [0], "jobs": [[1]]}), STOPPED], 20.0),
        ([WORKED, STOPPED, records.given_up([1], ["it failed"])], 20.0),
    ],
)
def test_what_was_not_saved_is_not_told_as_done_when_it_is_lost(rows: list[Rows], done: float) -> None:
    found = table(*rows)
    assert (found.done, found.saved, found.fruitless) == (done, 20.0, 0)


def test_a_store_that_is_gone_is_no_reason_to_take_over_its_checkpoints(tmp_path: Path) -> None:
    """Job 1 of the next store would begin with what job 1 of the lost one had saved."""
    (tmp_path / "jobs" / "1").mkdir(parents=True)
    with pytest.raises(InputError, match=r"cluster\.db is gone, but jobs/ holds the checkpoints"):
        serving(tmp_path)
    assert not (tmp_path / "cluster.db").exists()


def serving(folder: Path, nodes: Sequence[ClusterNode] = (emulated_node({"fast": 1}),)) -> ClusterService:
    return ClusterService(
        folder,
        CarrierDouble,
        nodes=nodes,
        rules=RoundRules(round_s=0.4, restart_s=0.01),
        log=LogLines(io.StringIO()),
    )


def test_an_orderly_stop_is_the_end_of_every_lease(tmp_path: Path) -> None:
    """Nothing is served between the stop and the next start, whenever that is; the journal is one and valid."""
    service = serving(tmp_path).start()
    job = service.submit({"command": ["train"], "steps": 1e9, "model": "m"})
    until(lambda: service.status(job).state == "running")
    service.close(leave=True)
    stopped = service._loop.jobs.find(job)
    assert (stopped.state, service._loop.rounds.leases()) == ("waiting", {})
    with serving(tmp_path) as service:
        until(lambda: service.status(job).state == "running")
        lease = service._loop.jobs.leases[job]
        assert service._loop.jobs.find(job).served_s == stopped.served_s
        assert lease.since_s >= service._loop.began_s  # the second lease, in this service
        service.cancel(job)
        assert service.wait(job).state == "cancelled"
        journal = service.journal()
    assert journal.name == "000001.jsonl"
    assert check_journal(journal).faults == []
    assert replay_journal(journal).difference is None


def test_of_a_node_with_a_new_type_the_other_accelerators_are_used(tmp_path: Path) -> None:
    """And all of them by the next service, which knows the type; until then it is told which are not used."""
    mixed = ClusterNode("mixed", emulated_node({"fast": 1, "h100": 2}).devices, ray_id="r1")
    whole = ClusterNode("new", emulated_node({"h100": 1}).devices, ray_id="r2")
    with serving(tmp_path) as service:
        before = service._there
        service.nodes_are([*before, mixed, whole])
        found = {node.name: node for node in service.nodes()}
        assert (found["mixed"].types, found["mixed"].unused) == ({"fast": 1}, {"h100": 2})
        assert (found["new"].types, found["new"].unused) == ({}, {"h100": 1})
        jobs = [service.submit({"command": ["train"], "steps": 1e9, "model": "m"}) for _ in range(2)]
        until(lambda: all(service.status(job).state == "running" for job in jobs))
        assert "2 h100 not used: restart" in _shown(service)
        service.nodes_are([*before, mixed])
        assert {node.name for node in service.nodes()} == {"local", "mixed"}
    with serving(tmp_path, nodes=[*before, mixed]) as service:
        found = {node.name: node for node in service.nodes()}
        assert (found["mixed-2"].types, found["mixed-2"].unused) == ({"fast": 1, "h100": 2}, {})
        assert (found["mixed"].here, found["mixed-2"].here) == (False, True)
        more = [service.submit({"command": ["train"], "steps": 1e9, "model": "m"}) for _ in range(2)]
        until(lambda: all(service.status(job).state == "running" for job in (*jobs, *more)))
        assert {service.status(job).on for job in (*jobs, *more)} == {"fast", "h100"}
    with Store(service.folder / STORE) as store:  # what the next one begins with
        assert {name: node.here for name, node, _ in store.things(NODE, KnownNode, dict) if "mixed" in name} == {
            "mixed": False,
            "mixed-2": True,
        }


def _shown(service: ClusterService) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(screen("http://x", msgspec.to_builtins(service.top())))
    return str(console.file.getvalue())  # type: ignore[attr-defined]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_logs_are_told_in_words() -> None:
    to = Terminal()
    LogLines(to).write("node here", node="local", accelerators={"v100": 2, "k80": 1}, why="")
    assert to.getvalue().partition(" ")[2] == "node here: node local; accelerators 2 v100, 1 k80\n"


def book_of(types: tuple[str, ...], **nodes: str) -> tuple[LeaseBook, list[Rows]]:
    """With nodes of one accelerator each, and jobs that are bound to types or not."""
    told: list[Rows] = []
    command = TrainingCommand(("train",), "nowhere", types=types)
    book = LeaseBook(ClusterSettings(), 10.0, lambda job: command, told.append, lambda *_: None)
    for k, (name, type) in enumerate(nodes.items()):
        book.add_node(emulated_node({type: 1}, name), range(k, k + 1), 0.0)
    return book, told


@pytest.mark.parametrize(
    ("types", "tried", "expected"),
    [((), (0, 0, 1), [None, None, [True]]), (("fast",), (0,), [[True]]), (("slow", "fast"), (0, 1), [None, [True]])],
)
def test_a_command_is_final_when_no_node_that_it_may_run_on_has_it(
    types: tuple[str, ...], tried: tuple[int, ...], expected: list[Any]
) -> None:
    book, told = book_of(types, left="fast", right="slow")
    why = "cannot run train.py: No such file or directory"
    for epoch, device in enumerate(tried, 1):
        book.carry([started(7, epoch, (device,)), due("round")], 0.0, 10.0)
        book.prepared(7, epoch, 0, "", 0.0)
        name = ("left", "right")[device]
        book.heard(AgentBeat(name, epoch, epoch, (LeaseState(7, epoch, "gone", why=why, absent=True),), ()), 1.0)
        book.carry([stopped(7)], 2.0, 10.0)
    exited = [rows.columns for rows in told if rows.of == "exited"]
    assert [columns.get("final") for columns in exited] == expected


def test_a_job_whose_end_is_final_is_given_up_at_once(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run.jsonl")
    job = min(run.rounds.leases())
    found = run.step(10.0, records.exited([job], [1], ["cannot run train.py"], [True]))
    (ended,) = (rows.columns for rows in found if rows.of == "given_up")
    assert ended == {"id": [job], "why": ["its command cannot be started on any node"]}
    run.close()


@pytest.mark.parametrize("lapsed", [True, False])
def test_a_lease_that_ended_while_no_service_was_there_is_no_failure(lapsed: bool) -> None:
    """Its agent says so before the service has decided anything: that comes first."""
    book, told = book_of((), left="fast")
    book.restore({7: HeldLease(0, (0,), -1, 1, 0, 0.0)}, 100.0, 20.0, 10.0)
    gone = LeaseState(7, 1, "gone", 40, 40)
    book.heard(AgentBeat("left", 1, -1, (gone,), ()), 100.1)
    book.tick(100.2, slept=False)
    assert [rows.of for rows in told if rows.of == "exited"] == []
    book.carry([stopped(7)] if lapsed else [due("plan")], 100.3, 120.0)
    assert [rows.columns["why"] for rows in told if rows.of == "exited"] == ([] if lapsed else [[RAN_OUT]])


def test_a_process_that_nobody_let_begin_is_no_failure() -> None:
    """It waited ahead of its turn, and was ended because no service came: the lease may be tried anew."""
    command = TrainingCommand(("train",), "nowhere")
    run = NodeRun(NodeLease(7, 2, (0,), (0,), (-1,), "fast", 1, command, "127.0.0.1"), 2, started=True)
    run.wait_until = 10.0
    run.ended(0, RankExit(signal=9), 10.5)
    assert (run.dropped, run.why) == (True, "")
    sooner = NodeRun(run.lease, 2, started=True)
    sooner.wait_until = 10.0
    sooner.ended(0, RankExit(signal=9), 9.0)
    assert (sooner.dropped, sooner.why) == (False, "its process was ended by SIGKILL")


def test_a_process_that_leaves_before_its_turn_is_told_of() -> None:
    command = TrainingCommand(("train",), "nowhere")
    run = NodeRun(NodeLease(7, 2, (0,), (0,), (-1,), "fast", 1, command, "127.0.0.1"), 2, started=True)
    run.wait_until = 20.0
    run.ended(0, RankExit(code=0), 10.0)
    assert run.verdict(Margins(), 10.0, kept=False) == "it left before its turn"


HINT = "3 leases without a step: its start takes longer than its turn (a longer round helps)"
FAILED = "its process ended with exit code 3"
DOWN = "its accelerators went down"


@pytest.mark.parametrize(
    ("counts", "ends", "why"),
    [
        (True, [], HINT),
        (False, [], "its turn is over"),
        (True, [records.exited([1], [3], [FAILED])], FAILED),
        (True, [Rows("failed", {"device": [0], "jobs": [[1]]})], DOWN),
    ],
    ids=["starts for too long", "counts no steps", "fails", "loses its node"],
)
def test_starts_that_take_too_long_are_told_of_where_that_is_so(counts: bool, ends: list[Rows], why: str) -> None:
    """Of jobs that count steps, and of leases that time has ended."""
    jobs = JobTable(["fast"])
    jobs.add(SubmittedJob(id=1, spec=job_spec({"command": ["train"], "steps": 9.0}), digest="", created=0.0), "")
    jobs.step(0.0, [Rows("arrived", {"id": [1], "kind": [0], "steps": [9.0], "at_s": [0.0]})])
    if counts:
        jobs.greeted(1)
    for epoch in (1, 2, 3):
        jobs.step(0.0, [Rows("started", {"id": [1], "on": [0], "devices": [[0]], "why": [0], "epoch": [epoch]}, True)])
        jobs.step(5.0, [*(ends if epoch == 3 else []), STOPPED])
    assert jobs.told(1, 5.0).why == why


def test_a_job_whose_process_failed_rests_until_the_next_round(tmp_path: Path) -> None:
    run = WrittenRun(tmp_path / "run.jsonl")
    held = sorted(run.rounds.leases())
    run.step(10.0, *(records.exited([job], [1], ["exit code 3"]) for job in held))
    run.close()
    told = explain(Reader(run.path), str(held[0])).course()[-1]
    assert told[-1] == "1 of 2 fast free, but after its failure it rests until the next round"
