"""The checker of cluster journals: planted faults are found, each by its name."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dovetail.cluster import check
from dovetail.cluster.check import CODES, check_journal
from dovetail.cluster.inputs.choices import JournalMode
from dovetail.cluster.inputs.prices import Prices
from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.policies import make
from dovetail.cluster.rounding.records import KEPT
from dovetail.cluster.simulate import run
from dovetail.core.errors import InputError
from tests.cluster.conftest import Make, Table

Lines = list[dict[str, Any]]


def _lines(make_setup: Make, tmp_path: Path, mode: JournalMode) -> Lines:
    jobs = [Job(id=i, model="AB"[i % 2], steps=900, arrival_s=40.0 * i) for i in range(6)]
    policy = Table({i: [0.4, 0.4] for i in range(6)}, {(0, 1): [0.5, 0.0]})
    run(make_setup(jobs), policy, name="table", journal=tmp_path / "run.jsonl", mode=mode)
    return [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]


@pytest.fixture
def lines(make_setup: Make, tmp_path: Path) -> Lines:
    return _lines(make_setup, tmp_path, "changes")


@pytest.fixture
def brief(make_setup: Make, tmp_path: Path) -> Lines:
    return _lines(make_setup, tmp_path, "summary")


def _codes(lines: Lines, tmp_path: Path) -> set[str]:
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return set(check_journal(path).faults_by_code)


def _first(lines: Lines, of: str) -> dict[str, Any]:
    columns: dict[str, Any] = next(line for line in lines if line.get("of") == of)["columns"]
    return columns


def test_the_run_itself_is_valid(lines: Lines, tmp_path: Path) -> None:
    assert _codes(lines, tmp_path) == set()


def _late(lines: Lines) -> None:
    lines[1]["t"] = 1e9


def _two_times(lines: Lines) -> None:
    place = next(i for i in range(2, len(lines)) if lines[i]["n"] == lines[i - 1]["n"])
    lines[place]["t"] += 5.0


def _unknown(lines: Lines) -> None:
    _first(lines, "started")["id"][0] = 77


def _elsewhere(lines: Lines) -> None:
    _first(lines, "started")["devices"][0] = [99]


def _wide(lines: Lines) -> None:
    _first(lines, "started")["devices"][0] = [0, 1]


def _together(lines: Lines) -> None:
    started = [line["columns"] for line in lines if line.get("of") == "started"]
    started[1]["devices"][0] = started[0]["devices"][0]
    started[1]["on"][0] = started[0]["on"][0]


def _again(lines: Lines) -> None:
    lines.insert(3, next(line for line in lines if line.get("of") == "started"))


def _fast(lines: Lines) -> None:
    _first(lines, "stopped")["steps"][0] += 5.0


def _moved(lines: Lines) -> None:
    _first(lines, "stopped")["from_s"][0] += 5.0


def _early(lines: Lines) -> None:
    _first(lines, "arrived")["steps"][0] += 100.0


def _lost(lines: Lines) -> None:
    lines.remove(next(line for line in lines if line.get("of") == "completed"))


def _groundless(lines: Lines) -> None:
    _first(lines, "started")["why"][0] = 9


def _stayed(lines: Lines) -> None:
    columns = _first(lines, "started")
    columns["setup_s"] = [0.0] * len(columns["id"])
    columns["why"] = [KEPT] * len(columns["id"])


def _endless(lines: Lines) -> None:
    del lines[-1]


def _boast(lines: Lines) -> None:
    lines[-1]["summary"]["avg_jct_s"] *= 0.9


def _impossible(lines: Lines) -> None:
    lines[0]["facts"]["bound_makespan_s"] = 1e9


def _modest(lines: Lines) -> None:
    lines[0]["facts"]["bound_makespan_s"] /= 2


def _redrawn(lines: Lines) -> None:
    lines[-1]["summary"]["charts"][0]["series"][0]["points"][50][0] += 0.01


def _undrawn(lines: Lines) -> None:
    lines[-1]["summary"]["charts"].pop()


def _too_good(lines: Lines) -> None:
    lines[0]["facts"]["fastest"] = [1e-3] * 4


def _another(lines: Lines) -> None:
    columns = _first(lines, "started")
    columns["kind"] = [1] * len(columns["id"])  # kind 1 is model B, and the first job is of model A


def _widened(lines: Lines) -> None:
    columns = _first(lines, "started")
    columns["kind"] = [2] * len(columns["id"])  # model A two wide, on one device


def _revived(lines: Lines) -> None:
    completed = next(i for i, line in enumerate(lines) if line.get("of") == "completed")
    lines.insert(completed + 1, lines[completed])


def _cheaper(lines: Lines) -> None:
    """Half the price, and a summary that agrees with it."""
    _first(lines, "prices")["price"] = [1.8, 1.8]
    lines[-1]["summary"]["total_cost"] /= 2


def _unpriced(lines: Lines) -> None:
    lines.remove(next(line for line in lines if line.get("of") == "prices"))
    lines[-1]["summary"]["total_cost"] = 0.0


def _swifter(lines: Lines) -> None:
    """Half the restart, in the header alone."""
    lines[0]["facts"]["restart_s"] /= 2


def _skipped(lines: Lines) -> None:
    lines[:] = [line for line in lines if line.get("n") != 2]


def _renamed(lines: Lines) -> None:
    stopped = _first(lines, "stopped")
    stopped["on"][0] = 1 - stopped["on"][0]


def _uncounted(lines: Lines) -> None:
    _first(lines, "arrived")["id"][0] = 1 << 30


def _no_such_type(lines: Lines) -> None:
    _first(lines, "stopped")["on"][0] = 7


def _no_such_device(lines: Lines) -> None:
    lines.insert(2, {"n": 1, "t": 0.0, "k": "rows", "of": "failed", "columns": {"device": [99], "jobs": [[]]}})


def _fails_at_once(lines: Lines) -> None:
    at = next(i for i, line in enumerate(lines) if line.get("of") == "started")
    device = lines[at]["columns"]["devices"][0][0]
    failed = {"of": "failed", "columns": {"device": [device], "jobs": [[]]}}
    lines.insert(at + 1, {key: lines[at][key] for key in ("n", "t", "k")} | failed)


@pytest.mark.parametrize(
    ("plant", "code"),
    [
        (_cheaper, "price"),
        (_unpriced, "price"),
        (_swifter, "restart"),
        (_skipped, "step"),
        (_renamed, "finish"),
        (_uncounted, "arrival"),
        (_no_such_type, "device"),
        (_no_such_device, "device"),
        (_late, "time"),
        (_two_times, "time"),
        (_unknown, "arrival"),
        (_elsewhere, "device"),
        (_wide, "width"),
        (_together, "overlap"),
        (_again, "twice"),
        (_fast, "steps"),
        (_moved, "finish"),
        (_early, "missing"),
        (_lost, "unclosed"),
        (_groundless, "reason"),
        (_stayed, "restart"),
        (_endless, "end"),
        (_boast, "summary"),
        (_impossible, "bound"),
        (_modest, "bound"),
        (_redrawn, "summary"),
        (_undrawn, "summary"),
        (_too_good, "bound"),
        (_another, "kind"),
        (_widened, "width"),
        (_revived, "closed"),
    ],
)
def test_planted_faults_are_found(lines: Lines, tmp_path: Path, plant: Callable[[Lines], None], code: str) -> None:
    plant(lines)
    assert code in _codes(lines, tmp_path)
    assert code in CODES


def test_a_lease_that_begins_where_an_accelerator_fails_in_the_same_step_is_told(lines: Lines, tmp_path: Path) -> None:
    _fails_at_once(lines)
    _codes(lines, tmp_path)
    faults = check_journal(tmp_path / "changed.jsonl").faults
    assert any("which fails in this step" in fault.message for fault in faults)


def test_every_code_that_the_checker_writes_is_explained() -> None:
    texts = [path.read_text() for path in Path(check.__file__).parent.glob("*.py")]
    written = {code for text in texts for code in re.findall(r'\b(?:_fault|_unsound|_?faults\.add)\("(\w+)"', text)}
    assert len(written) > 20
    assert written <= set(CODES)


def test_rows_without_a_column_are_bad_input(lines: Lines, tmp_path: Path) -> None:
    del _first(lines, "started")["devices"]
    with pytest.raises(InputError, match=r"changed\.jsonl:4: started: Object missing required field `devices`"):
        _codes(lines, tmp_path)


def test_what_the_header_says_must_fit_together(lines: Lines, tmp_path: Path) -> None:
    facts = copy.deepcopy(lines[0]["facts"])
    for change, expected in (
        ({"counts": [2, 3]}, "counts: they add up to 5, but the pool has 4 accelerators"),
        ({"counts": [1, 3]}, "counts: accelerator 1 is not of the type and server that the pool says"),
        ({"alone": facts["alone"][:3]}, "alone: expected 4 values, found 3"),
        ({"alone": "fast"}, "facts: Expected `array`, got `str` - at `$.alone`"),
        ({"spread": [[1.0, -1.0]] * 4}, "spread: found -1.0, expected a number from 0 on"),
        ({"kinds": [["A", 0]] * 4}, "kinds: expected widths of 1 or more"),
        ({"per_server": [0, 1]}, "per_server: found 0, expected 1 or more"),
        ({"window": [3, 3]}, "window: found (3, 3)"),
        ({"restart_s": 1e300}, "restart_s, bound_makespan_s: expected seconds"),
        ({"prices": [[5.0, [1, 1]], [0.0, [1, 1]]]}, "prices: expected one or more, in order of time"),
        ({"types": [], "counts": [], "per_server": [], "alone": [[]] * 4, "spread": [[]] * 4, "pairs": None}, "types"),
    ):
        lines[0]["facts"] = facts | {"prices": None} | change
        with pytest.raises(InputError, match=r"changed\.jsonl:1: " + ".*" + re.escape(expected)):
            _codes(lines, tmp_path)
    lines[0]["facts"], lines[0]["options"] = facts, {"rules": {"round_s": "long"}}
    with pytest.raises(InputError, match=r"changed\.jsonl:1: options\.rules: Expected `float`"):
        _codes(lines, tmp_path)


CHANGING = (0.0, 500.0, 510.0, 800.0, 5000.0), (1.0, 37.0, 0.5, 2.0, 3.0)


@pytest.fixture
def priced(make_setup: Make, tmp_path: Path) -> Lines:
    """Prices of the first type change inside a round, for ten seconds, while jobs run, and while nobody is there."""
    steps = {0: 2400, 1: 8000, 2: 900}
    setup = make_setup([Job(id=i, model="A", steps=n, arrival_s=i // 2 * 6000.0) for i, n in steps.items()])
    setup.prices = Prices(setup.types, CHANGING[0], np.array([[price, 1.0] for price in CHANGING[1]]))
    path = tmp_path / "run.jsonl"
    run(setup, Table({i: [1, 0] for i in steps}), name="table", journal=path)
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_change_of_prices_is_told_and_paid_when_it_is(priced: Lines, tmp_path: Path) -> None:
    told = [(line["t"], line["columns"]["price"][0]) for line in priced if line.get("of") == "prices"]
    assert told == list(zip(*CHANGING, strict=True))
    cost = 0.0
    for columns in (line["columns"] for line in priced if line.get("of") == "stopped"):
        for begin_s, end_s in zip(columns["from_s"], columns["to_s"], strict=True):
            for from_s, to_s, price in zip(CHANGING[0], [*CHANGING[0][1:], 1e9], CHANGING[1], strict=True):
                cost += max(min(to_s, end_s) - max(from_s, begin_s), 0.0) * price / 3600
    assert priced[-1]["summary"]["total_cost"] == pytest.approx(cost)
    assert _codes(priced, tmp_path) == set()
    charts = priced[-1]["summary"]["charts"]
    points = next(chart for chart in charts if chart["title"] == "Prices")["series"][0]["points"]
    assert [500 / 3600, 37.0] in points


@pytest.mark.parametrize("at", range(1, 5))
@pytest.mark.parametrize("by_s", [-400.0, -1.0, 1.0, 100.0])
def test_a_change_of_prices_that_was_moved_is_found(priced: Lines, tmp_path: Path, at: int, by_s: float) -> None:
    header = copy.deepcopy(priced)
    header[0]["facts"]["prices"][at][0] += by_s
    header[0]["facts"]["prices"].sort()
    assert "price" in _codes(header, tmp_path)
    for listed in (priced[0]["facts"]["prices"], None):
        row = copy.deepcopy(priced)
        row[0]["facts"]["prices"] = listed
        rows = [line for line in row if line.get("of") == "prices"]
        rows[at]["t"] += by_s
        assert "price" in _codes(row, tmp_path)
        rows[at]["t"] -= by_s
        rows[at - 1]["columns"]["until_s"][0] += by_s
        assert "price" in _codes(row, tmp_path)
        row.remove(rows[at])
        assert "price" in _codes(row, tmp_path)


def test_an_interrupted_run_is_one_finding(lines: Lines, tmp_path: Path) -> None:
    for cut in (3, len(lines) // 2, len(lines) - 1):
        path = tmp_path / "cut.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines[:cut]))
        report = check_journal(path)
        assert report.faults_by_code == {"end": 1}
        assert "did not end" in report.faults[0].message


def test_a_summary_is_checked_as_far_as_it_goes(brief: Lines, tmp_path: Path) -> None:
    assert _codes(brief, tmp_path) == set()
    assert not any(line.get("of") == "started" for line in brief)


def _greedy(lines: Lines) -> None:
    _first(lines, "used")["accelerator_s"][0] *= 10


def _faster(lines: Lines) -> None:
    lines[0]["facts"]["fastest"] = [rate / 10 for rate in lines[0]["facts"]["fastest"]]


@pytest.mark.parametrize(("spoil", "code"), [(_greedy, "used"), (_faster, "steps")])
def test_a_fault_planted_in_an_ideal_run_is_found(
    make_setup: Make, tmp_path: Path, spoil: Callable[[Lines], None], code: str
) -> None:
    jobs = [Job(id=i, model="A", steps=900, arrival_s=40.0 * i) for i in range(4)]
    run(make_setup(jobs), Table({i: [0.4, 0.4] for i in range(4)}), journal=tmp_path / "run.jsonl", ideal=True)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert _codes(lines, tmp_path) == set()
    spoil(lines)
    assert code in _codes(lines, tmp_path)


def _forgotten(lines: Lines) -> None:
    lines[:] = [line for line in lines if line.get("of") != "completed"]


def _sooner(lines: Lines) -> None:
    _first(lines, "completed")["at_s"][0] -= 1.0


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (_boast, "summary"),
        (_forgotten, "unclosed"),
        (_sooner, "finish"),
        (_modest, "bound"),
        (_redrawn, "summary"),
    ],
)
def test_a_fault_planted_in_a_summary_is_found(
    brief: Lines, tmp_path: Path, spoil: Callable[[Lines], None], code: str
) -> None:
    spoil(brief)
    assert code in _codes(brief, tmp_path)


def _larger(lines: Lines) -> None:
    lines[0]["facts"]["bound_makespan_s"] *= 1.001


def _slower(lines: Lines) -> None:
    lines[0]["facts"]["fastest"][2] *= 0.999


@pytest.mark.parametrize("policy", ["max_min_fairness_perf", "max_min_fairness_packed", "elastic_throughput"])
@pytest.mark.parametrize("ideal", [False, True])
@pytest.mark.parametrize("spoil", [_modest, _larger, _slower])
def test_the_bound_of_a_known_policy_is_counted_again(
    make_setup: Make, tmp_path: Path, policy: str, ideal: bool, spoil: Callable[[Lines], None]
) -> None:
    jobs = [Job(id=i, model="AB"[i % 2], steps=900, arrival_s=40.0 * i) for i in range(6)]
    run(make_setup(jobs), make(policy), name=policy, journal=tmp_path / "run.jsonl", ideal=ideal)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert _codes(lines, tmp_path) == set()
    spoil(lines)
    assert "bound" in _codes(lines, tmp_path)


def test_a_file_that_the_header_names_is_not_run(lines: Lines, tmp_path: Path) -> None:
    """It may be gone, another one, or one that cannot be made here; the bound is then counted from the header's own
    best rates."""
    mine = tmp_path / "mine.py"
    mine.write_text(
        f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
        "class Mine:\n"
        "    def __init__(self):\n"
        "        raise OSError('not here')\n"
    )
    lines[0]["policy"] = f"{mine}:Mine"
    assert _codes(lines, tmp_path) == set()
    _modest(lines)
    assert "bound" in _codes(lines, tmp_path)
    assert not (tmp_path / "ran").exists()
