"""The `dovetail` command: one table of verbs, each imported only when it is used, and one place where errors end."""

from __future__ import annotations

import errno
import os
import re
import sys
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from cyclopts import App, CoercionError, CycloptsError, Parameter, UnknownCommandError, UnusedCliTokensError, convert

from dovetail.cli.verbs import Command, note_dashes, register
from dovetail.core.errors import DovetailError, MissingExtraError
from dovetail.core.files.output import printable, shortened
from dovetail.version import __version__

COMMANDS = (
    Command("workflow", "dovetail.cli.workflow:app", "Schedule workflows of many models on a pool of GPUs."),
    Command("pipeline", "dovetail.cli.pipeline:app", "Split a model's layers over unlike devices."),
    Command("cluster", "dovetail.cli.cluster:app", "Share accelerators of several types among training jobs."),
    Command("dispatch", "dovetail.cli.dispatch:app", "Spread one batch over the CPU and GPUs of a node."),
    Command("host", "dovetail.cli.host:app", "Co-schedule programs on the cores of one machine."),
    Command("check", "dovetail.cli.check:check", "Check that recorded runs are valid schedules."),
    Command("replay", "dovetail.cli.replay:replay", "Decide a recorded run again and compare."),
    Command("report", "dovetail.cli.report:report", "Draw a run, or several side by side, from their journals."),
    Command(
        "demo",
        "dovetail.cli.demo:demo",
        "Show on one page what each of the five levels gains, from this machine's measured rates up.",
    ),
    Command("examples", "dovetail.cli.examples:app", "Bring the example files that the documentation speaks of."),
    Command("doctor", "dovetail.cli.doctor:doctor", "List the optional parts: which are usable, and why not."),
    Command("completion", "dovetail.cli:completion", "Print a shell completion script."),
)

_NUMBERS = {int: "a whole number", float: "a number"}
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_EPILOGUE = """\
--debug, given anywhere, shows the traceback of an error.

Exit codes: 0 done; 1 failed, or the schedule is invalid, or there is no
plan; 2 bad input or usage; 3 finished, but some work was rejected or left
open; 130 stopped by Ctrl-C.
"""


def build_app(argv: Sequence[str] = ()) -> App:
    """The application for a command line: all verbs are registered by name, none is imported."""
    app = App(
        name="dovetail",
        help="Fit machine-learning work to mixed hardware, in simulation and for real.",
        help_epilogue=_EPILOGUE,
        help_format="plaintext",
        version=__version__,
        result_action="return_value",
        print_error=False,
        exit_on_error=False,
        suppress_keyboard_interrupt=False,
        default_parameter=Parameter(converter=partial(convert, converter=_one_converted)),
    )
    register(app, COMMANDS)
    return app


def _one_converted(kind: Any, text: str) -> Any:
    """Cyclopts itself takes 1.7 for the whole number 2; it adds the flag's name to an error that has none yet."""
    try:
        return kind(text) if kind in _NUMBERS else convert(kind, [text])
    except ValueError:
        raise CoercionError(msg=f"expected {_NUMBERS[kind]}, found {text!r}") from None
    except CoercionError as error:
        error.token = None
        raise


def completion(shell: Literal["bash", "zsh", "fish"]) -> None:
    """Print a shell completion script.

    For bash: dovetail completion bash > ~/.local/share/bash-completion/completions/dovetail
    For zsh, into a folder of $fpath: dovetail completion zsh > ~/.zfunc/_dovetail
    For fish: dovetail completion fish > ~/.config/fish/completions/dovetail.fish
    """
    from dovetail.cli.complete import script

    sys.stdout.write(script(build_app(), shell))


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code; every error ends here, as one line on stderr."""
    argv, debug = _take_debug(sys.argv[1:] if argv is None else argv)
    warnings.showwarning = _warn
    note_dashes(argv)
    try:
        code = build_app(argv)(argv)
        sys.stdout.flush()  # a closed pipe must show here, not while the interpreter shuts down
    except BrokenPipeError:
        _write_no_more()
        return 141  # as a shell reports a program that SIGPIPE ended
    except KeyboardInterrupt:
        return _complain("interrupted", 130, debug)
    except UnknownCommandError as error:
        return _complain(f"error: {_of_levels(argv[0]) or error}", 2, debug)
    except UnusedCliTokensError as error:
        here = " ".join(["dovetail", *(error.command_chain or ())])
        found = ", ".join(map(repr, error.unused_tokens or ()))
        return _complain(f"error: unexpected {found}: expected flags; `{here} --help` lists them", 2, debug)
    except CycloptsError as error:
        return _complain(f"error: {error}", 2, debug)
    except DovetailError as error:
        return _complain(f"error: {error}", error.exit_code, debug)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
            _write_no_more()
            return _complain(f"error: the output cannot be written: {error.strerror}", 1, debug)
        if isinstance(error, ModuleNotFoundError) and (extra := _extra_with(error.name or "")):
            return _complain(f"error: {MissingExtraError(extra, error.name or '', 'this command')}", 2, debug)
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        return _complain(f"internal error: {what}; run again with --debug for the traceback", 1, debug)
    return code if isinstance(code, int) else 0


def _write_no_more() -> None:
    """What is still buffered has no reader, or no room."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _of_levels(verb: str) -> str:
    """Where a verb that is not there for all levels is to be had; nothing if it is nowhere."""
    from importlib import import_module

    apps = [(command.verb, command.target.partition(":")) for command in COMMANDS]
    levels = [
        f"dovetail {level} {verb}"
        for level, (module, _, name) in apps
        if name == "app" and verb in {c.verb for c in getattr(import_module(module), "COMMANDS", ())}
    ]
    return f'"{verb}" is a command of levels: {", ".join(levels)}' if levels else ""


def _extra_with(module: str) -> str | None:
    """The extra that brings a module of somebody else's, by what the installed package says of itself.

    >>> _extra_with("starlette.requests"), _extra_with("torch"), _extra_with("no_such_module")
    ('web', 'torch', None)
    """
    from importlib import metadata

    named = module.partition(".")[0].replace("_", "-").lower()
    pattern = re.compile(rf"{re.escape(named)}[<>=~! ].*; extra == ['\"](\w+)['\"]")
    try:
        found = [match[1] for line in metadata.requires("dovetail") or [] if (match := pattern.match(line))]
    except metadata.PackageNotFoundError:  # a source tree
        return None
    return named if named in found else next((extra for extra in found if extra != "test"), None)


def _take_debug(argv: Sequence[str]) -> tuple[list[str], bool]:
    """Take `--debug` out of the words before a `--`.

    >>> _take_debug(["check", "--debug", "--", "--debug"])
    (['check', '--', '--debug'], True)
    """
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    rest = [word for word in words[:end] if word != "--debug"]
    return rest + words[end:], len(rest) < end


def _complain(message: str, exit_code: int, debug: bool) -> int:
    if debug:
        import traceback

        traceback.print_exc()
    print(shortened(printable(message, keep="\n")), file=sys.stderr)
    return exit_code


def _warn(message: Warning | str, *_: object, **__: object) -> None:
    print(shortened(printable(f"warning: {message}", keep="\n")), file=sys.stderr)
