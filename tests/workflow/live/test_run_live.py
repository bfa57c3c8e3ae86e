"""Files of requests for real: the examples, what is written, what is refused, and an end before its time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail import read_journal, workflow
from dovetail.cli import main
from dovetail.core.errors import InputError, PolicyError
from dovetail.core.events import Asked, Grew, Observed, Start
from dovetail.core.journal import Reader
from dovetail.workflow.compat.check_log import check_log
from dovetail.workflow.policies.base import Place, Wait, WorkflowPolicy
from dovetail.workflow.policies.view import View
from tests.waiting import PATIENCE_S

EXAMPLES = Path(__file__).parents[3] / "examples" / "live"
MODEL = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 0.01, "inference_time_mean": 0.01}


def load(name: str, **how: Any) -> workflow.WorkflowProblem:
    given: dict[str, Any] = {"mode": "online"} | how
    return workflow.load(EXAMPLES / f"{name}.yaml", EXAMPLES / f"{name}_requests.yaml", **given)


def one_model(**source: Any) -> dict[str, Any]:
    return {"models": {"m": MODEL | {"source": source}}, "workflows": {"w": {"nodes": [{"id": "n", "model": "m"}]}}}


def asked(count: int, **more: Any) -> list[dict[str, Any]]:
    return [
        {"request_id": f"r{i}", "workflow_id": "w", "timestamp": 0.0, "input_data": {}} | more for i in range(count)
    ]


# --- the examples ---------------------------------------------------------------------------------------


def test_a_loop_a_fan_out_and_a_join_are_decided_by_what_functions_give(tmp_path: Path) -> None:
    run = workflow.run_live(load("loop"), journal=tmp_path / "j.jsonl")
    found = {row["request_id"]: row for row in run.results}
    assert {name: row["state"] for name, row in found.items()} == dict.fromkeys(("sea", "sky", "both"), "completed")
    sea = found["sea"]["outputs"]
    assert [sea[node]["words"] for node in ("judge", "judge#2", "judge#3")] == [8, 6, 4]
    assert found["sea"]["answer"] == {"report": "the sea is wide\nwide: 4 letters"}
    assert "judge#2" not in found["sky"]["outputs"]  # short enough at once
    assert found["both"]["outputs"]["topics"] == {"topics": []}  # nothing to look up
    assert found["both"]["answer"] == {"report": "the sea und the"}
    assert run.check().valid
    assert run.replay().difference is None
    assert run.metrics["grown"] == len(
        [1 for row in run.results for node in row["outputs"] if "#" in node or node == "search"]
    )
    again = workflow.run(workflow.load(EXAMPLES / "loop.yaml", workflow.requests_of(run), mode="online"))
    assert again.metrics["tasks"] == run.metrics["tasks"]  # simulated, it becomes what it was


def test_the_page_s_program_runs_as_it_stands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = EXAMPLES.parents[1]
    [program] = re.findall(r"```python\n(.*?)```", (root / "docs" / "workflow-live-data.md").read_text(), re.DOTALL)
    monkeypatch.chdir(root)
    exec(program, {})
    told = capsys.readouterr().out.splitlines()
    assert "'sky': 'the sky is blau." in told[0]
    assert told[1] == "True None"
    assert told[2].startswith("<WorkflowRun srpt, 3 of 3 completed")


def test_emulated_models_take_their_time_and_logs_tell_what_happened(tmp_path: Path) -> None:
    run = workflow.run_live(load("emulated"), "srpt", results=tmp_path / "results.jsonl", journal=tmp_path / "j.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert run.results == []
    assert sorted(row["request_id"] for row in rows) == ["fox", "tower", "train"]
    fox = next(row for row in rows if row["request_id"] == "fox")
    assert fox["outputs"]["paint"] == {"picture": "made-up"}
    assert len(fox["outputs"]["write"]["text"].split()) == 40  # max_tokens of its node_configs
    assert fox["tokens"]["output"] == 60 + 40
    assert run.metrics["policy"] == "srpt"
    workflow.write_logs(run, log=tmp_path / "log", executions=tmp_path / "log.json")
    log = json.loads((tmp_path / "log.json").read_text())
    assert log["summary"]["simulate"] is True
    assert "Simulate: True" in (tmp_path / "log").read_text()
    first = [row for row in log["executions"] if "from_model" in row and row["switch_time"]]
    assert first
    for row in first:
        assert row["start_time"] == pytest.approx(row["switch_start"] + row["switch_time"])
    with pytest.raises(InputError, match="a live run meets more than an execution log can tell; check its journal"):
        check_log(tmp_path / "log.json")


def test_requests_arrive_at_their_times_as_fast_as_is_asked_for(tmp_path: Path) -> None:
    config = one_model(emulated={"load_s": 0, "call_s": 0})
    requests = [request | {"timestamp": 10 * i} for i, request in enumerate(asked(3))]
    problem = workflow.load(config, requests, gpus=1, mode="online")
    run = workflow.run_live(problem, speed=100)
    arrived = [row["arrived_s"] for row in sorted(run.results, key=lambda row: str(row["request_id"]))]
    assert arrived[1] >= 0.1
    assert arrived[2] >= 0.2
    assert arrived[2] < 10


def test_in_mode_offline_all_arrive_at_once() -> None:
    config = one_model(emulated={"load_s": 0, "call_s": 0})
    requests = [request | {"timestamp": 1000 * i} for i, request in enumerate(asked(3))]
    assert workflow.run_live(workflow.load(config, requests, gpus=1)).metrics["completed"] == 3


# --- what goes wrong ----------------------------------------------------------------------------------------


def test_what_a_call_is_to_blame_for_is_tried_again_and_then_rejected(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("def make(model):\n    return lambda inputs: {'a': 1}\n")
    config = one_model(factory=str(tmp_path / "bad.py:make"))
    config["workflows"]["w"]["nodes"][0]["outputs"] = ["b", "c"]
    run = workflow.run_live(workflow.load(config, asked(1), gpus=1), retries=1)
    (row,) = run.results
    assert row["state"] == "failed"
    assert "node 'n' is to give b, c, but its answer has no 'b' and 'c': a" in row["error"]
    assert (run.metrics["failures"], run.metrics["rejected"]) == (2, 1)
    assert run.check().valid


def test_a_node_whose_request_failed_while_its_model_was_loaded_disturbs_nobody(tmp_path: Path) -> None:
    source = """
        import time
        from pathlib import Path

        JOURNAL = Path(__file__).with_name("j.jsonl")

        def bad(model):
            def call(inputs):
                raise ValueError("never")
            return call

        def slow(model):
            while '"rejected"' not in JOURNAL.read_text():  # its request is given up
                time.sleep(0.01)
            return lambda inputs: {"text": "late"}
    """
    (tmp_path / "models.py").write_text(textwrap.dedent(source))
    models = {name: MODEL | {"source": {"factory": f"{tmp_path / 'models.py'}:{name}"}} for name in ("bad", "slow")}
    both = {"nodes": [{"id": name, "model": name} for name in models]}
    config = {"models": models, "workflows": {"w": both, "alone": {"nodes": [{"id": "slow", "model": "slow"}]}}}
    requests = [*asked(1), *[row | {"request_id": "later", "workflow_id": "alone"} for row in asked(1)]]
    problem = workflow.load(config, requests, gpus=2, mode="online")
    run = workflow.run_live(problem, retries=0, journal=tmp_path / "j.jsonl")
    assert {row["request_id"]: row["state"] for row in run.results} == {"r0": "failed", "later": "completed"}
    events = [event for _, _, events in Reader(tmp_path / "j.jsonl").steps() for event in events]
    assert not [event for event in events if isinstance(event, Observed) and event.what in ("emptied", "gone")]
    assert run.check().valid


def lacking_an_input(**how: Any) -> workflow.WorkflowProblem:
    config = one_model(emulated={"call_s": 0, "load_s": 0})
    config["workflows"]["w"]["nodes"][0]["inputs"] = ["topic"]
    return workflow.load(config, [*asked(2), *asked(1, request_id="good", input_data={"topic": "x"})], gpus=1, **how)


def test_requests_that_lack_an_input_are_told_before_anything_runs(tmp_path: Path) -> None:
    told = "requests: request 'r0': workflow 'w' needs 'topic'; the request gives nothing\nrequests: request 'r1': "
    with pytest.raises(InputError, match=told):
        workflow.run_live(lacking_an_input(), journal=tmp_path / "j.jsonl")
    assert not (tmp_path / "j.jsonl").exists()


def test_what_cannot_be_asked_is_found_before_anything_runs_too() -> None:
    config = one_model(emulated={"call_s": 0, "load_s": 0})
    config["workflows"]["w"]["nodes"][0]["prompt"] = "Look at {image}"
    requests = asked(1, input_data={"image": {"a": 1}}, node_tokens={"n": {"input": -1}})
    with pytest.raises(InputError):
        workflow.check_live(workflow.load(config, requests, gpus=1))
    config["live"] = {"max_values_mib": 0.00001}
    with pytest.raises(InputError, match=r"the request brings 0.0 MiB; expected at most 1e-05 MiB"):
        workflow.check_live(workflow.load(config, asked(1, input_data={"image": "x" * 100}), gpus=1))


def test_validate_needs_no_requests_for_what_a_service_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["workflow", "validate", "--config", str(EXAMPLES / "loop.yaml")]
    assert main([*words, "--live"]) == 0
    assert "sources factory 6; requests 0; left out 0" in capsys.readouterr().out
    assert main(words) == 2
    assert main([*words, "--live", "--requests", "nowhere.yaml"]) == 2
    assert "nowhere.yaml: no such file" in capsys.readouterr().err


def test_files_ask_for_workflows_and_a_model_is_told_to_be_one() -> None:
    with pytest.raises(InputError, match="unknown workflow 'm'; it is a model, and files ask for workflows"):
        workflow.load(one_model(emulated={}), asked(1, workflow_id="m"), gpus=1)


def test_validate_tells_whether_files_can_be_run_for_real(capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--config", str(EXAMPLES / "loop.yaml"), "--requests", str(EXAMPLES / "loop_requests.yaml")]
    assert main(["workflow", "validate", "--live", *files, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["live"] == {"sources": {"factory": 6}, "requests": 3, "left_out": 0}
    plain = EXAMPLES.parent / "system_config.yaml"
    requests = EXAMPLES.parent / "workflow_requests.yaml"
    words = ["workflow", "validate", "--gpus", "4", "--config", str(plain), "--requests", str(requests)]
    assert main([*words, "--live"]) == 2
    assert "live runs need the source of every model, but 'chat_8b', 'chat_70b'" in capsys.readouterr().err
    assert main(words) == 0


def test_they_are_rejected_or_left_out_if_that_is_asked_for() -> None:
    rejected = workflow.run_live(lacking_an_input(on_error="reject"))
    assert (rejected.metrics["completed"], rejected.metrics["rejected"]) == (1, 2)
    assert {row["state"] for row in rejected.results} == {"completed", "failed"}
    skipped = workflow.run_live(lacking_an_input(on_error="skip"))
    assert skipped.metrics["arrived"] == 1
    assert sum("skipped" in note for note in skipped.notes) == 2
    assert rejected.check().valid
    assert skipped.check().valid


def test_models_without_a_source_and_files_that_would_be_lost_are_refused(tmp_path: Path) -> None:
    config = {"models": {"a": MODEL, "b": MODEL}, "workflows": {"w": {"nodes": [{"id": "n", "model": "a"}]}}}
    with pytest.raises(InputError, match="live runs need the source of every model, but 'a', 'b'"):
        workflow.run_live(workflow.load(config, asked(1), gpus=1))
    requests = EXAMPLES / "loop_requests.yaml"
    with pytest.raises(InputError, match=r"loop_requests\.yaml"):
        workflow.run_live(load("loop"), results=requests)
    with pytest.raises(InputError, match="gpus_over_time: a live run has the GPUs that are there"):
        workflow.run_live(load("loop", gpus_over_time={"steps": [[0, 2]]}))
    with pytest.raises(InputError, match="--speed 0: expected a positive number"):
        workflow.run_live(load("loop"), speed=0)


def test_a_policy_that_fails_ends_the_run_with_its_error_and_nothing_is_left() -> None:
    class Stuck(WorkflowPolicy):
        def choose(self, view: View) -> Place | Wait | None:
            raise RuntimeError("no idea")

    problem = workflow.load(one_model(emulated={"load_s": 0, "call_s": 0}), asked(1), gpus=1)
    with pytest.raises(PolicyError, match="no idea"):
        workflow.run_live(problem, Stuck)


# --- an end before its time ---------------------------------------------------------------------------------


WAITS = """
import time
from pathlib import Path

def make(model):
    def wait(inputs):
        while not Path(model.options["until"]).exists():
            time.sleep(0.01)
        return "done"
    return wait
"""


def test_ctrl_c_lets_what_runs_end_and_cancels_the_rest(tmp_path: Path) -> None:
    """One request runs, and ends when the other, which waits, was asked to; a third has not come."""
    (tmp_path / "waits.py").write_text(WAITS)
    config = one_model(factory=f"{tmp_path}/waits.py:make", options={"until": str(tmp_path / "asked")})
    requests = [*asked(2), *asked(1, request_id="late", timestamp=3600.0)]

    class Interrupt:
        steps_since_start = -1

        def step(self, n: int, t: float, events: Sequence[Any]) -> None:
            self.steps_since_start += self.steps_since_start >= 0 or any(isinstance(event, Start) for event in events)
            if self.steps_since_start == 1:
                os.kill(os.getpid(), signal.SIGINT)
            if any(isinstance(event, Asked) for event in events):
                (tmp_path / "asked").touch()

    problem = workflow.load(config, requests, gpus=1, mode="online")
    told: list[str] = []
    run = workflow.run_live(problem, journal=tmp_path / "j.jsonl", observers=[Interrupt()], notice=told.append)
    assert run.interrupted
    assert told == ["No more requests begin; 1 that have begun go on to their end; once more ends them at once"]
    assert run.notes[-1] == "interrupted: of 3 requests 1 completed, 1 cancelled, 0 failed, 1 had not come"
    states = {row["request_id"]: row["state"] for row in run.results}
    assert states == {"r0": "completed", "r1": "cancelled", "late": "failed"}
    assert run.check().valid


def test_the_command_ends_with_130_after_ctrl_c_and_leaves_a_valid_journal(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(one_model(emulated={"load_s": 0, "call_s": 0.2})))
    (tmp_path / "r.json").write_text(json.dumps({"requests": asked(400)}))
    command = [sys.executable, "-m", "dovetail", "workflow", "run", "--live", "--gpus", "1", "--format", "json"]
    process = subprocess.Popen(
        [*command, "--config", "c.json", "--requests", "r.json"], cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    with process:
        journal = tmp_path / "dovetail_journal.jsonl"
        while process.poll() is None and (not journal.exists() or b'"k":"started"' not in journal.read_bytes()):
            threading.Event().wait(0.02)
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, told
    assert re.search(r"interrupted: of 400 requests \d+ completed, \d+ cancelled, 0 failed, \d+ had not come", told)
    assert "once more ends them at once" in told
    assert json.loads(out)["rejected"] > 0
    assert read_journal(journal).check().valid


# --- the command --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--live"], ["--simulate", "true"]])
def test_the_command_writes_journal_logs_and_outputs(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["--config", str(EXAMPLES / "loop.yaml"), "--requests", str(EXAMPLES / "loop_requests.yaml")]
    assert main(["workflow", "run", *words, *files, "--out", str(tmp_path), "--policy", "baseline", "--quiet"]) == 0
    out = capsys.readouterr().out
    assert "Live: models were called" in out
    log = (tmp_path / "baseline_scheduler.log").read_text()
    assert "Run completed at time" in log
    assert "Mode: offline" in log
    assert f"Outputs written to {tmp_path}/baseline_results.jsonl" in out
    rows = [json.loads(line) for line in (tmp_path / "baseline_results.jsonl").read_text().splitlines()]
    assert {row["request_id"]: row["answer"]["report"][:3] for row in rows} == dict.fromkeys(
        ("sea", "sky", "both"), "the"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "baseline_execution_log.json",
        "baseline_journal.jsonl",
        "baseline_results.jsonl",
        "baseline_scheduler.log",
    ]
    events = [event for _, _, event in Reader(tmp_path / "baseline_journal.jsonl")]
    assert sum(isinstance(event, Grew) for event in events) == 2 + 3 + 2  # two loops, and one search each for two


def test_policies_that_plan_ahead_are_for_simulated_runs() -> None:
    problem = workflow.load(one_model(emulated={}), asked(1), gpus=1)
    with pytest.raises(InputError, match="policy optimise plans ahead, for simulated runs only"):
        workflow.run_live(problem, "optimise")
