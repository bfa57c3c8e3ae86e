"""Errors: what a user reads, which exit code it has, and that it can cross from one process to another."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from dovetail.core.errors import (
    DovetailError,
    InputError,
    MissingExtraError,
    PolicyError,
    cannot_write,
    did_you_mean,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DovetailError("a"), 1),
        (PolicyError("b"), 1),
        (InputError("c"), 2),
        (MissingExtraError("plot", "matplotlib", "a picture"), 2),
    ],
)
def test_an_error_survives_the_way_between_processes(error: DovetailError, code: int) -> None:
    arrived = pickle.loads(pickle.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.exit_code == error.exit_code == code


def test_a_missing_part_says_how_to_get_it() -> None:
    error = MissingExtraError("plot", "matplotlib", "a picture")
    assert str(error) == "a picture needs matplotlib, which is not installed: pip install 'dovetail[plot]'"


def test_what_cannot_be_written_names_the_file_and_the_cause() -> None:
    assert str(cannot_write(Path("out.json"), OSError(28, "No space left on device"))) == (
        "out.json: cannot be written: No space left on device"
    )
    assert str(cannot_write(Path("out.json"), OSError("not seekable"))) == "out.json: cannot be written: not seekable"


def test_a_hint_is_the_nearest_word_or_else_what_is_known() -> None:
    assert did_you_mean("memory_gib", ["memory_gb", "name"]) == "; did you mean 'memory_gb'?"
    assert did_you_mean("q", ["b", "a"]) == "; known: a, b"
    assert did_you_mean("q", []) == ""
    assert did_you_mean("q", [f"word{i:02}" for i in range(21)]).endswith("word19, ...")
