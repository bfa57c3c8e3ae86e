"""Workflows from Python: files or what stands in their place, policies by name or one's own, errors as sentences."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas
import polars
import pytest

import dovetail
from dovetail import DovetailError, InputError, RateTable, read_journal
from dovetail.core.rates import Rate
from dovetail.workflow import bound, compare, generate, load, optimum, run, thrash_system, write_logs
from dovetail.workflow.inputs.request_entries import RequestEntry
from dovetail.workflow.policies import ListPolicy, Place, ReadyNode, View, Wait, WorkflowPolicy

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = (EXAMPLES / "system_config.yaml", EXAMPLES / "workflow_requests.yaml")
MODEL = {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 10}
CONFIG: dict[str, Any] = {
    "models": {"llm": MODEL, "sd": {**MODEL, "memory_gb": 4}},
    "workflows": {
        "talk": {"nodes": [{"id": "say", "model": "llm"}]},
        "story": {
            "nodes": [{"id": "write", "model": "llm"}, {"id": "draw", "model": "sd"}],
            "edges": [{"from": "write", "to": "draw"}],
        },
    },
}
START = datetime(2024, 5, 1, tzinfo=UTC)


def asked(count: int = 6) -> list[dict[str, Any]]:
    return [
        {
            "request_id": f"r{i}",
            "workflow_id": "story" if i % 2 else "talk",
            "timestamp": 3.0 * i,
            "node_execution_times": {"write": 5.0, "draw": 2.0 + i} if i % 2 else {"say": 4.0 + i},
        }
        for i in range(count)
    ]


class Newest(WorkflowPolicy):
    """Who came last goes first."""

    def rank(self, node: ReadyNode, view: View) -> float:
        return -node.seq

    def choose(self, view: View) -> Place | Wait | None:
        for queue in view.queues.values():
            for window in view.free_windows(queue.model):
                return Place(queue.head, window, "the newest")
        return None


# --- what is given ----------------------------------------------------------------------------------


def frame_of_pandas() -> Any:
    return pandas.DataFrame(asked())


def frame_of_polars() -> Any:
    return polars.DataFrame(asked())  # whose structs have every node of all rows


def structs() -> Any:
    return [msgspec.convert(row, RequestEntry) for row in asked()]


@pytest.mark.parametrize("mode", ["offline", "online"])
@pytest.mark.parametrize("requests", [asked, lambda: {"requests": asked()}, structs, frame_of_pandas, frame_of_polars])
def test_what_stands_in_the_place_of_files_gives_what_files_give(
    tmp_path: Path, mode: Any, requests: Callable[[], Any]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "requests.json").write_text(json.dumps({"requests": asked()}))
    from_files = run(load(str(tmp_path / "config.json"), str(tmp_path / "requests.json"), gpus="2", mode=mode))
    found = run(load(CONFIG, requests(), gpus=2, mode=mode))
    assert found.metrics == from_files.metrics
    assert found.frame("tasks").equals(from_files.frame("tasks"))
    assert found.check(config=tmp_path / "config.json", requests=tmp_path / "requests.json").faults == []
    assert found.check(config=CONFIG, requests=requests()).faults == []
    assert set(found.check(config=CONFIG, requests=asked(5)).faults_by_code) == {"requests"}


def test_times_of_a_frame_are_times() -> None:
    rows = pandas.DataFrame(asked())
    rows["timestamp"] = [START + timedelta(seconds=3.0 * i) for i in range(len(rows))]
    found = run(load(CONFIG, rows, gpus=np.int64(2).item(), mode="online"))
    assert list(found.frame()["arrived_s"]) == [3.0 * i for i in range(len(rows))]


def test_generated_requests_are_requests(tmp_path: Path) -> None:
    system = thrash_system()
    made = generate(system, requests=30, rate=6, seed=3)
    assert (len(made), len(list(made)), list(made)) == (30, 30, list(made))
    assert made.write(tmp_path / "requests.yaml") == made.statistics()
    one, two = (run(load(system, rows, mode="online")).metrics for rows in (made, tmp_path / "requests.yaml"))
    assert one == two


def test_rates_may_be_a_table_or_dicts() -> None:
    rates = {"rates": [{"kind": "llm", "device": "gpu", "rate": 2.0}]}
    table = RateTable([Rate("llm", "gpu", 2.0)])
    spans = [run(load(CONFIG, asked(), gpus=2, rates=given)).metrics["makespan_s"] for given in (rates, table, None)]
    assert spans[0] == spans[1] < spans[2]


def test_the_configuration_names_a_pool_and_python_another() -> None:
    mixed = load(EXAMPLES / "mixed_gpus.yaml", FILES[1])
    assert len(mixed.pool) == 6
    assert [device.type for device in mixed.on("l4:1,a100:2").pool.devices] == ["l4", "a100", "a100"]


# --- what comes back --------------------------------------------------------------------------------


def test_a_run_can_be_asked_everything(tmp_path: Path) -> None:
    problem = load(*FILES, gpus=4)
    found = run(problem, journal=tmp_path / "run.jsonl")
    assert found.journal == tmp_path / "run.jsonl"
    assert found.header.policy == "dovetail"
    assert found.bound == bound(problem).makespan_s == found.lower.makespan_s
    assert found.gap == pytest.approx(found.metrics["gap_makespan"])
    assert found.figures.completed == found.metrics["completed"] == len(problem.requests) == 20
    assert (found.check(config=FILES[0], requests=FILES[1]).faults, found.replay().difference) == ([], None)
    assert "waited" in str(found.explain("req_001")) or "started" in str(found.explain("req_001"))
    assert len(found.frame("jobs")) == 20
    assert found.plot().svg.startswith("<svg")
    assert found.report(tmp_path / "page.html").is_file()
    assert "EXECUTION METRICS" in found.text()
    again = read_journal(tmp_path / "run.jsonl").metrics
    assert {key: again[key] for key in found.metrics if key != "rejections"} == {
        key: value for key, value in found.metrics.items() if key != "rejections"
    }


def test_a_run_without_a_journal_has_its_figures() -> None:
    found = run(load(*FILES, gpus=4), journal=False)
    assert found.metrics == run(load(*FILES, gpus=4)).metrics
    assert (found.bound, "makespan" in repr(found)) == (found.lower.makespan_s, True)
    with pytest.raises(InputError, match="not recorded"):
        found.frame()


def test_the_temporary_journal_goes_with_the_run() -> None:
    found = run(load(*FILES, gpus=4))
    journal = found.journal
    assert journal.exists()
    del found
    assert not journal.exists()


def test_logs_of_a_run_are_written(tmp_path: Path) -> None:
    write_logs(run(load(*FILES, gpus=4)), log=str(tmp_path / "a.log"), executions=tmp_path / "a.json")
    assert len(json.loads((tmp_path / "a.json").read_text())["requests"]) == 20
    assert "Starting dovetail scheduler with 20 requests" in (tmp_path / "a.log").read_text()


def test_an_interrupted_run_is_resumed(tmp_path: Path) -> None:
    problem, journal = load(*FILES, gpus=4), tmp_path / "run.jsonl"
    whole = run(problem, journal=journal).metrics
    text = journal.read_bytes()
    journal.write_bytes(text[: len(text) // 2])
    assert run(problem, journal=journal, resume=True).metrics == whole
    assert journal.read_bytes() == text


def test_progress_and_observers_follow_a_run() -> None:
    class Steps:
        count = 0

        def step(self, n: int, t: float, events: Any) -> None:
            self.count += 1

    steps, done = Steps(), list[int]()
    found = run(load(CONFIG, asked(200), gpus=4), progress=done.append, observers=[steps], journal=False)
    assert steps.count > 200
    assert done == sorted(done)
    assert done[-1] <= found.figures.completed == 200


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    problem = load(*FILES, gpus=4)
    run(problem)
    compare(problem, jobs=1)
    bound(problem)
    assert capfd.readouterr() == ("", "")


def test_the_exact_optimum_lies_between_bound_and_run() -> None:
    problem = load(CONFIG, asked(4), gpus=2)
    best = optimum(problem)
    assert bound(problem).makespan_s <= best.value_s <= run(problem).metrics["makespan_s"]


def test_the_page_of_the_level_shows_what_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (EXAMPLES.parent / "docs" / "workflow.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "examples").symlink_to(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    exec(program, {})
    assert {path.name for path in tmp_path.iterdir()} == {"examples", "run.html", "run.jsonl"}


# --- policies of one's own --------------------------------------------------------------------------


def test_a_policy_of_ones_own_goes_in_where_a_name_does(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from dovetail.workflow.policies import ListPolicy\n\n\nclass Mine(ListPolicy):\n    pass\n"
    )
    problem = load(CONFIG, asked(), gpus=1)
    made = Newest()
    for policy, name in ((Newest, "Newest"), (made, "Newest"), (ListPolicy(hysteresis=2.0), "ListPolicy")):
        found = run(problem, policy)
        assert (found.header.policy, found.check().faults) == (name, [])
        assert (found.replay().difference, found.replay().steps > 0) == (None, True)
    assert run(problem, made).policy is made
    assert run(problem, f"{tmp_path}/mine.py:Mine").check().valid
    order = list(run(problem, Newest).frame("tasks")["job"])
    assert order[0] == "r5"


# --- what is wrong ----------------------------------------------------------------------------------

workflow: Any = dovetail.workflow  # for what its types do not allow


def late(**changes: Any) -> list[dict[str, Any]]:
    rows = asked()
    rows[3] |= changes
    return rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"timestamp": "late"}, "requests: 3.timestamp: request 'r3': 'late' is not an ISO 8601 time"),
        ({"workflow_id": "tlk"}, "requests: 3.workflow_id: request 'r3': unknown workflow 'tlk'; did you mean 'talk'"),
        ({"node_execution_times": {"write": "x"}}, "requests: 3.node_execution_times.write: request 'r3': expected"),
        ({"request_id": "r1"}, "requests: 3.request_id: request 'r1': 'r1' is used twice"),
        (
            {"request_ids": 1},
            "requests: 3.request_ids: request 'r3': unknown key 'request_ids'; did you mean 'request_id'?",
        ),
        ({"request_id": None}, "requests: 3.request_id"),
    ],
)
def test_a_row_that_is_wrong_is_named_as_in_a_file(changes: dict[str, Any], message: str) -> None:
    for rows in (late(**changes), pandas.DataFrame(late(**changes))):
        if isinstance(rows, pandas.DataFrame) and changes.get("request_id", "") is None:
            continue  # an empty cell is left out: another sentence
        with pytest.raises(InputError) as caught:
            load(CONFIG, rows, gpus=2, mode="online")
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": {**CONFIG, "models": {"llm": {**MODEL, "memory_gb": "big"}}}}, "config: models.llm.memory_gb: exp"),
        ({"config": {**CONFIG, "gpu": 4}}, "config: gpu: unknown key"),
        ({"config": None}, "config: expected a path, dicts, lists or a frame, found None"),
        ({"config": [CONFIG]}, "config: expected a mapping with models and workflows, found list"),
        ({"config": "none.yaml"}, "none.yaml: no such file"),
        ({"requests": 7}, "requests: expected a path, dicts, lists or a frame, found 7"),
        ({"requests": {"request": []}}, "requests: request: unknown key"),
        ({"gpus": None}, "how many GPUs?"),
        ({"gpus": -1}, "'-1' is not a count; expected 4, or a100:2,l4:4"),
        ({"gpus": 2.5}, "2.5: expected a number of GPUs, or so many of each type"),
        ({"gpus": True}, "True: expected a number of GPUs"),
        ({"gpus": "a10:2"}, "'a10' is not a GPU type"),
        ({"mode": "onlin"}, "mode 'onlin': expected offline or online; did you mean 'online'?"),
        ({"on_error": None}, "on_error None: expected fail or reject or skip"),
        ({"compat": "gswrm"}, "compat 'gswrm': expected gswarm"),
        ({"costs": ["noise"]}, "costs ['noise']: expected names and values of cost rules"),
        ({"costs": {"nois": 1}}, "nois: unknown key; did you mean 'noise'?"),
        ({"costs": {"noise": "loud"}}, "noise: expected"),
        ({"rates": 3}, "rates: expected a path, dicts, lists or a frame, found 3"),
        ({"gpus_per_server": 0}, "expected at least one GPU per server"),
        ({"gpus_per_server": 1.5}, "gpus_per_server 1.5: expected a whole number"),
    ],
)
def test_a_wrong_value_is_told_in_a_sentence(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        workflow.load(**{"config": CONFIG, "requests": asked(), "gpus": 2} | change)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: workflow.run(FILES), "problem: expected what dovetail.workflow.load gives"),
        (lambda p: workflow.bound(None), "problem: expected what dovetail.workflow.load gives, found None"),
        (lambda p: workflow.compare("x"), "problem: expected what dovetail.workflow.load gives, found 'x'"),
        (lambda p: workflow.optimum(3), "problem: expected what dovetail.workflow.load gives, found 3"),
        (lambda p: workflow.run(p, "dovetial"), "no workflow policy is called 'dovetial'; did you mean 'dovetail'?"),
        (
            lambda p: workflow.run(p, None),
            "expected a workflow policy: a name, file.py:name, or one of your own; found None",
        ),
        (lambda p: workflow.run(p, dict), "policy dict: expected a WorkflowPolicy"),
        (lambda p: workflow.run(p, object()), "policy object: expected a WorkflowPolicy"),
        (
            lambda p: workflow.run(p, options={"objectiv": 3}),
            "policy dovetail has no option 'objectiv'; did you mean 'objective'?",
        ),
        (lambda p: workflow.run(p, options={"objective": "x"}), "policy dovetail, option objective='x'"),
        (lambda p: workflow.run(p, seed="lucky"), "seed 'lucky': expected a whole number"),
        (lambda p: workflow.run(p, retries=-1), "retries -1: expected 0 or more"),
        (lambda p: workflow.run(p, retries=1.5), "retries 1.5: expected a whole number"),
        (lambda p: workflow.run(p, failure_rate=1.0), "failure-rate 1.0: expected 0 or more, and less than 1"),
        (lambda p: workflow.run(p, failure_rate="often"), "failure-rate often: expected 0 or more"),
        (lambda p: workflow.run(p, journal=7), "journal: expected a path, found 7"),
        (lambda p: workflow.run(p, journal="/no/such/folder/j.jsonl"), "/no/such/folder/j.jsonl: cannot be written"),
        (lambda p: workflow.run(p, resume=True), "--resume goes on with a journal: name it"),
        (lambda p: workflow.compare(p, []), "policies: expected at least one value"),
        (lambda p: workflow.compare(p, gpus=[]), "gpus: expected at least one value"),
        (lambda p: workflow.compare(p, gpus=[2, 0]), "expected at least one GPU"),
        (lambda p: workflow.compare(p, seeds="one"), "seed 'one': expected a whole number"),
        (lambda p: workflow.compare(p, "srpt", journals=3), "journals: expected a path, found 3"),
        (lambda p: workflow.compare(p, "dovetial"), "no workflow policy is called 'dovetial'"),
        (lambda p: workflow.fewest_gpus(*FILES), "give one limit"),
        (lambda p: workflow.fewest_gpus(*FILES, p99="soon"), "the limit must be positive, found soon"),
        (lambda p: workflow.fewest_gpus(*FILES, p99=9, max_gpus=2.5), "max-gpus 2.5: expected a whole number"),
        (lambda p: workflow.run(p, options=["objective"]), "options ['objective']: expected names and values"),
        (lambda p: workflow.run(p, resume="yes"), "resume 'yes': expected True or False"),
        (lambda p: workflow.run(p, journal="a\0b"), "journal: expected a path"),
        (lambda p: workflow.compare(p, jobs=2.5), "--jobs 2.5: expected a whole number"),
        (lambda p: workflow.compare(p, np.array(["srpt", "dovetial"])), "did you mean 'dovetail'?"),
        (lambda p: workflow.compare(p, gpus=pandas.DataFrame()), "gpus: expected at least one value"),
        (
            lambda p: workflow.optimum(p, time_limit_s=None),
            "--time-limit-s None: expected a positive number of seconds",
        ),
        (lambda p: workflow.fewest_gpus(*FILES, p99=9, mode=np.array([])), "mode array("),
        (lambda p: workflow.write_logs(None, log="a.log"), "journal: expected a path, found None"),
    ],
)
def test_a_wrong_argument_is_told_in_a_sentence(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(DovetailError) as caught:
        call(load(CONFIG, asked(), gpus=2))
    assert message in str(caught.value)


def test_a_journal_is_not_written_over_an_input(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(json.dumps({"requests": asked()}))
    problem = load(CONFIG, tmp_path / "r.json", gpus=2)
    with pytest.raises(InputError, match="is the same file as the input"):
        run(problem, journal=tmp_path / "r.json")
