"""Journals written while a run went on: read in the order of time, checked by the clock, drawn as they were."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from dovetail import check_journal
from dovetail.cli import main
from dovetail.core.events import Arrived, Complete, Failed, Finished, Reject, Start
from dovetail.core.explain import explain, sentences
from dovetail.core.journal import Reader
from dovetail.report import perfetto
from dovetail.report.data.collect import collect
from dovetail.report.html import page

Journals = dict[str, Path]


def test_a_level_that_nobody_knows_is_checked_by_the_rules_of_all(
    journals: Journals, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["check", str(journals["live"])]) == 0
    out = capsys.readouterr().out
    assert "1 record lies inside the clock's error of 0.05 s (measured offset), the largest by 0.03 s" in out
    assert "the rules of the mine level are not known" in out
    assert "2 of 3 completed, 1 rejected, 3 steps run, makespan 3.50 s" in out


def test_what_joined_later_is_drawn_and_explained(journals: Journals) -> None:
    story = collect(journals["live"])
    assert [device.type for device in story.header.pool.devices] == ["gpu", "gpu", "l4"]
    assert {device for bar in story.bars for device in bar.devices} == {0, 1, 2}
    html = page([story])
    assert "gpu: emulated on cpu" in html
    assert "l4: cuda:0 NVIDIA L4" in html
    assert "measured offset clock, wrong by at most 50 ms" in html
    out = io.BytesIO()
    perfetto.write(journals["live"], out)
    events = json.loads(out.getvalue())["traceEvents"]
    assert "device 2 (l4)" in {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    (told,) = explain(Reader(journals["live"]), "q")
    assert "That was attempt 2." in sentences(told)


def test_whole_lives_are_told_in_the_order_of_time(journals: Journals) -> None:
    entries = list(Reader(journals["loose"]))
    assert [t for _, t, _ in entries] == sorted(t for _, t, _ in entries)
    third = [event for _, _, event in entries if getattr(event, "job", "") == "piece 3"]
    assert third == [
        Arrived("piece 3", "y", facts={"start": 15}),
        Start("piece 3", "call", "y", (1,), 1.0, 0.75, "by hand"),
        Failed("piece 3", "call", "broken"),
        Reject("piece 3", "broken"),
    ]
    at_one = [type(event) for _, t, event in entries if t == 1.0]
    assert at_one[:2] == [Finished, Finished]
    assert at_one.index(Complete) < at_one.index(Start)
    report = check_journal(journals["loose"])
    assert report.valid, report.faults
    assert (report.counted["completed"], report.counted["makespan_s"]) == (5, 3.0)


def test_two_at_once_on_one_device_are_found_in_whole_lives(journals: Journals, tmp_path: Path) -> None:
    text = journals["loose"].read_text()
    planted = tmp_path / "planted.jsonl"
    planted.write_text(text.replace('"device":[0,1]', '"device":[0,0]', 1))
    assert check_journal(planted).faults_by_code == {"overlap": 1}
    planted.write_text(text.replace('"device":[0,1]', '"device":[0,2]', 1))
    assert "device" in check_journal(planted).faults_by_code
    planted.write_text(text.replace('"device":[0,1]', '"device":[0]', 1))
    with pytest.raises(Exception, match=r"planted.jsonl:2: rows that cannot be read"):
        check_journal(planted)
