"""Figures as data: the ranges are sound, documents quote what was measured, scripts run, and work counts hold."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from bench.figures import PAGE, ROOT, Figure, Run, load, machine_lacks, measure, page, read_measured

RUNS = load()
FIGURES = [figure for run in RUNS for figure in run.figure]
TINY = [run for run in RUNS if run.tiny]


def test_every_figure_has_a_name_and_a_range_of_its_own() -> None:
    names = [figure.name for figure in FIGURES]
    assert len(set(names)) == len(names) > 40
    assert all(figure.least <= figure.most for figure in FIGURES)


def test_what_was_measured_lies_in_its_range() -> None:
    ranges = {figure.name: figure for figure in FIGURES}
    for name, found in read_measured().items():
        assert ranges[name].least <= found.value <= ranges[name].most, name


@pytest.mark.parametrize("figure", [f for f in FIGURES if f.quoted], ids=lambda figure: figure.name)
def test_documents_quote_what_was_measured(figure: Figure) -> None:
    for quotation, number in figure.quotations():
        assert number is not None, f"these words are not there: {quotation}"
        assert figure.least <= number <= figure.most, quotation


def test_the_page_of_figures_is_the_one_that_make_bench_writes() -> None:
    assert PAGE.read_text() == page(read_measured()), "python -m bench --write"


def test_every_script_has_figures() -> None:
    draws, calls_others = {"figures", "pictures"}, {"workflow_live"}
    scripts = {path.stem for path in (ROOT / "bench").glob("[!_]*.py")} - draws - calls_others
    assert {run.script for run in RUNS} == scripts


@pytest.mark.parametrize("script", sorted({run.script for run in RUNS} - {"work"}))
def test_a_script_starts_and_knows_the_words_of_its_runs(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{script}", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for run in RUNS:
        if run.script == script:
            for word in re.findall(r"--[a-z-]+", f"{run.words} {run.tiny}"):
                assert word in done.stdout


@pytest.mark.parametrize("run", TINY, ids=lambda run: run.tiny)
def test_a_script_works_at_a_tiny_size(run: Run) -> None:
    lacks = machine_lacks(run)
    if lacks:
        pytest.skip(lacks)
    output = measure(run.tiny)
    found = 0
    for figure in run.figure:
        try:
            figure.measured(output)
        except LookupError:
            continue  # left out at this size
        found += 1
    assert found


@pytest.mark.parametrize("run", [run for run in RUNS if run.steady], ids=lambda run: run.words)
def test_counts_of_work_stay_in_their_ranges(run: Run) -> None:
    output = measure(run.words)
    outside = {
        f.name: f.measured(output).value for f in run.figure if not f.least <= f.measured(output).value <= f.most
    }
    assert outside == {}
