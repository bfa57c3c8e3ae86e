"""`--compat gswarm`: the older scheduler's order of events, and its results, held against one written by hand."""

from __future__ import annotations

import hashlib
import heapq
import json
import random
from collections import deque
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Finished, Start
from dovetail.workflow import write_logs
from dovetail.workflow.check import check_journal
from dovetail.workflow.choices import Mode
from dovetail.workflow.compat.heap_order import HeapOrder
from dovetail.workflow.problem import load
from dovetail.workflow.simulate import run

Run = tuple[str, str, tuple[int, ...], float, float]  # request, node, GPUs, start, end


# --- the order of events --------------------------------------------------------------------------


def test_events_come_one_at_a_time_in_order_of_time() -> None:
    agenda = HeapOrder([(2.0, Arrived("b", "w")), (1.0, Arrived("a", "w"))])
    agenda.push(1.5, Finished("x", "n"))
    assert [agenda.pop() for _ in range(4)] == [
        (1.0, [Arrived("a", "w")]),
        (1.5, [Finished("x", "n")]),
        (2.0, [Arrived("b", "w")]),
        None,
    ]


def test_ties_fall_as_the_older_heap_let_them_fall() -> None:
    """500 arrivals at one instant, the first four of which are started; the order was observed in that scheduler."""
    agenda = HeapOrder((0.0, Arrived(str(i), "w")) for i in range(500))
    found = []
    for started in range(500):
        batch = agenda.pop()
        assert batch is not None
        [event] = batch[1]
        assert isinstance(event, Arrived)
        found.append(int(event.job))
        if started < 4:
            agenda.push(30.0 + started, Finished(event.job, "n"))
    assert found[:14] == [0, 2, 6, 14, 30, 62, 126, 254, 499, 253, 125, 252, 251, 498]
    assert sorted(found) == list(range(500))


# --- the older scheduler, as its description has it -----------------------------------------------


class Event:
    def __init__(self, at_s: float, handle: Any) -> None:
        self.at_s = at_s
        self.handle = handle

    def __lt__(self, other: Event) -> bool:
        return self.at_s < other.at_s


class Older:
    """Scans its whole queue at every event, as that one did. Nodes that never become ready are dropped."""

    def __init__(self, config: dict[str, Any], rows: list[dict[str, Any]], gpus: int, arrivals: list[float]) -> None:
        self.models = config["models"]
        self.free_at = [0.0] * gpus
        self.held: list[str | None] = [None] * gpus
        self.queue: deque[tuple[dict[str, Any], dict[str, Any]]] = deque()
        self.state: dict[tuple[str, str], str] = {}
        self.heap: list[Event] = []
        self.runs: list[Run] = []
        self.switches, self.switch_s = 0, 0.0
        self.took: dict[str, float] = {}
        self.workflows = config["workflows"]
        self.arrived: dict[str, float] = {}
        for row, at_s in zip(rows, arrivals, strict=True):
            heapq.heappush(self.heap, Event(at_s, lambda now, row=row: self.arrive(row, now)))
        while self.heap:
            event = heapq.heappop(self.heap)
            event.handle(event.at_s)
            self.schedule(event.at_s)

    def arrive(self, row: dict[str, Any], now: float) -> None:
        self.arrived[row["request_id"]] = now
        workflow = self.workflows[row["workflow_id"]]
        for node in workflow["nodes"]:
            self.state[row["request_id"], node["id"]] = "waiting"
        self.make_ready(row)

    def make_ready(self, row: dict[str, Any]) -> None:
        workflow, name = self.workflows[row["workflow_id"]], row["request_id"]
        for node in workflow["nodes"]:
            before = [edge["from"] for edge in workflow.get("edges", []) if edge["to"] == node["id"]]
            done = all(self.state.get((name, other)) == "done" for other in before)
            if done and self.state[name, node["id"]] == "waiting":
                self.state[name, node["id"]] = "ready"
                self.queue.append((row, node))

    def finish(self, row: dict[str, Any], node: dict[str, Any], now: float) -> None:
        name = row["request_id"]
        self.state[name, node["id"]] = "done"
        self.make_ready(row)
        if all(self.state[name, other["id"]] == "done" for other in self.workflows[row["workflow_id"]]["nodes"]):
            self.took[name] = now - self.arrived[name]

    def schedule(self, now: float) -> None:
        again = True
        while again:
            again = False
            for row, node in [self.queue.popleft() for _ in range(len(self.queue))]:
                window = self.find(node["model"], now)
                if window is None:
                    self.queue.append((row, node))
                else:
                    self.start(row, node, window, now)
                    again = True

    def find(self, model: str, now: float) -> tuple[int, ...] | None:
        width, free = self.models[model]["gpus_required"], [at_s <= now for at_s in self.free_at]
        if width > 1:
            starts = [i for i in range(len(free) - width + 1) if all(free[i : i + width])]
            return tuple(range(starts[0], starts[0] + width)) if starts else None
        gpus = [i for i, is_free in enumerate(free) if is_free]
        warm = [i for i in gpus if self.held[i] == model]
        if warm:
            return (warm[0],)
        return (min(gpus, key=lambda i: (self.free_at[i], i)),) if gpus else None

    def start(self, row: dict[str, Any], node: dict[str, Any], window: tuple[int, ...], now: float) -> None:
        old, new = self.held[window[0]], node["model"]
        switch_s = 0.0
        if old is None:
            switch_s = self.models[new]["load_time_seconds"]
        elif old != new:
            switch_s = (self.models[old]["memory_gb"] + self.models[new]["memory_gb"]) / 16.0 + 2.0
            self.switches += 1
            self.switch_s += switch_s
        start_s = now + switch_s
        end_s = start_s + row["node_execution_times"].get(node["id"], 10.0)
        for gpu in window:
            self.free_at[gpu], self.held[gpu] = end_s, new
        self.runs.append((row["request_id"], node["id"], window, start_s, end_s))
        heapq.heappush(self.heap, Event(end_s, lambda now: self.finish(row, node, now)))


class Starts:
    """Follows a run of ours."""

    def __init__(self) -> None:
        self.runs: list[Run] = []

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Start):
                start_s = t + event.setup_s
                self.runs.append((event.job, event.task, event.devices, start_s, start_s + event.run_s))


def workload(seed: int) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Random workflows, some with the faults that the older scheduler let pass; run times without ties."""
    rng = random.Random(seed)
    gpus = rng.randint(1, 6)
    models = {
        f"m{i}": {
            "memory_gb": rng.randint(1, 60),
            "gpus_required": rng.choice([1, 1, 1, 2, 3, 5]),
            "load_time_seconds": rng.randint(1, 60),
        }
        for i in range(rng.randint(1, 5))
    }
    workflows: dict[str, Any] = {}
    for i in range(rng.randint(1, 3)):
        nodes = [{"id": f"n{k}", "model": rng.choice(list(models))} for k in range(rng.randint(1, 6))]
        edges = [{"from": f"n{a}", "to": f"n{b}"} for b in range(len(nodes)) for a in range(b) if rng.random() < 0.4]
        if rng.random() < 0.3:
            edges.append({"from": rng.choice(["ghost", "n0", "n1"]), "to": rng.choice(["n0", "n1", "nowhere"])})
        workflows[f"w{i}"] = {"nodes": nodes, "edges": edges}
    rows = []
    for number in range(rng.randint(1, 30)):
        of = rng.choice(list(workflows))
        times = {node["id"]: rng.uniform(0.5, 40.0) for node in workflows[of]["nodes"] if rng.random() < 0.95}
        at_s = rng.choice([0, 5, rng.randint(0, 200)])  # in no order
        rows.append({"request_id": f"r{number}", "workflow_id": of, "timestamp": at_s, "node_execution_times": times})
    return {"models": models, "workflows": workflows}, rows, gpus


def tied_workload(seed: int, again: float = 0.0) -> tuple[dict[str, Any], list[dict[str, Any]], int]:
    """Random workflows in which much coincides: whole, equal, missing and no seconds. `again` is the share of requests
    with an earlier one's id and workflow. The recorded results are of these very workloads."""
    rng = random.Random(seed)
    gpus = rng.randint(1, 6)
    models = {
        f"m{i}": {
            "name": f"m{i}",
            "memory_gb": rng.choice([8, 16, 32]),
            "gpus_required": rng.choice([1, 1, 1, 2, 3]),
            "load_time_seconds": rng.choice([0, 1, 5, 5, 10]),
        }
        for i in range(rng.randint(1, 4))
    }
    workflows: dict[str, Any] = {}
    for i in range(rng.randint(1, 3)):
        nodes = [
            {"id": f"n{k}", "model": rng.choice(list(models)), "inputs": [], "outputs": []}
            for k in range(rng.randint(1, 6))
        ]
        edges = [{"from": f"n{a}", "to": f"n{b}"} for b in range(len(nodes)) for a in range(b) if rng.random() < 0.35]
        if rng.random() < 0.15:
            edges.append({"from": rng.choice(["ghost", "n0", "n1"]), "to": rng.choice(["n0", "n1", "nowhere"])})
        workflows[f"w{i}"] = {"name": f"w{i}", "nodes": nodes, "edges": edges}
    seconds = rng.choice([[5], [1, 2], [3, 4, 5], [0, 5], [0], [0, 1, 2, 5, 10]])
    rows: list[dict[str, Any]] = []
    for number in range(rng.randint(2, 25)):
        of, name = rng.choice(list(workflows)), f"r{number}"
        if rows and rng.random() < again:
            earlier = rng.choice(rows)
            of, name = earlier["workflow_id"], earlier["request_id"]
        times = {node["id"]: rng.choice(seconds) for node in workflows[of]["nodes"] if rng.random() < 0.9}
        at_s = rng.choice([0, 0, 5, rng.randint(0, 30)])
        row = {"request_id": name, "workflow_id": of, "timestamp": f"2024-01-01T10:00:{at_s:02d}", "input_data": {}}
        rows.append(row | {"node_execution_times": times})
    return {"models": models, "workflows": workflows}, rows, gpus


def seconds_of(row: dict[str, Any]) -> float:
    stamp = row["timestamp"]
    return float(stamp[-2:]) if isinstance(stamp, str) else stamp


@pytest.mark.parametrize("make", [workload, tied_workload])
@pytest.mark.parametrize("mode", ["offline", "online"])
@pytest.mark.parametrize("first", range(0, 250, 50))
def test_every_node_starts_where_and_when_the_older_scheduler_started_it(
    tmp_path: Path, make: Any, mode: Any, first: int
) -> None:
    dropped = count()
    for seed in range(first, first + 50):
        config, rows, gpus = make(seed)
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "requests.json").write_text(json.dumps({"requests": rows}))
        problem = load(tmp_path / "config.json", tmp_path / "requests.json", gpus=str(gpus), mode=mode, compat="gswarm")
        starts = Starts()
        figures = run(problem, "baseline", observers=[starts], journal=False).figures
        arrivals = [seconds_of(row) - seconds_of(rows[0]) if mode == "online" else 0.0 for row in rows]
        older = Older(config, rows, gpus, arrivals)
        assert starts.runs == older.runs, f"case {seed}"
        assert (figures.switches, figures.switch_time_s) == (older.switches, older.switch_s)
        assert (figures.completed, figures.rejected) == (len(older.took), len(rows) - len(older.took))
        assert figures.makespan_s == max([end_s for *_, end_s in older.runs], default=0.0)
        if older.took:
            assert figures.response_s.mean == pytest.approx(sum(older.took.values()) / len(older.took), rel=1e-12)
        if figures.rejected:
            next(dropped)
    assert next(dropped) > 5, "faulty files must be among them"


# --- what the older scheduler itself wrote --------------------------------------------------------

RECORDED = Path(__file__).with_name("gswarm_ties.json")
EXACT = (
    "total_requests",
    "completed_requests",
    "total_nodes_executed",
    "makespan",
    "total_model_switches",
    "total_switch_time",
    "avg_request_response_time",
    "p99_request_response_time",
)
ROW = ("request_id", "node_id", "model_name", "gpu_id", "start_time", "end_time", "switch_time", "estimated_time")


def digest(log: dict[str, Any], lines: Sequence[str]) -> str:
    """An execution log's rows in their order and the figures that are to be its, and the text log but for what has no
    counterpart: a switch that takes no time, and a rejection."""
    rows = [[v if isinstance(v := row[key], str) else float(v) for key in ROW] for row in log["executions"]]
    summary = [float(log["summary"][key]) for key in EXACT]
    shown = [
        line for line in lines if line.startswith("[") and "time: 0.00s)" not in line and " rejected: " not in line
    ]
    return hashlib.sha256(json.dumps([rows, summary, shown]).encode()).hexdigest()[:12]


@pytest.mark.parametrize("mode", ["offline", "online"])
@pytest.mark.parametrize("first", range(0, 500, 100))
def test_logs_of_coinciding_events_are_those_that_the_older_scheduler_wrote(
    tmp_path: Path, mode: Any, first: int
) -> None:
    """Recorded by running it (commit 4ff812d) on these workloads; where it crashed, for nothing could run, is null."""
    recorded = json.loads(RECORDED.read_text())[mode]
    assert len(recorded) == 500
    held = count()
    for seed in range(first, first + 100):
        config, rows, gpus = tied_workload(seed)
        found = run(load(config, rows, gpus=gpus, mode=mode, compat="gswarm"), "baseline")
        write_logs(found, log=tmp_path / "text.log", executions=tmp_path / "log.json")
        log, lines = json.loads((tmp_path / "log.json").read_text()), (tmp_path / "text.log").read_text().splitlines()
        if recorded[seed] is None:
            assert log["executions"] == []
            continue
        assert digest(log, lines) == recorded[seed], f"case {seed}"
        next(held)
    assert next(held) > 80


def test_requests_with_one_id_run_what_the_older_scheduler_ran_of_them(tmp_path: Path) -> None:
    """Recorded as above. The later ones have names of their own here, and count as requests of their own."""
    lost = count()
    for seed, expected in enumerate(json.loads(RECORDED.read_text())["same ids"]):
        config, rows, gpus = tied_workload(seed, again=0.3)
        problem = load(config, rows, gpus=gpus, mode="online" if seed % 2 else "offline", compat="gswarm")
        found = run(problem, "baseline", journal=tmp_path / "journal.jsonl")
        write_logs(found, executions=tmp_path / "log.json")
        log = json.loads((tmp_path / "log.json").read_text())
        for row in log["executions"]:
            row["request_id"] = row["request_id"].split("#")[0]
        kept = {key: log["summary"][key] if key in EXACT[2:6] else 0 for key in EXACT}
        assert digest(log | {"summary": kept}, ()) == expected, f"case {seed}"
        assert found.check().faults == [], f"case {seed}"
        assert found.replay().difference is None, f"case {seed}"
        if any("used again" in row["reason"] for row in log["rejected_requests"]):
            next(lost)
    assert next(lost) > 20


def test_an_id_that_is_used_again_takes_what_was_not_ready_from_the_earlier_request() -> None:
    models = {name: {"memory_gb": 16, "gpus_required": 1, "load_time_seconds": 10} for name in ("m", "o")}
    nodes = [{"id": "a", "model": "m"}, {"id": "b", "model": "o"}]
    workflow = {"nodes": nodes, "edges": [{"from": "a", "to": "b"}]}
    config = {"models": models, "workflows": {"w": workflow, "v": workflow}}
    rows: list[Any] = [
        {"request_id": "r", "workflow_id": "w", "node_execution_times": {"a": s, "b": 8}} for s in (5, 7)
    ]
    found = run(load(config, rows, gpus=2, compat="gswarm"), "baseline")
    assert (found.figures.tasks, found.figures.completed, found.figures.rejected) == (3, 1, 1)
    assert found.figures.makespan_s == 27.0  # both a until 15 s, with the time of the first; then 4 s and 8 s of b
    rows[1]["workflow_id"] = "v"
    with pytest.raises(InputError, match="'r' is used twice, and for 'w' before"):
        load(config, rows, gpus=2, compat="gswarm")


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("ids", "at", "message"),
    [
        (["r", "r", "r#2"], 2, "'r#2' is what another request is called whose id is used twice"),
        (["r#3", "r", "r"], 2, "'r' is used twice, and 'r#3', as it is called here, too"),
    ],
)
def test_a_name_that_is_made_up_is_no_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool, ids: list[str], at: int, message: str
) -> None:
    monkeypatch.setattr("dovetail.workflow.inputs.requests._IN_MEMORY", 0 if streamed else 10**9)
    model = {"memory_gb": 16, "gpus_required": 1, "load_time_seconds": 10}
    config = {"models": {"m": model}, "workflows": {"w": {"nodes": [{"id": "a", "model": "m"}]}}}
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"request_id": id, "workflow_id": "w"}) + "\n" for id in ids))
    with pytest.raises(InputError, match=f"rows.jsonl:{at + 1}: request '{ids[at]}': request_id: {message}"):
        load(config, rows, gpus=2, compat="gswarm")
    skipping = load(config, rows, gpus=2, compat="gswarm", on_error="skip")
    assert (skipping.requests.skipped_count, run(skipping, "baseline").figures.completed) == (1, 2)
    rejecting = run(load(config, rows, gpus=2, compat="gswarm", on_error="reject"), "baseline")
    assert (rejecting.figures.completed, rejecting.figures.rejected) == (2, 1)
    assert rejecting.check().valid


@pytest.mark.parametrize("policy", registry.names("workflow"))
def test_every_policy_copes_with_the_files_and_the_order_of_the_older_scheduler(tmp_path: Path, policy: str) -> None:
    """Nodes that wait for ever, times before 0, one event at a time: the schedules are valid all the same."""
    config_path, requests_path, journal_path = (tmp_path / name for name in ("c.json", "r.json", "j.jsonl"))
    options = {"schedules": 4} if policy == "optimise" else {}
    for seed in range(24):
        config, rows, gpus = workload(seed)
        config_path.write_text(json.dumps(config))
        requests_path.write_text(json.dumps({"requests": rows}))
        mode: Mode = "online" if seed % 2 and policy != "optimise" else "offline"
        problem = load(config_path, requests_path, gpus=str(gpus), mode=mode, compat="gswarm")
        run(problem, policy, options=options, journal=journal_path)
        assert check_journal(journal_path, config_path, requests_path).faults == [], f"case {seed}"
