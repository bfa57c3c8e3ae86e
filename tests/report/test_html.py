"""The page: complete, self-contained, and safe whatever names users give."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dovetail.core.events import Arrived, Complete, Finished, Reject, Start
from dovetail.core.results.charts import Chart, Series, as_fact
from dovetail.core.words import Words
from dovetail.report.data.collect import collect
from dovetail.report.html import page
from dovetail.report.look import PALETTE, colours, facets, names
from dovetail.report.svg.charts import Mark, _distribution
from tests.report_pages import bars_of, data_of, piece_ids, roomy

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
    text = page([collect(write())])
    (run,) = data_of(text)["runs"]
    bars = sorted(bars_of(text), key=lambda bar: bar["end_s"] - bar["length_s"])
    assert [(bar["device"], bar["span"], bar["on"]) for bar in bars] == [
        (0, 1, "GPU 0"),
        (1, 2, "GPU 1-2"),
        (1, 2, "GPU 1-2"),
        (0, 1, "GPU 0"),
    ]
    assert [bar["kind"] for bar in bars] == ["llm", "sd", "sd", "sd"]
    assert [bar["wait_s"] for bar in bars] == [0, 0, 2, 1]
    assert [bar["replaces"] for bar in bars] == [None, None, None, "llm"]
    assert len(run["devices"]) == 3


def test_devices_that_are_not_neighbours_are_drawn_apart(write: Write) -> None:
    steps = [
        (0.0, [Arrived("a", "t"), Start("a", "p", "llm", (0, 2), 0.0, 1.0, "")]),
        (1.0, [Finished("a", "p"), Complete("a")]),
    ]
    bars = bars_of(page([collect(write(steps=steps))]))
    assert [(bar["device"], bar["span"]) for bar in bars] == [(0, 1), (2, 1)]


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
    assert seen.count["script"] == Elements(tame).count["script"] + 2 == 6  # two more texts for the second run
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert EVIL in seen.text
    assert all(bars_of(text)[0][name] == EVIL for name in ("job", "task", "kind", "why", "replaces"))


@pytest.mark.parametrize("count", [1, 3])
def test_the_page_loads_nothing(write: Write, count: int) -> None:
    text = page([collect(write(f"run{i}", policy=f"p{i}")) for i in range(count)])
    assert not re.search(r"(https?:)?//[\w.-]+\.\w+", text)
    assert not re.search(r"@import|url\(|\bfetch\(|XMLHttpRequest|import\(", text)
    seen = Elements(roomy(text))
    assert not {"link", "iframe", "img", "object", "embed"} & set(seen.count)
    links = [value for name, value in seen.attributes if name in ("src", "href", "srcset")]
    assert {*links} <= {f"#run-{i}" for i in range(count)}  # places on the page itself
    assert len(links) == (6 * count if count > 1 else 0)  # three bars, a curve, its name, a row
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


def test_other_work_is_not_ranked_together(write: Write) -> None:
    """By what a level says of its requests; a run that says nothing is compared with all on the same devices."""
    one, same, other = (collect(write(n, requests={"sha256": n[0]}, policy=n)) for n in ("a1", "a2", "b"))
    silent = collect(write("silent", policy="silent"))
    assert [members for _, members in facets([one, other, same, silent])] == [[0, 2, 3], [1]]
    title = "2 x a100, 1 x l4"
    assert facets([one, same]) == [(title, [0, 1])]
    assert "Runs on other devices, or of other work, stand apart" in page([one, other])
    assert names([one, replace(one, header=replace(one.header, pool=one.header.pool))]) == ["a1 (1)", "a1 (2)"]


def test_a_run_that_did_not_end_says_so(write: Write) -> None:
    assert "This run did not end" in Elements(page([collect(write(summary=None))])).text
    assert "This run did not end" not in Elements(page([collect(write())])).text


def chain(count: int, each_s: float = 1.0) -> list[Any]:
    """One after the other on device 0, and one as long as all on device 1."""
    end_s = count * each_s
    steps: list[Any] = [(0.0, [Arrived("long", "t"), Start("long", "p", "sd", (1,), 0.0, end_s, "alone")])]
    for i in range(count):
        t = i * each_s
        steps.append((t, [Arrived(f"w{i}", "t"), Start(f"w{i}", "p", "llm", (0,), t, each_s, f"because {i}")]))
        steps.append((t + each_s, [Finished(f"w{i}", "p"), Complete(f"w{i}")]))
    return [*steps, (end_s, [Finished("long", "p"), Complete("long")])]


def test_what_was_merged_is_said_where_the_finest_level_is_left_out(write: Write) -> None:
    text = page([collect(write(steps=chain(200)), max_bars=40, max_finest=100)])
    drawn = len(bars_of(text))
    assert drawn <= 40
    assert f"201 bars are drawn as {drawn}" in Elements(text).text
    assert piece_ids(text) == ["bars-0"]


def test_the_finest_level_has_every_bar_with_its_reason(write: Write) -> None:
    """In pieces, each of which says over what time it is needed; a bar too long for that is drawn from afar too."""
    count, each_s = 20_000, 0.3
    text = page([collect(write(steps=chain(count, each_s)), max_bars=400)])
    assert "are merged" not in Elements(text).text
    run, (whole, *pieces) = data_of(text)["runs"][0], piece_ids(text)
    far = bars_of(text, whole)
    assert len(far) <= 400
    assert [bar["job"] for bar in far if bar["merged"] == 1 and bar["length_s"] > run["short"]] == ["long"]
    assert len(pieces) == len(run["finest"]) == 3
    near = [(about, bar) for about, piece in zip(run["finest"], pieces, strict=True) for bar in bars_of(text, piece)]
    assert [bar["job"] for _, bar in near if bar["job"] != "long"] == [f"w{i}" for i in range(count)]
    assert len(near) == count + 1
    for i, (about, bar) in enumerate(each for each in near if each[1]["job"] != "long"):
        assert bar["why"] == f"because {i}"
        assert bar["end_s"] == pytest.approx((i + 1) * each_s, abs=1e-4)
        assert bar["length_s"] == pytest.approx(each_s, rel=2e-5)
        assert about[0] - 1e-4 <= bar["end_s"] - bar["length_s"] < bar["end_s"] <= about[1] + 1e-4
    assert max(about[1] - about[0] for about in run["finest"]) < 0.5 * count * each_s


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
    drawn = _distribution([5400.0, 200_000.0], [Mark("P50", 90_000.0, "mark")], "jobs", "response time", 640.0)
    assert "response time, h<" in drawn
    assert "P50 25 h<" in drawn
    assert not re.search(r"\d s\b", drawn)


PARTS = Words(job="chunk", jobs="chunks", setup="", response="turnaround", rejected="done elsewhere", parts=True)


def chunks(cut: int, slower: float = 1.0) -> list[tuple[float, Any]]:
    """A batch of 12 s in so many parts, one after the other."""
    each_s, out = 12.0 * slower / cut, []
    for i in range(cut):
        start = Start(f"chunk {i}", "call", "chunk", (0,), i * each_s, each_s, "it is free")
        out += [(i * each_s, [Arrived(f"chunk {i}", "chunk"), start])]
        out += [((i + 1) * each_s, [Finished(f"chunk {i}", "call"), Complete(f"chunk {i}")])]
    return out


def test_parts_of_one_batch_are_compared_by_when_all_are_done(write: Write) -> None:
    """Small parts are answered sooner, each of them: that says nothing of the rule that made them small."""
    one = write("few", steps=chunks(2), policy="few", words=PARTS)
    other = write("many", steps=chunks(12, slower=1.5), policy="many", words=PARTS)
    text = page([collect(other), collect(one)])
    seen = Elements(text)
    assert "Makespan" in seen.text
    assert "Mean turnaround" not in seen.text
    assert "Turnaround times" not in seen.text
    assert ("aria-controls", "run-1") in seen.attributes
    assert re.search(r'aria-controls="run-1" aria-selected="true"', text)


def test_what_says_nothing_is_left_out(write: Write) -> None:
    """Types of devices that are all one, waiting of nobody, the only kind, and a chart of one point."""
    dot = as_fact([Chart("Moves", "time, h", "moves", [Series("moves", [(0.5, 3.0)])])])
    text = page([collect(write("run", steps=chunks(2), words=PARTS, devices=2, **dot))])
    seen = Elements(text)
    for words in ("Moves", "type\n", "mean wait", "Kinds"):
        assert words not in seen.text, words
    assert {device[3] for device in data_of(text)["runs"][0]["devices"]} == {""}
    assert data_of(text)["runs"][0]["byJob"]  # not "call" on every bar


def test_levels_have_their_colours_each(write: Write) -> None:
    """So that the only kind of one level need not be as dark as the thirteenth of all."""
    stories = [collect(write("a")), collect(write("b", steps=chunks(2), words=PARTS, level="dispatch"))]
    assert colours(stories) == {"sd": PALETTE[0], "llm": PALETTE[1], "chunk": PALETTE[0]}


@pytest.mark.parametrize(("completed_in_s", "told"), [(2.0, "1 /s"), (7200.0, "1 /h")])
def test_a_pace_has_the_unit_that_reads_best(write: Write, completed_in_s: float, told: str) -> None:
    steps = chunks(2, slower=completed_in_s / 12)
    assert told in Elements(page([collect(write(steps=steps, words=PARTS))])).text
