"""`dovetail workflow`: every verb with good and bad input, its files, its exit codes, and a run that is interrupted."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.cli import main
from dovetail.core import registry
from dovetail.core.events import Reject
from dovetail.core.journal import Ended, Reader
from dovetail.workflow.check import check_journal
from dovetail.workflow.choices import DEFAULT_POLICY
from tests.waiting import until

CONFIG: dict[str, Any] = {
    "models": {
        "llm": {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 10},
        "sd": {"memory_gb": 4, "gpus_required": 2, "load_time_seconds": 5},
    },
    "workflows": {
        "story": {
            "nodes": [{"id": "write", "model": "llm"}, {"id": "draw", "model": "sd"}],
            "edges": [{"from": "write", "to": "draw"}],
        },
        "talk": {"nodes": [{"id": "say", "model": "llm"}]},
    },
}
ROWS: list[dict[str, Any]] = [
    {
        "request_id": f"r{i}",
        "timestamp": f"2024-01-01T10:00:{2 * i:02d}",
        "workflow_id": "story" if i % 2 else "talk",
        "node_execution_times": {"write": 3 + i, "draw": 2} if i % 2 else {"say": 4},
    }
    for i in range(8)
]
FILES = ("{}_execution_log.json", "{}_journal.jsonl", "{}_scheduler.log")
READING = ("run", "validate", "bound", "compare", "plan")
POOL = {"run": ["--gpus", "2"], "validate": ["--gpus", "2"], "bound": ["--gpus", "2"], "compare": ["--gpus", "2"]}
POOL["plan"] = ["--makespan", "1000"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with inputs under their default names, in which the commands run."""
    (tmp_path / "system_config.yaml").write_text(yaml.safe_dump(CONFIG, sort_keys=False))
    write_requests(tmp_path, ROWS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_requests(folder: Path, rows: list[Any]) -> None:
    (folder / "workflow_requests.yaml").write_text(yaml.safe_dump({"requests": rows}, sort_keys=False))


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(folder: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `dovetail workflow ...`; gives its exit code, what it printed, and what it complained about."""

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["workflow", *words])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


INPUTS = ["system_config.yaml", "workflow_requests.yaml"]


# --- run ------------------------------------------------------------------------------------------


def test_run_reads_the_default_files_and_writes_three(command: Command, folder: Path) -> None:
    code, out, err = command("run", "--gpus", "2")
    assert (code, err) == (0, "")
    assert listing(folder) == sorted([*INPUTS, *(name.format("dovetail") for name in FILES)])
    assert "EXECUTION METRICS" in out
    assert "Requests: 8 completed, 0 rejected" in out
    assert "Detailed execution log written to dovetail_execution_log.json" in out
    log = (folder / "dovetail_scheduler.log").read_text()
    assert "[0.00s] Processing request r0 (workflow: talk)" in log
    report = check_journal(folder / "dovetail_journal.jsonl", folder / INPUTS[0], folder / INPUTS[1])
    assert report.faults == []


def test_the_flags_of_the_older_scheduler_work(command: Command, folder: Path) -> None:
    words = ["--gpus", "2", "--simulate", "false", "--mode", "online", "--config", "system_config.yaml"]
    code, _, _ = command("run", *words, "--requests", "workflow_requests.yaml", "--policy", "baseline")
    assert code == 0
    summary = json.loads((folder / "baseline_execution_log.json").read_text())["summary"]
    assert (summary["mode"], summary["completed_requests"], summary["gpus"]) == ("online", 8, [0, 1])


def test_the_default_policy_is_one_of_them() -> None:
    assert DEFAULT_POLICY in registry.names("workflow")


@pytest.mark.parametrize("policy", registry.names("workflow"))
def test_every_policy_runs(command: Command, policy: str) -> None:
    code, out, _ = command("run", "--gpus", "3", "--policy", policy, "--format", "json")
    figures = json.loads(out)
    assert (code, figures["policy"], figures["completed"]) == (0, policy, 8)
    assert figures["makespan_s"] >= figures["bound_makespan_s"]


def test_json_is_all_that_is_printed(command: Command) -> None:
    code, out, err = command("run", "--gpus", "2", "--format", "json")
    figures = json.loads(out)
    assert (code, err) == (0, "")
    wanted = {"gpus", "mode", "makespan_s", "switches", "switch_time_s", "avg_request_s", "p99_request_s"}
    assert wanted | {"bound_makespan_s", "completed", "rejected"} <= figures.keys()
    assert (figures["gpus"], figures["mode"], figures["completed"], figures["rejected"]) == (2, "offline", 8, 0)


@pytest.mark.parametrize("words", [(), ("-q",), ("-v",)])
def test_the_log_is_printed_only_where_it_is_asked_for(command: Command, folder: Path, words: tuple[str, ...]) -> None:
    _, out, _ = command("run", "--gpus", "2", *words)
    assert "EXECUTION METRICS" in out
    assert ("Processing request" in out) == (words == ("-v",))
    assert "Processing request" in (folder / "dovetail_scheduler.log").read_text()


def test_the_console_may_show_only_the_first_lines_of_the_log(command: Command, folder: Path) -> None:
    _, out, _ = command("run", "--gpus", "2", "--log-lines", "5")
    assert sum(line.startswith("[") for line in out.splitlines()) == 1  # four lines tell what runs
    assert "more lines in" in out
    assert len((folder / "dovetail_scheduler.log").read_text().splitlines()) > 40


@pytest.mark.parametrize("kind", [0, 1, 2])
def test_only_what_is_asked_for_is_written(command: Command, folder: Path, kind: int) -> None:
    name = ("executions", "journal", "log")[kind]
    assert command("run", "--gpus", "2", "--write", name, "--out", "results/of/today")[0] == 0
    assert listing(folder / "results") == [f"of/today/{FILES[kind].format('dovetail')}"]


def test_the_same_inputs_give_the_same_bytes(command: Command, folder: Path) -> None:
    words = ["--gpus", "2", "--mode", "online", "--cost", "noise=0.3", "--failure-rate", "0.2", "--seed", "7"]
    for name in ("a", "b"):
        assert command("run", *words, "--out", name)[0] in (0, 3)
    for name in FILES:
        one, two = ((folder / out / name.format("dovetail")).read_bytes() for out in ("a", "b"))
        assert one == two


def test_options_costs_and_rates_arrive(command: Command, folder: Path) -> None:
    (folder / "rates.yaml").write_text("switches: [{to: llm, seconds: 1}]\n")
    words = ["--policy", "srpt", "--option", "ageing=0.5", "hysteresis=1", "--cost", "overhead_s=0", "overlap=0.5"]
    assert command("run", "--gpus", "2", *words, "--rates", "rates.yaml", "--format", "json")[0] == 0
    header = Reader(folder / "srpt_journal.jsonl").header
    assert header.options == {"ageing": "0.5", "hysteresis": "1"}
    assert header.facts["costs"] == {"overhead_s": 0.0, "overlap": 0.5}
    assert header.facts["rates"]["switches"][0]["seconds"] == 1.0


# --- faulty requests ------------------------------------------------------------------------------

FAULTY = [*ROWS, {**ROWS[0], "request_id": "x", "workflow_id": "tlk"}, {**ROWS[0], "request_id": "r1"}]


def test_a_fault_stops_the_run_before_anything_is_written(command: Command, folder: Path) -> None:
    write_requests(folder, FAULTY)
    code, out, err = command("run", "--gpus", "2", "--out", "results")
    assert (code, out) == (2, "")
    assert err == (
        "error: workflow_requests.yaml:48: requests.8.workflow_id: request 'x': unknown workflow 'tlk'; "
        "did you mean 'talk'?\nworkflow_requests.yaml:50: requests.9.request_id: request 'r1': 'r1' is used twice\n"
    )
    assert listing(folder) == INPUTS
    assert not (folder / "results").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        ["--option", "objective=meen"],
        ["--option", "objectiv=mean"],
        ["--failure-rate", "7"],
        ["--retries", "-1"],
        ["--policy", "dovetial"],
    ],
)
def test_what_makes_no_sense_leaves_what_is_there(command: Command, folder: Path, wrong: list[str]) -> None:
    assert command("run", "--gpus", "2", "-q")[0] == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert command("run", "--gpus", "2", *wrong)[0] == 2
    assert command("run", "--gpus", "2", "--out", "new/deep", *wrong)[0] == 2
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not (folder / "new").exists()


def test_rejected_requests_are_journaled_counted_and_give_exit_code_3(command: Command, folder: Path) -> None:
    write_requests(folder, FAULTY)
    code, out, _ = command("run", "--gpus", "2", "--on-error", "reject")
    assert code == 3
    assert "Requests: 8 completed, 2 rejected" in out
    assert "1 rejected: workflow_id: unknown workflow 'tlk'; did you mean 'talk'?" in out
    rejected = [entry.event for entry in Reader(folder / "dovetail_journal.jsonl") if isinstance(entry.event, Reject)]
    assert [event.job for event in rejected] == ["x", "r1#10"]
    log = json.loads((folder / "dovetail_execution_log.json").read_text())
    assert [row["request_id"] for row in log["rejected_requests"]] == ["x", "r1#10"]
    report = check_journal(folder / "dovetail_journal.jsonl", folder / INPUTS[0], folder / INPUTS[1])
    assert report.faults == []
    code, out, _ = command("run", "--gpus", "2", "--on-error", "reject", "--format", "json")
    figures = json.loads(out)
    assert (code, figures["completed"], figures["rejected"], figures["skipped"]) == (3, 8, 2, 0)
    assert len(figures["rejections"]) == 2


def test_skipped_requests_are_counted_and_shown(command: Command, folder: Path) -> None:
    write_requests(folder, FAULTY)
    code, out, err = command("run", "--gpus", "2", "--on-error", "skip")
    assert code == 0
    assert "Requests: 8 completed, 0 rejected, 2 skipped" in out
    assert err.count("skipped: workflow_requests.yaml:") == 2
    report = check_journal(folder / "dovetail_journal.jsonl", folder / INPUTS[0], folder / INPUTS[1])
    assert report.faults == []
    code, out, _ = command("run", "--gpus", "2", "--on-error", "skip", "--format", "json")
    assert (code, json.loads(out)["skipped"]) == (0, 2)


def test_failures_that_use_up_their_retries_give_exit_code_3(command: Command) -> None:
    code, out, _ = command(
        "run", "--gpus", "2", "--failure-rate", "0.9", "--retries", "0", "--seed", "1", "--format", "json"
    )
    figures = json.loads(out)
    assert (code, figures["completed"] + figures["rejected"]) == (3, 8)
    assert figures["rejected"] == figures["failures"] > 0


def test_an_empty_set_of_requests_is_done_at_once(command: Command, folder: Path) -> None:
    write_requests(folder, [])
    code, out, err = command("run", "--gpus", "2", "--format", "json")
    assert (code, json.loads(out)["makespan_s"]) == (0, 0.0)
    assert "there are no requests" in err


# --- wrong words ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--simulate", "true"], "live runs need the source of every model, but 'llm', 'sd': expected source:"),
        (["--simulate", "TRUE"], "live runs need the source of every model"),
        (["--live"], "live runs need the source of every model"),
        (["--live", "--seed", "3"], "--seed is for simulated runs, not for --live"),
        (["--live", "--resume"], "--resume is for simulated runs, not for --live"),
        (["--live", "--speed", "0"], "--speed 0: expected a positive number"),
        (["--live", "--policy", "optimise"], "policy optimise plans ahead, for simulated runs only"),
        (["--live", "--compat", "gswarm"], "--compat gswarm: that scheduler never called a model"),
        (["--speed", "2"], "--speed is for --live"),
        (["--engine", "ray"], "--engine is for --live"),
        (["--write", "results"], "--write results: only with --live are there outputs to write"),
        (["--simulate", "perhaps"], "--simulate perhaps: expected true or false"),
        (["--policy", "dovetial"], "no workflow policy is called 'dovetial'; did you mean 'dovetail'?"),
        (["--option", "objektive=3"], "policy dovetail has no option 'objektive'; did you mean 'objective'?"),
        (["--option", "objective"], "--option objective: expected NAME=VALUE"),
        (["--option", "objective=long"], "policy dovetail, option objective='long'"),
        (["--cost", "overlp=1"], "--cost overlp: unknown key; did you mean 'overlap'?"),
        (["--cost", "overlap=many"], "--cost overlap: expected float, found str"),
        (["--cost", "resident=memory"], "costs.resident: memory needs the memory of every GPU"),
        (["--policy", "optimise", "--mode", "online"], "plans ahead"),
        (["--failure-rate", "1"], "--failure-rate 1.0: expected 0 or more, and less than 1"),
        (["--failure-rate", "nan"], "--failure-rate nan"),
        (["--retries", "-1"], "--retries -1: expected 0 or more"),
        (["--log-lines", "-1"], "--log-lines -1: expected 0 or more"),
        (["--gpus-per-server", "0"], "per server"),
        (["--resume", "--write", "log"], "--resume goes on with a journal"),
        (["--mode", "sideways"], "sideways"),
        (["--on-error", "panic"], "panic"),
        (["--compat", "ray"], "ray"),
        (["--write", "novel"], "novel"),
        (["--seed", "lucky"], "lucky"),
        (["--polcy", "srpt"], "--polcy"),
        (["extra"], "extra"),
        (["--rates", "rates.yaml"], "rates.yaml: no such file"),
    ],
)
def test_a_wrong_word_is_told_and_nothing_is_written(
    command: Command, folder: Path, words: list[str], message: str
) -> None:
    code, out, err = command("run", "--gpus", "2", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err
    assert listing(folder) == INPUTS


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ([], "how many GPUs? give --gpus 4, or gpus: in the configuration"),
        (["--gpus", "0"], "--gpus 0: expected at least one GPU"),
        (["--gpus=-1"], "--gpus -1: '-1' is not a count"),
        (["--gpus", "a100:2"], "'a100' is not a GPU type"),
        (["--gpus", "1"], "workflow 'story' cannot run"),
    ],
)
@pytest.mark.parametrize("verb", ["run", "validate", "bound"])
def test_a_wrong_pool_is_told(command: Command, verb: str, gpus: list[str], message: str) -> None:
    code, out, err = command(verb, *gpus)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("verb", READING)
@pytest.mark.parametrize("name", INPUTS)
def test_every_verb_tells_of_a_missing_empty_or_mistyped_file(
    command: Command, folder: Path, verb: str, name: str
) -> None:
    path = folder / name
    text = path.read_text()
    for content, message in (
        (None, f"{name}: no such file"),
        ("", f"{name}: is empty; expected YAML or JSON"),
        (text.replace("memory_gb", "memry_gb").replace("request_id", "reqest_id"), "did you mean '"),
        (text + "\n  - ][", f"{name}:"),
    ):
        if content is None:
            path.unlink()
        else:
            path.write_text(content)
        code, out, err = command(verb, *POOL[verb])
        assert (code, out) == (2, "")
        assert message in err
        assert "Traceback" not in err
    assert [found for found in listing(folder) if found not in INPUTS] == []


@pytest.mark.parametrize("verb", [*READING, "policies", "explain", "export", "generate"])
def test_every_verb_refuses_a_flag_it_does_not_know(command: Command, verb: str) -> None:
    code, out, err = command(verb, *POOL.get(verb, []), "--no-such-flag", "1")
    assert (code, out) == (2, "")
    assert "--no-such-flag" in err


@pytest.mark.parametrize("verb", [*READING, "policies", "explain", "export", "generate", "import"])
def test_every_verb_has_help_with_an_example(command: Command, verb: str) -> None:
    code, out, _ = command(verb, "--help")
    assert code == 0
    assert "Example" in out or verb == "import"


# --- places that cannot be written ----------------------------------------------------------------


def test_a_file_where_the_folder_should_be(command: Command, folder: Path) -> None:
    (folder / "results").write_text("a file")
    code, _, err = command("run", "--gpus", "2", "--out", "results")
    assert code == 2
    assert "--out results: cannot be made" in err
    assert (folder / "results").read_text() == "a file"


@pytest.mark.parametrize("name", FILES)
def test_a_folder_where_a_file_should_be(command: Command, folder: Path, name: str) -> None:
    (folder / name.format("dovetail")).mkdir()
    code, _, err = command("run", "--gpus", "2")
    assert code == 2
    assert f"{name.format('dovetail')}: cannot be written" in err
    assert "Traceback" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_told(command: Command, folder: Path) -> None:
    (folder / "dovetail_journal.jsonl").symlink_to("/dev/full")
    code, _, err = command("run", "--gpus", "2", "--write", "journal")
    assert code == 2
    assert "cannot be written" in err


# --- exported -------------------------------------------------------------------------------------


def test_the_logs_of_a_run_are_those_exported_from_its_journal(command: Command, folder: Path) -> None:
    assert command("run", "--gpus", "2", "--failure-rate", "0.2")[0] in (0, 3)
    code, out, err = command("export", "--log", "again.log", "--executions", "again.json")
    assert (code, out, err) == (0, "written: again.log\nwritten: again.json\n", "")
    assert (folder / "again.log").read_bytes() == (folder / "dovetail_scheduler.log").read_bytes()
    assert (folder / "again.json").read_bytes() == (folder / "dovetail_execution_log.json").read_bytes()


def test_logs_are_written_without_a_journal_and_leave_none(command: Command, folder: Path) -> None:
    before = listing(folder)
    assert command("run", "--gpus", "2", "--write", "log")[0] == 0
    assert set(listing(folder)) == {*before, "dovetail_scheduler.log"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["dovetail_journal.jsonl"],
            "nothing to write: give --log FILE, --executions FILE, --requests FILE or --rates FILE",
        ),
        (["dovetail_journal.jsonl", "--log", "dovetail_scheduler.log"], "exists already; --force writes over it"),
        (["dovetail_journal.jsonl", "--log", "dovetail_journal.jsonl", "--force"], "is the same file as the input"),
        (["nothing.jsonl", "--log", "a.log"], "nothing.jsonl: "),
        (["nothing.jsonl"], "nothing.jsonl: no such file"),
        (["dovetail_scheduler.log"], "not a Dovetail journal"),
        (["dovetail_scheduler.log", "--log", "a.log"], "not a Dovetail journal"),
    ],
)
def test_export_tells_what_it_cannot_do(command: Command, folder: Path, words: list[str], message: str) -> None:
    assert command("run", "--gpus", "2")[0] == 0
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code, out, err = command("export", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before


# --- interrupted and resumed ----------------------------------------------------------------------

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from dovetail.cli import main
sys.exit(main())
"""


def test_a_run_that_was_interrupted_can_be_read_and_resumed(tmp_path: Path) -> None:
    """Ctrl-C leaves a journal that can be read; --resume completes it to the bytes of a run that was not stopped."""
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    with (tmp_path / "requests.jsonl").open("w") as file:
        for i in range(30_000):
            file.write(json.dumps({"request_id": f"r{i}", "workflow_id": "talk", "timestamp": i}) + "\n")
    files = ["--config", str(tmp_path / "config.json"), "--requests", str(tmp_path / "requests.jsonl")]
    words = ["workflow", "run", "--gpus", "2", "--mode", "online", *files, "--write", "journal", "log", "--quiet"]

    def start(*more: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, *words, *more]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    whole = start("--out", str(tmp_path / "whole"))
    stopped = start("--out", str(tmp_path / "stopped"))
    journal = tmp_path / "stopped" / "dovetail_journal.jsonl"
    until(lambda: stopped.poll() is not None or (journal.exists() and journal.stat().st_size > 1 << 20))
    stopped.send_signal(signal.SIGINT)
    _, err = stopped.communicate()
    assert (stopped.returncode, err) == (130, "interrupted\n")
    entries = list(Reader(journal))
    assert len(entries) > 1000
    assert not any(isinstance(entry.event, Ended) for entry in entries)
    report = check_journal(journal, tmp_path / "config.json", tmp_path / "requests.jsonl")
    [finding] = report.faults
    assert (finding.code, report.faults_by_code) == ("end", {"end": 1})
    assert re.fullmatch(r"did not end: \d+ requests? unfinished.*; `--resume` goes on", finding.message)

    out, err = whole.communicate()
    assert (whole.returncode, err) == (0, "")
    expected = (tmp_path / "whole" / "dovetail_journal.jsonl").read_bytes()
    assert expected.startswith(journal.read_bytes())
    resumed = start("--out", str(tmp_path / "stopped"), "--resume")
    assert resumed.communicate()[0].replace("/stopped/", "/whole/") == out
    assert resumed.returncode == 0
    assert journal.read_bytes() == expected


@pytest.mark.parametrize("share", [0.0, 0.001, 0.2, 0.5, 0.73, 0.999, 1.0])
def test_a_journal_cut_anywhere_is_completed_to_the_same_bytes(command: Command, folder: Path, share: float) -> None:
    assert command("run", "--gpus", "2")[0] == 0
    path = folder / "dovetail_journal.jsonl"
    expected = path.read_bytes()
    path.write_bytes(expected[: int(share * len(expected))])
    code, _, err = command("run", "--gpus", "2", "--resume")
    assert (code, err) == (0, "")
    assert path.read_bytes() == expected


@pytest.mark.parametrize("words", [["--seed", "2"], ["--cost", "overhead_s=3"], ["--option", "objective=mean"]])
def test_another_run_is_not_resumed_and_its_journal_stays(command: Command, folder: Path, words: list[str]) -> None:
    assert command("run", "--gpus", "2")[0] == 0
    path = folder / "dovetail_journal.jsonl"
    before = path.read_bytes()
    code, _, err = command("run", "--gpus", "2", *words, "--resume")
    assert code == 2
    assert "cannot resume" in err
    assert path.read_bytes() == before


def test_nothing_to_resume_is_a_run(command: Command, folder: Path) -> None:
    assert command("run", "--gpus", "2", "--resume")[0] == 0
    assert (folder / "dovetail_journal.jsonl").exists()


# --- validate, policies, bound --------------------------------------------------------------------


def test_validate_counts_what_it_found_and_writes_nothing(command: Command, folder: Path) -> None:
    code, out, err = command("validate", "--gpus", "2", "--format", "json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert {key: facts[key] for key in ("models", "workflows", "requests", "gpus")} == {
        "models": 2,
        "workflows": 2,
        "requests": 8,
        "gpus": 2,
    }
    assert facts["durations"] == {"given": 12}
    assert command("validate", "--gpus", "2")[0] == 0
    assert listing(folder) == INPUTS


def test_validate_warns_of_times_that_belong_to_no_node(command: Command, folder: Path) -> None:
    write_requests(folder, [{**ROWS[0], "node_execution_times": {"say": 4, "sing": 4}}])
    code, _, err = command("validate", "--gpus", "2")
    assert code == 0
    assert "warning: workflow_requests.yaml: node_execution_times names 'sing'" in err


def test_policies_lists_names_promises_and_options(command: Command) -> None:
    code, out, _ = command("policies", "--format", "json")
    rows = json.loads(out)
    assert code == 0
    assert [row["policy"] for row in rows] == registry.names("workflow")
    assert all(row["promise"] for row in rows)
    assert next(row for row in rows if row["policy"] == "dovetail")["options"]["objective"] == "balanced"
    assert "objective=balanced" in command("policies")[1]


def test_bound_gives_what_no_run_is_below(command: Command, folder: Path) -> None:
    code, out, _ = command("bound", "--gpus", "2", "--format", "json")
    bounds = json.loads(out)
    assert code == 0
    figures = json.loads(command("run", "--gpus", "2", "--format", "json")[1])
    assert bounds["bound_makespan_s"] == figures["bound_makespan_s"] <= figures["makespan_s"]
    assert command("bound", "--gpus", "2")[0] == 0


def test_bound_exact_is_between_bound_and_run(command: Command, folder: Path) -> None:
    pytest.importorskip("ortools")
    write_requests(folder, ROWS[:3])
    code, out, _ = command("bound", "--gpus", "2", "--exact", "--format", "json")
    found = json.loads(out)
    figures = json.loads(command("run", "--gpus", "2", "--policy", "optimise", "--format", "json")[1])
    assert (code, found["best_is_optimal"]) == (0, True)
    assert found["bound_makespan_s"] <= found["best_makespan_s"] <= figures["makespan_s"] + 1e-9
    assert found["exact_bound_s"] <= found["best_makespan_s"]


@pytest.mark.parametrize("words", [["--cost", "overlap=0.5"], ["--cost", "window=primary"]])
def test_bound_exact_refuses_prices_that_it_does_not_know(command: Command, words: list[str]) -> None:
    code, _, err = command("bound", "--gpus", "2", "--exact", *words)
    assert code == 2
    assert "--exact knows only" in err


def test_bound_exact_refuses_limits_of_memory(command: Command, folder: Path) -> None:
    config = {**CONFIG, "gpu_types": {"big": {"memory_gb": 8}, "small": {"memory_gb": 4}}}
    (folder / "system_config.yaml").write_text(yaml.safe_dump(config))
    code, _, err = command("bound", "--gpus", "big:2,small:2", "--exact")
    assert code == 2
    assert "'llm' does not fit on every GPU" in err


def test_bound_exact_is_for_few_nodes(command: Command, folder: Path) -> None:
    write_requests(folder, [{**ROWS[0], "request_id": f"r{i}"} for i in range(100)])
    code, _, err = command("bound", "--gpus", "2", "--exact")
    assert code == 2
    assert "these requests have 100" in err


# --- compare --------------------------------------------------------------------------------------


def test_compare_prints_a_row_for_each_policy_and_pool(command: Command, folder: Path) -> None:
    code, out, _ = command(
        "compare", "--gpus", "2", "4", "--policy", "baseline", "srpt", "--jobs", "1", "--format", "json"
    )
    rows = json.loads(out)
    assert code == 0
    assert [(row["gpus"], row["policy"]) for row in rows] == [
        ("2", "baseline"),
        ("2", "srpt"),
        ("4", "baseline"),
        ("4", "srpt"),
    ]
    _, out, _ = command("compare", "--gpus", "2", "2", "--jobs", "1")
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["baseline", "dovetail"]
    assert listing(folder) == INPUTS


def test_compare_writes_journals_figures_and_a_page(command: Command, folder: Path) -> None:
    code, out, _ = command("compare", "--gpus", "2", "--jobs", "2", "--out", "study")
    assert code == 0
    assert "Page written to study/compare.html" in out
    assert listing(folder / "study") == [
        "baseline_2_journal.jsonl",
        "compare.html",
        "compare.json",
        "dovetail_2_journal.jsonl",
    ]
    assert len(json.loads((folder / "study" / "compare.json").read_text())) == 2
    assert check_journal(folder / "study" / "baseline_2_journal.jsonl").faults == []


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_compare_all_takes_every_policy_that_can_work_in_the_mode(command: Command, mode: str) -> None:
    words = ["--gpus", "2", "--policy", "all", "--mode", mode, "--jobs", "1", "--format", "json"]
    rows = json.loads(command("compare", *words)[1])
    names = set(registry.names("workflow"))
    assert {row["policy"] for row in rows} == (names if mode == "offline" else names - {"optimise"})


@pytest.mark.parametrize("where", ["words", "file"])
def test_compare_uses_seeds_only_where_there_is_noise(command: Command, folder: Path, where: str) -> None:
    words = ["--gpus", "2", "--policy", "srpt", "--seeds", "1", "2", "2", "--jobs", "1", "--format", "json"]
    [row] = json.loads(command("compare", *words)[1])
    assert row["seeds"] == [1]
    if where == "file":
        (folder / "system_config.yaml").write_text(yaml.safe_dump({**CONFIG, "costs": {"noise": 0.5}}))
    else:
        words += ["--cost", "noise=0.5"]
    [row] = json.loads(command("compare", *words)[1])
    assert row["seeds"] == [1, 2]
    assert row["makespan_s_min"] < row["makespan_s_max"]


def test_compare_gives_exit_code_3_if_something_was_rejected(command: Command, folder: Path) -> None:
    write_requests(folder, FAULTY)
    assert command("compare", "--gpus", "2", "--on-error", "reject", "--jobs", "1")[0] == 3
    assert command("compare", "--gpus", "2", "--on-error", "skip", "--jobs", "1")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--policy", "dovetial"],
        ["--policy", "optimise", "--mode", "online"],
        ["--cost", "noise=loud"],
        ["--seeds", "lucky"],
        ["--gpus", "4", "0"],
    ],
)
def test_compare_refuses_wrong_words_before_anything_runs(command: Command, folder: Path, words: list[str]) -> None:
    code, out, _ = command("compare", "--gpus", "2", *words, "--out", "study")
    assert (code, out) == (2, "")
    assert not (folder / "study").exists()


# --- plan -----------------------------------------------------------------------------------------


def test_plan_finds_the_fewest_gpus(command: Command) -> None:
    code, out, _ = command("plan", "--makespan", "60", "--mode", "offline", "--format", "json")
    answer = json.loads(out)
    assert code == 0
    assert answer["value_s"] <= 60
    figures = json.loads(command("run", "--gpus", str(answer["gpus"]), "--format", "json")[1])
    assert figures["makespan_s"] == answer["value_s"]
    code, out, _ = command("plan", "--makespan", "60", "--mode", "offline")
    assert f"makespan <= 60.0 s: {answer['gpus']} GPUs ({answer['reason']})" in out


def test_run_compare_and_plan_take_the_same_files_alike(command: Command) -> None:
    run = json.loads(command("run", "--gpus", "3", "--format", "json")[1])
    (row,) = json.loads(command("compare", "--gpus", "3", "--policy", "dovetail", "--format", "json")[1])
    plan = json.loads(command("plan", "--p99", str(run["p99_request_s"] + 1e-6), "--format", "json")[1])
    assert run["p99_request_s"] == row["p99_request_s"] == plan["tried"]["3"]


def test_plan_gives_exit_code_1_if_no_pool_is_large_enough(command: Command) -> None:
    code, out, _ = command("plan", "--p99", "0.5", "--max-gpus", "16")
    assert code == 1
    assert "no pool of up to 16 GPUs" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give one limit"),
        (["--p99", "1", "--mean", "1"], "give one limit"),
        (["--p99", "-1"], "the limit must be positive"),
        (["--p99", "soon"], "soon"),
        (["--p99", "10", "--policy", "optimise", "--mode", "online"], "plans ahead"),
        (["--p99", "10", "--policy", "best"], "no workflow policy is called 'best'"),
    ],
)
def test_plan_needs_one_limit(command: Command, words: list[str], message: str) -> None:
    code, out, err = command("plan", *words)
    assert (code, out) == (2, "")
    assert message in err


# --- explain --------------------------------------------------------------------------------------


def test_explain_tells_of_a_node_or_of_all(command: Command) -> None:
    command("run", "--gpus", "2")
    code, out, _ = command("explain", "r1", "draw")
    assert code == 0
    assert "r1/draw" in out
    stories = json.loads(command("explain", "r1", "--format", "json")[1])
    assert [story["task"] for story in stories] == ["write", "draw"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["r99"], "r99"),
        (["r1", "drw"], "did you mean 'draw'?"),
        (["r1", "--journal", "nothing.jsonl"], "nothing.jsonl: no such file"),
        (["r1", "--journal", "system_config.yaml"], "not a Dovetail journal"),
        ([], "request"),
    ],
)
def test_explain_tells_what_it_cannot_find(command: Command, words: list[str], message: str) -> None:
    command("run", "--gpus", "2")
    code, out, err = command("explain", *words)
    assert (code, out) == (2, "")
    assert message.lower() in err.lower()


# --- generate and import --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["r.yaml", "r.json", "r.jsonl"])
def test_what_is_generated_can_be_run(command: Command, name: str) -> None:
    code, out, _ = command("generate", "--requests", "20", "--rate", "30", "--out", name, "--format", "json")
    assert (code, json.loads(out)["requests"]) == (0, 20)
    assert command("validate", "--gpus", "2", "--mode", "online", "--requests", name)[0] == 0
    figures = json.loads(command("run", "--gpus", "2", "--requests", name, "--format", "json")[1])
    assert figures["completed"] == 20


def test_the_same_seed_generates_the_same_bytes(command: Command, folder: Path) -> None:
    for name, seed in (("a.jsonl", "1"), ("b.jsonl", "1"), ("c.jsonl", "2")):
        assert command("generate", "--requests", "20", "--seed", seed, "--out", name)[0] == 0
    a, b, c = ((folder / name).read_bytes() for name in ("a.jsonl", "b.jsonl", "c.jsonl"))
    assert a == b != c


@pytest.mark.parametrize("preset", ["synthetic", "thrash"])
def test_a_preset_writes_a_configuration_that_runs(command: Command, preset: str) -> None:
    words = ["--preset", preset, "--config", "made.yaml", "--requests", "10", "--out", "made.jsonl"]
    assert command("generate", *words)[0] == 0
    code, out, _ = command("run", "--config", "made.yaml", "--requests", "made.jsonl", "--format", "json")
    assert (code, json.loads(out)["completed"]) == (0, 10)
    code, _, err = command("generate", *words)
    assert code == 2
    assert "made.yaml: exists already" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "r.txt"], "what format?"),
        (["--out", "r.txt", "--preset", "thrash", "--config", "new.yaml"], "what format?"),
        (["--workflow", "talk=often"], "expected a number"),
        (["--workflow", "tlk=1"], "did you mean 'talk'?"),
        (["--workflow", "small-talk=1"], "--workflow small-talk: not a workflow"),
        (["--requests", "-1"], "-1"),
        (["--rate", "1", "--duration", "1"], "either"),
        (["--start", "later"], "--start later"),
        (["--config", "none.yaml"], "none.yaml: no such file"),
        (["--arrivals", "never"], "never"),
    ],
)
def test_generate_refuses_wrong_words_and_writes_nothing(
    command: Command, folder: Path, words: list[str], message: str
) -> None:
    code, out, err = command("generate", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert listing(folder) == INPUTS


COMFYUI = {
    "1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd.safetensors"}},
    "2": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse", "clip": ["1", 1]}},
    "3": {"class_type": "KSampler", "inputs": {"model": ["1", 0], "positive": ["2", 0], "steps": 20}},
}
WFCOMMONS = {
    "name": "tiny",
    "schemaVersion": "1.5",
    "workflow": {
        "specification": {
            "tasks": [
                {"name": "a", "id": "a", "parents": [], "children": ["b"]},
                {"name": "b", "id": "b", "parents": ["a"], "children": []},
            ]
        },
        "execution": {
            "tasks": [{"id": "a", "runtimeInSeconds": 3.0}, {"id": "b", "runtimeInSeconds": 4.0}],
        },
    },
}


def test_an_imported_comfyui_workflow_can_be_generated_for_and_run(command: Command, folder: Path) -> None:
    (folder / "flow.json").write_text(json.dumps(COMFYUI))
    code, out, _ = command("import", "comfyui", "flow.json", "--out", "comfy.yaml", "--format", "json")
    assert (code, json.loads(out)["workflows"]) == (0, 1)
    assert command("generate", "--config", "comfy.yaml", "--requests", "5", "--out", "c.jsonl")[0] == 0
    code, out, _ = command("run", "--config", "comfy.yaml", "--requests", "c.jsonl", "--gpus", "1", "--format", "json")
    assert (code, json.loads(out)["completed"]) == (0, 5)


def test_node_types_are_taught_by_a_file(command: Command, folder: Path) -> None:
    (folder / "flow.json").write_text(json.dumps(COMFYUI))
    (folder / "types.yaml").write_text("KSampler: {output: [LATENT], output_node: true, seconds: 9.5}\n")
    words = ["import", "comfyui", "flow.json", "--out", "comfy.yaml", "--requests", "c.jsonl", "--types", "types.yaml"]
    assert command(*words)[0] == 0
    times = json.loads((folder / "c.jsonl").read_text())["node_execution_times"]
    assert times["ksampler_3"] == 9.5
    (folder / "types.yaml").write_text("KSampler: {second: 9.5}\n")
    code, _, err = command(*words, "--force")
    assert (code, "types.yaml:1: KSampler.second: unknown key 'second'; did you mean 'seconds'?" in err) == (2, True)


def test_an_imported_wfcommons_instance_runs_as_it_is(command: Command, folder: Path) -> None:
    (folder / "tiny.json").write_text(json.dumps(WFCOMMONS))
    words = ["tiny.json", "--out", "wf.yaml", "--requests", "wf_requests.yaml"]
    assert command("import", "wfcommons", *words)[0] == 0
    words = ["--config", "wf.yaml", "--requests", "wf_requests.yaml", "--gpus", "1", "--format", "json"]
    code, out, _ = command("run", *words)
    assert (code, json.loads(out)["makespan_s"]) == (0, 7.0)


@pytest.mark.parametrize("kind", ["comfyui", "wfcommons"])
def test_import_tells_of_a_file_that_is_missing_empty_or_something_else(
    command: Command, folder: Path, kind: str
) -> None:
    (folder / "empty.json").write_text("")
    (folder / "other.json").write_text("[1, 2]")
    for name in ("missing.json", "empty.json", "other.json"):
        code, out, err = command(
            "import", kind, name, "--out", "new.yaml", *(["--requests", "new.jsonl"] if kind == "wfcommons" else [])
        )
        assert (code, out) == (2, "")
        assert name in err
    assert not (folder / "new.yaml").exists()


# --- the examples ---------------------------------------------------------------------------------


def test_the_examples_run(command: Command) -> None:
    examples = Path(__file__).parent.parent.parent / "examples"
    requests = ["--requests", str(examples / "workflow_requests.yaml")]
    for name, gpus in (("system_config.yaml", ["--gpus", "4"]), ("mixed_gpus.yaml", [])):
        code, out, _ = command("run", "--config", str(examples / name), *requests, *gpus, "--format", "json")
        assert code == 0, out
        assert json.loads(out)["completed"] > 0
