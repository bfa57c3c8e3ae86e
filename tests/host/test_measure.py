"""Programs run on so many cores, and no others; the curve that comes out is one that can be used."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.rates import RateTable
from dovetail.host.curves import curve
from dovetail.host.live.measure import MeasuredRuns, Measurement, measure, run_s

ALL = sorted(os.sched_getaffinity(0))
NOTE = (
    "import os, sys; open(sys.argv[1], 'a').write("
    "f\"{len(os.sched_getaffinity(0))} {os.environ['OMP_NUM_THREADS']} {os.environ['TF_NUM_INTRAOP_THREADS']}\\n\")"
)


def test_a_program_has_as_many_processors_and_threads_as_it_is_measured_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes"
    words = ["--repeats", "2", "--format", "json", "--", sys.executable, "-c", NOTE, str(notes)]
    assert main(["host", "measure", "--cores", *{"1": None, str(len(ALL)): None}, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    counts = sorted({1, len(ALL)})
    assert [run["cores"] for run in found["runs"]] == counts
    assert all(len(run["seconds"]) == 2 for run in found["runs"])
    assert notes.read_text().split("\n")[:-1] == [f"{n} {n} {n}" for n in counts] * 2  # in turns
    assert curve(found["curve"]).base_s == pytest.approx(found["runs"][0]["median_s"], rel=1e-4)


def test_what_was_measured_can_be_read_by_other_levels(tmp_path: Path) -> None:
    rates = tmp_path / "rates.json"
    words = ["--name", "train", "--rates-out", str(rates), "--", "true"]
    assert main(["host", "measure", "--cores", *{"1": None, str(len(ALL)): None}, *words]) == 0
    table = RateTable.read(rates)
    assert table.rate("train", "core") == 1.0
    per_s = [table.per_s("train", "core", "runs/s", n) or 0.0 for n in (1, len(ALL))]
    assert table.rate("train", "core", len(ALL)) == pytest.approx(per_s[1] / per_s[0], rel=1e-4)
    assert all(rate.source == "measured" for rate in table.rates.values())


def test_the_table_shows_the_curve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["host", "measure", "--cores", "1", "--", "true"]) == 0
    assert "--curve table:1=" in capsys.readouterr().out


def test_a_fit_of_what_amdahl_says_is_exact() -> None:
    found = Measurement("train", [MeasuredRuns(n, (2 + 10 / n,)) for n in (1, 2, 4, 8)])
    assert found.fit_error == pytest.approx(0, abs=1e-9)
    assert curve(found.fit).speed(4) == pytest.approx(12 / 4.5, rel=1e-5)
    assert found.curve == "table:1=12,2=7,4=4.5,8=3.25"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """As in a terminal, also where tests run in the background and Ctrl-C is not for them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupted_measurement_leaves_nothing_behind(tmp_path: Path, interruptible: None) -> None:
    pid = tmp_path / "pid"
    with pytest.raises(KeyboardInterrupt):
        run_s(["sh", "-c", f"echo $$ > {pid}; sleep 0.5; kill -INT $PPID; exec sleep 60"], ALL[:1], os.environ)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


@pytest.mark.parametrize(("command", "said"), [(["false"], "exit code 1"), (["sh", "-c", "echo no; exit 3"], ": no")])
def test_a_program_that_fails_is_no_measurement(command: list[str], said: str) -> None:
    with pytest.raises(DovetailError, match=said):
        run_s(command, ALL[:1], os.environ)


@pytest.mark.parametrize(
    ("command", "counts", "repeats", "said"),
    [
        (["true"], [len(ALL) + 1], 1, "which is what there is"),
        (["true"], [0], 1, "which is what there is"),
        (["true"], [1, 1], 1, "each once"),
        (["true"], [1], 0, "repeats: expected int >= 1"),
        ([], [1], 1, "expected a program"),
        (["/no/such/program"], [1], 1, "cannot run /no/such/program: No such file"),
    ],
)
def test_what_cannot_be_measured_is_refused(command: list[str], counts: list[int], repeats: int, said: str) -> None:
    with pytest.raises(InputError, match=said):
        measure(*command, cores=counts, repeats=repeats)
