"""The errors a user sees, each with the exit code of the command that meets it."""

from __future__ import annotations

import difflib
import re
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_CLOSE = 0.5  # of first words, by difflib's ratio
_NO_MEMORY = ("out of memory", "can't allocate memory", "CUDNN_STATUS_NOT_SUPPORTED", "CUBLAS_STATUS_ALLOC_FAILED")


class DovetailError(Exception):
    """Something went wrong that the user should read about without a traceback."""

    exit_code = 1


class InputError(DovetailError):
    """Bad input or usage: says where, what was found and what was expected."""

    exit_code = 2


class PolicyError(DovetailError):
    """A policy asked for something the engine does not allow, or stopped deciding while work is left."""


def policy_failed(policy: object, method: str, error: BaseException, now_s: float | None = None) -> PolicyError:
    """What to say of a policy that failed, or that called sys.exit().

    >>> policy_failed(object(), "next", SystemExit(0))
    PolicyError('builtins.object.next failed: SystemExit: 0')
    """
    return PolicyError(f"{policy_method(policy, method, now_s)} failed: {type(error).__name__}: {error}")


def policy_gave(policy: object, method: str, answer: object, expected: str, now_s: float | None = None) -> PolicyError:
    """What to say of a policy that answered what is no answer.

    >>> policy_gave(object(), "next", "many", "a whole number", 3.0)
    PolicyError("[3.00s] builtins.object.next gave 'many', expected a whole number")
    """
    return PolicyError(f"{policy_method(policy, method, now_s)} gave {answer!r:.200}, expected {expected}")


def policy_method(policy: object, method: str, now_s: float | None = None) -> str:
    """A method of a policy by all its names, and when it was asked where there is such a time."""
    when = "" if now_s is None else f"[{now_s:.2f}s] "
    return f"{when}{type(policy).__module__}.{type(policy).__qualname__}.{method}"


class ReplayError(DovetailError):
    """A recorded step, decided again, came out otherwise: other policies, or another version of them, recorded it."""


class MissingExtraError(DovetailError):
    """An optional part is not installed."""

    exit_code = 2

    def __init__(self, extra: str, package: str, what_for: str) -> None:
        super().__init__(extra, package, what_for)  # so that it can be sent from one process to another

    def __str__(self) -> str:
        extra, package, what_for = self.args
        return f"{what_for} needs {package}, which is not installed: pip install 'dovetail[{extra}]'"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether less of it may go well: a host or a device had no memory left.

    >>> is_out_of_memory(MemoryError()), is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"))
    (True, True)
    >>> is_out_of_memory(ValueError("out of memory"))
    False
    """
    if isinstance(error, MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)


def exit_words(returncode: int) -> str:
    """How a process ended.

    >>> exit_words(-9), exit_words(-40), exit_words(1)
    ('its process was ended by SIGKILL', 'its process was ended by signal 40', 'its process ended with exit code 1')
    """
    if returncode >= 0:
        return f"its process ended with exit code {returncode}"
    try:
        return f"its process was ended by {signal.Signals(-returncode).name}"
    except ValueError:  # one of those that have no name
        return f"its process was ended by signal {-returncode}"


def cannot_write(path: Path, error: OSError) -> InputError:
    """What to tell a user whose output has no place to go."""
    return InputError(f"{path}: cannot be written: {error.strerror or error}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to append to an error about an unknown word.

    >>> did_you_mean("memory_gib", ["memory_gb", "name"])
    "; did you mean 'memory_gb'?"
    >>> did_you_mean("zzz", ["memory_gb"])
    '; known: memory_gb'
    >>> did_you_mean("ResNet-50 (batch size 64)", ["LM (batch size 20)"])
    '; known: LM (batch size 20)'
    """
    known = sorted(known)
    for close in difflib.get_close_matches(str(word), known):
        if _begin_alike(str(word), close):
            return f"; did you mean {close!r}?"
    if not known:
        return ""
    return "; known: " + ", ".join(known[:20]) + (", ..." if len(known) > 20 else "")


def _begin_alike(one: str, two: str) -> bool:
    """Whether the first words are close too: what names end in alike, as in a size, makes no slip of another name."""
    first, second = (re.split(r"[^0-9a-z]+", name.lower().lstrip("-_"))[0] for name in (one, two))
    return difflib.SequenceMatcher(None, first, second).ratio() >= _CLOSE


def within(
    name: str,
    value: Any,
    expected: str,
    least: float = 0.0,
    most: float = 1e12,
    *,
    whole: bool = False,
    optional: bool = True,
) -> None:
    """Refuse what is no number, or out of bounds; None, which was not given, is fine where that is `optional`.

    >>> within("--interval", float("nan"), "seconds, more than 0")
    Traceback (most recent call last):
    dovetail.core.errors.InputError: --interval nan: expected seconds, more than 0
    >>> within("jobs", 2.5, "1 or more", 1, whole=True)
    Traceback (most recent call last):
    dovetail.core.errors.InputError: jobs 2.5: expected 1 or more, a whole number
    >>> within("--lam", 1e30, "seconds, 0 or more")
    Traceback (most recent call last):
    dovetail.core.errors.InputError: --lam 1e+30: expected seconds, 0 or more, at most 1e+12
    """
    if value is None and optional:
        return
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or not least <= value <= most:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        found = f"{value:g}" if number else repr(value)
        expected += ", a whole number" if isinstance(value, float) and whole else ""
        expected += f", at most {most:g}" if number and value > most else ""
        raise InputError(f"{name} {found}: expected {expected}")


def check_functions(**given: Any) -> None:
    """Refuse what is given in the place of a function; None, which was not given, is fine.

    >>> check_functions(progress=print, reduce=None)
    >>> check_functions(progress=3)
    Traceback (most recent call last):
    dovetail.core.errors.InputError: progress 3: expected a function
    """
    for name, value in given.items():
        if value is not None and not callable(value):
            raise InputError(f"{name} {value!r}: expected a function")
