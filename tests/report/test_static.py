"""Pictures as files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dovetail.core.errors import MissingExtraError
from dovetail.report.data.collect import collect
from dovetail.report.static import draw

Write = Callable[..., Path]


def test_a_png_of_one_run(write: Write) -> None:
    assert draw([collect(write())], dpi=40).startswith(b"\x89PNG\r\n")


def test_an_svg_names_devices_kinds_and_the_bound_and_is_reproducible(write: Write) -> None:
    path = write(policy="cost $x_1$ & <b>")
    image = draw([collect(path)], "svg")
    text = "\n".join(ElementTree.fromstring(image).itertext())
    for expected in ("GPU 2  l4", "llm", "sd", "switch", "failed", "lower bound 6 s", "policy cost $x_1$ & <b>"):
        assert expected in text
    assert image == draw([collect(path)], "svg")


def test_a_comparison_names_the_runs(write: Write) -> None:
    stories = [collect(write("one", policy="fifo")), collect(write("two", policy="affinity"))]
    text = "\n".join(ElementTree.fromstring(draw(stories, "svg")).itertext())
    for expected in ("fifo", "affinity", "Makespan", "P99 response", "lower bound", "2 runs compared"):
        assert expected in text


def test_a_run_that_did_not_end_is_not_the_best(write: Write) -> None:
    stories = [collect(write("one", policy="fifo")), collect(write("two", policy="cut", summary=None))]
    text = "\n".join(ElementTree.fromstring(draw(stories, "svg")).itertext())
    assert text.count("did not end") == 3
    assert text.count("\n9 s\n") == 1


def test_a_run_of_nothing_is_drawn(write: Write) -> None:
    empty = collect(write(steps=[]))
    assert draw([empty], dpi=30)
    assert draw([empty, empty], dpi=30)


def test_without_matplotlib_the_extra_is_named(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"dovetail\[plot\]"):
        draw([collect(write())])
