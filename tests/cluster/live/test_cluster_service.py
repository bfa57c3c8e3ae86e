"""The service of a live cluster: what it takes, keeps and tells, with jobs that only let time pass."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail.cluster.live.client import ClusterClient, connect
from dovetail.cluster.live.http import ClusterServer
from dovetail.cluster.live.nodes import ClusterNode, NodeAccelerator, emulated_node
from dovetail.cluster.live.service import ClusterService
from dovetail.cluster.live.service_loop import ClusterLoop
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.live.wire import LeaseState, NodeTrouble
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Reader
from dovetail.core.service.client import ServiceError
from dovetail.core.service.log_lines import LogLines
from dovetail.core.service.refusals import BusyError, ConflictError, DrainingError
from dovetail.core.service.store import Store, StoreError
from dovetail.journals import check_journal
from tests.cluster.live.carrier_double import CarrierDouble
from tests.waiting import PATIENCE_S, until

LONG = 1e9
NODES = (emulated_node({"fast": 2}, "left"), emulated_node({"slow": 2}, "right"))


def job(steps: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"command": ["train"], "steps": steps, "model": "m"} | more


@contextmanager
def serving(folder: Path, log: io.StringIO | None = None, **more: Any) -> Iterator[ClusterService]:
    given: dict[str, Any] = {"nodes": NODES, "rules": RoundRules(round_s=0.2, restart_s=0.01)}
    with ClusterService(folder, CarrierDouble, log=LogLines(log or io.StringIO()), **(given | more)) as service:
        yield service


def double(service: ClusterService) -> CarrierDouble:
    found = service._loop.executor
    assert isinstance(found, CarrierDouble)
    return found


def rows_of(service: ClusterService, of: str) -> list[dict[str, Any]]:
    steps = Reader(service.journal()).rows()
    return [each.columns for _, _, rows in steps for each in rows if isinstance(each, Rows) and each.of == of]


def places(service: ClusterService, running: int) -> list[str]:
    """Where jobs are at the first moment at which so many run; from one look, for they take turns."""
    seen: list[str] = []

    def look() -> bool:
        seen[:] = sorted(each.on for each in service.jobs())
        return sum(map(bool, seen)) == running

    until(look)
    return seen


def test_jobs_take_turns_and_complete(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        ids = [service.submit(job(200 + 50 * i, name=f"n{i}", width=1 + i % 2)) for i in range(6)]
        found = [service.wait(each) for each in ids]
        assert [each.state for each in found] == ["completed"] * 6
        assert ids == [1, 2, 3, 4, 5, 6]
        assert [each.done for each in found] == [each.steps for each in found]
        assert [each.name for each in service.jobs(limit=2)] == ["n5", "n4"]
        assert [each.id for each in service.jobs(after=3)] == [2, 1]
        assert service.jobs("cancelled") == []
        assert all(each.ended_s is not None and each.arrived_s is not None for each in found)


def test_a_job_is_kept_once_and_refused_by_its_place(tmp_path: Path) -> None:
    with serving(tmp_path, settings=ClusterSettings(max_open=3)) as service:
        first = service.submit(job(LONG), "key")
        assert service.submit(job(LONG), "key") == first
        with pytest.raises(ConflictError, match="key: it is that of job 1"):
            service.submit(job(5), "key")
        with pytest.raises(InputError, match="types: found 'quick'"):
            service.submit(job(types=["quick"]))
        with pytest.raises(InputError, match="steps: found -1"):
            service.submit(job(-1))
        with pytest.raises(InputError, match="there is no job 9"):
            service.status(9)
        until(lambda: len(service._loop.jobs.leases) == 1)
        service.submit(job(LONG)), service.submit(job(LONG))
        until(lambda: len(service._loop.jobs.leases) == 3)
        with pytest.raises(BusyError, match="max_open"):
            service.submit(job())


def test_several_jobs_are_kept_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path, settings=ClusterSettings(max_open=3)) as service:
        with pytest.raises(InputError, match=r"jobs\.1\.types: found 'quick'"):
            service.submit_all([job(), job(types=["quick"]), job()])
        with pytest.raises(BusyError, match="max_open"):
            service.submit_all([job()] * 4)
        put, kept = Store.put, list[str]()

        def full(store: Store, kind: str, name: str, desired: Any) -> None:
            if len(kept) == 2:
                raise StoreError("the disk is full")
            kept.append(name)
            put(store, kind, name, desired)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "put", full)
            with pytest.raises(DrainingError, match="the disk is full"):
                service.submit_all([job()] * 3)
        assert service.jobs() == []
        pausing = job(checkpoint="pause")
        ids = service.submit_all([pausing, pausing, job()])
        assert ids == [1, 2, 3]
        assert [service.wait(each).state for each in ids] == ["completed"] * 3
        assert {service._loop.submitted[each].spec.types for each in ids[:2]} == {("fast",), ("slow",)}
    with serving(tmp_path) as service:
        assert len(service.jobs()) == 3


def test_cancel_ends_a_job_that_runs_and_one_that_waits(tmp_path: Path) -> None:
    with serving(tmp_path, nodes=[emulated_node({"fast": 1})]) as service:
        ids = [service.submit(job(LONG)) for _ in range(2)]
        until(lambda: any(service.status(each).state == "running" for each in ids))
        for each in ids:
            service.cancel(each)
        assert [service.wait(each).state for each in ids] == ["cancelled"] * 2
        assert service.cancel(ids[0]).state == "cancelled"
        after = service.submit(job())
        assert service.wait(after).state == "completed"


def test_a_cancel_that_was_confirmed_outlives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        one = service.submit(job(LONG))
        until(lambda: service.status(one).state == "running")
        service._loop.inbox.put = lambda *rows: None  # type: ignore[method-assign]  # it is killed before it is heard
        service.cancel(one)
    with serving(tmp_path) as service:
        assert service.wait(one).state == "cancelled"


def of_what(learned: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(learned[name] for name in ("what", "model", "width", "type", "beside"))


def test_a_restart_finds_everything_again(tmp_path: Path) -> None:
    log = io.StringIO()
    with serving(tmp_path) as service:
        short = service.submit(job(50))
        service.wait(short)
        long, wide = service.submit(job(LONG)), service.submit(job(LONG, width=2))
        until(lambda: {service.status(each).state for each in (long, wide)} == {"running"})
        service.drain("right")
        journal = service.journal()
        learned = service.about()["learned"]
    with serving(tmp_path, log) as service:
        assert service.journal() == journal
        assert "new journal" not in log.getvalue()
        assert service.status(short).state == "completed"
        assert set(double(service).restored) <= {long, wide}
        assert [node.drained for node in service.nodes()] == [False, True]
        assert set(map(of_what, learned)) <= set(map(of_what, service.about()["learned"]))  # or more, learned since
        assert service.submit(job(50)) == 4


def test_a_job_that_ended_as_the_service_was_killed_does_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as killed, serving(tmp_path) as service:
        killed.setattr(ClusterLoop, "_keep_ends", lambda *_, **__: None)  # the journal has the end, the store has not
        short, long = service.submit(job(5)), service.submit(job(LONG))
        assert service.wait(short).state == "completed"
    with serving(tmp_path) as service:
        service.cancel(long)
        service.wait(long)
    with serving(tmp_path) as service:  # in a new journal: nothing was open in the other one
        assert service.status(short).state == "completed"
        assert not rows_of(service, "arrived")


def test_other_rules_begin_a_new_journal_in_which_jobs_go_on(tmp_path: Path) -> None:
    with serving(tmp_path, policy="fifo") as service:
        done = service.submit(job(50))
        service.wait(done)
        left = service.submit(job(LONG, deadline_s=1000.0))
        until(lambda: service.status(left).state == "running")
        began_s = service.status(left).arrived_s
    with serving(tmp_path, rules=RoundRules(round_s=0.3, restart_s=0.01)) as service:
        assert service.journal().name == "000002.jsonl"
        assert service.about()["policy"] == "fifo"
        until(lambda: service.status(left).state == "running")
        assert service.status(left).arrived_s == began_s
        assert service.status(done).state == "completed"
        assert [each["id"] for each in rows_of(service, "arrived")] == [[left]]
        assert rows_of(service, "arrived")[0]["due_s"][0] < 1000.0


def test_a_damaged_journal_is_left_and_jobs_go_on(tmp_path: Path) -> None:
    log = io.StringIO()
    with serving(tmp_path) as service:
        done = service.submit(job(50))
        service.wait(done)
        left = service.submit(job(LONG))
        until(lambda: service.status(left).state == "running")
        journal = service.journal()
    text = journal.read_text().replace('"devices":[[', '"devices":[[7,', 1)
    journal.write_text(text)
    with serving(tmp_path, log) as service:
        assert service.journal().name == "000002.jsonl"
        until(lambda: service.status(left).state == "running")
        assert service.status(done).state == "completed"
    assert "new journal" in log.getvalue()


def test_the_policy_changes_while_jobs_run_and_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path, policy="fifo") as service:
        one = service.submit(job(LONG))
        service.change_policy("max_min_fairness_packed")
        assert service.about()["policy"] == "max_min_fairness_packed"
        assert rows_of(service, "learned_pairs")  # what a policy that packs must know
        with pytest.raises(InputError, match="fifoo"):
            service.change_policy("fifoo")
        with pytest.raises(InputError, match="policy: expected its name"):
            service.change_policy(lambda problem: None)  # type: ignore[arg-type]
    with serving(tmp_path) as service:
        assert service.about()["policy"] == "max_min_fairness_packed"
        assert service.status(one).open
    with serving(tmp_path, policy="fifo") as service:
        until(lambda: service.about()["policy"] == "fifo")
        assert service.journal().name == "000001.jsonl"


def test_a_job_that_always_fails_is_given_up(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        double(service).broken["bad"] = "its process ended with exit code 3"
        bad, good = service.submit(job(name="bad")), service.submit(job(500, name="good"))
        found = service.wait(bad)
        assert (found.state, found.failures) == ("given_up", 5)
        assert "exit code 3" in found.why
        assert service.wait(good).state == "completed"


def test_a_command_that_is_paused_stays_where_it_is(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        ids = [service.submit(job(LONG, checkpoint="pause"), key=str(i // 2)) for i in range(6)]
        assert len(set(ids)) == 3  # what it is bound to is no part of what was asked for
        mine = {each: service._loop.submitted[each].spec.types for each in ids}
        assert all(len(types) == 1 for types in mine.values())
        assert len(set(mine.values())) > 1  # not all on one type
        until(lambda: any(service.status(each).state == "running" for each in ids))
        for each in ids:
            assert service.status(each).on in ("", *mine[each])


def test_drained_nodes_get_nothing_and_lost_ones_give_back_what_they_had(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        service.drain("left")
        ids = [service.submit(job(LONG)) for _ in range(3)]
        assert places(service, running=2) == ["", "slow", "slow"]
        with pytest.raises(InputError, match="node: found 'lefd', expected a node; did you mean 'left'"):
            service.drain("lefd")
        service.undrain("left")
        until(lambda: sum(service.status(each).state == "running" for each in ids) == 3)
        service.nodes_are([NODES[0]])  # the other one is gone
        until(lambda: all(service.status(each).on != "slow" for each in ids))
        assert [(node.here, node.down) for node in service.nodes()] == [(True, False), (False, True)]


def test_a_node_that_comes_later_is_used(tmp_path: Path) -> None:
    log = io.StringIO()
    with serving(tmp_path, log, nodes=[NODES[0]], types=["slow"]) as service:
        wide = service.submit(job(LONG, width=2, types=["slow"]))
        service.nodes_are(NODES)
        until(lambda: service.status(wide).state == "running")
        assert service.status(wide).devices == (2, 3)
        service.nodes_are([*NODES, ClusterNode("new", (NodeAccelerator("tpu"),))])
        assert '"accelerators":{"tpu":1},"why":"of types that are new: restart the service' in log.getvalue()


def test_what_is_learned_is_told_once_and_kept(tmp_path: Path) -> None:
    with serving(tmp_path, nodes=[emulated_node({"fast": 1})]) as service:
        service.wait(service.submit(job(2000)))
        found = {(each["model"], each["type"]): each["value"] for each in service.about()["learned"]}
        assert 1000 < found["m", "fast"] < 4000
        assert len(rows_of(service, "learned")) <= 3
        again = service.submit(job(100, width=2, model="other"))
        service.cancel(again)
        service.submit(job(100))
        until(lambda: len(rows_of(service, "arrived")) == 3)
        assert [each["model"] for each in rows_of(service, "kinds")] == [["m"], ["other at width 2"]]
    with serving(
        tmp_path, nodes=[emulated_node({"fast": 1})], rules=RoundRules(round_s=0.3, restart_s=0.01)
    ) as service:
        service.submit(job(100))
        until(lambda: any(each["model"] == ["m"] for each in rows_of(service, "kinds")))
        told = next(each for each in rows_of(service, "kinds") if each["model"] == ["m"])
        assert told["alone"][0][0] == pytest.approx(found["m", "fast"], rel=0.2)


def test_a_full_disk_stops_decisions_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = threading.Event()
    note, put = Store.note, Store.put

    def kept(store: Store, *given: Any) -> None:
        if full.is_set():
            raise StoreError("database or disk is full")
        (note if len(given) == 3 and given[2].__class__.__name__ == "JobStatus" else put)(store, *given)

    monkeypatch.setattr(Store, "note", kept)
    monkeypatch.setattr(Store, "put", kept)
    log = io.StringIO()
    with serving(tmp_path, log) as service:
        one = service.submit(job(400))
        full.set()
        with pytest.raises(DrainingError, match="disk is full; no job is taken until there is room"):
            service.submit(job())
        until(lambda: "nothing is decided until there is room" in service._loop.trouble)
        full.clear()
        assert service.wait(one).state == "completed"
        until(lambda: not service._loop.trouble)
        assert service.wait(service.submit(job())).state == "completed"
        assert service.trouble == ""
    told = [line for line in log.getvalue().splitlines() if "keep" in line]
    assert ['"cannot keep"' in line for line in told] == [True, False] * (len(told) // 2)
    assert '"can keep again"' in told[1]


def test_logs_are_told_over_all_leases_and_followed(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        one = service.submit(job(LONG))
        folder = service._loop.folder_of(one) / "logs"
        folder.mkdir(parents=True)
        (folder / "2.0.log").write_text("c\n")
        (folder / "1.0.log").write_text("a\nb\n")
        (folder / "1.1.log").write_text("other\n")
        assert b"".join(service.logs(one)) == b"a\nb\nc\n"
        assert b"".join(service.logs(one, tail=2)) == b"b\nc\n"
        assert b"".join(service.logs(one, rank=1)) == b"other\n"
        following = service.logs(one, follow=True)
        assert next(following) + next(following) == b"a\nb\nc\n"
        (folder / "10.0.log").write_text("d\n")
        assert next(following) == b"d\n"
        service.cancel(one)
        assert b"".join(following) == b""


@contextmanager
def on_http(folder: Path) -> Iterator[tuple[ClusterService, ClusterClient]]:
    with serving(folder) as service, ClusterServer(service, folder) as server:
        yield service, connect(server.url, server.token_file)


def test_all_of_it_can_be_asked_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with on_http(tmp_path) as (service, client):
        assert connect(tmp_path).url == client.url
        monkeypatch.chdir(tmp_path)
        one = client.submit(job(100), key="a")
        assert client.submit(job(100), key="a") == one
        assert client.wait(one, PATIENCE_S).state == "completed"
        assert service._loop.submitted[one].spec.folder == str(tmp_path)
        two = client.submit(job(LONG))
        assert [each.id for each in client.jobs()] == [two, one]
        assert [each.id for each in client.jobs(limit=1)] == [two]
        until(lambda: client.status(two).state == "running")
        client.drain("right")
        assert [node.drained for node in client.nodes()] == [False, True]
        client.undrain("right")
        client.change_policy("fifo")
        top = client.top()
        assert (top["policy"], len(top["nodes"]), [each["id"] for each in top["running"]]) == ("fifo", 2, [two])
        assert client.cancel(two).id == two
        assert client.wait(two).state == "cancelled"
        logs = service._loop.folder_of(one) / "logs"
        logs.mkdir(parents=True)
        (logs / "1.0.log").write_text("hello\nworld\n")
        assert list(client.logs(one, follow=True)) == ["hello", "world"]
        assert list(client.logs(one, tail=1)) == ["world"]
        text = client.metrics()
        assert 'dovetail_cluster_jobs{state="completed"} 1' in text
        assert 'dovetail_cluster_accelerators{type="fast",state="free"} 2' in text
        told = client._line.get("/openapi.json")
        assert told["paths"]["/v1/jobs"]["post"]["requestBody"]
        assert "/v1/nodes/{node}/drain" in client._line.get("/docs")
        assert client._line.get("/ready") == {"status": "ready"}


@pytest.mark.parametrize(
    ("ask", "status", "said"),
    [
        (lambda client: client.status(77), 404, "there is no job 77"),
        (lambda client: client._line.get("/v1/jobs/one"), 404, "jobs have numbers"),
        (lambda client: client._line.ask("POST", "/v1/jobs", {"command": ["a"]}), 400, "missing key `steps`"),
        (lambda client: client._line.ask("POST", "/v1/jobs", job(types=["x"])), 400, "types: found 'x'"),
        (lambda client: client.drain("nowhere"), 400, "node: found 'nowhere'"),
        (lambda client: client.change_policy("nobody"), 400, "nobody"),
        (lambda client: client._line.get("/v1/jobs", state="fine"), 400, "state 'fine'"),
        (lambda client: client._line.get("/v1/jobs", limit=-1), 400, "limit: expected a number"),
        (lambda client: client._line.get("/nothing"), 404, "there is nothing"),
    ],
)
def test_what_is_wrong_is_told_with_the_right_status(tmp_path: Path, ask: Any, status: int, said: str) -> None:
    with on_http(tmp_path) as (_, client):
        with pytest.raises(ServiceError, match=said) as error:
            ask(client)
        assert error.value.status == status


def test_nobody_comes_in_without_the_token(tmp_path: Path) -> None:
    with on_http(tmp_path) as (_, client):
        other = tmp_path / "other"
        other.write_text("x" * 32)
        other.chmod(0o600)
        with pytest.raises(ServiceError, match="the token is wrong"):
            connect(client.url, other).about()
        assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "url").exists()
    with pytest.raises(InputError, match="no service answers"):
        connect(tmp_path)


def test_one_process_has_a_folder(tmp_path: Path) -> None:
    with serving(tmp_path), pytest.raises(InputError, match="another process has it open"):
        ClusterService(tmp_path, CarrierDouble)
    assert os.listdir(tmp_path)


def test_jobs_that_ended_long_ago_are_forgotten_and_their_numbers_are_not_used_again(tmp_path: Path) -> None:
    with serving(tmp_path, settings=ClusterSettings(keep_jobs=2, journal_lines=5)) as service:
        for _ in range(4):
            service.wait(service.submit(job(20)))
        until(lambda: [each.id for each in service.jobs()] == [4, 3])
        assert service.about()["jobs"] == {"completed": 2}
    with serving(tmp_path, settings=ClusterSettings(keep_jobs=2, journal_lines=5)) as service:
        assert service.about()["jobs"] == {"completed": 2}
        assert service.journal().name == "000002.jsonl"  # nothing was open, and the first one is long
        assert [each.id for each in service.jobs()] == [4, 3]
        assert service.submit(job(20)) == 5


def test_a_restart_goes_on_from_the_last_snapshot(tmp_path: Path) -> None:
    log = io.StringIO()
    settings = ClusterSettings(snapshot_lines=20)
    with serving(tmp_path, settings=settings) as service:
        done = [service.submit(job(100, name=f"n{i}")) for i in range(4)]
        for each in done:
            service.wait(each)
        left = [service.submit(job(LONG, model=f"m{i}")) for i in range(6)]
        until(lambda: len(rows_of(service, "saved")) >= 2)
        service.submit(job(LONG, model="new"))  # it may come after the last one
        told = {each: service.status(each).leases for each in left}
    with serving(tmp_path, log, settings=settings) as service:
        assert service._loop.resumed_at > 1
        assert "new journal" not in log.getvalue()
        assert service.journal().name == "000001.jsonl"
        assert [service.status(each).state for each in done] == ["completed"] * 4
        assert all(service.status(each).leases >= told[each] for each in left)
        until(lambda: any(service.status(each).leases > told[each] for each in left))
    (tmp_path / "snapshot").write_bytes(b"something else")
    with serving(tmp_path, log, settings=settings) as service:
        assert service._loop.resumed_at == 0
        assert service.journal().name == "000001.jsonl"
    assert "not a checkpoint of a cluster" in log.getvalue()


@pytest.mark.parametrize("policy", ["elastic_throughput", "sia"])
def test_an_elastic_job_has_as_many_accelerators_as_there_are_and_a_rigid_one_its_own(
    tmp_path: Path, policy: str
) -> None:
    with serving(tmp_path, nodes=[emulated_node({"fast": 4})], policy=policy) as service:
        wide = service.submit(job(LONG, widths=[1, 2, 4]))
        until(lambda: service.status(wide).width == 4)
        service.cancel(wide)
        rigid, other = service.submit(job(LONG, width=2)), service.submit(job(LONG, width=1))
        until(lambda: {service.status(rigid).width, service.status(other).width} == {1, 2})
        until(lambda: {service.status(each).state for each in (rigid, other)} == {"running"})
        assert (len(service.status(rigid).devices), len(service.status(other).devices)) == (2, 1)


def test_nodes_change_while_agents_report(tmp_path: Path) -> None:
    """The executor has a lock of its own, under which it tells what agents say."""

    class Locking(CarrierDouble):
        def __init__(self, loop: ClusterLoop) -> None:
            self.mutex = threading.Lock()
            super().__init__(loop)

        def add_node(self, node: ClusterNode, numbers: range) -> None:
            with self.mutex:
                super().add_node(node, numbers)

    with ClusterService(tmp_path, Locking, nodes=NODES, log=LogLines(io.StringIO())) as service:
        found = double(service)
        assert isinstance(found, Locking)

        def report() -> None:
            for _ in range(300):
                with found.mutex:
                    service._loop.watch(LeaseState(1, 1, "running"), 0.0)

        thread = threading.Thread(target=report)
        thread.start()
        for _ in range(300):
            service.nodes_are(NODES)
        thread.join()


def test_a_node_that_left_while_nobody_looked_is_not_leased(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        one = service.submit(job(LONG))
        until(lambda: service.status(one).state == "running")
    with serving(tmp_path, nodes=[NODES[1]]) as service:
        for _ in range(3):
            service.submit(job(LONG))
        assert places(service, running=2) == ["", "", "slow", "slow"]
        assert [(node.here, node.down) for node in service.nodes()] == [(False, True), (True, False)]


def test_a_job_that_waits_for_nodes_says_so(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        one = service.submit(job(width=99))
        assert (
            service.status(one).why == "no type has 99 accelerators that it could have (at most 2): it waits for nodes"
        )


def test_the_key_of_a_job_that_is_forgotten_is_free_again(tmp_path: Path) -> None:
    with serving(tmp_path, settings=ClusterSettings(keep_jobs=1)) as service:
        first = service.submit(job(20), "key")
        service.wait(first)
        service.wait(service.submit(job(20)))
        until(lambda: [each.id for each in service.jobs()] == [2])
        assert service.submit(job(30), "key") == 3


def test_many_may_wait_and_others_are_answered(tmp_path: Path) -> None:
    with on_http(tmp_path) as (_, client):
        one = client.submit(job(LONG))
        threads = [threading.Thread(target=client.wait, args=(one,)) for _ in range(30)]
        for thread in threads:
            thread.start()
        assert client.about()["jobs"] != {}
        client.cancel(one)
        for thread in threads:
            thread.join()


def test_a_journal_with_nothing_open_ends_with_the_service(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        service.wait(service.submit(job(50)))
        journal = service.journal()
    report = check_journal(journal)
    assert report.valid, report.faults
    assert not report.notes or "had not ended" not in report.notes[0]
    with serving(tmp_path) as service:
        assert service.journal().name == "000002.jsonl"
        assert service.status(1).state == "completed"
        left = service.submit(job(LONG))
        until(lambda: service.status(left).state == "running")
        journal = service.journal()
    assert check_journal(journal).valid  # it goes on at the next start
    with serving(tmp_path) as service:
        assert service.journal() == journal


def test_leases_that_bring_nothing_are_told(tmp_path: Path) -> None:
    with serving(tmp_path, nodes=[emulated_node({"fast": 1})]) as service:
        double(service)._rate = 0.0  # no process ever reaches its first step
        ids = [service.submit(job(LONG)) for _ in range(2)]
        for each in ids:
            until(lambda each=each: each in service._loop.jobs.leases)  # type: ignore[misc]
            service._loop.jobs.greeted(each)  # it asks for its leases
        until(lambda: all("leases without a step" in service.status(each).why for each in ids))
        before_s, found, after_s = service.now(), service.status(ids[0]), service.now()
        assert found.waited_s > 0
        assert before_s <= (found.arrived_s or 0.0) + found.waited_s + found.served_s <= after_s


def test_a_job_that_is_cancelled_as_it_comes_ends(tmp_path: Path) -> None:
    with serving(tmp_path) as service:
        with service._lock:  # both are heard in one step
            ids = [service.submit(job(LONG)) for _ in range(3)]
            for each in ids:
                service.cancel(each)
        assert [service.wait(each, PATIENCE_S).state for each in ids] == ["cancelled"] * 3


def test_a_node_on_which_nothing_can_be_started_says_so(tmp_path: Path) -> None:
    log = io.StringIO()
    with serving(tmp_path, log) as service:
        service._loop.watch(NodeTrouble("left", "its disk is full"), 0.0)
        assert [node.trouble for node in service.nodes()] == ["its disk is full", ""]
        assert '"event":"node in trouble","node":"left","why":"its disk is full"' in log.getvalue()
        service._loop.watch(NodeTrouble("left", ""), 0.0)
        assert [node.trouble for node in service.nodes()] == ["", ""]
