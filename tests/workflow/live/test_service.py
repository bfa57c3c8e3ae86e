from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dovetail import workflow
from dovetail.core.errors import InputError
from dovetail.core.events import Added, Failed, Observed
from dovetail.core.journal import Reader, Writer
from dovetail.core.resources import Device
from dovetail.core.service.log_lines import LogLines
from dovetail.core.service.refusals import BusyError, ConflictError, DrainingError
from dovetail.core.service.store import Store, StoreError
from dovetail.journals import check_journal
from dovetail.workflow.live.book import RunBook
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus
from dovetail.workflow.live.protocol import AnswerPiece
from dovetail.workflow.live.runs import RunEvent, RunRequest, UnknownRunError, UnknownWorkflowError
from dovetail.workflow.live.segments import JournalSegment, JournalSegments
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.settings import LiveSettings
from dovetail.workflow.live.value_files import ValueFiles
from tests.waiting import until
from tests.workflow.live.carriers import TestCarrier

MODEL = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 1, "inference_time_mean": 0.1}
CONFIG: dict[str, Any] = {
    "models": {"llm": MODEL, "sum": MODEL},
    "workflows": {
        "chain": {
            "nodes": [{"id": "write", "model": "llm"}, {"id": "shorten", "model": "sum"}],
            "edges": [{"from": "write", "to": "shorten"}],
        }
    },
}
HELLO = {"prompt": "hello"}


class Bench:
    """A service over a folder, and what it was made with."""

    def __init__(self, folder: Path, config: dict[str, Any], hold: bool, policy: str, **settings: Any) -> None:
        self.carrier: TestCarrier
        self.log = io.StringIO()

        def carrier(inbox: Any, runs: Any) -> TestCarrier:
            self.carrier = TestCarrier(inbox, runs, hold)
            return self.carrier

        problem = workflow.load(config, [], gpus=2, mode="online")
        self.service = WorkflowService(
            problem, carrier, folder, LiveSettings(**settings), policy, log=LogLines(self.log)
        )

    def submit(self, **request: Any) -> str:
        return self.service.submit(RunRequest(**({"workflow": "chain", "input": HELLO} | request)))

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


@contextmanager
def service(
    folder: Path, config: dict[str, Any] = CONFIG, hold: bool = False, policy: str = "baseline", **settings: Any
) -> Iterator[Bench]:
    bench = Bench(folder, config, hold, policy, **settings)
    with bench.service:
        yield bench


def check_all(folder: Path) -> None:
    for journal in sorted((folder / "journals").glob("*.jsonl")):
        report = check_journal(journal)
        assert report.valid, (journal.name, report.faults)


def test_a_request_runs_to_its_end(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        run = bench.submit()
        status = bench.service.wait(run)
        assert (status.state, status.error) == ("completed", "")
        assert {name: (node.model, node.state) for name, node in status.nodes.items()} == {
            "write": ("llm", "completed"),
            "shorten": ("sum", "completed"),
        }
        assert status.started_s is not None
        assert status.arrived_s <= status.started_s <= (status.ended_s or 0)
        result = bench.service.result(run)
        assert result.outputs == {"write": {"text": "llm(hello)"}, "shorten": {"text": "sum(llm(hello))"}}
        assert (result.answer, result.read, result.written) == ({"text": "sum(llm(hello))"}, 2, 4)
        assert "write" in str(bench.service.explain(run))
    check_all(tmp_path)


def test_a_model_is_a_workflow_of_one_node(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        run = bench.submit(workflow="llm")
        assert bench.service.wait(run).state == "completed"
        assert bench.service.result(run).answer == {"text": "llm(hello)"}
        told = {info.name: (info.answer, info.implicit) for info in bench.service.workflows()}
        assert told == {"chain": ("shorten", False), "llm": ("llm", True), "sum": ("sum", True)}


def test_followers_are_told_everything_once_and_in_order(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        run = bench.submit(stream=True)
        early: list[RunEvent] = []
        bench.service.follow(run, early.append)
        bench.carrier.let_go()
        until(lambda: any(event.kind == "node done" for event in early))
        late: list[RunEvent] = []
        bench.service.follow(run, late.append)
        bench.carrier.let_go()
        bench.service.wait(run)
        until(lambda: early[-1].kind == late[-1].kind == "completed")
        kinds = ["queued", "started", "piece", "first token", "node done"]
        assert [event.kind for event in early] == [*kinds, *kinds[1:], "completed"]
        assert late == early
        assert [event.n for event in early] == list(range(1, len(early) + 1))
        assert bench.service.output(run, "write") == {"text": "llm(hello)"}
        again: list[RunEvent] = []
        bench.service.follow(run, again.append, after=5)
        assert [event.kind for event in again] == ["started", "first token", "node done", "completed"]


def test_who_followed_before_a_restart_is_told_of_it(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        ended = bench.submit(workflow="llm")
        until(lambda: bench.carrier.calls)
        open_run, heard = bench.submit(stream=True), list[RunEvent]()
        bench.service.follow(open_run, heard.append)
        bench.carrier.let_go()
        bench.service.wait(ended)
        bench.carrier.let_go()
        until(lambda: bench.service.result(open_run).outputs)
        seen = heard[-1].n
    with service(tmp_path) as bench:
        bench.service.wait(open_run)
        for run in (open_run, ended):
            told: list[RunEvent] = []
            bench.service.follow(run, told.append, after=seen)
            assert (told[0].kind, told[0].node, told[1].kind) == ("restarted", None, "queued")
            assert told[-1].kind == "completed"
            assert [event.n for event in told] == sorted({event.n for event in told})
            assert told[0].n > seen
            nodes = [str(event.node) for event in told if event.kind == "node done"]
            done = {node: bench.service.output(run, node) for node in nodes}
            assert done == (bench.service.result(run).outputs if run == open_run else done)
        again: list[RunEvent] = []
        bench.service.follow(open_run, again.append, after=told[-1].n)
        assert again[-1].kind == "completed"


def test_who_follows_no_more_is_told_no_more(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        run, heard = bench.submit(), list[RunEvent]()
        leave = bench.service.follow(run, heard.append)
        until(lambda: any(event.kind == "started" for event in heard))
        leave()
        leave()
        bench.carrier.let_go(2)
        bench.service.wait(run)
        assert heard[-1].kind == "started"


def test_the_same_key_and_content_is_the_same_run(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        first = bench.submit(idempotency_key="k")
        assert bench.submit(idempotency_key="k") == first
        bench.service.wait(first)
        assert bench.submit(idempotency_key="k") == first
        other = bench.submit(idempotency_key="other")
        assert other != first
        bench.service.wait(other)
        with pytest.raises(ConflictError, match=first):
            bench.submit(idempotency_key="k", input={"prompt": "bye"})
    with service(tmp_path) as bench:
        assert bench.submit(idempotency_key="k") == first
        assert len(bench.carrier.calls) == 0


def test_a_run_can_be_given_its_id(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        assert bench.submit(id="mine") == "mine"
        assert bench.submit(id="mine") == "mine"
        with pytest.raises(ConflictError):
            bench.submit(id="mine", weight=2.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"workflow": "chian"}, "there is no workflow or model 'chian'; did you mean 'chain'"),
        ({"weight": 0.0}, "weight 0: expected a positive number"),
        ({"due_s": -1.0}, "due_s -1: expected a positive number"),
        ({"id": "a/b"}, "id: expected 1 to 200 characters without '/', found 'a/b'"),
        ({"idempotency_key": ""}, "idempotency_key: expected 1 to 200 characters"),
        ({"trace_id": "xyz"}, "trace_id: expected 32 hexadecimal digits, found 'xyz'"),
        ({"tenant": "*"}, "tenant: '\\*' stands for all"),
        ({"input": {"prompt": "x" * 2_000_000}}, "input: expected at most 1 MiB, found 1.9 MiB"),
    ],
)
def test_what_is_wrong_with_a_request_is_said(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with service(tmp_path, max_input_mib=1.0) as bench:
        with pytest.raises(InputError, match=said):
            bench.submit(**given)
        assert bench.service.runs() == []


def test_what_is_unknown_is_said_to_be(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        for ask in (bench.service.status, bench.service.result, bench.service.cancel, bench.service.explain):
            with pytest.raises(UnknownRunError, match="'nobody'"):
                ask("nobody")
        with pytest.raises(UnknownWorkflowError):
            bench.submit(workflow="x")


def test_a_node_that_fails_for_good_fails_its_run(tmp_path: Path) -> None:
    with service(tmp_path, retries=1) as bench:
        status = bench.service.wait(bench.submit(input={"prompt": "fail"}))
        assert (status.state, status.blame) == ("failed", "call")
        assert "failed 2 times: it cannot be done" in status.error
        assert len(bench.carrier.calls) == 2
        faults = [line for line in bench.log_lines if line["event"] == "node failed"]
        assert [line["trace_id"] for line in faults] == [status.trace_id] * 2
    check_all(tmp_path)


def test_a_cancelled_run_frees_its_gpu(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        running = bench.submit()
        until(lambda: bench.service.status(running).state == "running")
        bench.service.cancel(running, "the client has gone")
        status = bench.service.wait(running)
        assert (status.state, status.error) == ("cancelled", "the client has gone")
        assert bench.service.cancel(running).state == "cancelled"
        again = bench.submit()
        bench.carrier.let_go(2)
        assert bench.service.wait(again).state == "completed"
    check_all(tmp_path)


def test_full_queues_turn_requests_away_and_say_for_how_long(tmp_path: Path) -> None:
    with service(tmp_path, hold=True, max_queue=3) as bench:
        running = [bench.submit(), bench.submit()]
        until(lambda: all(bench.service.status(run).state == "running" for run in running))
        waiting = [bench.submit() for _ in range(3)]
        with pytest.raises(BusyError, match="3 requests wait, and max_queue is 3") as busy:
            bench.submit()
        assert 0 < busy.value.retry_after_s < 60
        bench.carrier.let_go(10)
        assert {bench.service.wait(run).state for run in running + waiting} == {"completed"}
        assert bench.service.wait(bench.submit(workflow="llm"), 0.0).state != "failed"
        assert 'refused_total{reason="busy"} 1' in bench.service.metrics()


def test_tenants_have_queues_of_their_own(tmp_path: Path) -> None:
    config = CONFIG | {"tenants": {"lab": {"max_queue": 1}, "*": {}}}
    with service(tmp_path, config, hold=True, policy="baseline") as bench:
        running = [bench.submit(tenant="shop"), bench.submit(tenant="shop")]
        until(lambda: bench.service.about()["running"] == 2)
        bench.submit(tenant="lab")
        with pytest.raises(BusyError, match="1 requests of tenant 'lab' wait, and its max_queue is 1"):
            bench.submit(tenant="lab")
        assert bench.submit(tenant="shop") not in running


def test_a_request_that_would_wait_too_long_is_turned_away(tmp_path: Path) -> None:
    slow = CONFIG | {"models": {name: MODEL | {"inference_time_mean": 100.0} for name in CONFIG["models"]}}
    with (
        service(tmp_path, slow, hold=True, max_wait_s=60.0) as bench,
        pytest.raises(BusyError, match="max_wait_s is 60"),
    ):
        all(bench.submit() for _ in range(20))


def all_have_waited_too_long(bench: Bench) -> None:
    """The watch looks, at a time when whoever waits now has done so for `max_wait_s`."""
    with bench.service._lock:
        bench.service._look_at(bench.service.now() + bench.service.settings.max_wait_s)


def test_who_waited_too_long_is_told_so(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        running = [bench.submit(workflow="llm"), bench.submit(workflow="llm")]
        until(lambda: all(bench.service.status(run).state == "running" for run in running))
        late = bench.submit(workflow="llm")
        all_have_waited_too_long(bench)
        status = bench.service.wait(late)
        assert (status.state, status.blame) == ("failed", "queue")
        assert status.error == "it waited for 600 s (max_wait_s)"
        assert [bench.service.status(run).state for run in running] == ["running", "running"]


def test_draining_finishes_what_is_open_and_takes_nothing_more(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        run = bench.submit()
        assert not bench.service.drain(0.0)
        with pytest.raises(DrainingError):
            bench.submit()
        bench.carrier.let_go(2)
        assert bench.service.drain(60.0)
        assert bench.service.status(run).state == "completed"
    check_all(tmp_path)


def test_results_are_forgotten_beyond_what_is_kept(tmp_path: Path) -> None:
    with service(tmp_path, keep_runs=2) as bench:
        runs = [bench.submit(workflow="llm", idempotency_key=f"k{i}") for i in range(4)]
        until(lambda: not any(_is_open(bench, run) for run in runs))
        until(lambda: len(bench.service.runs()) == 2)
        assert [status.id for status in bench.service.runs()] == [runs[3], runs[2]]
        with pytest.raises(UnknownRunError):
            bench.service.result(runs[0])
        assert bench.submit(workflow="llm", idempotency_key="k0") != runs[0]


def _is_open(bench: Bench, run: str) -> bool:
    try:
        return bench.service.status(run).state in ("queued", "running")
    except UnknownRunError:
        return False


def test_runs_are_listed_page_by_page(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        runs = [bench.submit(workflow="llm") for _ in range(5)]
        for run in runs:
            bench.service.wait(run)
        first = bench.service.runs(limit=2)
        assert [status.id for status in first] == runs[:2:-1]
        assert [status.id for status in bench.service.runs(after=first[-1].id, limit=9)] == runs[2::-1]
        assert bench.service.runs(state="failed") == []


def test_figures_and_logs_tell_of_a_run(tmp_path: Path) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    with service(tmp_path) as bench:
        run = bench.submit(trace_id=trace)
        bench.service.wait(run)
        text = bench.service.metrics()
        for line in (
            'runs_total{workflow="chain",state="completed"} 1',
            'tokens_total{model="llm",direction="written"} 2',
            'starts_total{model="sum"} 1',
            'ttft_seconds_count{workflow="chain"} 1',
            'response_seconds_bucket{workflow="chain",le="+Inf"} 1',
            "decision_seconds_count",
        ):
            assert f"dovetail_workflow_{line}" in text
        until(lambda: any(line["event"] == "run ended" for line in bench.log_lines))
        ended = next(line for line in bench.log_lines if line["event"] == "run ended")
        assert (ended["run"], ended["trace_id"], ended["state"]) == (run, trace, "completed")


def test_open_runs_go_on_after_a_restart(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        runs = [bench.submit(input={"prompt": f"p{i}"}) for i in range(4)]
        bench.carrier.let_go(1)
        until(lambda: any(bench.service.status(run).nodes.get("shorten") for run in runs))
        until(lambda: any(bench.service.result(run).outputs for run in runs))
        done = next(run for run in runs if bench.service.result(run).outputs)
        journal = bench.service.journal()
    with service(tmp_path) as bench:
        assert bench.service.journal() == journal
        for i, run in enumerate(runs):
            assert bench.service.wait(run).state == "completed"
            assert bench.service.result(run).answer == {"text": f"sum(llm(p{i}))"}
        assert ("llm", {"prompt": f"p{runs.index(done)}"}) not in [(c.model, c.inputs) for c in bench.carrier.calls]
    check_all(tmp_path)


def test_another_configuration_begins_another_journal_in_which_open_runs_arrive_anew(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        runs = [bench.submit(input={"prompt": f"p{i}"}) for i in range(3)]
        bench.carrier.let_go(1)
        until(lambda: any(bench.service.result(run).outputs for run in runs))
        done = next(run for run in runs if bench.service.result(run).outputs)
        journal = bench.service.journal()
    with service(tmp_path, policy="srpt") as bench:
        assert bench.service.journal() != journal
        assert [bench.service.wait(run).state for run in runs] == ["completed"] * 3
        assert bench.service.result(done).answer == {"text": f"sum(llm(p{runs.index(done)}))"}
        assert ("llm", {"prompt": f"p{runs.index(done)}"}) not in [(c.model, c.inputs) for c in bench.carrier.calls]
        assert "shorten" in str(bench.service.explain(done))
    check_all(tmp_path)


def test_runs_outlive_their_workflow(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        chain = bench.submit()
        until(lambda: bench.carrier.calls)
        kept = bench.submit(workflow="llm")
        bench.carrier.let_go()
        until(lambda: bench.service.result(chain).outputs)
    write = {"id": "write", "model": "llm"}
    longer = CONFIG | {"workflows": {"chain": {"nodes": [write, {"id": "again", "model": "llm"}]}}}
    with service(tmp_path, longer, hold=True) as bench:
        until(lambda: len(bench.service.status(chain).nodes) == 2)
        assert bench.service.result(chain).outputs == {}
    with service(tmp_path, CONFIG | {"workflows": {}}) as bench:
        status = bench.service.wait(chain)
        assert (status.state, status.error) == ("failed", "there is no workflow 'chain' any more")
        assert bench.service.result(chain).answer == {}
        assert bench.service.wait(kept).state == "completed"
    check_all(tmp_path)


def test_a_queue_is_counted_once_over_journals(tmp_path: Path) -> None:
    with service(tmp_path, journal_lines=1, max_queue=3) as bench:
        for _ in range(30):
            runs = [bench.submit(workflow="llm") for _ in range(2)]
            for run in runs:
                bench.service.wait(run)
        assert bench.service.about()["queue"] == {}


def test_open_runs_are_let_in_again_however_many_they_are(tmp_path: Path) -> None:
    config = CONFIG | {"sharing": {"max_queue": 2}}
    with service(tmp_path, config, hold=True) as bench:
        runs = [bench.submit(), bench.submit()]
        until(lambda: bench.service.about()["running"] == 2)
        runs += [bench.submit(), bench.submit()]
        with pytest.raises(BusyError):
            bench.submit()
    with service(tmp_path, config, policy="baseline") as bench:
        assert [bench.service.wait(run).state for run in runs] == ["completed"] * 4
    check_all(tmp_path)


def test_a_cancel_outlives_the_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with service(tmp_path, hold=True) as bench:
        run = bench.submit()
        until(lambda: bench.service.status(run).state == "running")
        monkeypatch.setattr(bench.carrier.inbox, "put", lambda *_: None)  # the loop does not hear it any more
        bench.service.cancel(run, "not wanted")
    with service(tmp_path, hold=True) as bench:
        status = bench.service.wait(run)
        assert (status.state, status.error) == ("cancelled", "not wanted")
    check_all(tmp_path)


def test_nothing_is_decided_while_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, write = threading.Event(), Writer.flush

    def flush(writer: Writer) -> None:
        if full.is_set() and writer._buffer:
            writer._file.write(bytes(writer._buffer[:7]))  # as much as there was room for
            writer._file.flush()
            raise InputError("the disk is full")
        write(writer)

    monkeypatch.setattr(Writer, "flush", flush)
    with service(tmp_path) as bench:
        full.set()
        run = bench.submit()
        until(lambda: "nothing is decided until there is room" in bench.service.trouble)
        with pytest.raises(DrainingError, match="the disk is full"):
            bench.submit()
        full.clear()
        assert bench.service.wait(run).state == "completed"
        assert bench.service.trouble == ""
    check_all(tmp_path)


def test_an_end_that_is_not_kept_is_not_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, keep = threading.Event(), RunBook.keep

    def fails(book: RunBook, outputs: Any, ends: Any) -> None:
        if ends and full.is_set():
            raise StoreError("the disk is full")
        keep(book, outputs, ends)

    monkeypatch.setattr(RunBook, "keep", fails)
    with service(tmp_path, hold=True) as bench:
        run, other, heard = bench.submit(workflow="llm"), bench.submit(workflow="llm", stream=True), list[RunEvent]()
        until(lambda: len(bench.carrier.calls) == 2)
        full.set()
        bench.carrier.let_go()
        until(lambda: "the disk is full" in bench.service.trouble)
        bench.service.follow(run, heard.append)
        bench.service.piece(other, "llm", AnswerPiece("c", "of another's answer"))
        assert bench.service.status(run).state == bench.service.result(run).state == "running"
        assert bench.service.wait(run, 0.0).state == "running"
        assert [told.id for told in bench.service.runs("running")] == [other, run]
        assert not bench.service.drain(0.0)
        assert "completed" not in [event.kind for event in heard]
        full.clear()
        assert bench.service.wait(run).state == "completed"
        until(lambda: heard[-1].kind == "completed")
        assert [event.n for event in heard] == sorted({event.n for event in heard})
        assert bench.service.result(run).answer == {"text": "llm(hello)"}


def test_a_request_that_cannot_be_kept_is_one_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, add, room = threading.Event(), RunBook.add, Store.set

    def fails(book: RunBook, record: Any, packed: Any) -> None:
        if full.is_set():
            raise StoreError("the disk is full")
        add(book, record, packed)

    def no_room(store: Store, name: str, value: Any) -> None:
        if full.is_set():
            raise StoreError("the disk is full")
        room(store, name, value)

    monkeypatch.setattr(RunBook, "add", fails)
    monkeypatch.setattr(Store, "set", no_room)
    with service(tmp_path) as bench:
        full.set()
        with pytest.raises(DrainingError, match="the disk is full; no request is taken until there is room"):
            bench.submit()
        assert "the disk is full" in bench.service.about()["trouble"]
        full.clear()
        until(lambda: bench.service.about()["trouble"] == "")
        assert bench.service.wait(bench.submit()).state == "completed"


def test_who_waited_too_long_just_as_it_started_is_told_of_the_queue(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        run = bench.submit(workflow="llm")
        until(lambda: bench.service.status(run).state == "running")
        loop = bench.service._loop
        with loop.lock:
            loop.ask_to_end(loop.book.record(run), "failed", "it waited for 1 s (max_wait_s)")
        status = bench.service.wait(run)
        assert status.started_s is not None
        assert (status.state, status.blame) == ("failed", "queue")


@pytest.mark.parametrize("gives", ["input", "output"])
def test_nobody_waits_while_a_large_value_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gives: str
) -> None:
    began, goes_on, write = threading.Event(), threading.Event(), ValueFiles.write

    def slow(files: ValueFiles, run: str, data: bytes) -> str:
        if run == "slow":
            began.set()
            assert goes_on.wait(300)
        return write(files, run, data)

    monkeypatch.setattr(ValueFiles, "write", slow)
    text = "x" * (2 << 20)
    with service(tmp_path) as bench:
        asked = {"workflow": "llm", "id": "slow", "input": {"prompt": text}}
        if gives == "output":
            asked["input"] = HELLO
            bench.carrier.large = text
        taken = threading.Thread(target=bench.submit, kwargs=asked)
        taken.start()
        assert began.wait(300)
        bench.carrier.large = ""
        others = threading.Thread(target=lambda: [bench.service.wait(bench.submit(workflow="llm")) for _ in range(2)])
        others.start()
        if gives == "input":
            others.join()  # the carrier of this test makes one call at a time
        assert bench.service.status(bench.submit(workflow="llm")).state
        goes_on.set()
        taken.join()
        others.join()
        assert bench.service.wait("slow").state == "completed"
        result = bench.service.result("slow")
        assert result.answer == {"text": f"llm({text})" if gives == "input" else text}
        assert sum(path.is_file() for path in (tmp_path / "values").rglob("*")) == (2 if gives == "input" else 1)
        assert result.plain(once=True)["outputs"] == {"llm": {}}
    with service(tmp_path) as bench:
        assert bench.service.result("slow") == result
    with service(tmp_path, keep_runs=2) as bench:
        for _ in range(3):
            bench.service.wait(bench.submit(workflow="llm"))
        until(lambda: not any(path.is_file() for path in (tmp_path / "values").rglob("*")))


def test_a_large_request_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        asked = {"workflow": "llm", "id": "a"}
        bench.submit(**asked)
        with pytest.raises(ConflictError):
            bench.submit(**asked, input={"prompt": "x" * (2 << 20)})
        assert not any(path.is_file() for path in (tmp_path / "values").rglob("*"))


def test_a_run_whose_values_cannot_be_read_has_all_of_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, faults = RunBook.outputs, [StoreError("not just now")]

    def fails(book: RunBook, run: str) -> Any:
        if faults:
            raise faults.pop()
        return read(book, run)

    with service(tmp_path, hold=True) as bench:
        run, values = bench.submit(), bench.service._values
        bench.carrier.let_go()
        until(lambda: len(bench.carrier.calls) == 2)
        values.forget(run)
        monkeypatch.setattr(RunBook, "outputs", fails)
        with pytest.raises(StoreError, match="not just now"):
            values.call(run, "shorten")
        assert values.call(run, "shorten")[0] == {"text": "llm(hello)"}


def test_the_watch_goes_on_whatever_it_meets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    look, faults = WorkflowService._look_at, [RuntimeError("once"), KeyError("twice")]

    def fails(running: WorkflowService, now_s: float) -> float:
        if faults:
            raise faults.pop()
        return look(running, now_s)

    monkeypatch.setattr(WorkflowService, "_look_at", fails)
    with service(tmp_path, hold=True, max_wait_s=0.5) as bench:
        until(lambda: not faults)
        bench.carrier.inbox.put(Observed("gone", {"gpus": [0, 1], "why": "unplugged"}))
        run = bench.submit(workflow="sum")
        until(lambda: bench.service.status(run).error)  # it waited for too long: somebody looked
        assert bench.service.status(run).error == "it waited for 0.5 s (max_wait_s)"
        assert sum(line["event"] == "watch failed" for line in bench.log_lines) == 2


def test_options_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    with service(tmp_path) as bench, pytest.raises(InputError, match="options: a value of type object cannot be sent"):
        bench.submit(options={"stop": object()})


def test_a_worker_is_lost_once(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        why = {"why": "unplugged"}
        bench.carrier.inbox.put(Observed("gone", {"gpus": [0], **why}), Observed("emptied", {"gpus": [0, 1], **why}))
        bench.service.wait(bench.submit())
        assert "dovetail_workflow_worker_losses_total 1" in bench.service.metrics()


def test_what_was_added_last_answers(tmp_path: Path) -> None:
    nodes = [{"id": "think", "model": "llm", "then": {"think": {"chance": 0.5, "at_most": 2}}}]
    with service(tmp_path, CONFIG | {"workflows": {"loop": {"nodes": nodes}}}) as bench:
        run = bench.submit(workflow="loop")
        bench.service.wait(run)
        assert bench.service.result(run).answer == {"text": "llm(llm(llm(hello)))"}
        assert [info.name for info in bench.service.workflows() if info.grows] == ["loop"]
        bench.service.journal().rename(tmp_path / "gone")
        with pytest.raises(UnknownRunError, match="its journal is kept no longer"):
            bench.service.explain(run)


@pytest.mark.parametrize("options", [{"write.max_tokens": 6}, {"write": {"max_tokens": 6}}])
def test_options_of_a_node_are_given_as_node_configs(tmp_path: Path, options: dict[str, Any]) -> None:
    with service(tmp_path) as bench:
        with pytest.raises(InputError, match=r"given as node_configs: \{'write': \{'max_tokens': 6\}\}"):
            bench.submit(options=options)
        bench.service.wait(bench.submit(options={"node_configs": {"write": {"max_tokens": 6}}}))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_tokns": 6}, r"options.max_tokns: calls of model 'sum' have no such option; did you mean 'max_tokens'\?"),
        ({"node_configs": {"write": {"temprature": 1}}}, r"node_configs.write.temprature: calls of model 'llm' have"),
    ],
)
def test_options_that_a_model_does_not_have_are_refused_at_the_door(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    ours: dict[str, Any] = {name: MODEL | {"source": {"emulated": {}}} for name in ("llm", "sum")}
    with service(tmp_path, CONFIG | {"models": ours}) as bench:
        with pytest.raises(InputError, match=told):
            bench.submit(options=options)
        assert bench.service.runs() == []
    theirs: dict[str, Any] = {name: MODEL | {"source": "http://127.0.0.1:9/v1"} for name in ("llm", "sum")}
    with service(tmp_path / "theirs", CONFIG | {"models": theirs}) as bench:
        assert bench.service.wait(bench.submit(options=options)).state == "completed"  # only their server knows


def test_large_outputs_are_kept_before_their_step(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        run = bench.submit(input={"prompt": "x" * (2 << 20)})
        bench.service.wait(run)
        assert len(bench.service.result(run).answer["text"]) == len("sum(llm())") + (2 << 20)
    with service(tmp_path) as bench:
        assert len(bench.service.result(run).outputs["write"]["text"]) == len("llm()") + (2 << 20)


def test_every_step_can_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    with service(tmp_path, durability="power") as bench:
        assert bench.service.wait(bench.submit()).state == "completed"
        steps = sum(1 for _ in Reader(bench.service.journal()).rows())
    assert len(synced) >= steps > 1


def test_a_journal_that_is_decided_otherwise_is_left_as_it_is(tmp_path: Path) -> None:
    with service(tmp_path, hold=True) as bench:
        run, journal = bench.submit(), bench.service.journal()
        until(lambda: bench.service.status(run).state == "running")
    written = journal.read_text()
    assert '"why":' in written
    head, *lines = written.splitlines()
    changed = [line.replace('"devices":[0]', '"devices":[1]') for line in lines]
    assert changed != lines
    journal.write_text("\n".join([head, *changed]) + "\n")
    with service(tmp_path) as bench:
        assert bench.service.journal() != journal
        assert bench.service.wait(run).state == "completed"
        assert bench.log_lines[0]["event"] == "new journal"
    assert journal.read_text() == "\n".join([head, *changed]) + "\n"


def test_a_long_journal_is_cut_when_nothing_is_open(tmp_path: Path) -> None:
    with service(tmp_path, journal_lines=5) as bench:
        for i in range(6):
            assert bench.service.wait(bench.submit(input={"prompt": f"p{i}"})).state == "completed"
        first = bench.service.runs()[-1].id
        assert "write" in str(bench.service.explain(first))
    journals = sorted((tmp_path / "journals").glob("*.jsonl"))
    assert len(journals) > 2
    assert all(sum(1 for _ in Reader(journal).rows()) < 20 for journal in journals)
    check_all(tmp_path)


def test_a_new_journal_knows_which_gpus_are_there(tmp_path: Path) -> None:
    with service(tmp_path, journal_lines=4) as bench:
        bench.carrier.inbox.put(
            Observed("gone", {"gpus": [0], "why": "unplugged"}), Added("one joined", devices=(Device(2, "gpu"),))
        )
        first = bench.service.journal()
        while bench.service.journal() == first:
            assert bench.service.wait(bench.submit()).state == "completed"
        run = bench.submit()
        assert bench.service.wait(run).state == "completed"
        assert len(Reader(bench.service.journal()).header.pool) == 3
        assert {node.gpus for node in bench.service.status(run).nodes.values()} <= {(1,), (2,)}
    with service(tmp_path, journal_lines=4) as bench:
        assert len(Reader(bench.service.journal()).header.pool) == 2
    check_all(tmp_path)


def test_a_gpu_that_is_back_while_a_journal_is_cut_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin, back = JournalSegments.begin, [Observed("back", {"gpus": [0, 1]})]
    with service(tmp_path, journal_lines=1) as bench:

        def meanwhile(*args: Any) -> JournalSegment:
            bench.carrier.inbox.put(*back)
            back.clear()
            return begin(*args)

        monkeypatch.setattr(JournalSegments, "begin", meanwhile)
        bench.carrier.inbox.put(Observed("gone", {"gpus": [0, 1], "why": "unplugged"}))
        until(lambda: not back)
        assert bench.service.wait(bench.submit(), 60.0).state == "completed"
    check_all(tmp_path)


def test_a_journal_that_never_gets_a_quiet_moment_makes_one(tmp_path: Path) -> None:
    with service(tmp_path, hold=True, journal_lines=3) as bench:
        runs = [bench.submit(workflow="llm") for i in range(3)]
        journal = bench.service.journal()
        for _ in range(20):  # always three that are open, until those that come have to wait
            bench.carrier.let_go()
            until(lambda: bench.service.status(runs[-3]).state == "completed" or bench.service.journal() != journal)
            runs.append(bench.submit(workflow="llm"))
        bench.carrier.let_go(100)
        assert {bench.service.wait(run).state for run in runs} == {"completed"}
        assert bench.service.journal() != journal
    check_all(tmp_path)


def test_what_was_measured_is_known_in_the_next_journal(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        for _ in range(8):
            bench.service.wait(bench.submit(workflow="llm"))
        first = bench.service.journal()
    with service(tmp_path) as bench:
        assert bench.service.journal() != first
        (rate,) = Reader(bench.service.journal()).header.facts["rates"]["rates"]
        assert rate["kind"] == "llm"
        assert rate["rate"] > 1  # it answers at once, and was expected to take 0.1 s
        assert bench.service.wait(bench.submit(workflow="llm")).state == "completed"
    with service(tmp_path, policy="srpt") as bench:
        assert "rates" not in Reader(bench.service.journal()).header.facts
    check_all(tmp_path)


def is_held_back(bench: Bench, run: str) -> bool:
    """Whether it waits for the next journal; known once it does, or has arrived in this one."""
    loop = bench.service._loop

    def waits() -> bool:
        with loop.lock:
            return any(arrival.job == run for arrival in loop._held_back or ())

    until(lambda: waits() or bench.service.status(run).nodes)
    return waits()


def test_who_waits_for_the_next_journal_can_be_ended(tmp_path: Path) -> None:
    with service(tmp_path, hold=True, journal_lines=1) as bench:
        first = bench.submit(workflow="llm")
        until(lambda: bench.service.status(first).state == "running")
        late = bench.submit(workflow="llm")
        while not is_held_back(bench, late):  # until the journal is so long
            bench.service.cancel(late)
            late = bench.submit(workflow="llm")
        cancelled = bench.submit(workflow="llm")
        assert bench.service.cancel(cancelled, "not wanted").state == "cancelled"
        assert str(bench.service.explain(cancelled)).endswith("not wanted; no journal tells of it.")
        all_have_waited_too_long(bench)
        status = bench.service.wait(late)
        assert (status.state, status.error) == ("failed", "it waited for 600 s (max_wait_s)")
        bench.carrier.let_go(100)
        assert bench.service.wait(first).state == "completed"
        assert bench.service.about()["queue"] == {}
    check_all(tmp_path)


def test_a_model_that_cannot_be_loaded_is_not_the_requests_fault(tmp_path: Path) -> None:
    with service(tmp_path, hold=True, retries=0) as bench:
        run = bench.submit()
        until(lambda: bench.service.status(run).state == "running")
        gpus = list(bench.service.status(run).nodes["write"].gpus)
        why = "llm could not be loaded"
        bench.carrier.inbox.put(Observed("emptied", {"gpus": gpus, "why": why}), Failed(run, "write", why))
        status = bench.service.wait(run)
        assert (status.state, status.blame) == ("failed", "place")


def test_nor_is_one_without_a_gpu_that_cannot_be_loaded(tmp_path: Path) -> None:
    models = {"tool": MODEL | {"gpus_required": 0}}
    with service(tmp_path, {"models": models, "workflows": {}}, hold=True, retries=0) as bench:
        run = bench.submit(workflow="tool")
        until(lambda: bench.service.status(run).state == "running")
        bench.carrier.inbox.put(Failed(run, "tool", "tool could not be loaded: no such file"))
        status = bench.service.wait(run)
        assert (status.state, status.blame) == ("failed", "place")


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    (folder := tmp_path / "open").mkdir()
    folder.chmod(0o777)
    with pytest.raises(InputError, match=r"others can write there \(mode 777\); expected mode 700"):
        Bench(folder, CONFIG, False, "dovetail")


def test_what_may_be_counted_is_there_from_the_start(tmp_path: Path) -> None:
    with service(tmp_path) as bench:
        lines = bench.service.metrics().splitlines()
    for series in (
        'accepted_total{workflow="chain"}',
        'refused_total{reason="busy"}',
        'runs_total{workflow="chain",state="failed"}',
        'starts_total{model="llm"}',
        'waiting_nodes{model="sum"}',
        "worker_losses_total",
    ):
        assert f"dovetail_workflow_{series} 0" in lines


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"live\.max_queue: expected 1 or more, found 0"):
        Bench(tmp_path, CONFIG, False, "dovetail", max_queue=0)


def test_a_policy_that_there_is_not_leaves_the_folder_alone(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="did you mean 'dovetail'"):
        Bench(tmp_path / "state", CONFIG, False, "dovetial")
    assert not (tmp_path / "state").exists()


def test_a_service_has_its_folder_alone(tmp_path: Path) -> None:
    with service(tmp_path), pytest.raises(InputError, match="another process has it open"):
        Bench(tmp_path, CONFIG, False, "dovetail")


def test_real_workers_answer(tmp_path: Path) -> None:
    """Two emulated models in worker processes, on one GPU."""
    source = {"emulated": {"load_s": 0.01, "call_s": 0.01, "token_mean": 2, "answer": "done"}}
    config = CONFIG | {"models": {name: MODEL | {"source": source} for name in ("llm", "sum")}}
    problem = workflow.load(config, [], gpus=1, mode="online")
    settings = LiveSettings()
    engine = LocalGpuEngine(emulated_gpus(1), settings.limits.silence_s)
    with WorkflowService.over(problem, engine, tmp_path, settings, log=LogLines(io.StringIO())) as running:
        runs = [running.submit(RunRequest(workflow="chain", input=HELLO, stream=True)) for _ in range(3)]
        heard: list[RunEvent] = []
        running.follow(runs[0], heard.append)
        assert [running.wait(run).state for run in runs] == ["completed"] * 3
        assert {"piece", "first token"} <= {event.kind for event in heard}
        assert running.result(runs[0]).answer == {"text": "done"}
        assert running.about()["gpus"][0]["models"] in (["llm"], ["sum"])
        assert 'resident{gpu="0",model=' in running.metrics()
        running.drain()
    check_all(tmp_path)
