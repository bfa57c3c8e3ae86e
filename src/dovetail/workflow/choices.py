"""The choices that a user has, as types: what commands and functions take."""

from __future__ import annotations

from typing import Any, Literal, get_args

from dovetail.core.errors import InputError, did_you_mean

DEFAULT_POLICY = "dovetail"
DEFAULT_RETRIES = 2
DEFAULT_LOST_RETRIES = 20  # of a node that is lost with the place where it runs
REQUEST_LINES = b'{"request_id":'  # how a file of JSON lines about requests begins: what is asked, and what came of it
Mode = Literal["offline", "online"]
OnError = Literal["fail", "reject", "skip"]  # what to do about a request that cannot run
Compat = Literal["gswarm"]
ArrivalPattern = Literal["poisson", "uniform", "bursty"]
FileFormat = Literal["json", "yaml", "jsonl"]
TraceFormat = Literal["azure", "mooncake", "burstgpt", "otel", "requests"]
Target = Literal["makespan", "mean", "p99"]


def check_choice(name: str, value: Any, choices: Any) -> None:
    """
    >>> check_choice("mode", "onlin", Mode)
    Traceback (most recent call last):
    dovetail.core.errors.InputError: mode 'onlin': expected offline or online; did you mean 'online'?
    """
    known = get_args(choices)
    if not isinstance(value, str) or value not in known:
        hint = did_you_mean(value, known) if isinstance(value, str) else ""
        raise InputError(f"{name} {value!r}: expected {' or '.join(known)}{hint}")


def check_count(name: str, value: Any, least: int = 0) -> None:
    """
    >>> check_count("retries", 2.5)
    Traceback (most recent call last):
    dovetail.core.errors.InputError: retries 2.5: expected a whole number
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise InputError(f"{name} {value!r}: expected a whole number")
    if value < least:
        raise InputError(f"{name} {value}: expected {least} or more")
