"""Studies over many runs: one row per policy and pool, and the fewest GPUs held against every pool size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from dovetail.core.errors import InputError
from dovetail.testing.workflow.patience import PatienceRule
from dovetail.testing.workflow.random_workloads import random_case, read_case
from dovetail.workflow import WorkflowProblem, compare, fewest_gpus, load, run
from dovetail.workflow.check import check_journal
from dovetail.workflow.policies import ListPolicy

CONFIG: dict[str, Any] = {
    "models": {
        "llm": {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 10},
        "sd": {"memory_gb": 4, "gpus_required": 2, "load_time_seconds": 5},
        "huge": {"memory_gb": 400, "gpus_required": 64, "load_time_seconds": 5},
    },
    "workflows": {
        "story": {
            "nodes": [{"id": "write", "model": "llm"}, {"id": "draw", "model": "sd"}],
            "edges": [{"from": "write", "to": "draw"}],
        },
        "talk": {"nodes": [{"id": "say", "model": "llm"}]},
        "never asked for": {"nodes": [{"id": "train", "model": "huge"}]},
    },
}
ROWS: list[dict[str, Any]] = [
    {
        "request_id": f"r{i}",
        "workflow_id": "story" if i % 3 else "talk",
        "timestamp": 4.0 * i,
        "node_execution_times": {"write": 5 + i % 4, "draw": 3 + i % 7} if i % 3 else {"say": 6 + i % 5},
    }
    for i in range(40)
]


class Inputs(NamedTuple):
    config: Path
    requests: Path

    def load(self, **options: Any) -> WorkflowProblem:
        return load(self.config, self.requests, **{"gpus": 4} | options)

    def ask(self, rows: list[dict[str, Any]]) -> None:
        self.requests.write_text(json.dumps({"requests": rows}))


@pytest.fixture
def inputs(tmp_path: Path) -> Inputs:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "requests.json").write_text(json.dumps({"requests": ROWS}))
    return Inputs(tmp_path / "config.json", tmp_path / "requests.json")


# --- compare --------------------------------------------------------------------------------------


def test_a_row_has_the_figures_of_a_run_and_its_journal_is_valid(tmp_path: Path, inputs: Inputs) -> None:
    problem = inputs.load(mode="online")
    found = compare(problem, "dovetail", journals=tmp_path / "study", jobs=1)
    [row], [journal] = found.rows, found.journals
    outcome = run(problem)
    assert row["makespan_s"] == outcome.figures.makespan_s
    assert row["bound_makespan_s"] == outcome.lower.makespan_s == outcome.bound
    assert (row["policy"], row["gpus"], row["seeds"]) == ("dovetail", 4, [0])
    report = check_journal(journal, *inputs)
    assert report.faults == []
    assert report.counted["makespan_s"] == row["makespan_s"]


def test_one_row_per_pool_and_policy_in_the_order_they_were_given(inputs: Inputs) -> None:
    rows = compare(inputs.load(), ("srpt", "baseline"), gpus=("2", 8), jobs=1).rows
    order = [("2", "srpt"), ("2", "baseline"), (8, "srpt"), (8, "baseline")]
    assert [(row["gpus"], row["policy"]) for row in rows] == order
    assert rows[2]["makespan_s"] < rows[0]["makespan_s"]
    for (gpus, policy), row in zip(order, rows, strict=True):
        assert row["makespan_s"] == run(inputs.load(gpus=gpus), policy).metrics["makespan_s"]
        assert row["seeds"] == [0]
        assert "makespan_s_min" not in row, "one run has no spread"


def test_processes_give_what_one_process_gives(inputs: Inputs) -> None:
    done: list[int] = []
    alone = compare(inputs.load(), ("heft", "static"), gpus=(2, 4), jobs=1)
    together = compare(inputs.load(), ("heft", "static"), gpus=(2, 4), jobs=2, progress=done.append)
    in_memory = compare(load(CONFIG, ROWS, gpus=4), ("heft", "static"), gpus=(2, 4))
    for row in (*alone, *together, *in_memory):
        del row["simulation_s"]
    assert alone.rows == together.rows == in_memory.rows
    assert done == [1, 2, 3, 4]


def test_a_script_may_compare_without_a_guard(tmp_path: Path, inputs: Inputs) -> None:
    """Processes of the study must not run it again."""
    script = tmp_path / "study.py"
    script.write_text(
        "import sys\nfrom dovetail import workflow\n"
        "print('begun')\nproblem = workflow.load(*sys.argv[1:], gpus=4)\n"
        "print(len(workflow.compare(problem, ['srpt', 'heft'], jobs=2)))\n"
    )
    done = subprocess.run([sys.executable, str(script), *map(str, inputs)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["begun", "2"]


def test_policies_of_ones_own_are_compared_by_their_names(inputs: Inputs) -> None:
    class Eager(ListPolicy):
        """The first that is ready."""

    rows = compare(
        inputs.load(gpus=2, mode="online"), [Eager, PatienceRule(patience=0.0), PatienceRule(patience=1e6), "dovetail"]
    ).rows
    assert [row["policy"] for row in rows] == ["Eager", "PatienceRule", "PatienceRule 2", "dovetail"]
    assert rows[1]["switches"] > rows[2]["switches"]
    again = compare(inputs.load(gpus=2, mode="online"), PatienceRule(patience=1e6), seeds=3).rows
    assert [row["makespan_s"] for row in again] == [rows[2]["makespan_s"]]


def test_seeds_are_averaged_with_their_spread(inputs: Inputs) -> None:
    problem = inputs.load(costs={"noise": "0.5"})
    [row] = compare(problem, "dovetail", seeds=(1, 2, 3), jobs=1)
    spans = [run(problem, seed=seed).metrics["makespan_s"] for seed in (1, 2, 3)]
    assert len(set(spans)) == 3
    assert row["makespan_s"] == pytest.approx(sum(spans) / 3)
    assert (row["makespan_s_min"], row["makespan_s_max"]) == (min(spans), max(spans))
    assert row["seeds"] == [1, 2, 3]
    assert row["completed"] == len(ROWS)


def test_policies_are_compared_seed_by_seed_on_every_pool(inputs: Inputs) -> None:
    problem, seeds = inputs.load(costs={"noise": "0.5"}), (1, 2, 3)
    rows = compare(problem, ["baseline", "dovetail"], gpus=[2, 3], seeds=seeds, jobs=1).rows
    for first, second in (rows[:2], rows[2:]):
        assert first["paired"]["makespan_s"]["difference"] == 0
        spans = [
            [run(problem.on(first["gpus"]), name, seed=seed).metrics["makespan_s"] for seed in seeds]
            for name in ("baseline", "dovetail")
        ]
        apart = [two - one for one, two in zip(*spans, strict=True)]
        found = second["paired"]["makespan_s"]
        assert found["difference"] == pytest.approx(sum(apart) / 3)
        assert (found["pairs"], found["smaller_in"]) == (3, sum(value < 0 for value in apart))
    assert "paired" not in compare(problem, ["baseline", "dovetail"], jobs=1)[1]


@pytest.mark.parametrize(
    "more",
    [
        {"gpus_over_time": {"steps": [[0, 2], [50, 4]]}},
        {"tenants": {"ann": {"weight": 2}}},
        {"models": CONFIG["models"] | {"llm": CONFIG["models"]["llm"] | {"max_concurrency": 2}}},
        {"sharing": {"max_queue": 100}},
    ],
    ids=["gpus_over_time", "tenants", "slots", "plannable"],
)
def test_all_policies_are_all_that_can_work_on_the_problem(more: dict[str, Any], request: Any) -> None:
    problem = load(CONFIG | more, ROWS[:6], gpus=4, on_error="skip")
    found = [row["policy"] for row in compare(problem, "all", jobs=1).rows]
    assert "dovetail" in found
    assert ("optimise" in found) == ("plannable" in request.node.name)


def test_rejected_requests_are_in_the_row(inputs: Inputs) -> None:
    inputs.ask([*ROWS, {"request_id": "x", "workflow_id": "never asked for"}])
    [row] = compare(inputs.load(on_error="reject"), "dovetail", jobs=1)
    assert (row["completed"], row["rejected"]) == (len(ROWS), 1)
    [row] = compare(inputs.load(on_error="skip"), "dovetail", jobs=1)
    assert (row["completed"], row["rejected"], row["skipped"]) == (len(ROWS), 0, 1)
    with pytest.raises(InputError, match="needs 64 GPUs, the pool has 4"):
        compare(inputs.load(gpus=64), "dovetail", gpus=4, jobs=1)


def test_a_file_that_changed_is_read_again(inputs: Inputs) -> None:
    problem = inputs.load()
    before = compare(problem, "dovetail", jobs=1)[0]["completed"]
    inputs.ask(ROWS[:7])
    assert (before, compare(problem, "dovetail", jobs=1)[0]["completed"]) == (40, 7)


# --- plan -----------------------------------------------------------------------------------------


def every_size(inputs: Inputs, mode: Any, target: str, most: int, policy: str = "dovetail") -> dict[int, float]:
    """What each pool size gives: the brute force."""
    found = {}
    for gpus in range(1, most + 1):
        figures = run(inputs.load(gpus=gpus, mode=mode, on_error="reject"), policy, journal=False).figures
        if not figures.rejected:
            response = figures.response_s
            found[gpus] = {"makespan": figures.makespan_s, "mean": response.mean, "p99": response.p99}[target]
    return found


def limits(target: str, limit_s: float) -> dict[str, Any]:
    return {target: limit_s}


@pytest.mark.parametrize("target", ["makespan", "mean", "p99"])
@pytest.mark.parametrize("mode", ["offline", "online"])
@pytest.mark.parametrize("policy", ["dovetail", "baseline"])
def test_the_answer_holds_against_every_pool_size(inputs: Inputs, target: Any, mode: Any, policy: str) -> None:
    sizes = every_size(inputs, mode, target, 32, policy)
    assert min(sizes) == 2, "the widest node that is asked for"
    asked = sorted({*sizes.values()})
    for limit_s in (*asked[:: max(1, len(asked) // 6)], asked[0] * 0.9, asked[-1] * 2):
        answer = fewest_gpus(*inputs, policy=policy, mode=mode, max_gpus=32, **limits(target, limit_s))
        assert all(sizes[gpus] == value for gpus, value in answer.tried.items())
        assert all(value > limit_s and sizes[gpus] >= value for gpus, value in answer.ruled_out.items())
        if answer.gpus is None:
            assert sizes[32] > limit_s
            continue
        assert sizes[answer.gpus] == answer.value_s
        assert sizes[answer.gpus] <= limit_s, "this size meets the limit"
        assert answer.gpus == 2 or sizes[answer.gpus - 1] > limit_s, "the next smaller one does not"
        assert answer.reason


def test_a_size_below_a_bound_is_ruled_out_without_a_run(inputs: Inputs) -> None:
    area_s = sum(sum(row["node_execution_times"].values()) for row in ROWS)
    answer = fewest_gpus(*inputs, makespan=area_s / 8, mode="offline", max_gpus=64)
    assert answer.ruled_out
    assert set(answer.ruled_out).isdisjoint(answer.tried)


@pytest.mark.parametrize(
    ("limit_s", "most", "reason"),
    [
        (1.0, 1024, "no schedule on 1024 GPUs can be below"),
        (1e9, 1, "the widest node needs 2 GPUs"),
        (1e9, 0, "the widest node needs 2 GPUs"),
        (20.0, 3, "GPUs"),
    ],
)
def test_a_limit_that_cannot_be_met_is_told(inputs: Inputs, limit_s: float, most: int, reason: str) -> None:
    answer = fewest_gpus(*inputs, makespan=limit_s, mode="offline", max_gpus=most)
    assert (answer.gpus, answer.value_s) == (None, None)
    assert reason in answer.reason


def test_a_loose_limit_is_met_by_the_widest_node(inputs: Inputs) -> None:
    answer = fewest_gpus(*inputs, p99=1e9)
    assert (answer.gpus, answer.reason) == (2, "the widest node needs 2 GPUs")


def test_nothing_to_do_is_done_by_one_gpu(inputs: Inputs) -> None:
    inputs.ask([])
    assert fewest_gpus(*inputs, makespan=1.0).gpus == 1


@pytest.mark.parametrize("limit_s", [0.0, -5.0, float("nan")])
def test_a_limit_must_be_positive(inputs: Inputs, limit_s: float) -> None:
    with pytest.raises(InputError, match="the limit must be positive"):
        fewest_gpus(*inputs, mean=limit_s)


def test_one_limit_must_be_given(inputs: Inputs) -> None:
    with pytest.raises(InputError, match="give one limit"):
        fewest_gpus(*inputs)
    with pytest.raises(InputError, match="give one limit"):
        fewest_gpus(*inputs, mean=5.0, p99=9.0)


def test_a_target_needs_all_requests(inputs: Inputs) -> None:
    inputs.ask([*ROWS, {"request_id": "x", "workflow_id": "nothing", "timestamp": 0}])
    with pytest.raises(InputError, match="unknown workflow 'nothing'"):
        fewest_gpus(*inputs, mean=1e9)
    with pytest.raises(InputError, match="1 requests were rejected: a target needs them all"):
        fewest_gpus(*inputs, mean=1e9, on_error="reject")


def test_random_cases_are_answered_as_brute_force_answers_them(tmp_path: Path) -> None:
    answered = 0
    inputs = Inputs(tmp_path / "config.json", tmp_path / "requests.json")
    for seed in range(40):
        case = random_case(seed)
        read_case(case._replace(rows=[row for row in case.rows if row["workflow_id"] != "nothing"]), tmp_path)
        sizes = every_size(inputs, case.mode, "makespan", 12)
        if not sizes:
            continue
        limit_s = sorted(sizes.values())[len(sizes) // 2]
        answer = fewest_gpus(*inputs, makespan=limit_s, mode=case.mode, max_gpus=12)
        if answer.gpus is None:
            assert sizes[12] > limit_s, f"case {seed}"
            continue
        answered += 1
        assert sizes[answer.gpus] <= limit_s, f"case {seed}"
        assert sizes.get(answer.gpus - 1, float("inf")) > limit_s, f"case {seed}"
    assert answered > 20
