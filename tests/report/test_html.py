"""The page: complete, self-contained, and safe whatever names users give."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.events import Arrived, Complete, Finished, Reject, Start
from dovetail.report.charts import Mark, _distribution
from dovetail.report.collect import collect
from dovetail.report.html import page

Write = Callable[..., Path]
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'x'"


class Elements(HTMLParser):
    """Counts elements, keeps attributes and visible text, and complains about tags that do not nest."""

    VOID = ("meta", "input", "br", "img", "link")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" not in self.open and "style" not in self.open:
            self.text += " ".join(data.split()) + "\n"


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    loaded: dict[str, Any] = json.loads(found[1])
    return loaded


def test_the_page_shows_the_run_and_its_distance_from_the_bound(write: Write) -> None:
    seen = Elements(page([collect(write())]))
    assert "policy\nfifo" in seen.text
    assert "2 x a100, 1 x l4" in seen.text
    assert "50 % above the bound, 6 s" in seen.text  # makespan 9 s, bound 6 s
    assert "70 % above the bound, 5 s" in seen.text  # mean 8.5 s, bound 5 s
    assert "no lower bound recorded" in seen.text
    assert "Running\n" in seen.text
    assert " set up: utilisation " in seen.text  # which counts both, here as everywhere
    assert "no such <workflow>" in seen.text
    assert "out of memory" in seen.text


def test_the_data_hold_every_bar_once_per_group_of_neighbours(write: Write) -> None:
    data = data_of(page([collect(write())]))
    (run,) = data["runs"]
    bars, strings = run["bars"], run["strings"]
    assert {len(column) for column in bars.values()} == {4}
    assert bars["d"] == [0, 1, 1, 0]
    assert bars["s"] == [1, 2, 2, 1]
    assert [strings[i] for i in bars["v"]] == ["GPU 0", "GPU 1-2", "GPU 1-2", "GPU 0"]
    assert [data["kinds"][k][0] for k in bars["k"]] == ["llm", "sd", "sd", "sd"]
    assert bars["q"] == [0, 0, 2, 1]
    assert [strings[i] if i >= 0 else None for i in bars["r"]] == [None, None, None, "llm"]
    assert len(run["devices"]) == 3


def test_devices_that_are_not_neighbours_are_drawn_apart(write: Write) -> None:
    steps = [
        (0.0, [Arrived("a", "t"), Start("a", "p", "llm", (0, 2), 0.0, 1.0, "")]),
        (1.0, [Finished("a", "p"), Complete("a")]),
    ]
    bars = data_of(page([collect(write(steps=steps))]))["runs"][0]["bars"]
    assert (bars["d"], bars["s"]) == ([0, 2], [1, 1])


def test_names_from_users_are_text_and_never_markup(write: Write) -> None:
    steps = [
        (0.0, [Arrived(EVIL, EVIL), Start(EVIL, EVIL, EVIL, (0,), 0.0, 1.0, EVIL, 0.5, EVIL)]),
        (1.0, [Finished(EVIL, EVIL), Complete(EVIL), Arrived("r" + EVIL, EVIL), Reject("r" + EVIL, EVIL)]),
    ]
    path = write(steps=steps, policy=EVIL, summary={EVIL: EVIL}, fact=EVIL)
    tame = page([collect(write("tame"))])
    text = page([collect(path), collect(path)], title=EVIL)
    seen = Elements(text)
    assert "img" not in seen.count
    assert seen.count["script"] == Elements(tame).count["script"] == 2
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert EVIL in seen.text
    assert EVIL in data_of(text)["runs"][0]["strings"]


@pytest.mark.parametrize("count", [1, 3])
def test_the_page_loads_nothing(write: Write, count: int) -> None:
    text = page([collect(write(f"run{i}", policy=f"p{i}")) for i in range(count)])
    assert not re.search(r"(https?:)?//[\w.-]+\.\w+", text)
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|import\(", text)
    seen = Elements(text)
    assert not {"link", "iframe", "img", "object", "embed"} & set(seen.count)
    links = [value for name, value in seen.attributes if name in ("src", "href", "srcset")]
    assert {*links} <= {f"#run-{i}" for i in range(count)}  # places on the page itself
    assert len(links) == (3 * count if count > 1 else 0)
    assert "default-src 'none'" in text


def test_several_runs_are_compared_and_share_colours_and_time(write: Write, steps: list[tuple[float, Any]]) -> None:
    slow = [(t * 2, events) for t, events in steps]
    text = page([collect(write("one", policy="fifo")), collect(write("two", steps=slow, policy="affinity"))])
    data = data_of(text)
    seen = Elements(text)
    assert "2 runs compared" in seen.text
    assert [(run["from"], run["to"]) for run in data["runs"]] == [(0.0, 18.0)] * 2
    assert [kind[0] for kind in data["kinds"]] == ["sd", "llm"]
    assert seen.count["article"] == 2
    assert [value for name, value in seen.attributes if name == "role"].count("tab") == 2


def test_a_run_that_did_not_end_says_so(write: Write) -> None:
    assert "This run did not end" in Elements(page([collect(write(summary=None))])).text
    assert "This run did not end" not in Elements(page([collect(write())])).text


def test_what_was_merged_is_said(write: Write) -> None:
    steps: list[Any] = []
    for i in range(200):
        steps.append((i * 1.0, [Arrived(f"w{i}", "t"), Start(f"w{i}", "p", "llm", (0,), i * 1.0, 1.0, "")]))
        steps.append((i + 1.0, [Finished(f"w{i}", "p"), Complete(f"w{i}")]))
    text = page([collect(write(steps=steps), max_bars=40)])
    drawn = len(data_of(text)["runs"][0]["bars"]["d"])
    assert drawn <= 40
    assert f"200 bars are drawn as {drawn}" in Elements(text).text


def test_a_schedule_below_its_bound_is_called_wrong(write: Write) -> None:
    text = Elements(page([collect(write(summary={"bound_makespan_s": 10.0}))])).text
    assert "below the bound, 10 s: one of them is wrong" in text


def test_the_first_hundred_rejections_are_listed(write: Write) -> None:
    steps = [(float(i), [Arrived(f"w{i}", "t"), Reject(f"w{i}", f"reason-{i}.")]) for i in range(130)]
    text = Elements(page([collect(write(steps=steps))])).text
    assert "The first 100 of 130." in text
    assert "reason-99." in text
    assert "reason-100." not in text


@pytest.mark.parametrize("from_s", [None, 100.0])
def test_a_page_of_nothing_is_a_page(write: Write, from_s: float | None) -> None:
    data = data_of(page([collect(write(steps=[]), from_s=from_s)]))
    assert data["runs"][0]["to"] > data["runs"][0]["from"]


def test_the_same_journal_gives_the_same_page(write: Write) -> None:
    path = write()
    assert page([collect(path)]) == page([collect(path)])


def test_a_chart_has_the_unit_of_its_axis_everywhere() -> None:
    drawn = _distribution([5400.0, 200_000.0], [Mark("P50", 90_000.0, "mark")], "jobs", "response time")
    assert "response time, h<" in drawn
    assert "P50 25 h<" in drawn
    assert not re.search(r"\d s\b", drawn)
