"""The workflow checker: a run written down by hand passes in every format, and every fault planted in it is found."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Event, Finished, Reject, Start
from dovetail.core.findings import Report
from dovetail.core.journal import Header, Writer
from dovetail.core.metrics import Metrics
from dovetail.core.resources import DeviceType, Pool
from dovetail.core.tasks import Task, TaskGraphRecord
from dovetail.workflow.bounds import BoundsAccumulator
from dovetail.workflow.check import CODES, check_journal
from dovetail.workflow.compat.check_log import check_log
from dovetail.workflow.compat.execution_log import ExecutionLog
from dovetail.workflow.export import write_logs
from dovetail.workflow.gpus.residents import least_setups
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.metrics import summary
from dovetail.workflow.problem import load
from dovetail.workflow.simulate import run

Row = dict[str, Any]
Plant = Callable[[Any], object]

CONFIG: dict[str, Any] = {
    "models": {
        "llm": {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 10},
        "sd": {"memory_gb": 4, "gpus_required": 1, "load_time_seconds": 5},
        "wide": {"memory_gb": 16, "gpus_required": 2, "load_time_seconds": 20},
        "tool": {"memory_gb": 0, "gpus_required": 0, "load_time_seconds": 0},
    },
    "workflows": {
        "chain": {
            "nodes": [{"id": "text", "model": "llm"}, {"id": "image", "model": "sd"}],
            "edges": [{"from": "text", "to": "image"}],
        },
        "broad": {
            "nodes": [{"id": "big", "model": "wide"}, {"id": "save", "model": "tool"}],
            "edges": [{"from": "big", "to": "save"}],
        },
    },
}
REQUESTS: list[Row] = [
    {"request_id": "r1", "workflow_id": "chain", "timestamp": 0, "node_execution_times": {"text": 4, "image": 6}},
    {"request_id": "r2", "workflow_id": "broad", "timestamp": 0, "node_execution_times": {"big": 5, "save": 1}},
    {"request_id": "r3", "workflow_id": "chain", "timestamp": 1, "node_execution_times": {"text": 3, "image": 2}},
    {"request_id": "r4", "workflow_id": "nothing", "timestamp": 1, "node_execution_times": {}},
]
MODELS = {
    "llm": ModelCost(8, 10),
    "sd": ModelCost(4, 5),
    "wide": ModelCost(16, 20, 2),
    "tool": ModelCost(0, 0, 0),
}
HEADER = Header(
    level="workflow",
    policy="by hand",
    mode="online",
    pool=Pool.parse("3", {}),
    graphs=(
        TaskGraphRecord("chain", (Task("text", "llm"), Task("image", "sd")), (("text", "image"),)),
        TaskGraphRecord("broad", (Task("big", "wide", 2), Task("save", "tool", 0)), (("big", "save"),)),
    ),
    facts={"models": msgspec.to_builtins(MODELS), "requests": {"total": 4}},
)
STEPS: list[tuple[float, list[Event]]] = [
    (
        0.0,
        [
            Arrived("r1", "chain", (4.0, 6.0)),
            Arrived("r2", "broad", (5.0, 1.0)),
            Start("r1", "text", "llm", (0,), 0.0, 4.0, "first", 10.0),
            Start("r2", "big", "wide", (1, 2), 0.0, 5.0, "first", 20.0),
        ],
    ),
    (
        1.0,
        [
            Arrived("r3", "chain", (3.0, 2.0)),
            Arrived("r4", "nothing", fault="unknown workflow"),
            Reject("r4", "unknown workflow"),
        ],
    ),
    (14.0, [Finished("r1", "text"), Start("r3", "text", "llm", (0,), 1.0, 3.0, "warm")]),
    # llm leaves for sd: (8 + 4) / 16 + 2
    (17.0, [Finished("r3", "text"), Start("r1", "image", "sd", (0,), 14.0, 6.0, "oldest", 2.75, "llm")]),
    (
        25.0,
        [
            Finished("r2", "big"),
            Start("r2", "save", "tool", (), 25.0, 1.0, "needs no GPU"),
            # wide leaves for sd: (16 + 4) / 16 + 2
            Start("r3", "image", "sd", (1,), 17.0, 2.0, "free", 3.25, "wide"),
        ],
    ),
    (25.75, [Finished("r1", "image"), Complete("r1")]),
    (26.0, [Finished("r2", "save"), Complete("r2")]),
    (30.25, [Finished("r3", "image"), Complete("r3")]),
]


class Files:
    """The same run in all three formats, and the files it is a run of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "config.json"
        self.requests = folder / "requests.json"
        self.journal = folder / "journal.jsonl"
        self.log = folder / "log.json"
        self.old = folder / "old.json"
        self.write_inputs(CONFIG, REQUESTS)
        metrics = Metrics(HEADER.pool)
        bounds = BoundsAccumulator(HEADER.pool, HEADER.build_graphs(), least_setups(MODELS, CostRules()))
        with Writer(self.journal, HEADER) as writer, ExecutionLog(HEADER, self.log) as log:
            for n, (t, events) in enumerate(STEPS, start=1):
                for observer in (metrics, bounds, writer, log):
                    observer.step(n, t, events)
            figures, lower = metrics.figures(), bounds.result()
            writer.end(len(STEPS) + 1, STEPS[-1][0], summary(HEADER, figures, lower))
            log.write(figures, lower)
        self.old.write_text(json.dumps(as_old(json.loads(self.log.read_text())), indent=2))

    def write_inputs(self, config: Row, requests: list[Row]) -> None:
        self.config.write_text(json.dumps(config))
        self.requests.write_text(json.dumps({"requests": requests}))

    def check_journal(self, plant: Plant | None = None, files: bool = True) -> Report:
        """`plant` changes the lines, as dictionaries."""
        if plant is not None:
            lines = [json.loads(line) for line in self.journal.read_text().splitlines()]
            plant(lines)
            self.journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return check_journal(self.journal, self.config if files else None, self.requests if files else None)

    def check_log(self, plant: Plant | None = None, files: bool = True) -> Report:
        self._change(self.log, plant)
        return check_log(self.log, self.config if files else None, self.requests if files else None)

    def check_old(self, plant: Plant | None = None, config: bool = True, requests: bool = True) -> Report:
        self._change(self.old, plant)
        return check_log(self.old, self.config if config else None, self.requests if requests else None)

    def _change(self, path: Path, plant: Plant | None) -> None:
        if plant is not None:
            data = json.loads(path.read_text())
            plant(data)
            path.write_text(json.dumps(data))


OLD_KEYS = "request_id workflow_id node_id model_name gpu_id start_time end_time execution_time estimated_time"


def as_old(log: Row) -> Row:
    """What the older scheduler would have written: only the first GPU, no request rows, null at a start at 0."""
    rows = [{key: row[key] for key in f"{OLD_KEYS} switch_time waiting_time".split()} for row in log["executions"]]
    for row in rows:
        if row["start_time"] == 0:
            row["execution_time"] = None
        if row["switch_time"] == int(row["switch_time"]):
            row["switch_time"] = int(row["switch_time"])
    claimed = {key: value for key, value in log["summary"].items() if key != "rejected_requests"} | {
        "total_requests": 3
    }
    return {"summary": claimed, "executions": rows}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_a_clean_run_passes_in_every_format(files: Files) -> None:
    for report in (
        files.check_journal(),
        files.check_journal(files=False),
        files.check_log(),
        files.check_log(files=False),
        files.check_old(),
        files.check_old(requests=False),
        files.check_old(config=False, requests=False),
    ):
        assert report.faults == []
        assert report.valid
        assert report.counted["makespan_s"] == 30.25
    assert files.check_journal().counted == files.check_log().counted


def test_a_journal_exports_the_logs_of_its_run(files: Files) -> None:
    again, text = files.folder / "again.json", files.folder / "text.log"
    write_logs(files.journal, executions=again, log=text)
    assert again.read_bytes() == files.log.read_bytes()
    assert text.read_text().count("r1") >= 4
    console = StringIO()
    write_logs(files.journal, console=console)
    assert console.getvalue() == text.read_text()


def test_costs_that_are_not_those_of_the_configuration_are_noted(files: Files) -> None:
    assert files.check_journal().notes == []
    files.write_inputs(CONFIG | {"costs": {"overhead_s": 9.0}}, REQUESTS)
    (note,) = files.check_journal().notes
    assert note.startswith("the costs of the run are not those of the configuration")


# --- journals --------------------------------------------------------------------------------------


def find(lines: list[Row], kind: str, request: str, node: str | None = None) -> Row:
    """The first event of a kind about a request or a node."""
    return next(x for x in lines if x.get("k") == kind and x["job"] == request and node in (None, x.get("task")))


def change(kind: str, request: str, node: str | None = None, /, **values: Any) -> Plant:
    return lambda lines: find(lines, kind, request, node).update(values)


def drop(kind: str, request: str, node: str | None = None) -> Plant:
    return lambda lines: lines.remove(find(lines, kind, request, node))


def double(kind: str, request: str, node: str | None = None) -> Plant:
    def plant(lines: list[Row]) -> None:
        line = find(lines, kind, request, node)
        lines.insert(lines.index(line), dict(line))

    return plant


def together(*plants: Plant) -> Plant:
    def plant(data: Any) -> None:
        for one in plants:
            one(data)

    return plant


def share(**tenancy: Any) -> Plant:
    """r1 and r3 are of two tenants; r3 has had less when r1 goes on."""

    def header(lines: list[Row]) -> None:
        lines[0]["facts"]["tenancy"] = tenancy

    tenants = [change("arrived", request, facts={"tenant": name}) for request, name in (("r1", "ann"), ("r3", "bob"))]
    return together(header, *tenants)


def complete_with_the_last(lines: list[Row]) -> None:
    """r2 is called complete only when r3 is."""
    line = find(lines, "completed", "r2")
    lines.remove(line)
    lines.insert(-1, line | {"n": 8, "t": 30.25})


def shift(from_s: float, by_s: float) -> Plant:
    """Move everything from an instant on, consistently."""

    def plant(lines: list[Row]) -> None:
        for line in lines[1:]:
            if line["t"] >= from_s:
                line["t"] += by_s

    return plant


def pause_what_has_ended(lines: list[Row]) -> None:
    ends = find(lines, "finished", "r3", "image")
    lines.insert(lines.index(ends) + 1, ends | {"k": "paused", "why": "too late"})


GROWN: Row = {"k": "grew", "job": "r1", "task": "text", "tasks": [], "edges": [["image", "text"]]}


def grow_after_the_end(lines: list[Row]) -> None:
    ends = find(lines, "finished", "r1", "text")
    lines.insert(lines.index(ends) + 1, {**ends, **GROWN, "edges": []})


def facts(**values: Any) -> Plant:
    return lambda lines: lines[0]["facts"].update(values)


def claim(**values: Any) -> Plant:
    return lambda lines: lines[-1]["summary"].update(values)


def seen_live(**event: Any) -> Plant:
    """The run is said to be live, and this to have been seen when its first request arrived."""

    def plant(lines: list[dict[str, Any]]) -> None:
        lines[0]["facts"]["live"] = True
        at = next(i for i, line in enumerate(lines) if line.get("k") == "arrived" and line["job"] == "r1")
        lines.insert(at + 1, {"n": lines[at]["n"], "t": lines[at]["t"], **event})

    return plant


def fail_and_retry(lines: list[Row]) -> None:
    """r3/image fails at its end and runs again, which no retries were allowed for."""
    ends = find(lines, "finished", "r3", "image")
    i = lines.index(ends)
    again = find(lines, "started", "r3", "image") | {"n": 8, "t": 30.25, "ready_s": 30.25}
    del again["setup_s"], again["replaces"]
    lines[i:i] = [ends | {"k": "failed", "why": "injected"}, again]
    for line in lines[i + 2 :]:
        line.update(n=9, t=32.25)


JOURNAL: list[tuple[str, str, Plant]] = [
    ("time", "goes back", change("finished", "r2", "save", t=20.0)),
    ("number", "a negative setup", change("started", "r1", "text", setup_s=-10.0)),
    ("graph", "an unknown workflow", change("arrived", "r3", of="nothing")),
    ("arrival", "arrives twice", double("arrived", "r3")),
    ("arrival", "starts before it arrives", change("started", "r1", "text", job="r3", task="text")),
    ("task", "an unknown node", change("started", "r2", "save", task="load")),
    ("growth", "nodes added by one that has ended", grow_after_the_end),
    ("order", "without its predecessor", together(drop("started", "r1", "text"), drop("finished", "r1", "text"))),
    ("twice", "runs twice", together(double("started", "r3", "text"), double("finished", "r3", "text"))),
    ("ready", "ready when it was not", change("started", "r1", "image", ready_s=13.0)),
    ("kind", "another model", change("started", "r3", "text", kind="sd")),
    ("width", "on half of its GPUs", change("started", "r2", "big", devices=[1])),
    ("device", "on a GPU that is not there", change("started", "r3", "text", devices=[3])),
    ("overlap", "on the first GPU of a window", change("started", "r3", "text", devices=[1])),
    ("overlap", "on the second GPU of a window", change("started", "r3", "text", devices=[2])),
    ("change", "a pause of what has ended", pause_what_has_ended),
    ("batch", "two requests with one batch id", lambda x: [y.update(batch=1) for y in x if y.get("k") == "started"]),
    (
        "batch",
        "a batch where there is no batching",
        together(
            change("arrived", "r3", t=0.0, n=1),
            lambda x: x.insert(2, x.pop(x.index(find(x, "arrived", "r3")))),
            change("started", "r1", "text", batch=1),
            lambda x: x.insert(5, find(x, "started", "r1", "text") | {"job": "r3"}),
        ),
    ),
    ("finish", "ends twice", double("finished", "r2", "save")),
    ("duration", "ends too late", shift(30.25, 0.75)),
    ("duration", "ends too early", change("finished", "r1", "image", t=25.5)),
    ("complete", "completes too late", complete_with_the_last),
    ("missing", "a node never runs", together(drop("started", "r2", "save"), drop("finished", "r2", "save"))),
    ("closed", "completes twice", double("completed", "r1")),
    ("reason", "rejected without a reason", change("rejected", "r4", why="")),
    ("running", "never ends", drop("finished", "r3", "image")),
    (
        "preload",
        "ends without a beginning",
        lambda x: x.insert(2, {"n": x[1]["n"], "t": 0.0, "k": "prepared", "id": 1}),
    ),
    ("unclosed", "neither completed nor rejected", drop("completed", "r2")),
    ("end", "no end", lambda x: x.pop()),
    ("summary", "a shorter makespan", claim(makespan_s=30.0)),
    ("summary", "a shorter mean", claim(avg_request_s=1.0)),
    ("summary", "one switch less", claim(switches=1)),
    ("summary", "a lower bound", claim(bound_makespan_s=1.0)),
    ("bound", "a bound that it beats", claim(bound_makespan_s=60.5)),
    ("bound", "a bound of the mean that it beats", claim(bound_mean_s=100.0)),
    ("summary", "a smaller gap", claim(gap_makespan=0.0)),
    ("summary", "another policy", claim(policy="best")),
    ("summary", "no makespan", lambda x: x[-1]["summary"].pop("makespan_s")),
    ("admission", "a queue that was full", share(sharing={"max_queue": 1})),
    ("quota", "more GPUs than a tenant may hold", share(tenants={"*": {"quota_gpus": 1}})),
    ("turn", "a tenant that was served more", share(tenants={"*": {}}, sharing={"tolerance_s": 0.0})),
    ("model", "a model that is not described", lambda x: x[0]["facts"]["models"].pop("sd")),
    ("model", "a model of another width", lambda x: x[0]["facts"]["models"]["wide"].update(width=1)),
    ("slots", "slots that the model does not have", change("started", "r3", "image", slots=2)),
    ("token", "a first token of a node that writes none", change("started", "r3", "image", first_s=1.0)),
    ("run", "a shorter run", together(change("started", "r3", "image", run_s=1.0), shift(30.25, -1.0))),
    ("price", "a cheaper switch", together(change("started", "r3", "image", setup_s=1.25), shift(30.25, -2.0))),
    ("price", "a dearer switch", together(change("started", "r3", "image", setup_s=4.25), shift(30.25, 1.0))),
    ("price", "no price", together(change("started", "r3", "image", setup_s=0.0), shift(30.25, -3.25))),
    ("price", "no first load", change("started", "r1", "text", setup_s=0.0)),
    ("price", "a price where the model is there", change("started", "r3", "text", setup_s=2.0)),
    ("prefix", "a hit where nothing is kept", change("started", "r3", "image", cached=1)),
    ("replaces", "another model replaced", change("started", "r3", "image", replaces="llm")),
    ("replaces", "nothing replaced", change("started", "r1", "image", replaces=None)),
    ("window", "GPUs that are not neighbours", change("started", "r2", "big", devices=[0, 2])),
    ("memory", "a GPU that is too small", lambda x: x[0]["pool"]["types"]["gpu"].update(memory_mib=6000)),
    ("off", "a GPU that is not there", lambda x: x[0]["facts"].update(gpus_over_time={"steps": [[0, 1]]})),
    ("seen", "a GPU gone that never was", seen_live(k="observed", what="gone", facts={"gpus": [99]})),
    ("cancel", "a request that goes on", seen_live(k="asked", job="r1", what="cancel")),
    ("retry", "tried once more than allowed", fail_and_retry),
    ("bound", "a size that does not fit into the makespan", change("arrived", "r1", sizes=[4.0, 600.0])),
    ("requests", "a size that is not the file's", change("arrived", "r1", sizes=[4.0, 6.5])),
    ("requests", "another arrival", change("arrived", "r3", t=0.5)),
    ("requests", "another workflow", change("arrived", "r1", of="broad")),
    ("requests", "a request that is not in the file", change("arrived", "r4", job="r5")),
    ("requests", "a request is missing", together(drop("arrived", "r4"), drop("rejected", "r4"))),
    ("config", "other memory", lambda x: x[0]["facts"]["models"]["llm"].update(memory_gb=9)),
    ("config", "another edge", lambda x: x[0]["graphs"][0].update(edges=[])),
    ("config", "another GPU type", lambda x: x[0]["pool"]["types"]["gpu"].update(name="a100", speed=2.0)),
]


@pytest.mark.parametrize(("code", "what", "plant"), JOURNAL, ids=[f"{code}: {what}" for code, what, _ in JOURNAL])
def test_a_fault_in_a_journal_is_found(files: Files, code: str, what: str, plant: Plant) -> None:
    report = files.check_journal(plant)
    assert not report.valid
    assert code in report.faults_by_code


def test_every_code_has_a_fault_planted_in_a_journal() -> None:
    """`row` is about execution logs alone."""
    assert {code for code, _, _ in JOURNAL} == set(CODES) - {"row"}


@pytest.mark.parametrize(
    ("code", "plant"),
    [
        ("price", together(change("started", "r3", "image", setup_s=1.25), shift(30.25, -2.0))),
        ("run", together(change("started", "r3", "image", run_s=1.0), shift(30.25, -1.0))),
        ("replaces", change("started", "r3", "image", replaces="llm")),
        ("requests", together(drop("arrived", "r4"), drop("rejected", "r4"))),
    ],
)
def test_nothing_else_is_reported(files: Files, code: str, plant: Plant) -> None:
    """A fault that leaves the rest consistent is reported as itself, besides the figures it changes."""
    assert set(files.check_journal(plant, files=False).faults_by_code) - {"summary", "bound"} == {code}


def test_a_fault_names_place_found_and_expected(files: Files) -> None:
    report = files.check_journal(change("started", "r3", "text", devices=[2]), files=False)
    fault = next(fault for fault in report.faults if fault.code == "overlap")
    assert fault.where == "step 3 at 14 s: r3/text"
    assert fault.message == "takes device 2 at 14.0 s, which r2/big holds since 0.0 s"


def test_a_torn_journal_is_a_fault(files: Files) -> None:
    files.journal.write_bytes(files.journal.read_bytes()[:-9])
    assert "end" in files.check_journal().faults_by_code


def test_changed_input_files_are_found(files: Files) -> None:
    files.write_inputs(CONFIG, [*REQUESTS, {**REQUESTS[0], "request_id": "r5"}])
    report = files.check_journal()
    assert [fault.where for fault in report.faults] == ["r5"]
    assert report.faults_by_code == {"requests": 1}
    other = json.loads(json.dumps(CONFIG))
    other["models"]["llm"]["load_time_seconds"] = 11
    files.write_inputs(other, REQUESTS)
    assert files.check_journal().faults_by_code == {"config": 1}


def test_gpus_over_time_that_a_run_does_not_know_are_found(files: Files) -> None:
    files.write_inputs(CONFIG | {"gpus_over_time": {"steps": [[0, 4]]}}, REQUESTS)
    for report in (files.check_journal(), files.check_log()):
        [fault] = report.faults
        assert (fault.code, fault.where) == ("config", "gpus_over_time")
        assert fault.message == 'found nothing, expected {"steps":[[0.0,4]]} as in the configuration'


def test_gpus_over_time_given_besides_the_configuration_are_noted(tmp_path: Path) -> None:
    """A run may have others than the configuration's: that is no fault of it, but is said."""
    for config in (CONFIG, CONFIG | {"gpus_over_time": {"steps": [[0, 4]]}}):
        problem = load(config, REQUESTS, gpus=4, on_error="reject", gpus_over_time={"steps": [[0, 4], [1, 3]]})
        journal = tmp_path / "journal.jsonl"
        run(problem, "baseline", journal=journal)
        report = check_journal(journal, config, REQUESTS)
        assert report.valid
        assert [note for note in report.notes if "--gpus-over-time changed them" in note]
        over_time = CONFIG | {"gpus_over_time": {"steps": [[0, 4], [1, 3]]}}
        assert not [note for note in check_journal(journal, over_time, REQUESTS).notes if "over time" in note]


def test_requests_need_a_configuration(files: Files) -> None:
    with pytest.raises(InputError, match="--requests needs --config"):
        check_journal(files.journal, None, files.requests)


# --- batches, overlapped loading, types and rates ---------------------------------------------------


def small_journal(path: Path, starts: list[Start], types: dict[str, DeviceType], gpus: str, **known: Any) -> Report:
    """Requests `u` and `v` of one node each, sizes 6 and 3; everything that starts does so at 0."""
    header = Header(
        level="workflow",
        policy="by hand",
        pool=Pool.parse(gpus, types),
        graphs=(TaskGraphRecord("one", (Task("a", "llm"),)),),
        facts={"models": {"llm": {"memory_gb": 8.0, "load_s": 10.0, "batch_curve": [1.0, 1.5]}}, **known},
    )
    with Writer(path, header) as writer:
        writer.step(1, 0.0, [Arrived("u", "one", (6.0,)), Arrived("v", "one", (3.0,)), *starts])
        ends = sorted(starts, key=lambda start: start.setup_s + start.run_s)
        for n, start in enumerate(ends, start=2):
            writer.step(n, start.setup_s + start.run_s, [Finished(start.job, "a"), Complete(start.job)])
        writer.end(9, 99.0, {})
    return check_journal(path)


def faults_of(report: Report) -> set[str]:
    return set(report.faults_by_code) - {"summary"}  # which these journals leave out


def test_a_batch_takes_as_long_as_its_curve_says(tmp_path: Path) -> None:
    def batch(run_s: float, **costs: Any) -> set[str]:
        starts = [Start(request, "a", "llm", (0,), 0.0, run_s, "", 10.0, batch=3) for request in "uv"]
        return faults_of(small_journal(tmp_path / "journal", starts, {}, "1", costs=costs))

    assert batch(9.0, batching=True) == set()
    assert batch(6.0, batching=True) == {"run", "bound"}
    assert batch(9.0) == {"batch"}


def test_part_of_a_load_may_hide_behind_the_run(tmp_path: Path) -> None:
    def pair(setup_s: float, **costs: Any) -> set[str]:
        starts = [
            Start("u", "a", "llm", (0,), 0.0, 6.0, "", setup_s),
            Start("v", "a", "llm", (1,), 0.0, 3.0, "", 8.5),
        ]
        return faults_of(small_journal(tmp_path / "journal", starts, {}, "2", costs=costs))

    assert pair(7.0, overlap=0.5) == set()  # 10 - 0.5 * min(10, 6)
    assert pair(10.0, overlap=0.5) == {"price"}
    assert pair(5.0, overlap=0.5) == {"price"}


def test_a_run_takes_size_over_speed_of_the_slowest_gpu(tmp_path: Path) -> None:
    types = {"fast": DeviceType("fast", speed=2.0), "slow": DeviceType("slow", speed=0.5)}

    def pair(on_fast: float, on_slow: float, **known: Any) -> set[str]:
        starts = [
            Start("u", "a", "llm", (0,), 0.0, on_fast, "", 10.0),
            Start("v", "a", "llm", (1,), 0.0, on_slow, "", 10.0),
        ]
        return faults_of(small_journal(tmp_path / "journal", starts, types, "fast:1,slow:1", **known))

    rates = {"rates": [{"kind": "llm", "device": "slow", "rate": 0.25}]}
    assert pair(3.0, 6.0) == set()
    assert pair(6.0, 6.0) == {"run"}
    assert pair(3.0, 12.0, rates=rates) == set()
    assert pair(3.0, 6.0, rates=rates) == {"run"}


def test_bounds_allow_for_rates_above_the_speeds(tmp_path: Path) -> None:
    rates = {"rates": [{"kind": "llm", "device": "gpu", "rate": 100.0}]}
    starts = [Start("u", "a", "llm", (0,), 0.0, 0.06, "", 10.0), Start("v", "a", "llm", (1,), 0.0, 0.03, "", 10.0)]
    report = small_journal(tmp_path / "journal", starts, {}, "2", rates=rates)
    assert faults_of(report) == set()
    assert report.notes == []


def test_a_measured_run_is_not_held_to_prices(tmp_path: Path) -> None:
    starts = [Start("u", "a", "llm", (0,), 0.0, 7.0, "", 1.0), Start("v", "a", "llm", (1,), 0.0, 2.0, "", 1.0)]
    assert faults_of(small_journal(tmp_path / "journal", starts, {}, "2")) == {"run", "price", "bound"}
    report = small_journal(tmp_path / "journal", starts, {}, "2", simulate=True)
    assert faults_of(report) == set()
    assert len(report.notes) == 2


# --- our execution log -----------------------------------------------------------------------------


def row_of(log: Row, request: str, node: str) -> Row:
    found: Row = next(row for row in log["executions"] if (row["request_id"], row["node_id"]) == (request, node))
    return found


def row(request: str, node: str, **values: Any) -> Plant:
    return lambda log: row_of(log, request, node).update(values)


def request(request: str, **values: Any) -> Plant:
    return lambda log: next(x for x in log["requests"] if x["request_id"] == request).update(values)


def total(**values: Any) -> Plant:
    return lambda log: log["summary"].update(values)


def without(request: str, node: str) -> Plant:
    return lambda log: log["executions"].remove(row_of(log, request, node))


def again(request: str, node: str, **values: Any) -> Plant:
    return lambda log: log["executions"].append(row_of(log, request, node) | values)


LOG: list[tuple[str, str, Plant]] = [
    ("number", "a negative switch", row("r1", "text", switch_time=-10.0)),
    ("graph", "an unknown workflow", request("r3", workflow_id="nothing")),
    ("graph", "no sizes", request("r3", sizes=[])),
    ("arrival", "starts before it arrives", request("r1", arrival_time=5.0)),
    ("arrival", "a request without a row", lambda log: log["requests"].pop()),
    ("arrival", "a request with two rows", lambda log: log["requests"].append(log["requests"][0])),
    ("task", "an unknown node", row("r2", "save", node_id="load")),
    ("growth", "an edge into a node that runs", lambda log: log.update(grown=[GROWN])),
    ("order", "before its predecessor ended", row("r2", "save", start_time=24.0, end_time=25.0, switch_start=24.0)),
    ("twice", "a doubled node", again("r3", "text")),
    ("closed", "a doubled node, later", again("r2", "save", start_time=40, end_time=41, switch_start=40)),
    ("ready", "ready when it was not", row("r1", "image", ready_time=13.0)),
    ("kind", "another model", row("r3", "text", model_name="sd")),
    ("width", "on half of its GPUs", row("r2", "big", gpu_ids=[1])),
    ("device", "on a GPU that is not there", row("r3", "text", gpu_ids=[3], gpu_id=3)),
    ("overlap", "on the second GPU of a window", row("r3", "text", gpu_ids=[2], gpu_id=2)),
    ("overlap", "a switch while another node runs", row("r1", "image", switch_start=16.0, switch_time=3.75)),
    ("batch", "two requests with one batch id", together(row("r1", "text", batch=1), row("r3", "text", batch=1))),
    ("duration", "takes longer", row("r3", "image", end_time=31.0, execution_time=2.75)),
    ("duration", "ends before it starts", row("r3", "image", end_time=20.0, execution_time=-8.25)),
    ("complete", "completes too late", request("r3", completion_time=40.0, response_time=39.0)),
    ("missing", "a node is missing", without("r2", "save")),
    ("closed", "starts after its end", row("r2", "save", start_time=40, end_time=41, switch_start=40)),
    ("reason", "rejected without a reason", request("r4", reason="")),
    ("summary", "a shorter makespan", total(makespan=30.0)),
    ("summary", "more completed", total(completed_requests=4)),
    ("summary", "a shorter response", total(avg_response_time=1.0)),
    ("summary", "more failures", total(failed_attempts=1)),
    ("summary", "models were called", total(simulate=True)),
    ("summary", "an unknown mode", total(mode="both")),
    ("summary", "more GPUs", total(gpus=[0, 1, 2, 3])),
    ("summary", "no P99", lambda log: log["summary"].pop("p99_waiting_time")),
    ("summary", "a lower bound", lambda log: log["bounds"].update(makespan_s=1.0)),
    ("model", "a model that is not described", lambda log: log["models"].pop("sd")),
    ("slots", "slots that the model does not have", row("r3", "image", slots=2)),
    ("token", "a first token of a node that writes none", row("r3", "image", estimated_first=1.0)),
    ("run", "another estimate", row("r3", "image", estimated_time=1.0, end_time=29.25, execution_time=1.0)),
    ("price", "a cheaper switch", row("r3", "image", switch_time=1.25, start_time=26.25, end_time=28.25)),
    ("price", "no price", row("r3", "image", switch_time=0.0, start_time=25.0, end_time=27.0)),
    ("prefix", "a hit where nothing is kept", row("r3", "image", cached=1)),
    ("replaces", "another model replaced", row("r3", "image", from_model="llm")),
    ("window", "GPUs that are not neighbours", row("r2", "big", gpu_ids=[0, 2], gpu_id=0)),
    ("memory", "a GPU that is too small", lambda log: log["pool"]["types"]["gpu"].update(memory_mib=6000)),
    ("off", "a GPU that is not there", lambda log: log["facts"].update(gpus_over_time={"steps": [[0, 1]]})),
    ("retry", "a failure that no retry was allowed for", lambda log: log["failures"].append(EARLY_FAILURE)),
    ("bound", "a size that does not fit into the makespan", request("r1", sizes=[4.0, 600.0])),
    ("requests", "a size that is not the file's", request("r1", sizes=[4.0, 6.5])),
    ("config", "other memory", lambda log: log["models"]["llm"].update(memory_gb=9)),
    ("row", "another first GPU", row("r2", "big", gpu_id=2)),
    ("row", "a wrong execution time", row("r3", "image", execution_time=1.0)),
    ("row", "no execution time", row("r3", "image", execution_time=None)),
    ("row", "a wrong waiting time", row("r3", "image", waiting_time=1.0)),
    ("row", "a start that is not the end of the switch", row("r3", "image", switch_start=24.0)),
    ("row", "a wrong response time", request("r3", response_time=1.0)),
    ("row", "a response of what was rejected", request("r4", response_time=1.0)),
    ("requests", "another workflow of what was rejected", request("r4", workflow_id="none")),
    ("row", "no completion time", request("r3", completion_time=None)),
    ("row", "another workflow", row("r3", "image", workflow_id="broad")),
    ("row", "a decision at another time", row("r3", "image", decision=1)),
    ("row", "a decision out of order", row("r3", "image", decision=0)),
    ("row", "a rejected request less", lambda log: log["rejected_requests"].pop()),
]
EARLY_FAILURE: Row = {
    "request_id": "r2",
    "workflow_id": "broad",
    "node_id": "big",
    "model_name": "wide",
    "gpu_id": 1,
    "gpu_ids": [1, 2],
    "ready_time": 0.0,
    "switch_start": 0.0,
    "start_time": 0.0,
    "end_time": 0.0,
    "execution_time": 0.0,
    "estimated_time": 5.0,
    "switch_time": 0.0,
    "waiting_time": 0.0,
    "from_model": None,
    "decision": 0,
    "reason": "injected",
}
# What an execution log has no place for: instants in order, ends without starts, requests and nodes left open, an end.
NOT_IN_LOGS = {
    "time",
    "finish",
    "running",
    "preload",
    "unclosed",
    "end",
    "change",
    "admission",
    "quota",
    "turn",
    "seen",
    "cancel",
}


@pytest.mark.parametrize(("code", "what", "plant"), LOG, ids=[f"{code}: {what}" for code, what, _ in LOG])
def test_a_fault_in_an_execution_log_is_found(files: Files, code: str, what: str, plant: Plant) -> None:
    report = files.check_log(plant)
    assert not report.valid
    assert code in report.faults_by_code


def test_every_code_has_a_fault_planted_in_an_execution_log() -> None:
    assert {code for code, _, _ in LOG} == set(CODES) - NOT_IN_LOGS


def test_a_fault_in_a_log_names_its_row(files: Files) -> None:
    report = files.check_log(row("r3", "text", gpu_ids=[2], gpu_id=2), files=False)
    fault = next(fault for fault in report.faults if fault.code == "overlap")
    assert fault.where == "executions[1]: r3/text"


@pytest.mark.parametrize("cut", [30, 300, 2000])
def test_a_torn_log_cannot_be_read(files: Files, cut: int) -> None:
    files.log.write_bytes(files.log.read_bytes()[:-cut])
    with pytest.raises(InputError, match="neither a journal nor an execution log"):
        files.check_log()


def test_a_row_without_a_field_is_named(files: Files) -> None:
    with pytest.raises(InputError, match=r"log\.json: executions\.1: missing key `node_id`"):
        files.check_log(lambda log: log["executions"][1].pop("node_id"))


# --- logs of the older schedulers ------------------------------------------------------------------


def squeeze(log: Row) -> None:
    for i, x in enumerate(log["executions"]):
        x.update(start_time=1 + i / 5, end_time=1.1 + i / 5, execution_time=0.1, switch_time=0)


OLD: list[tuple[str, str, Plant]] = [
    ("arrival", "starts before it arrives", row("r3", "text", start_time=0.5, end_time=3.5)),
    ("task", "an unknown node", row("r2", "save", node_id="load")),
    ("order", "before its predecessor ended", row("r2", "save", start_time=24.0, end_time=25.0)),
    ("twice", "a doubled node", again("r3", "text")),
    ("kind", "another model", row("r3", "text", model_name="sd")),
    ("device", "a window beyond the pool", row("r2", "big", gpu_id=2)),
    ("overlap", "on the first GPU of a window", row("r3", "text", gpu_id=1)),
    ("overlap", "on the second GPU of a window", row("r3", "text", gpu_id=2)),
    ("overlap", "a switch while another node runs", row("r3", "image", start_time=27.25, end_time=29.25)),
    ("duration", "not as long as estimated", row("r3", "image", end_time=31.0, execution_time=2.75)),
    ("duration", "ends before it starts", row("r3", "image", end_time=20.0, execution_time=-8.25)),
    ("missing", "a node is missing", without("r2", "save")),
    ("missing", "a request is missing", together(without("r2", "save"), without("r2", "big"))),
    ("summary", "a shorter makespan", total(makespan=30.0)),
    ("summary", "more nodes", total(total_nodes_executed=7)),
    ("summary", "more completed", total(completed_requests=4)),
    ("summary", "no switches", total(total_model_switches=0)),
    ("summary", "no switch time", total(total_switch_time=0)),
    ("summary", "a shorter response", total(avg_request_response_time=1.0)),
    ("run", "not as long as requested", row("r3", "image", estimated_time=1.0, end_time=29.25, execution_time=1.0)),
    ("price", "a cheaper switch", row("r3", "image", switch_time=1.25, start_time=26.25, end_time=28.25)),
    ("price", "no price", row("r3", "image", switch_time=0, start_time=25.0, end_time=27.0)),
    ("price", "no first load", row("r1", "text", switch_time=0, start_time=0.0, end_time=4.0)),
    ("bound", "all too short", squeeze),
    ("row", "a wrong execution time", row("r3", "image", execution_time=1.0)),
    ("row", "null where the start is not 0", row("r3", "image", execution_time=None)),
    ("row", "another workflow", row("r3", "image", workflow_id="broad")),
]


@pytest.mark.parametrize(("code", "what", "plant"), OLD, ids=[f"{code}: {what}" for code, what, _ in OLD])
def test_a_fault_in_an_older_log_is_found(files: Files, code: str, what: str, plant: Plant) -> None:
    report = files.check_old(plant)
    assert not report.valid
    assert code in report.faults_by_code


def test_without_a_configuration_only_the_first_gpu_is_checked_and_the_report_says_so(files: Files) -> None:
    report = files.check_old(row("r3", "text", gpu_id=2), config=False, requests=False)
    assert report.valid
    assert "all but the first GPU of a window" in report.notes[0]
    assert "arrivals" in report.notes[1]
    report = files.check_old(row("r3", "text", gpu_id=1), config=False, requests=False)
    assert set(report.faults_by_code) == {"overlap"}


def test_an_older_log_without_a_configuration_still_shows_what_is_missing(files: Files) -> None:
    report = files.check_old(without("r3", "image"), config=False, requests=False)
    assert "missing" in report.faults_by_code
    report = files.check_old(total(total_requests=9), config=False, requests=False)
    assert "missing" in report.faults_by_code


def test_older_logs_may_keep_to_either_rule_of_price(files: Files) -> None:
    """`old / PCIe + load` instead of `(old + new) / PCIe + overhead`: r1/image 5.5 s, r3/image 6 s."""

    def other_rule(log: Row) -> None:
        row_of(log, "r1", "image").update(switch_time=5.5, start_time=22.5, end_time=28.5)
        row_of(log, "r3", "image").update(switch_time=6.0, start_time=31.0, end_time=33.0)
        log["summary"].update(makespan=33.0, total_switch_time=11.5, avg_request_response_time=28.83)

    assert files.check_old(other_rule).faults == []
    report = files.check_old(row("r1", "image", switch_time=2.75, start_time=19.75, end_time=25.75))
    assert "price" in report.faults_by_code  # one of each rule


def test_an_older_log_without_switch_times_says_what_was_not_checked(files: Files) -> None:
    def strip(log: Row) -> None:
        for x in log["executions"]:
            del x["switch_time"], x["estimated_time"], x["waiting_time"]
        log["summary"].update(total_switch_time=0)

    report = files.check_old(strip)
    assert report.faults == []
    assert report.notes == ["the log does not say what switches took: prices were not checked"]


def test_an_older_log_of_pinned_models_pays_no_load(files: Files) -> None:
    def pin(log: Row) -> None:
        del log["executions"][:]
        log["gpu_assignments"] = {"0": {"assigned_models": ["llm"]}, "1": {"assigned_models": ["sd"]}}
        fields = ("request_id", "workflow_id", "node_id", "model_name", "gpu_id", "start_time", "end_time")
        for values in (("r1", "chain", "text", "llm", 0, 0.0, 4.0), ("r1", "chain", "image", "sd", 1, 4.0, 10.0)):
            log["executions"].append(dict(zip(fields, values, strict=True)) | {"switch_time": 0.0})
        log["summary"] = {"mode": "online", "gpus": [0, 1, 2], "makespan": 10.0}

    files.write_inputs(CONFIG, REQUESTS[:1])
    assert files.check_old(pin).faults == []


@pytest.mark.parametrize(("seconds", "fault"), [(10.0, False), (5.0, False), (7.0, True)])
def test_an_older_log_may_guess_what_a_request_does_not_say(files: Files, seconds: float, fault: bool) -> None:
    """1000 tokens at 100 a second, or 5 s: both were the rule once. Anything else is a fault."""

    def guess(log: Row) -> None:
        log["gpu_assignments"] = {"0": {"assigned_models": ["llm"]}, "1": {"assigned_models": ["sd"]}}
        fields = ("request_id", "workflow_id", "node_id", "model_name", "gpu_id", "start_time", "end_time")
        begun = [("r1", "chain", "text", "llm", 0, 0.0, 4.0), ("r1", "chain", "image", "sd", 1, 4.0, 4.0 + seconds)]
        log["executions"] = [dict(zip(fields, values, strict=True)) | {"switch_time": 0.0} for values in begun]
        log["summary"] = {"mode": "online", "gpus": [0, 1, 2], "makespan": 4.0 + seconds}

    files.write_inputs(CONFIG, [{**REQUESTS[0], "node_execution_times": {"text": 4}}])
    assert set(files.check_old(guess).faults_by_code) == ({"run", "bound"} if fault else set())


def test_a_rounding_error_in_an_older_log_is_no_overlap(files: Files) -> None:
    """start - switch_time need not give back the instant of the decision."""

    decided = 14.0 + 15.258
    start = decided + 2.75
    assert start - 2.75 < decided

    def blur(log: Row) -> None:
        row_of(log, "r3", "text").update(end_time=decided, execution_time=15.258, estimated_time=15.258)
        row_of(log, "r1", "image").update(start_time=start, end_time=start + 6.0)
        row_of(log, "r3", "image").update(start_time=decided + 3.25, end_time=decided + 5.25)
        log["summary"] = {"mode": "online", "gpus": [0, 1, 2]}

    longer = {**REQUESTS[2], "node_execution_times": {"text": 15.258, "image": 2}}
    files.write_inputs(CONFIG, [*REQUESTS[:2], longer, REQUESTS[3]])
    assert files.check_old(blur).faults == []


def test_an_older_log_of_an_unknown_workflow(files: Files) -> None:
    def rename(log: Row) -> None:
        for x in log["executions"]:
            x["workflow_id"] = "nothing"

    assert "graph" in files.check_old(rename, requests=False).faults_by_code
    assert "row" in files.check_old(requests=True).faults_by_code
