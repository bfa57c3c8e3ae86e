"""`dovetail pipeline plan` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from dovetail.cli import main

PROFILE = {"batch_size": 8, "dtype": "torch.float32", "time_s": [0.1, 0.2, 0.3, 0.4]}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model = {"layers": 4, "mem_MB": [1.0] * 4, "parameters_in": 10, "parameters_out": [1000] * 4}
    small = {**PROFILE, "batch_size": 1, "time_s": [0.05, 0.1, 0.15, 0.2]}
    types = {
        "fast": {"bw_Mbps": 1000, "mem_MB": 64, "model_profiles": {"m": [PROFILE, small]}, "price_per_hour": 1},
        "slow": {"bw_Mbps": 100, "mem_MB": 64, "model_profiles": {"m": [PROFILE, small]}, "price_per_hour": 1},
    }
    for name, content in {
        "models": {"m": model},
        "device_types": types,
        "devices": {"fast": ["f0", "f1"], "slow": ["s0"]},
    }.items():
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(content))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["pipeline", "plan", "-m", "m", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_json_has_the_figures(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--format", "json", "--what-if")
    found = json.loads(out)
    assert code == 0
    assert found["bottleneck_s"] == pytest.approx(0.4)
    assert found["optimal"] is True
    assert found["bound_s"] == found["bottleneck_s"]
    assert found["throughput_items_s"] == pytest.approx(20.0)
    assert set(found["stages"][0]) >= {
        "host",
        "type",
        "layers",
        "compute_s",
        "send_s",
        "mem_mib",
        "mem_limit_mib",
        "utilisation",
    }
    assert len(found["what_if"]) == 4


def test_yaml_is_the_schedule(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--format", "yaml")
    stages = yaml.safe_load(out)
    assert next(layer for stage in stages for layers in stage.values() for layer in layers) == 1
    assert out.startswith("- ")


def test_the_table_tells_what_binds(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--what-if")
    assert code == 0
    assert "binding: compute on" in out
    assert "+1 fast" in out


def test_of_several_batch_sizes_the_best_is_chosen(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "-b", "1", "8", "--format", "json")
    assert json.loads(out)["batch_size"] == 8


@pytest.mark.parametrize("objective", ["latency", "batch", "devices", "money"])
def test_other_objectives(here: Path, capsys: pytest.CaptureFixture[str], objective: str) -> None:
    code, out, _ = run(capsys, "--objective", objective, "--format", "json")
    assert code == 0
    assert json.loads(out)["objective"] == objective


def test_other_methods_are_no_better(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for method in ("auction", "equal", "speed-proportional", "memory-proportional"):
        code, out, _ = run(capsys, "--method", method, "--format", "json")
        assert code == 0
        assert json.loads(out)["bottleneck_s"] >= 0.4
        assert f"(by {method}" in run(capsys, "--method", method)[1]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--method", "auctoin"), 2, "did you mean 'auction'?"),
        (("--objective", "energy"), 2, "needs watts_busy and watts_idle"),
        (("--first", "nobody"), 2, "'nobody' is not an available host"),
        (("--replicas", "0"), 2, "replicas: expected a positive number"),
        (("--link-bits", "64"), 2, "--link-bits: expected 2 to 16, or 32 for values as they are; found [64]"),
        (("-b", "3"), 1, "no device has a profile of m for batch size 3 and torch.float32"),
        (("-b", "3"), 1, "(it has: torch.float32 with batch size 8, torch.float32 with batch size 1)"),
        (("-b", "0"), 2, "batch size: expected 1 or more, found 0"),
        (("--cuts", "5"), 2, "--cuts 5: m has layers 1 to 4"),
        (("--cuts", "0"), 2, "--cuts 0: m has layers 1 to 4"),
        (("--slack", "-1"), 2, "slack: expected 0 or more, found -1"),
        (("--objective", "devices", "--slack", "nan"), 2, "slack: expected 0 or more, found nan"),
        (("--objective", "pareto", "--what-if"), 2, "--what-if is for one plan"),
        (("--objective", "pareto", "--curves"), 2, "--curves is for one plan"),
        (("--objective", "pareto", "--rates-out", "r.json"), 2, "--rates-out is for one plan"),
        (("--format", "yaml", "--what-if"), 2, "--what-if has no place in a schedule"),
        (("--format", "yaml", "--curves"), 2, "--curves has no place in a schedule"),
        (("--objective", "batch", "--microbatches", "0"), 2, "microbatches: expected 1 or more, found 0"),
        (("--option", "mode=latency"), 2, "--option mode: method exact has no options"),
        (("--method", "equal", "--option", "mode=latency"), 2, "--option mode: method equal has no such option"),
        (("--method", "equal", "--objective", "latency"), 2, "--objective latency: expected method exact"),
        (("--method", "auction", "--max-stages", "2"), 2, "--max-stages: expected method exact, found auction"),
        (("--method", "auction", "--cuts", "2"), 2, "--cuts: expected method exact, found auction"),
        (("--latency-cap-s", "0.0001"), 1, "the least latency possible is 1 s"),
        (("-M", "nothing.yml"), 2, "nothing.yml: no such file"),
    ],
)
def test_what_cannot_be_planned_is_told(
    here: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    found, _, err = run(capsys, *words)
    assert found == code
    assert message in err


def test_the_pareto_front(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--objective", "pareto", "--format", "json")
    found = json.loads(out)
    assert code == 0
    assert found["complete"] is True
    assert found["problem"]["model"] == "m"
    assert [len(point["stages"]) for point in found["points"]] == [3, 2, 1]
    assert found["points"][0]["money_per_item"] is not None
    _, table, _ = run(capsys, "--objective", "pareto", "--points", "2")
    assert "2 of 3 plans" in table
    assert "money/item" in table
    for words in (("-b", "1", "8"), ("--method", "equal"), ("--format", "yaml"), ("--points", "1")):
        assert run(capsys, "--objective", "pareto", *words)[0] == 2
    assert run(capsys, "--objective", "pareto", "--latency-cap-s", "0.0001")[0] == 1


def test_slack_and_curves_are_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--curves", "--format", "json")
    found = json.loads(out)
    assert {"slack_s", "send_slack_s", "mem_slack_mib"} <= set(found["stages"][0])
    assert [chart["title"] for chart in found["curves"]] == [
        "Throughput by number of devices",
        "Throughput by speed of the links",
    ]
    _, table, _ = run(capsys, "--curves")
    assert "slack s" in table
    assert "Throughput by number of devices" in table


def test_the_auction_by_its_old_names_and_with_neighbours(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = {a: {b: {"bw_Mbps": 100} for b in ("f0", "f1", "s0") if b != a} for a in ("f0", "f1", "s0")}
    (here / "world.yml").write_text(yaml.safe_dump(world))
    words = ("--method", "auction", "--links", "world.yml", "--format", "json", "--option")
    code, out, _ = run(capsys, *words, "sched=throughput_ordered", "dev_count=2", "order=s0,f1,f0")
    assert code == 0
    found = json.loads(out)
    assert [stage["host"] for stage in found["stages"]] == ["s0", "f1"]
    assert found["throughput_items_s"] == pytest.approx(8 / found["bottleneck_s"])  # items, not microbatches
    del world["f1"]["s0"]
    (here / "world.yml").write_text(yaml.safe_dump(world))
    _, out, _ = run(capsys, *words, "order=s0,f1,f0")
    assert [stage["host"] for stage in json.loads(out)["stages"]][:2] != ["s0", "f1"]  # one direction is no link
    code, _, err = run(capsys, *words, "strickt_order=true")
    assert code == 2
    assert "did you mean 'strict_order'?" in err


def test_a_plan_with_replicas_is_simulated_and_checked(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "--replicas", "2", "--data-mbps", "10", "--cuts", "4", "--format", "json")
    assert json.loads(out)["stages"][0]["replicas"] == ["f1"]
    (here / "plan.json").write_text(out)
    words = ["pipeline", "simulate", "plan.json", "--journal", "run.jsonl", "--microbatches", "6", "--format", "json"]
    assert main(words) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["makespan_s"] == pytest.approx(figures["predicted_s"])
    assert list(figures["utilisation"]) == ["data host to f0", "f0", "f1", "f0 to data host"]
    assert main(["check", "run.jsonl"]) == 0
    (here / "plan.json").write_text(out.replace('"compute_s"', '"compute"', 1))
    assert main(words) == 2
    assert "unknown key 'compute'; did you mean 'compute_s'?" in capsys.readouterr().err


def test_a_model_without_layers_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = {"layers": 0, "mem_MB": [], "parameters_in": 0, "parameters_out": []}
    (here / "models.yml").write_text(yaml.safe_dump({"m": empty}))
    for more in ([], ["--what-if"], ["--curves"], ["--format", "json"]):
        assert main(["pipeline", "plan", "-m", "m", "-b", "2", *more]) == 2
        printed = capsys.readouterr()
        assert "m has no layers: there is nothing to plan" in printed.err
        assert printed.out == ""


def test_a_schedule_is_not_taken_for_a_plan(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "schedule.yml").write_text("- host-a: [1, 24]\n- host-b: [25, 48]\n")
    assert main(["pipeline", "simulate", "schedule.yml"]) == 2
    assert "schedule.yml: holds a schedule, which says who has which layers" in capsys.readouterr().err


def test_names_of_hosts_are_written_as_they_are(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "devices.yml").write_text("fast: [grün]\n", encoding="utf-8")
    _, out, _ = run(capsys, "--format", "yaml")
    assert "- grün: [1, 4]" in out


def test_a_host_is_mapped_by_the_name_that_it_has(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "devices.yml").write_text("fast: [gpu-0]\n")
    (here / "plan.json").write_text(run(capsys, "--format", "json")[1])
    code = main(["pipeline", "run", "plan.json", "--model", "nowhere.py:none", "--on", "gpu-0=tpu"])
    assert (code, capsys.readouterr().err) == (2, "error: --on gpu-0=tpu: expected cpu, cuda or cuda:N\n")
