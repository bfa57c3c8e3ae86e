"""What can be chosen by name, in a module that costs nothing to import."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from dovetail.core.errors import InputError

Widths = Literal["error", "guess"]
"""What is done with widths that the throughputs do not have."""

OnError = Literal["fail", "skip"]
"""A row that cannot be read stops the reading, or is left out and told."""

Compat = Literal["gavel", "sia"]
"""The rules of older simulators: Gavel's, and those of Pollux and Sia."""

Minimise = Literal["cost", "accelerators"]
"""What a plan has least of."""

Paid = Literal["always", "held"]
"""An accelerator is paid for all the time, as one that is reserved, or while a job holds it, as one on demand."""

JournalMode = Literal["changes", "summary"]
"""Every lease is written, or only arrivals and completions."""

Clock = Literal["rounds", "gavel", "ideal", "live"]
"""Rounds with leases; the older simulator's rounds; shares carried out exactly; rounds on wall-clock time, carried out
for real. Only the first and the last have leases to record."""

TraceKind = Literal["table", "gavel"]
"""Our own table of jobs, or the older system's ten columns."""

SweepKind = Literal["continuous", "static"]
"""Jobs arrive without end, and those in a window are measured; or all are there at the start."""

DEFAULT = "max_min_fairness_perf"  # the policy, if none is named
CLOUDS = ("aws", "gcp", "azure")
LONGEST_QUEUE = 10.0  # times all accelerators: a queue that may not be longer and still grow


def one_of(name: str, value: Any, choices: Sequence[str]) -> None:
    """
    >>> one_of("widths", "gues", ("error", "guess"))
    Traceback (most recent call last):
    dovetail.core.errors.InputError: widths 'gues': expected error or guess
    """
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} {value!r}: expected {' or '.join(choices)}")


def list_policies() -> list[dict[str, Any]]:
    """All policies: what they promise, what they know and which options they take."""
    from dovetail.core import registry  # a page of help does not need it

    rows = []
    for name, promise, options, traits in registry.listing("cluster", ["agnostic", "packs"]):
        knows = "pairs" if traits["packs"] else "nothing of types" if traits["agnostic"] else "types"
        rows.append({"name": name, "promise": promise, "knows": knows, **traits, "options": options})
    return rows
