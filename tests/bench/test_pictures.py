"""The pictures of README.md are those that their data give, and each of their figures names what measured it."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.figures import ROOT, load
from bench.pictures import FOLDER, PICTURES, read, within

README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_its_data_give(name: str) -> None:
    drawn = PICTURES[name]()
    assert (FOLDER / name).read_text() == drawn, "python -m bench.pictures"
    ElementTree.fromstring(drawn)
    assert f"(docs/img/{name})" in README


def test_there_is_one_bar_for_each_level_with_its_figure() -> None:
    bars = read().level
    assert {bar.level for bar in bars} == {"workflow", "pipeline", "cluster", "host", "dispatch"}
    assert len(bars) == 5
    text = "".join(ElementTree.fromstring((FOLDER / "levels.svg").read_text()).itertext())
    assert all(f"{bar.times:.3g} x" in text for bar in bars)


def test_what_was_predicted_and_measured_names_a_command_that_has_figures() -> None:
    commands = {run.words for run in load()}
    runs = read().runs
    assert {each.command for each in runs} <= commands
    picture = (FOLDER / "fidelity.svg").read_text()
    assert picture.count("<title>") == 1 + sum(len(each.points) for each in runs)
    for level in {each.level for each in runs}:
        pairs = [pair for each in runs if each.level == level for pair in each.points]
        assert f"{level}: {sum(within(*pair) for pair in pairs)} of {len(pairs)} within 10 %" in picture
