"""The queue of a real daemon: what is done again, changed, held back and told of; also when the daemon is killed."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.cli.host.submit import submit as submit_command
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.events import Arrived, Asked
from dovetail.core.journal import Reader
from dovetail.host import Client, connect
from dovetail.host.check import check_journal
from dovetail.host.inputs.jobs import ProgramJob
from dovetail.host.live.log_rotation import rotate
from dovetail.host.live.specs import Spec
from dovetail.host.live.submission import program_spec
from tests.host.live import Daemon, until
from tests.host.test_daemon import JUMPS


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with Daemon(tmp_path / "state", options={"assign": "always_attend"}) as daemon:
        daemon.up()
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with connect(daemon.folder) as client:
        yield client


def states(client: Client) -> dict[str, str]:
    return {program.id: program.state for program in client.list(all=True)}


def test_what_failed_comes_once_more_with_all_that_waited_for_it(client: Client, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    client.submit("test", "-e", str(mark))
    client.submit("true", after=[1])
    client.submit("false", array=2)
    assert {program.state for program in client.wait()} == {"failed"}
    mark.touch()
    assert client.retry() == {"1": "4", "2": "5", "3.0": "6.0", "3.1": "6.1"}
    assert client.retry() == {}  # those that failed were tried again, whatever came of it
    client.wait()
    assert states(client) | {"4": "completed", "5": "completed"} == states(client)
    assert client.status(5).again_of == "2"
    assert client.requeue(4) == ["7"]
    assert client.wait(7)[0].state == "completed"
    with pytest.raises(InputError, match="4: has not failed"):
        client.retry(4)


def test_who_waits_is_told_at_once_or_after_its_time(client: Client) -> None:
    client.submit("sleep", "1000")
    client.submit("true", array=2)
    with pytest.raises(DovetailError, match=r"program 1 has not ended after 0.01 s"):
        client.wait(timeout=0.01)
    assert [program.id for program in client.wait(2)] == ["2.0", "2.1"]
    seen: list[int] = []
    client.wait("2.1", progress=seen.append)
    assert seen == [1]
    with pytest.raises(InputError, match="there is no program 7"):
        client.wait(7)
    with connect(client.folder) as other:
        later = threading.Timer(0.1, other.cancel, [1])
        later.start()
        assert client.wait(1)[0].state == "cancelled"
        later.join()
    assert len(client.wait()) == 3


def test_who_waits_for_all_waits_for_those_too_that_came_meanwhile(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    ask = client.ask

    def and_one_comes(do: str, **words: Any) -> Any:
        if do == "wait" and asked:
            (tmp_path / "go").touch()
        answer = ask(do, **words)
        if do == "wait" and not asked:
            asked.extend(client.submit("sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.01; done"))
        return answer

    client.submit("true")
    monkeypatch.setattr(client, "ask", and_one_comes)
    assert [program.state for program in client.wait()] == ["completed", "completed"]


@pytest.mark.parametrize(("more", "names"), [([], "1"), (["--array", "3"], "1")])
def test_who_stops_waiting_is_told_that_the_program_goes_on(
    daemon: Daemon,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    more: list[str],
    names: str,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "wait", interrupted)
    words = ["host", "submit", "--wait", *more, "--state", str(daemon.folder), "--", "sleep", "1000"]
    assert main(words) == 130
    found = capfd.readouterr().err
    words = [f"dovetail host {what} {names} --state {daemon.folder}" for what in ("wait", "cancel")]
    assert f"`{words[0]}` waits again, `{words[1]}` ends" in found
    assert ("3 programs go on" if more else "program 1 goes on") in found
    assert set(daemon.states().values()) <= {"waiting", "running"}


@pytest.mark.parametrize("count", [2, 6])
def test_who_stops_waiting_for_many_is_shown_no_command_for_some_of_them(
    daemon: Daemon,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "wait", interrupted)
    file = tmp_path / "jobs.yaml"
    file.write_text(f'jobs: [{{name: "a{{n}}", command: sleep 1000, matrix: {{n: {list(range(count))}}}}}]\n')
    assert main(["host", "submit-jobs", str(file), "--wait", "--state", str(daemon.folder)]) == 130
    found = capfd.readouterr().err
    assert f"{count} programs go on: " in found
    assert (f"`dovetail host cancel 1 2 --state {daemon.folder}` ends them" in found) == (count == 2)
    assert ("cancel 1" in found) == (count == 2)


def test_what_failed_is_not_called_rejected_alone(
    client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    client.submit("false")
    client.wait()
    client.journal(tmp_path / "run.jsonl")
    assert main(["check", str(tmp_path / "run.jsonl")]) == 0
    assert "0 of 1 completed, 1 failed, cancelled or rejected, " in capsys.readouterr().out


def test_the_exit_code_is_the_programs(daemon: Daemon, capfd: pytest.CaptureFixture[str]) -> None:
    state = ["--state", str(daemon.folder)]
    assert main(["host", "submit", "--wait", *state, "--", "sh", "-c", "exit 7"]) == 7
    assert main(["host", "submit", "--follow", *state, "--", "sh", "-c", "echo first; kill -9 $$"]) == 137
    assert main(["host", "wait", "1", *state]) == 7
    assert main(["host", "submit", "--wait", "--array", "2", *state, "--", "true"]) == 0
    found = capfd.readouterr()
    seven = "1 sh: failed: exit code 7\n"
    assert (found.out, found.err) == ("1\nfirst\n3.0\n3.1\n", f"{seven}2\n2 sh: failed: signal 9\n{seven}")
    assert (
        main(["host", "submit", "--wait", *state, "--after", "3.0", "3.1", "--after-any", "1", "2", "--", "true"]) == 0
    )
    assert main(["host", "submit", "--follow", "--array", "2", *state, "--", "true"]) == 2


def test_a_word_too_many_before_the_command_is_refused(daemon: Daemon, capfd: pytest.CaptureFixture[str]) -> None:
    state = ["--state", str(daemon.folder)]
    for option in (["--cores", "1"], ["--priority", "3"], ["--name", "a"], ["--key", "k"], ["--wait"]):
        assert main(["host", "submit", *option, "stray", *state, "--", "echo"]) == 2
        assert capfd.readouterr().err == (
            "error: stray: stands before --, where no command is expected, and is of no option\n"
        )
    assert main(["host", "edit", "1", "stray", *state, "--", "echo"]) == 2
    assert main(["host", "submit", *state, "echo", "no", "dashes"]) == 0
    assert main(["host", "submit", *state, "--", "echo", "--", "two"]) == 0
    assert len(daemon.rows()) == 2


def test_submit_takes_the_same_words_everywhere() -> None:
    """As a command, from Python and in a job file."""
    command = signature(submit_command).parameters.keys() - {"wait", "follow", "state"}
    python = signature(Client.submit).parameters.keys() - {"self"}
    assert command == python
    for name in command - {"command", "env", "cwd", "stdin", "network", "rigid", "split_stderr", "delay"}:
        ours, theirs = signature(submit_command).parameters[name], signature(Client.submit).parameters[name]
        assert ours.default == theirs.default, name
    in_files = set(ProgramJob.__struct_fields__) - {"matrix", "exclude", "shell"}
    assert in_files == python - {"array", "key"}


def test_the_example_sweep_runs(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    numbers = client.submit_jobs("examples/host/sweep.yaml")
    assert sorted(numbers) == ["compare", *(f"train-{n}" for n in ("20-0", "20-1", "20-2", "40-0", "40-1"))]
    ended = {program.id: program for program in client.wait()}
    assert {program.state for program in ended.values()} == {"completed"}
    last = ended[numbers["compare"]]
    assert b"".join(client.logs(last.id)) == b"all five have ended\n"
    others = [program for program in ended.values() if program is not last]
    ends = [(program.arrived_s or 0) + (program.turnaround_s or 0) for program in others]
    assert (last.arrived_s or 0) + (last.first_run_s or 0) > max(ends) - 1e-6  # one moment, but for rounding


def test_a_waiting_program_is_edited_and_others_are_not(client: Client) -> None:
    client.submit("sleep", "1000", name="first")
    client.submit("false", after_any=[1], env={"A": "1", "B": "2"})
    until(lambda: client.status(1).actual)
    assert client.edit(2, "sh", "-c", "echo $A $B; exit 3", env={"B": "4"}, retries=1, name="other") == ["2"]
    for wrong, message in (({"cores": 10_000}, "cores: found 10000"), ({"priority": -1}, "priority")):
        with pytest.raises(InputError, match=message):
            client.edit(2, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="1 does not wait any more"):
        client.edit(1, cores=1)
    client.cancel(1)
    ended = client.wait(2)[0]
    assert (ended.name, ended.exit_codes) == ("other", (3, 3))
    assert b"".join(client.logs(2)) == b"1 4\n1 4\n"


def test_no_more_of_a_group_run_than_may(client: Client, tmp_path: Path) -> None:
    """Each finds itself alone in a folder that only one can make."""
    alone = f"mkdir {tmp_path}/alone && sleep 0.05 && rmdir {tmp_path}/alone"
    client.submit("sh", "-c", alone, group="g", parallel=1, array=4)
    assert {program.state for program in client.wait()} == {"completed"}
    client.submit("sleep", "1000", group="g", array=2)
    until(lambda: sum(program.actual > 0 for program in client.list()) == 1)
    assert [program.why for program in client.list()][1] == "of group g 1 may run at once"
    client.group("g", None)
    cores = len(client.about().cpus)
    until(lambda: sum(program.actual > 0 for program in client.list()) == min(2, cores))
    assert {program.group for program in client.list()} == {"g"}
    client.cancel(2)
    client.wait()


def test_only_who_says_a_number_sets_the_limit_of_a_group(client: Client, tmp_path: Path) -> None:
    """Not who changes something else of a program that came with one, nor who tries it once more."""
    cores = len(client.about().cpus)
    client.submit("sh", "-c", "exit 3", group="g", parallel=1, array=2, delay=3600)
    client.group("g", 5)
    client.edit("1.0", cores=cores)
    client.edit("1.1", name="", group="")
    client.edit("1", delay=0)
    assert {program.group for program in client.wait()} == {"g", ""}
    client.retry()
    client.wait()
    client.journal(tmp_path / "run.jsonl")
    events = [event for *_, step in Reader(tmp_path / "run.jsonl").steps() for event in step]
    said = [event.facts.get("parallel") for event in events if isinstance(event, Arrived | Asked)]
    assert [number for number in said if number is not None] == [1, 1, 5]


def test_a_program_begins_at_its_time_by_a_clock_that_is_set(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(JUMPS)
    found = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    jump = tmp_path / "clock"
    with Daemon(tmp_path / "state") as daemon:
        daemon.up(PYTHONPATH=found, CLOCK_SET=str(jump))
        with connect(daemon.folder) as client:
            client.submit("true", begin=datetime.now() + timedelta(hours=1))
            client.submit("true", delay="1h")
            later = datetime.now() + timedelta(hours=25)
            client.submit("true", begin=later)
            until(lambda: all("at the earliest" in program.why for program in client.list()))
            jump.touch()
            assert client.wait(1)[0].state == "completed"
            assert client.status(2).state == "waiting"  # a delay has nothing to do with the time of day
            client.edit(2, delay=0)
            assert client.wait(2)[0].state == "completed"
            client.edit(3, name="later")
            assert client.status(3).why == f"begins at {later:%Y-%m-%d %H:%M:%S} at the earliest"
            client.journal(tmp_path / "run.jsonl")
            events = [event for *_, step in Reader(tmp_path / "run.jsonl").steps() for event in step]
            (edit,) = (event for event in events if isinstance(event, Asked) and event.job == "3" and event.facts)
            assert edit.facts["begin_s"] < 2 * 3600  # by the clock as it is set now


def test_a_key_is_one_program(client: Client) -> None:
    first = client.submit("true", key="night", array=2)
    assert client.submit("true", key="night", array=2) == first
    with pytest.raises(InputError, match=r"key night: program 1\.0 has it, and runs \['true'\]"):
        client.submit("false", key="night")
    with pytest.raises(InputError, match=r"key night: found 3 programs, expected the 2 that have it, from 1\.0 on"):
        client.submit("true", key="night", array=3)
    three = [{"name": name, "command": "true"} for name in "abc"]
    client.submit_jobs({"jobs": three}, key="day")
    with pytest.raises(InputError, match="found 2 programs, expected the 3"):
        client.submit_jobs({"jobs": three[:2]}, key="day")
    client.wait()
    client.clean()
    assert client.submit("true", key="night") == ["5"]


def test_more_memory_than_there_is_is_refused(client: Client) -> None:
    with pytest.raises(InputError, match=r"memory_mib: found 99999999, expected 1 to \d+, which is what there is"):
        client.submit("true", memory_mib=99_999_999)


def test_input_output_and_errors_are_where_they_should_be(client: Client, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("words\n")
    client.submit("sh", "-c", "cat; echo wrong >&2", stdin=tmp_path / "in", split_stderr=True)
    client.wait()
    assert b"".join(client.logs(1)) == b"words\n"
    assert b"".join(client.logs(1, stderr=True)) == b"wrong\n"
    assert client.clean(1) == ["1"]
    assert list((client.folder / "logs").glob("1.*")) == []
    with pytest.raises(InputError, match=r"stdin: found '.*', expected a file"):
        client.submit("true", stdin=tmp_path / "none")


def test_a_log_begins_anew_while_its_program_writes(tmp_path: Path) -> None:
    log = tmp_path / "1.log"
    with log.open("ab", buffering=0) as program:
        program.write(b"a" * (1 << 20))
        assert not rotate(log, 1)
        program.write(b"b")
        assert rotate(log, 1)
        program.write(b"c")
    assert (log.read_bytes(), (tmp_path / "1.log.1").stat().st_size) == (b"c", (1 << 20) + 1)


def test_a_job_file_is_submitted_as_a_whole(client: Client) -> None:
    names = ["a", "b"]
    jobs: dict[str, Any] = {
        "defaults": {"group": "sweep", "parallel": 1},
        "jobs": [
            {"name": "say-{x}", "command": "echo {x}", "matrix": {"x": names}},
            {
                "name": "end",
                "command": ["sh", "-c", "cat 1.log 2.log"],
                "after": ["say-*"],
                "cwd": f"{client.folder}/logs",
            },
        ],
    }
    numbers = client.submit_jobs(jobs, key="once")
    assert numbers == {"say-a": "1", "say-b": "2", "end": "3"}
    assert client.submit_jobs(jobs, key="once") == numbers
    client.wait()
    assert b"".join(client.logs(3)) == b"a\nb\n"
    jobs["jobs"].append({"name": "wide", "command": "true", "cores": 10_000})
    with pytest.raises(InputError, match=r"^wide: cores: found 10000"):
        client.submit_jobs(jobs)
    path = client.folder / "sweep.json"
    path.write_text(json.dumps(jobs))
    with pytest.raises(InputError, match=rf"^{path}: wide: cores: found 10000, expected 1 to "):
        client.submit_jobs(path)
    assert len(client.list(all=True)) == 3


def test_all_of_it_outlives_a_killed_daemon(tmp_path: Path) -> None:
    told, go = tmp_path / "told", tmp_path / "go"
    with Daemon(tmp_path / "state", options={"assign": "always_attend"}) as daemon:
        daemon.up()
        with connect(daemon.folder) as client:
            hook = f'echo "$DOVETAIL_PROGRAM $DOVETAIL_NAME $DOVETAIL_STATE $DOVETAIL_EXIT_CODE" >> {told}'
            client.submit("sh", "-c", f"until test -e {go}; do sleep 0.02; done; exit 5", hook=hook, name="one")
            client.submit("sh", "-c", "echo ran", after_any=[1], group="g", parallel=1, key="k")
            client.submit("true", group="g", hook=hook)
            client.submit("true", delay=3600)
            client.submit("true", after=[1], hook=hook)
            client.edit(2, "sh", "-c", "echo edited")
            until(lambda: client.status(1).actual)
        daemon.kill()
        go.touch()
        daemon.up()
        with connect(daemon.folder) as client:
            client.wait(1, 2, 3, 5)
            assert states(client) == {"1": "failed", "2": "completed", "3": "completed", "4": "waiting", "5": "failed"}
            assert b"".join(client.logs(2)) == b"edited\n"
            assert client.submit("sh", "-c", "echo edited", key="k") == ["2"]
            said = {"1 one failed 5", "3 true completed 0", "5 true failed 1"}  # some twice, for the daemon was killed
            until(lambda: told.exists() and set(told.read_text().splitlines()) >= said)
            assert set(told.read_text().splitlines()) == said
            assert client.clean(2) == ["2"]
        daemon.kill()
        daemon.up()
        with connect(daemon.folder) as client:
            assert list(states(client)) == ["1", "3", "4", "5"]
            client.journal(tmp_path / "run.jsonl")
            client.cancel(4)
    assert check_journal(tmp_path / "run.jsonl").faults_by_code == {}


def test_many_are_cancelled_at_once_and_share_an_environment(client: Client) -> None:
    size = len("x" * 2000)
    client.submit("true", array=500, delay=3600, env={"LONG": "x" * size})
    assert (client.folder / "state.db-wal").stat().st_size < 500 * size
    client.cancel(1)
    assert set(states(client).values()) == {"cancelled"}


def test_several_that_are_cancelled_at_once_start_nobody(client: Client) -> None:
    """Each that ends leaves its cores to the next, which is not to begin only to be ended."""
    cores = len(client.about().cpus)
    running, waiting = client.submit("sleep", "1000", array=cores), client.submit("true", array=60)
    until(lambda: sum(program.actual for program in client.list()) == cores)
    client.cancel(*running, *waiting)
    assert {program.state for program in client.wait()} == {"cancelled"}
    assert [program.id for program in client.wait() if program.attempts] == running
    (left,) = client.submit("sleep", "1000")
    with pytest.raises(InputError, match=rf"program {running[0]} is cancelled; it cannot be changed any more"):
        client.cancel(*running, left)
    assert client.wait(left)[0].state == "cancelled"


def test_all_are_cancelled_before_a_daemon_goes_down_and_nobody_is_begun(daemon: Daemon, client: Client) -> None:
    cores = len(client.about().cpus)
    begun = daemon.folder / "begun"
    words = f"echo $DOVETAIL_ARRAY_INDEX >> {begun}; exec sleep 1000"
    client.submit("sh", "-c", words, array=cores + 60)
    until(lambda: begun.exists() and len(begun.read_text().split()) == cores)
    assert client.down(cancel=True) == []
    assert sorted(map(int, begun.read_text().split())) == [*range(cores)]


def test_who_waits_for_others_is_told_of_those_that_are_left(client: Client) -> None:
    for _ in range(4):
        client.submit("sleep", "1000", cores=len(client.about().cpus))
    client.submit("true", after_any=[1, 2, 3, 4])
    until(lambda: client.status(5).why == "waits for 1, 2, 3 and others")
    client.cancel(2)
    until(lambda: client.status(5).why == "waits for 1, 3, 4")
    client.pause(5)
    assert client.status(5).why == "its user paused it"
    client.resume(5)
    client.cancel(1, 3)
    until(lambda: client.status(5).why == "waits for 4")
    client.cancel(4)
    assert client.wait(5)[0].state == "completed"


def test_who_stops_a_request_file_is_told_that_programs_go_on(
    daemon: Daemon, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Client, "wait", interrupted)
    file = tmp_path / "requests.txt"
    file.write_text("execution,0,a,1,0\n")
    assert main(["host", "run", str(file), "--command", "sleep 1000", "--state", str(daemon.folder)]) == 130
    assert "what has come goes on, and nothing more comes: see `dovetail host list`" in capfd.readouterr().err
    assert set(daemon.states()) == {"1"}


def test_only_the_programs_that_are_meant_are_asked_for(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue may be long, and who follows a log asks often."""
    client.submit("true", array=5)
    (job,) = client.submit("echo", "said")
    client.wait()
    listed: list[tuple[Any, int]] = []
    ask = client.ask

    def counted(do: str, **words: Any) -> Any:
        answer = ask(do, **words)
        if do == "list":
            listed.append((words, len(answer)))
        return answer

    monkeypatch.setattr(client, "ask", counted)
    assert b"".join(client.logs(job, follow=True)) == b"said\n"
    assert client.status("1.3").id == "1.3"
    assert [program.id for program in client.wait(job, "1.4")] == ["1.4", job]
    assert [count for _, count in listed] == [1, 1, 2]
    with pytest.raises(InputError, match=r"1 is an array: name one of 1\.0 to 1\.4"):
        client.status(1)


def test_what_a_terminal_would_obey_is_shown_as_text(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(daemon.folder) as client:
        (job,) = client.submit("no\x1b[2Jsuch", name="a\x1b[2Jb")
        client.wait()
    for words in (["list"], ["explain", job], ["wait", job]):
        main(["host", *words, "--state", str(daemon.folder)])
        told = capsys.readouterr()
        assert "\\x1b[2J" in told.out + told.err
        assert "\x1b" not in told.out + told.err


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Spec(command=("true",), cwd="/", group="g", parallel=0), "parallel: found 0, expected 1 or more"),
        (Spec(command=("true",), cwd="/", parallel=2), "parallel: found 2, expected a group"),
        (Spec(image="i", log_mib=2), "log_mib: found 2, expected a process: the engine keeps a container's"),
        (
            Spec(command=("true",), cwd="/", gpu_pause="release"),
            "gpu_pause: found 'release', expected --gpus beside it",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(spec: Spec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        spec.check(cores=2)


def test_no_limit_of_a_log_may_be_said_where_ones_own_default_is_another() -> None:
    Spec(image="i", log_mib=0).check(cores=2)


def test_variables_that_are_no_text_keep_no_program_from_being_submitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name from an older system in one of them, and nobody could submit anything."""
    monkeypatch.setenv("OLD", os.fsdecode(b"caf\xe9"))
    monkeypatch.setenv("NEW", "caf\u00e9")
    with pytest.warns(UserWarning, match="left out, as they are no text in UTF-8: variables OLD"):
        env = program_spec(["true"]).env
    assert (env["NEW"], "OLD" in env) == ("caf\u00e9", False)


def test_a_folder_that_is_gone_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(InputError, match="cwd: the folder that this is run in is gone; expected another"):
        program_spec(["true"])
    assert program_spec(["true"], cwd="/").cwd == "/"
    assert program_spec([], image="i").cwd == ""
