"""The command itself: its verbs, its exit codes, and how errors end."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from cyclopts import App, CycloptsError

from dovetail import __version__, cli
from dovetail.cli import pipeline
from dovetail.cli.common import Numbers
from dovetail.cli.verbs import Command
from dovetail.core.errors import DovetailError, InputError

Target = Callable[[], int | None] | App
Trial = Callable[[Target], None]


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch) -> Trial:
    """Makes a function or a sub-app the verb `trial`, through the same table as the real verbs."""

    def register(target: Target) -> None:
        module = ModuleType("dovetail_trial")
        module.trial = target  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "dovetail_trial", module)
        line = Command("trial", "dovetail_trial:trial", "Try.")
        monkeypatch.setattr(cli, "COMMANDS", (*cli.COMMANDS, line))

    return register


def raising(error: BaseException) -> Callable[[], int | None]:
    def function() -> int | None:
        raise error

    return function


@pytest.mark.parametrize(("returned", "expected"), [(None, 0), (0, 0), (1, 1), (3, 3)])
def test_a_verb_returns_its_exit_code(trial: Trial, returned: int | None, expected: int) -> None:
    trial(lambda: returned)
    assert cli.main(["trial"]) == expected


@pytest.mark.parametrize(
    ("error", "exit_code", "message"),
    [
        (DovetailError("the schedule is invalid"), 1, "error: the schedule is invalid\n"),
        (InputError("a.yml:3: no"), 2, "error: a.yml:3: no\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (ValueError("odd"), 1, "internal error: ValueError: odd; run again with --debug for the traceback\n"),
        (RuntimeError(), 1, "internal error: RuntimeError; run again with --debug for the traceback\n"),
    ],
)
def test_an_error_is_one_line(
    trial: Trial, capsys: pytest.CaptureFixture[str], error: BaseException, exit_code: int, message: str
) -> None:
    trial(raising(error))
    assert cli.main(["trial"]) == exit_code
    assert capsys.readouterr() == ("", message)


def test_a_missing_package_of_an_extra_is_one_line(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    trial(raising(ModuleNotFoundError("No module named 'starlette'", name="starlette.requests")))
    assert cli.main(["trial"]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: this command needs starlette")
    assert shown.endswith("which is not installed: pip install 'dovetail[web]'\n")
    trial(raising(ModuleNotFoundError("No module named 'mine'", name="mine")))
    assert cli.main(["trial"]) == 1
    assert capsys.readouterr().err.startswith("internal error: ModuleNotFoundError")


def test_the_verbs_of_a_sub_app_end_the_same_way(trial: Trial, capsys: pytest.CaptureFixture[str]) -> None:
    app = App(name="trial", help="Try.")
    app.command(lambda: 3, name="partly")
    app.command(raising(InputError("no")), name="wrongly")
    trial(app)
    assert cli.main(["trial", "partly"]) == 3
    assert cli.main(["trial", "wrongly"]) == 2
    assert cli.main(["trial", "partyl"]) == 2
    refused, unknown = capsys.readouterr().err.splitlines()
    assert refused == "error: no"
    assert 'Did you mean "partly"?' in unknown


@pytest.mark.parametrize("argv", [["--debug", "trial"], ["trial", "--debug"]])
def test_debug_shows_the_traceback(trial: Trial, capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    trial(raising(InputError("no")))
    assert cli.main(argv) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("Traceback")
    assert shown.endswith("error: no\n")


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (["doctr"], 'Did you mean "doctor"?'),
        (
            ["host", "simulate", "a.yaml"],
            "unexpected 'a.yaml': expected flags; `dovetail host simulate --help` lists them",
        ),
        (["explain", "run.jsonl"], "is a command of levels: dovetail workflow explain, dovetail cluster explain, "),
        (["doctor", "--fromat", "json"], "Did you mean --format?"),
        (["doctor", "--format", "xml"], '"table", "json"'),
        (["completion"], "--shell"),
    ],
)
def test_wrong_usage_gets_a_hint(capsys: pytest.CaptureFixture[str], argv: list[str], hint: str) -> None:
    assert cli.main(argv) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert hint in shown.err


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == __version__ + "\n"


def test_help_lists_every_verb_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in cli.COMMANDS:
        assert command.verb in shown
    assert "Exit codes: 0 done" in shown
    assert "130 stopped by Ctrl-C" in shown


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.verb)
def test_a_summary_is_the_first_line_of_the_help_of_its_verb(command: Command) -> None:
    app = cli.build_app([command.verb])
    assert app[command.verb].help.strip().split("\n")[0] == command.summary


@pytest.mark.parametrize("command", pipeline.COMMANDS, ids=lambda command: command.verb)
def test_a_summary_is_the_first_line_of_the_help_of_its_subcommand(
    command: Command,
) -> None:
    module, name = command.target.split(":")
    target = getattr(importlib.import_module(module), name)
    text = target.help if isinstance(target, App) else target.__doc__
    assert text.strip().split("\n")[0] == command.summary


@pytest.mark.parametrize("raised", [DovetailError("there is no job " + "x" * 100_000), CycloptsError(msg="y" * 9999)])
def test_long_names_are_cut(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, raised: Exception
) -> None:
    def fail(_: object) -> None:
        raise raised

    monkeypatch.setattr(cli, "build_app", lambda _: fail)
    assert cli.main(["check"]) in (1, 2)
    assert 100 < len(capsys.readouterr().err) < 300


def test_the_command_starts_without_heavy_packages() -> None:
    program = (
        "import sys; from dovetail.cli import main; main(['--help']); "
        "print(*{'numpy', 'yaml', 'msgspec', 'matplotlib', 'torch'} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.split() == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_told_in_a_sentence() -> None:
    program = "import sys; from dovetail.cli import main; sys.exit(main(['completion', 'bash']))"
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "error: the output cannot be written: No space left on device\n")


def test_a_closed_pipe_is_quiet() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = "import sys; from dovetail.cli import main; sys.exit(main(['completion', 'bash']))"
    with os.fdopen(writer, "wb") as closed:
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, stdout=closed, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--count", "1.7"), "a whole number"),
        (("--count", "0x10"), "a whole number"),
        (("--some", "1", "10.0"), "a whole number"),
        (("--most", "1e3"), "a whole number"),
        (("--pair", "1", "1.7"), "a whole number"),
        (("--share", "z"), "a number"),
        (("--cap", "[/z]"), "a number"),
        (("--ends", "1.5", "z"), "a number"),
    ],
)
def test_a_flag_for_a_number_takes_no_other(
    trial: Trial, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], expected: str
) -> None:
    taken: list[object] = []

    def function(
        *,
        count: int = 1,
        most: int | None = None,
        some: Numbers = (),
        pair: tuple[int, int] = (1, 1),
        share: float = 1.0,
        cap: float | None = None,
        ends: tuple[float, float] = (0.0, 1.0),
    ) -> None:
        taken.append((count, most, some, pair, share, cap, ends))

    trial(function)
    whole = ["--count", "-3", "--most", "5", "--some", "1", "2", "--pair", "3", "4"]
    assert cli.main(["trial", *whole, "--share", "1.7", "--cap", "1e3", "--ends", "0.5", "2"]) == 0
    assert taken == [(-3, 5, (1, 2), (3, 4), 1.7, 1e3, (0.5, 2.0))]
    assert cli.main(["trial", *words]) == 2
    assert f"{words[0]}: expected {expected}, found {words[-1]!r}" in capsys.readouterr().err
