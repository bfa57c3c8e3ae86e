"""Random workloads x every policy: the checker is clean, nothing is below a bound, nothing is lost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dovetail.core import registry
from dovetail.core.events import Failed, Finished, Grew, Start
from dovetail.core.journal import Reader
from dovetail.testing.workflow.random_workloads import (
    MOST_GPUS,
    RandomWorkload,
    check_case,
    policies_for,
    random_case,
    read_case,
    run_case,
)
from dovetail.workflow.check import check_journal

CASES = 320  # bench/workflow.py runs 10,000
BLOCK = 20


@pytest.mark.parametrize("first", range(0, CASES, BLOCK))
def test_every_policy_gives_a_valid_schedule_of_everything(tmp_path: Path, first: int) -> None:
    assert [fault for seed in range(first, first + BLOCK) for fault in check_case(seed, tmp_path)] == []


# --- that the cases try what they should ----------------------------------------------------------


def features(case: RandomWorkload) -> set[str]:
    """What is special about a case."""
    models = case.config["models"].values()
    widths = {model["gpus_required"] for model in models}
    gpus = sum(int(part.split(":")[-1]) for part in case.gpus.split(","))
    found = {case.mode, case.on_error, f"{gpus} GPUs", *(f"width {w}" for w in widths), *case.costs}
    found |= {"two types"} if "small:0" not in case.gpus and "big:0" not in case.gpus and ":" in case.gpus else set()
    found |= {"too wide"} if max(widths) > gpus else set()
    found |= {"rates"} if case.rates else set()
    found |= {"failures"} if case.failure_rate else set()
    found |= {"plain prices"} if not case.costs else set()
    found |= {"many models"} if len(models) > 5 else set()
    found |= {"adapters"} if any("adapter_of" in model for model in models) else set()
    found |= {"gpus over time"} if case.gpus_over_time else set()
    thens = [
        (node["id"], target, then)
        for workflow in case.config["workflows"].values()
        for node in workflow["nodes"]
        for target, then in node.get("then", {}).items()
    ]
    found |= {"branch" if isinstance(then, float) else "copies" if "copies" in then else "loop" for _, _, then in thens}
    found |= {"loop back"} if any("at_most" in str(then) and name != target for name, target, then in thens) else set()
    for row in case.rows:
        found |= {"items"} if "node_items" in row else set()
        found |= {key for key in ("node_prefix", "node_tokens") if key in row}
        found |= {"outcomes"} if "outcomes" in row else set()
        found |= {"time of an instance"} if any("#" in name for name in row["node_execution_times"]) else set()
        found |= {"deadline"} if "deadline_seconds" in row else set()
        found |= {"faulty request"} if row["workflow_id"] == "nothing" else set()
    return found


def test_the_cases_try_everything() -> None:
    counted = Counter(feature for seed in range(CASES) for feature in features(random_case(seed)))
    wanted = {"offline", "online", "reject", "skip", "two types", "too wide", "rates", "failures", "plain prices"}
    wanted |= {
        "items",
        "many models",
        "deadline",
        "faulty request",
        "window",
        "overlap",
        "dram_gb",
        "batching",
        "noise",
        "branch",
        "copies",
        "loop",
        "loop back",
        "outcomes",
        "time of an instance",
    }
    wanted |= {
        "resident",
        "overhead_s",
        "adapters",
        "adapter_slots",
        "node_prefix",
        "node_tokens",
        "gpus over time",
    } | {f"{n} GPUs" for n in range(1, MOST_GPUS + 1)}
    wanted |= {f"width {n}" for n in (0, 1, 2, 3, 4, 5, 7)}
    assert {feature: counted[feature] for feature in wanted if counted[feature] < CASES // 40} == {}


def test_the_cases_make_everything_happen(tmp_path: Path) -> None:
    counted: Counter[str] = Counter()
    for seed in range(0, CASES, 4):
        case = random_case(seed)
        run_case(read_case(case, tmp_path), case, "dovetail", seed, tmp_path / "journal.jsonl")
        began: dict[tuple[str, str], float] = {}
        for _, t, event in Reader(tmp_path / "journal.jsonl"):
            counted[type(event).__name__] += 1
            if isinstance(event, Start):
                counted["again"] += (event.job, event.task) in began
                began[event.job, event.task] = t
                counted["batch"] += event.batch > 0
                counted["switch"] += event.replaces is not None
                counted["wide"] += len(event.devices) > 1
                counted["without GPU"] += not event.devices
                counted["waited"] += t > event.ready_s
    happened = {
        "Grew",
        "Arrived",
        "Start",
        "Finished",
        "Failed",
        "Complete",
        "Reject",
        "again",
        "batch",
        "switch",
        "wide",
    }
    assert {name: counted[name] for name in happened | {"without GPU", "waited", "Grew"} if counted[name] < 10} == {}


# --- work is conserved ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", registry.names("workflow"))
def test_no_policy_makes_or_loses_work(tmp_path: Path, policy: str) -> None:
    """Every node of a completed request finishes once, every start ends once, every request is closed."""
    for seed in range(1000, 1030):
        case = random_case(seed)
        if policy not in policies_for(case):
            continue
        problem = read_case(case, tmp_path)
        run_case(problem, case, policy, seed, tmp_path / "journal.jsonl")
        started, ended, finished = Counter[tuple[str, str]](), Counter[tuple[str, str]](), set[tuple[str, str]]()
        open_works: dict[str, str] = {}
        grown: dict[str, list[str]] = {}
        for _, _, event in Reader(tmp_path / "journal.jsonl"):
            kind = type(event).__name__
            if kind == "Arrived":
                open_works[event.job] = event.of  # type: ignore[union-attr]
            elif isinstance(event, Grew):
                grown.setdefault(event.job, []).extend(task.name for task in event.tasks)
            elif isinstance(event, Start):
                started[event.job, event.task] += 1
            elif isinstance(event, Finished | Failed):
                ended[event.job, event.task] += 1
                if isinstance(event, Finished):
                    assert (event.job, event.task) not in finished
                    finished.add((event.job, event.task))
            elif kind in ("Complete", "Reject"):
                of = open_works.pop(event.job)  # type: ignore[union-attr]
                if kind == "Complete":
                    names = [task.name for task in problem.graphs[of].tasks]
                    names += grown.pop(event.job, [])  # type: ignore[union-attr]
                    assert all((event.job, name) in finished for name in names)  # type: ignore[union-attr]
        assert open_works == {}
        assert started == ended


@pytest.mark.parametrize("policy", registry.names("workflow"))
def test_a_batch_begins_and_ends_together_on_one_window(tmp_path: Path, policy: str) -> None:
    batches = 0
    for seed in range(40):
        case = random_case(seed)
        case = case._replace(mode="offline", costs={"batching": True, "noise": 0.4}, failure_rate=0.0)
        case = case if policy in policies_for(case) else case.plain()
        run_case(read_case(case, tmp_path), case, policy, seed, tmp_path / "journal.jsonl")
        members: dict[int, dict[tuple[str, str], tuple[float, tuple[int, ...]]]] = {}
        batch_of: dict[tuple[str, str], int] = {}
        ended: dict[int, set[float]] = {}
        for _, t, event in Reader(tmp_path / "journal.jsonl"):
            if isinstance(event, Start) and event.batch:
                members.setdefault(event.batch, {})[event.job, event.task] = (t, event.devices)
                batch_of[event.job, event.task] = event.batch
            elif isinstance(event, Finished) and (event.job, event.task) in batch_of:
                ended.setdefault(batch_of[event.job, event.task], set()).add(t)
        batches += len(members)
        assert all(len(batch) > 1 and len(set(batch.values())) == 1 for batch in members.values())
        assert ended.keys() == members.keys()
        assert all(len(times) == 1 for times in ended.values())
    assert batches > 20


@pytest.mark.parametrize("policy", registry.names("workflow"))
def test_a_policy_does_not_depend_on_what_requests_are_called(tmp_path: Path, policy: str) -> None:
    """Names are labels, where they are not what chance is drawn by: the same workload takes as long."""
    for seed in range(8):
        case = random_case(seed).plain()._replace(failure_rate=0.0)
        if policy not in policies_for(case):
            continue
        case.costs.pop("noise", None)
        spans = []
        for prefix in ("r", "x"):
            rows = [{**row, "request_id": prefix + row["request_id"]} for row in case.rows]
            problem = read_case(case._replace(rows=rows), tmp_path)
            run_case(problem, case, policy, seed, tmp_path / "journal.jsonl")
            spans.append(check_journal(tmp_path / "journal.jsonl").counted["makespan_s"])
        assert spans[0] == spans[1]
