"""The level's checker: faults planted into clean journals, of simulated and real runs, are found and named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.core.journal import recorder
from dovetail.dispatch import Device, Dispatcher
from dovetail.dispatch.check import check_journal
from dovetail.dispatch.inputs.curve_files import SimDevice
from dovetail.dispatch.inputs.curves import Curve
from dovetail.dispatch.simulate import run as simulate

Lines = list[dict[str, Any]]
DEVICES = [
    SimDevice("fast", Curve.linear(0.004, 200_000, 1 << 20), size=4000),
    SimDevice("slow", Curve.linear(0.001, 30_000, 1 << 20), size=1000),
]


@pytest.fixture(params=["simulated", "live"])
def journal(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "run.jsonl"
    monkeypatch.setattr(recorder, "_FLUSH_S", 3600.0)  # all rows in one batch, also on a slow machine
    if request.param == "simulated":
        simulate(DEVICES, 30_000, "fixed", journal=path)
    else:
        two = [Device("fast", where="cpu", size=4000), Device("slow", where="cpu", size=1000)]
        with Dispatcher(torch.sin, two, mode="sync", cache=False, journal=path) as dispatcher:
            dispatcher.run(torch.rand(30_000))
    assert check_journal(path).valid
    return path


def changed(path: Path, change: Callable[[Lines], Any]) -> Path:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    made = change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in (made if isinstance(made, list) else lines)))
    return path


def columns(lines: Lines, of: str) -> dict[str, list[Any]]:
    (found,) = [line["columns"] for line in lines if line.get("of") == of]
    return dict(found)


def drop(lines: Lines, number: int) -> None:
    for column in columns(lines, "ran").values():
        del column[number]


def again(lines: Lines, number: int) -> None:
    """A chunk that is recorded twice, the second time as another one."""
    ran = columns(lines, "ran")
    for column in ran.values():
        column.append(column[number])
    ran["id"][-1] = len(ran["id"])


def move(lines: Lines, number: int, by: int) -> None:
    ran = columns(lines, "ran")
    for edge in ("start", "stop"):
        ran[edge][number] += by


def earlier(lines: Lines, factor: float) -> None:
    """All times nearer to the beginning, in the rows and in what the scheduler was told: nothing contradicts but the
    bound and what the summary says."""
    zero_s = lines[0]["facts"]["zero_s"]
    ran, asks = columns(lines, "ran"), columns(lines, "asks")
    for name in ("from_s", "to_s"):
        ran[name][:] = [t * factor for t in ran[name]]
    asks["clock_s"][:] = [zero_s + (t - zero_s) * factor for t in asks["clock_s"]]
    lines[-1]["summary"]["makespan_s"] *= factor
    for line in lines[1:]:
        line["t"] *= factor


def at_once(lines: Lines) -> None:
    """Three chunks at the same time on one device, and everybody says so."""
    ran = columns(lines, "ran")
    mine = [i for i, device in enumerate(ran["device"]) if device == 0][:3]
    for i in mine:
        ran["from_s"][i], ran["to_s"][i] = ran["from_s"][mine[0]], ran["to_s"][mine[2]]


def one_device(lines: Lines) -> None:
    ran = columns(lines, "ran")
    ran["device"][:] = [0] * len(ran["device"])


def move_time(lines: Lines, number: int) -> None:
    ran = columns(lines, "ran")
    ran["from_s"][number] += (ran["to_s"][number] - ran["from_s"][number]) / 2


def unsaid(lines: Lines) -> None:
    """The scheduler was never told of the last chunk's end."""
    calls = columns(lines, "asks")["call"]
    calls[max(i for i, call in enumerate(calls) if call == "done")] = "back"


def swapped(lines: Lines) -> None:
    ran = columns(lines, "ran")
    ran["device"][-1] = 1 - ran["device"][-1]


def other_device(lines: Lines, device: int) -> None:
    columns(lines, "ran")["device"][-1] = device


def doubled_answer(lines: Lines) -> None:
    for column in columns(lines, "given").values():
        column.insert(1, column[0])


def twice(lines: Lines) -> Lines:
    """The whole line of what was given a second time."""
    return [line for each in lines for line in [each] * (1 + (each.get("of") == "given"))]


def told_twice(lines: Lines, number: int) -> None:
    """The scheduler was told of a chunk's end a second time."""
    asks = columns(lines, "asks")
    at = [i for i, call in enumerate(asks["call"]) if call == "done"][number]
    for column in asks.values():
        column.insert(at + 1, column[at])


def out_of_order(lines: Lines) -> None:
    """What the scheduler was told first stands last."""
    asks = columns(lines, "asks")
    at = asks["call"].index("done")
    for column in asks.values():
        column.append(column.pop(at))


def dearer(lines: Lines) -> None:
    asks = columns(lines, "asks")
    asks["number"][asks["call"].index("done")] += 1


FAULTS: list[tuple[str, str, Callable[[Lines], Any]]] = [
    ("log", "behind what was at", out_of_order),
    ("summary", "found 30001, expected 30000", lambda lines: lines[-1]["summary"].update(total=30_001)),
    ("gap", "were not done", lambda lines: drop(lines, 0)),
    ("log", "it is not recorded", lambda lines: drop(lines, 3)),
    ("double", "were done by", lambda lines: again(lines, 2)),
    ("double", "were done by", lambda lines: move(lines, 2, -1)),
    ("gap", "were not done", lambda lines: move(lines, 2, 1)),
    ("log", "the scheduler was not told so", lambda lines: move(lines, 2, 1)),
    ("range", "expected a range within 0 to 30000", lambda lines: move(lines, 0, -30_000)),
    ("range", "expected a range within 0 to 30000", lambda lines: move(lines, 0, 30_000)),
    ("range", "expected start and stop", lambda lines: columns(lines, "ran")["stop"].__setitem__(0, "all")),
    ("result", "are called missing", lambda lines: lines[-1]["summary"].update(missing=[[10, 20]])),
    ("gap", "items 30000 to 30001", lambda lines: lines[0]["facts"].update(items=30_001)),
    ("bound", "expected", lambda lines: lines[-1]["summary"].update(bound_makespan_s=1e-9)),
    ("bound", "found None", lambda lines: lines[-1]["summary"].pop("bound_makespan_s")),
    ("bound", "expected at least", lambda lines: earlier(lines, 1e-4)),
    ("peak", "expected", lambda lines: lines[-1]["summary"].update(peaks=[1e12, 1e12])),
    ("peak", "expected", lambda lines: earlier(lines, 1e-4)),
    ("overlap", "holds since", at_once),
    ("log", "the scheduler was not told so", at_once),
    ("summary", "expected", one_device),
    ("log", "the scheduler was not told so", lambda lines: move_time(lines, 1)),
    ("log", "it is not recorded", lambda lines: move_time(lines, 1)),
    ("device", "found device 7", lambda lines: other_device(lines, 7)),
    ("device", "found device -1", lambda lines: other_device(lines, -1)),
    (
        "log",
        "the scheduler was not told so",
        swapped,
    ),
    ("log", "neither taken back", unsaid),
    ("log", "or ended before", lambda lines: told_twice(lines, 0)),
    ("log", "or ended before", lambda lines: told_twice(lines, -1)),
    ("log", "expected at most", dearer),
    ("log", "cannot be read", lambda lines: columns(lines, "asks")["device"].__setitem__(0, "x")),
    ("given", "found 0 to 4000, expected 4000 to", doubled_answer),
    ("given", "or it was answered", twice),
    ("given", "have no answer", lambda lines: [line for line in lines if line.get("of") != "given"]),
    ("given", "expected 0 to 4000", lambda lines: columns(lines, "given")["stop"].__setitem__(0, 4001)),
    ("given", "found none", lambda lines: [c.pop() for c in columns(lines, "given").values()] and None),
    ("given", "cannot be read", lambda lines: columns(lines, "given")["stop"].__setitem__(0, "all")),
    ("summary", "found 3", lambda lines: lines[-1]["summary"].update(completed=3)),
    ("summary", "cannot be read", lambda lines: lines[-1]["summary"].update(missing="none")),
    ("end", "did not end", lambda lines: lines[:-1]),
]


@pytest.mark.parametrize(("code", "text", "change"), FAULTS)
def test_planted_faults_are_found(journal: Path, code: str, text: str, change: Callable[[Lines], Any]) -> None:
    report = check_journal(changed(journal, change))
    assert not report.valid
    assert any(fault.code == code and text in fault.message for fault in report.faults), report.faults


def test_a_missing_range_that_is_stated_is_a_note(journal: Path) -> None:
    def lose(lines: Lines) -> None:
        ran = columns(lines, "ran")
        lines[-1]["summary"]["missing"] = [[ran["start"][0], ran["stop"][0]]]
        drop(lines, 0)

    report = check_journal(changed(journal, lose))
    assert "gap" not in report.faults_by_code
    assert any("have no result, and the run says so" in note for note in report.notes)


def test_a_device_that_was_faster_than_ever_is_a_note_and_no_beaten_bound(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    curve = Curve.linear(0.004, 200_000, 1 << 20)
    simulate([SimDevice("lucky", curve, size=9_000)], 9_000, "fixed", noise=0.3, seed=3, journal=path)
    report = check_journal(path)
    assert report.valid, report.faults
    assert any("lucky kept 1." in note for note in report.notes)


def test_of_a_peak_of_nothing_no_multiple_is_told(journal: Path) -> None:
    report = check_journal(changed(journal, lambda lines: lines[0]["facts"].update(peaks=[0, 0])))
    assert not any("times the best rate" in note for note in report.notes)


def test_without_noise_nothing_is_faster_than_its_curve(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    simulate([SimDevice("lucky", Curve.linear(0.004, 200_000, 1 << 20))], 9_000, noise=0.3, seed=3, journal=path)
    report = check_journal(changed(path, lambda lines: lines[0]["facts"].update(noise=0.0)))
    assert report.faults_by_code == {"peak": 1}


def test_the_command_says_what_is_wrong(journal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(journal)]) == 0
    assert "PASS" in capsys.readouterr().out
    assert main(["check", str(changed(journal, lambda lines: drop(lines, 0)))]) == 1
    assert "items that no chunk did" in capsys.readouterr().out


def test_facts_of_another_form_are_an_error_with_their_place(journal: Path) -> None:
    changed(journal, lambda lines: lines[0]["facts"].update(items="many"))
    with pytest.raises(InputError, match=r"run.jsonl:1: facts.items: expected int"):
        check_journal(journal)


def test_rows_that_make_no_sense_are_an_error_with_their_line(journal: Path) -> None:
    changed(journal, lambda lines: columns(lines, "ran")["from_s"].pop())
    with pytest.raises(InputError, match=r"run.jsonl:2: rows that cannot be read"):
        check_journal(journal)
