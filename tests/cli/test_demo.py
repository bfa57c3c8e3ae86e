"""`dovetail demo`: five levels, each beside the rule of today, on rates that hand over from one to the next."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dovetail import read_journal
from dovetail.cli import main
from dovetail.cli.demo import levels

pytestmark = pytest.mark.xdist_group("demo")  # it is made once
LEVELS = ["dispatch", "pipeline", "workflow", "cluster", "host"]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "new"
    assert main(["demo", "--out", str(out)]) == 0
    return out


def test_one_page_shows_every_level(shown: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (shown / "demo.html").read_text()
    for level in LEVELS:
        assert f">{level.capitalize()}: " in text
    assert text.count("<h3><a href=") == 10
    assert 'id="tab-5" aria-controls="run-5" aria-selected="true"' in text
    assert text.count('aria-selected="true"') == 1
    picture = ElementTree.fromstring((shown / "workflow.svg").read_text())
    assert "shorter" in "".join(picture.itertext())
    assert len(picture.findall("{http://www.w3.org/2000/svg}svg")) == 2
    assert main(["demo", "--out", str(shown), "--format", "json"]) == 0  # again, over what it made itself
    rows = json.loads(capsys.readouterr().out)["levels"]
    assert [row["level"] for row in rows] == LEVELS
    spent = re.findall(r"for ([\d,]+ s)", rows[2]["sentence"])
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    assert f"{spent[0]} above, {spent[1]} below" in readme  # of the picture that it shows
    for row in rows:
        assert row["less_percent"] == pytest.approx(100 * (1 - row["ours_s"] / row["rule_s"]), abs=0.1)
        assert "%" in row["sentence"] or row["level"] in ("pipeline", "workflow")


def test_a_level_works_with_the_rates_of_the_one_below(shown: Path) -> None:
    machine = levels.Machine(2.56e6, 0.6)
    rates = levels.write_rates(machine, shown / "rates.json")
    assert {rate.device: (rate.rate / 2.56e6, rate.source) for rate in rates.rates.values()} == {
        "processor": (1.0, "measured"),
        "card-a": (3.0, "given"),
        "card-b": (2.0, "given"),
    }
    _, chain = levels.pipeline(rates, shown)
    steps = 4 * (20 + 30 + 40)  # of twelve layers
    assert chain.alone_items_s == pytest.approx(3 * 2.56e6 / steps)
    assert chain.alone_items_s < chain.items_s <= 6 * 2.56e6 / steps
    gain = levels.cluster(machine, chain, shown)
    assert f"{chain.alone_items_s / chain.items_s:.1%}".replace("%", " %") in gain.sentence
    assert gain.saved > 0
    gain = levels.workflow(machine, chain, shown)
    assert gain.saved > 0.3
    assert read_journal(shown / "workflow_journal.jsonl").check().valid


@pytest.mark.parametrize("two_cores", [0.5, 0.7, 1.0])
@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_the_host_gains_on_any_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int, two_cores: float
) -> None:
    monkeypatch.setattr(levels, "cores_here", lambda: cores)
    machine = levels.Machine(2.56e6, two_cores)
    assert levels.host(machine, levels.MeasuredChain(1.0, 1.0), tmp_path).saved > 0.1


def test_what_is_measured_makes_sense() -> None:
    machine = levels.measure()
    assert machine.items_s > 0
    assert 0.5 <= machine.two_cores <= 1.0


@pytest.mark.parametrize("items_s", [3e4, 9.39e6, 3e8])
def test_the_gain_of_dispatch_is_what_the_stated_rates_allow(tmp_path: Path, items_s: float) -> None:
    gain = levels.dispatch(levels.Machine(items_s, 0.6), tmp_path)
    (share,) = re.findall(r"reach ([\d.]+) %", gain.sentence)
    done = sum(read_journal(tmp_path / "dispatch_journal.jsonl").metrics["items"].values())
    assert float(share) / 100 == pytest.approx(done / gain.ours_s / (6 * items_s), abs=6e-4)
    assert gain.rule_s == pytest.approx(done / 3 / items_s, rel=1e-3)  # a third of the batch at the processor's rate
    assert gain.saved == pytest.approx(1 - 1 / (2 * float(share) / 100), abs=2e-3)
    assert 0.4 < gain.saved <= 0.5


def test_one_that_was_stopped_can_be_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr(levels, "dispatch", stopped)
        assert main(["demo", "--out", str(out)]) == 130
    assert (out / "rates.json").exists()
    assert "was stopped" in (out / "demo.html").read_text()
    assert main(["demo", "--out", str(out)]) == 0
    assert "was stopped" not in (out / "demo.html").read_text()


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "system_config.yaml").write_text("mine")
    assert main(["demo", "--out", str(tmp_path)]) == 2
    assert "not of a demonstration" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["system_config.yaml"]
