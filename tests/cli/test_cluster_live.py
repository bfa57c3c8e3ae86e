"""A live cluster from the command line: what is submitted, shown, changed and refused, and traces that are replayed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail import cluster
from dovetail.cli import main
from dovetail.core.errors import InputError
from tests.waiting import PATIENCE_S, until

PACED = [sys.executable, "-m", "dovetail.testing.cluster.paced", "--rates", "v100=200,k80=50", "--steps"]
TRACE = "arrival_s,model,width,steps\n0,LM (batch size 5),1,6000\n400,A3C,1,900\n400,LM (batch size 5),2,6000\n"


class Shell:
    """Commands to one service, with what they print."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *place: str) -> None:
        self._capsys, self.place = capsys, place

    def __call__(self, verb: str, *words: str, code: int = 0) -> str:
        command = [*words] if "--" not in words else [*words[: words.index("--")]]
        rest = [] if "--" not in words else [*words[words.index("--") :]]
        self._capsys.readouterr()
        found = main(["cluster", verb, *command, *self.place, *rest])
        out, err = self._capsys.readouterr()
        assert found == code, err
        return str(out if code in (0, 1, 3) else err)

    def json(self, verb: str, *words: str, code: int = 0) -> Any:
        return msgspec.json.decode(self(verb, "--format", "json", *words, code=code))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Any]:
    live = {"failures": 1, "grace": 1.0, "silence": 2.0}  # a machine that is busy is no failure
    with cluster.serve(types="v100=2,k80=1", round_s=3, state=tmp_path / "live", live=live) as made:
        yield made


@pytest.fixture
def shell(served: Any, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys, "--state", str(served.folder))


def test_a_job_is_submitted_shown_followed_and_cancelled(
    shell: Shell, served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first,) = shell("submit", "--steps", "40", "--name", "short", "--types", "v100", "--", *PACED, "40").split()
    (second,) = shell.json(
        "submit", "--steps", "1e6", "--model", "long", "--rates", "v100=200", "--", *PACED, "1000000"
    )
    assert shell("logs", first, "--follow") == "step 40\n"
    ended = shell.json("status", first)
    assert (ended["name"], ended["state"], ended["done"]) == ("short", "completed", 40)
    told = {line.split()[0]: line for line in shell("status", first).splitlines()[2:]}
    assert "completed" in told["state"]
    assert told["command"].endswith(f"{' '.join(PACED)} 40")
    assert (told["kept"].split()[-1], told["folder"].split()[-1]) == (ended["folder"], os.getcwd())
    assert told["created"].split()[1] == time.strftime("%Y-%m-%d", time.localtime(ended["created"]))
    assert "--rank 7: job 1 has 1 process, from 0 on" in shell("logs", first, "--rank", "7", code=2)
    assert shell("logs", first, "--tail", "1") == "step 40\n"
    until(lambda: shell.json("status", str(second["id"]))["state"] == "running")
    listed = shell.json("list", "--only", "running")
    assert [job["id"] for job in listed] == [second["id"]]
    assert "long" in shell("list", "--limit", "1")
    now = shell.json("top")
    assert now["nodes"][0]["jobs"].count(second["id"]) == 1
    screen = shell("top", "--once")
    assert "rounds of 3 s" in screen
    assert ("done %" in screen, "waiting" in screen) == (True, False), "nobody waits"
    assert f"Job {first} (short)" in shell("explain", first)
    assert shell.json("explain", first)
    url = Shell(shell._capsys, "--url", served.url, "--token-file", str(served.token_file))
    assert url.json("status", first) == ended
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOVETAIL_CLUSTER_STATE", str(served.folder))
    usual = Shell(shell._capsys)
    assert f"Job {first} (short)" in usual("explain", first), "without a journal here, a live cluster is asked"
    assert usual.json("status", "--url", served.url, first) == ended, "whose token is known"
    assert "there is no job 999" in shell("cancel", "999", str(second["id"]), code=2), "the other one is cancelled"
    until(lambda: shell.json("status", str(second["id"]))["state"] == "cancelled")


def test_jobs_of_a_file_are_waited_for(shell: Shell, tmp_path: Path) -> None:
    file = tmp_path / "jobs.json"
    job = {"command": [*PACED, "20"], "steps": 20}
    bad = {"command": [sys.executable, "-c", "raise SystemExit(3)"], "steps": 20, "name": "bad"}
    file.write_bytes(msgspec.json.encode({"jobs": [job, job | {"width": 2}]}))
    assert [each["state"] for each in shell.json("submit", "--file", str(file), "--wait")] == ["completed"] * 2
    file.write_bytes(msgspec.json.encode(bad))
    assert "given_up" in shell("submit", "--file", str(file), "--wait", code=1)
    file.write_bytes(msgspec.json.encode({"jobs": [job | {"wdith": 2}]}))
    assert "jobs.json:1: jobs.0.wdith: unknown key 'wdith'; did you mean 'width'?" in shell(
        "submit", "--file", str(file), code=2
    )


def test_what_a_job_has_written_gives_no_orders_to_the_terminal(shell: Shell) -> None:
    words = (sys.executable, "-c", r"raise SystemExit('\33]0;title\7')")
    (job,) = shell.json("submit", "--steps", "5", "--wait", "--", *words, code=1)
    for verb in ("explain", "status"):
        told = shell(verb, str(job["id"]))
        assert r"\x1b]0;title" in told
        assert "\33" not in told


def test_a_file_of_which_one_job_is_refused_is_not_submitted(shell: Shell, tmp_path: Path) -> None:
    file, good = tmp_path / "jobs.yaml", f"{{command: [{sys.executable}], steps: 5}}"
    for keys, says in (
        (f"command: [{sys.executable}]\n  types: [v10]", "jobs.yaml:4: jobs.1.types: found 'v10', expected a type"),
        (f"command: [{sys.executable}]\n  folder: none", "jobs.yaml:4: jobs.1.folder: found "),
        ("command: [./none]", "jobs.yaml:3: jobs.1.command: found './none', expected a program that is there"),
    ):
        file.write_text(f"jobs:\n- {good}\n- {keys}\n  steps: 5\n- {good}\n")
        assert says in shell("submit", "--file", str(file), code=2)
    file.write_text(f"steps: 5\ncommand: [{sys.executable}]\ntypes: [v10]\n")
    assert "jobs.yaml:3: types: found 'v10'" in shell("submit", "--file", str(file), code=2)
    assert shell.json("list") == []


def test_the_policy_and_nodes_are_changed_while_it_runs(shell: Shell) -> None:
    assert shell("policy") == "max_min_fairness_perf\n"
    assert shell("policy", "fifo") == "fifo\n"
    assert shell.json("policy", "max_min_fairness_perf") == {"policy": "max_min_fairness_perf", "options": {}}
    (node,) = shell.json("top")["nodes"]
    assert shell("drain", node["name"]) == f"{node['name']}: drained\n"
    assert "drained" in shell("top")
    assert shell.json("undrain", node["name"]) == {"node": node["name"], "state": "up"}
    assert not shell.json("top")["nodes"][0]["drained"]


BAD: list[tuple[list[str], str]] = [
    (["submit"], "expected a command behind --, or --file with jobs"),
    (["submit", "--", "x"], "--steps: expected the training steps in all, found none"),
    (["submit", "--steps", "0", "--", "x"], "steps: found 0.0, expected 1 to 1e+12"),
    (["submit", "--steps", "5", "--weight", "1e16", "--", "x"], "weight: found 1e+16, expected 1e-06 to 1e+06"),
    (["submit", "--steps", "5", "--width", "1.7", "--", "x"], "--width: expected a whole number, found '1.7'"),
    (["submit", "--steps", "5", "--batch", "1.7", "--", "x"], "--batch: expected a whole number, found '1.7'"),
    (["submit", "--steps", "5", "--batch", "9" * 20, "--", "x"], f"batch: found {'9' * 20}, expected 1 to 1e+12"),
    (["submit", "--steps", "5", "--wdith", "2", "--", "x"], "--wdith"),
    (
        ["submit", "--steps", "5", "--types", "v10", "--", "x"],
        "found 'v10', expected a type of the cluster; did you",
    ),
    (["submit", "--steps", "5", "--rates", "v100=fast", "--", "x"], "--rates v100=fast: expected steps per second"),
    (["submit", "--steps", "5", "--rates", "v100=-1", "--", "x"], "rates: found ('v100', -1.0), expected steps"),
    (["submit", "--file", "none.yaml"], "none.yaml: no such file"),
    (["submit", "--file", "none.yaml", "--steps", "5"], "its jobs say all; leave the command and steps out"),
    (["submit", "--steps", "5", "--key", "k" * 201, "--", "x"], "key: expected 1 to 200 printable characters"),
    (["status", "999"], "there is no job 999"),
    (["logs", "999"], "there is no job 999"),
    (["logs", "1", "--tail", "-1"], "--tail -1: expected 0 or more"),
    (["cancel"], "expected numbers of jobs"),
    (["explain", "999"], "there is no job 999"),
    (["explain", "short"], "job 'short': expected its number"),
    (["explain", "1", "--journal", "x.jsonl"], "--journal and a service: expected one of them"),
    (["list", "--limit", "0"], "--limit 0: expected 1 or more"),
    (["list", "--only", "lost"], "--only"),
    (["policy", "fifoo"], "no cluster policy is called 'fifoo'; did you mean 'fifo'?"),
    (["policy", "--option", "a=1"], "--option: expected the name of a policy before it"),
    (["drain", "loca"], "node: found 'loca', expected a node; did you mean 'local'?"),
    (["top", "--every", "0"], "--every 0: expected seconds, more than 0"),
    (["replay", "none.csv"], "none.csv: no such file"),
    (["replay", __file__, "--speed", "0"], "--speed 0: expected a positive number"),
    (["submit", "--steps", "5", "--folder", "/no/such", "--", "x"], "folder: found '/no/such', expected a folder"),
    (["submit", "--steps", "5", "--", "./no/such"], "command: found './no/such', expected a program that is there"),
    (["submit", "--steps", "5", "--rates", "v100=0", "--", "x"], "rates: found ('v100', 0.0), expected steps"),
]


def test_bad_words_are_refused(shell: Shell) -> None:
    for words, says in BAD:
        assert says in shell(*words, code=2)


def test_a_service_by_its_address_may_have_what_is_not_here(served: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Its machine is not known to be this one: neither folder nor command is looked for."""
    shell = Shell(capsys, "--url", served.url, "--token-file", str(served.token_file))
    assert shell("submit", "--steps", "5", "--folder", "/no/such", "--", "./train.py").strip().isdigit()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["list", "--state", "/nowhere"], "no service answers in /nowhere"),
        (["list", "--url", "localhost"], "--url localhost: expected http://HOST:PORT"),
        (["list", "--url", "http://127.0.0.1:1", "--state", "x"], "--url and --state: expected one of them"),
        (["serve", "none.yaml"], "none.yaml: no such file"),
        (["serve", "--types", "v100=x"], "v100"),
        (["serve", "--round", "0", "--state", "x"], "round_s 0: expected seconds, more than 0"),
        (["serve", "--entities", "x=nan", "--state", "x"], "the weight of entity 'x' nan: expected 1e-06 to 1e+06"),
        (["serve", "--entities", "x=0", "--state", "x"], "the weight of entity 'x' 0: expected 1e-06 to 1e+06"),
        (["serve", "--entities", "a=b"], "--entities a=b: expected a number, as a=1"),
        (["serve", "--policy", "fifoo", "--types", "v100=1", "--state", "x"], "did you mean 'fifo'"),
        (["serve", "--live", "graze=1", "--types", "v100=1", "--state", "x"], "did you mean 'grace'"),
        (["serve", "--types", "v100=1", "--address", "127.0.0.1:1"], "leave them out, or the address"),
        (["explain", "1", "--state", "/nowhere"], "no service answers in /nowhere"),
        (
            ["explain", "1"],
            "no *.jsonl of a cluster in this folder (name one with --journal), and no service answers in",
        ),
        (
            ["replay", __file__, "--types", "v100=1", "--url", "http://a:1"],
            "--types: a service of its own has no --url",
        ),
        (["replay", __file__, "--round", "3"], "are for a service of its own, with --types"),
    ],
)
def test_bad_places_are_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DOVETAIL_CLUSTER_STATE", str(tmp_path / "none"))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    assert main(["cluster", *words]) == 2
    assert says in capsys.readouterr().err
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)


# --- traces ---


def test_a_trace_is_replayed_by_stand_ins(shell: Shell, served: Any, tmp_path: Path) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(TRACE)
    before_s = served.service.now()  # the first job itself may come late
    found = shell.json("replay", str(trace), "--speed", "400")
    assert (found["submitted"], found["completed"], found["not_submitted"]) == (3, 3, 0)
    assert [(job["model"], job["steps"], job["state"]) for job in found["jobs"]] == [
        ("LM (batch size 5)", 15, "completed"),
        ("A3C", 2, "completed"),
        ("LM (batch size 5)", 15, "completed"),
    ]
    assert found["jobs"][1]["arrived_s"] - before_s >= 0.99, "400 s at 400 times the speed"
    trace.write_text(TRACE.replace(",2,6000", ",4,6000"))
    found = shell.json("replay", str(trace), "--speed", "1e6", "--widths", "guess", code=3)
    assert (found["submitted"], found["completed"], found["left_out"]) == (2, 2, 1)
    wide = "1 jobs are wider than any type that they run on has accelerators here; the first: job 2, LM"
    assert any(note.startswith(f"left out: {wide}") for note in found["notes"])
    trace.write_text("arrival_s,model,width,steps\n0,LM (batch size 5),4,6000\n")
    assert "jobs.csv: 1 jobs are wider than any type" in shell("replay", str(trace), code=2)


SCRIPT = "import os, sys\nprint(os.getcwd(), *sys.argv[1:], os.environ['DOVETAIL_DEVICE'])\n"


def test_commands_are_run_only_if_it_is_said_where(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "work" / "lm").mkdir(parents=True)
    (tmp_path / "work" / "lm" / "train.py").write_text(SCRIPT)
    trace = tmp_path / "jobs.csv"
    program = Path(sys.executable).name
    header = "arrival_s,model,steps,command,folder,steps_flag,needs_data"
    trace.write_text(f"{header}\n0,toy,7,{program} train.py %s/wiki $HOME,lm,-n,1\n")
    assert "--run-commands: expected --folder DIR" in shell("replay", str(trace), "--run-commands", code=2)
    assert "are for run_commands" in shell("replay", str(trace), "--folder", str(tmp_path), code=2)
    words = ["replay", str(trace), "--run-commands", "--folder", str(tmp_path / "work")]
    (job,) = shell.json(*words, "--data-dir", str(tmp_path / "data"))["jobs"]
    said = shell("logs", str(job["id"])).split()
    assert said == [str(tmp_path / "work" / "lm"), f"{tmp_path}/data/wiki", "$HOME", "-n", "7", said[-1]]
    trace.write_text(trace.read_text().replace("train.py", "../../train.py"))
    assert "jobs.csv: job 0: command" in shell(*words, code=2)


def test_a_trace_replayed_from_python(served: Any) -> None:
    rows = [{"arrival_s": 0, "model": "LM (batch size 5)", "steps": 900}]
    done: list[int] = []
    found = cluster.replay_trace(rows, served.client(), speed=100, progress=done.append)
    assert (found.metrics["completed"], done) == (1, [1])
    assert repr(found) == "<ClusterReplay 1 of 1 jobs completed>"
    left = cluster.replay_trace(rows, served.folder, speed=100, wait=False)
    assert left.jobs[0].open
    with pytest.raises(InputError, match="flags: found 'galve', expected gavel or none"):
        cluster.replay_trace(rows, served.folder, run_commands=True, folder=".", flags="galve")  # type: ignore[arg-type]
    assert served.client().wait(left.jobs[0].id).state == "completed"


def test_ctrl_c_submits_no_more_and_then_cancels(served: Any) -> None:
    rows = [{"arrival_s": at, "model": "LM (batch size 5)", "steps": 1e9} for at in (0, 1e6)]
    client = served.client()

    def press() -> None:
        until(lambda: [job.state for job in client.jobs()] == ["running"])
        while client.jobs()[0].open:
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.2)

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # a key that is pressed too late
    pressed = threading.Thread(target=press)
    pressed.start()
    try:
        found = cluster.replay_trace(rows, client)
    finally:
        pressed.join()
        signal.signal(signal.SIGINT, before)
    assert found.interrupted
    assert (found.metrics["submitted"], found.metrics["not_submitted"], found.metrics["cancelled"]) == (1, 1, 1)


# --- the service itself ---


def serve(folder: Path) -> subprocess.Popen[str]:
    ready = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from dovetail.cli import main; "
    words = ["cluster", "serve", "--types", "v100=1", "--round", "3", "--state", str(folder)]
    words += ["--live", "grace=1", "silence=2"]
    command = [sys.executable, "-c", f"{ready}raise SystemExit(main({words}))"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("Serving 1 v100 under max_min_fairness_perf, rounds of 3 s: http://127")
    assert process.stdout.readline() == f"The token is in {folder / 'token'}\n"
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=PATIENCE_S)
    return process.returncode, "\n".join(line for line in err.splitlines() if not line.startswith("{"))


def takes_no_more(process: subprocess.Popen[str]) -> None:
    errors = process.stderr
    assert errors is not None
    until(lambda: "No more jobs are taken" in errors.readline())


UNTIL_ENOUGH = """import sys, time
from pathlib import Path
from dovetail.cluster import LeaseIterator
from dovetail.testing.cluster.paced import Endless
batches = LeaseIterator(Endless(), save=lambda: None)
batches.load_checkpoint()
for _ in batches:
    time.sleep(0.01)
    if Path(sys.argv[1]).exists():
        batches.complete()
        break
batches.save_checkpoint()
"""


def test_ctrl_c_lets_jobs_end_or_save_and_a_restart_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shell, enough = Shell(capsys, "--state", str(tmp_path)), tmp_path / "enough"
    process = serve(tmp_path)
    try:
        assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
        job = shell("submit", "--steps", "1e6", "--", sys.executable, "-c", UNTIL_ENOUGH, str(enough)).strip()
        until(lambda: shell.json("status", job)["done"] > 0)
        process.send_signal(signal.SIGINT)
        takes_no_more(process)
        process.send_signal(signal.SIGINT)
        assert ended(process) == (3, "Left open: 1 job, to go on at the next start")
        process = serve(tmp_path)
        assert shell.json("status", job)["done"] > 0
        process.send_signal(signal.SIGTERM)
        takes_no_more(process)
        enough.touch()
        assert ended(process) == (0, "")
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()


def test_a_trace_is_read_before_a_service_is_started(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace, state = tmp_path / "jobs.csv", tmp_path / "state"
    trace.write_text("arrival_s,model,width,steps\n0,LM (batch size 5),one,6000\n")
    assert main(["cluster", "replay", str(trace), "--types", "v100=1", "--state", str(state)]) == 2
    out, err = capsys.readouterr()
    assert "jobs.csv:2" in err
    assert "node here" not in out + err
    assert not state.exists()


def test_a_command_that_no_node_has_is_given_up_at_once(shell: Shell, served: Any) -> None:
    (job,) = shell("submit", "--steps", "5", "--", "no-such-command").split()
    found = served.client().wait(int(job))
    assert (found.state, found.failures) == ("given_up", 1)
    assert "cannot be started on any node" in found.why
    assert "cannot run no-such-command: No such file or directory" in found.why


def test_a_replay_with_a_service_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text(TRACE.replace(",2,6000", ",1,6000"))
    words = ["--speed", "1000", "--types", "v100=1,k80=1", "--round", "3", "--policy", "fifo"]
    told = Shell(capsys)("replay", str(trace), *words)
    assert [line.split() for line in told.splitlines() if "completed" in line] == [["completed", "3"]]
