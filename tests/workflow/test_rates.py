"""Rate tables in a workflow: speeds, items per second and switches, under its own names, from every writer."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.core.events import Start
from dovetail.core.journal import Reader
from dovetail.core.rates import Link, Rate, RateTable, Switch
from dovetail.workflow.check import check_journal
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.rates import ModelRates, model_rates
from dovetail.workflow.problem import load
from dovetail.workflow.simulate import run as simulated

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG: dict[str, Any] = {
    "models": {
        "chat": {
            "memory_gb": 8,
            "gpus_required": 1,
            "load_time_seconds": 10,
            "token_mean": 120,
            "tokens_per_second": 60,
        },
        "vit": {"memory_gb": 4, "gpus_required": 2, "load_time_seconds": 5, "measured_as": "google/vit"},
    },
    "workflows": {
        "talk": {"nodes": [{"id": "say", "model": "chat"}]},
        "look": {"nodes": [{"id": "see", "model": "vit"}]},
    },
    "gpu_types": {"fast": {"speed": 2.0}, "slow": {"measured_as": "cuda:1"}},
    "gpus": "fast:2,slow:2",
}


def write(folder: Path, name: str, content: Any) -> Path:
    (folder / name).write_text(json.dumps(content))
    return folder / name


def known(tmp_path: Path, *rates: Rate, switches: tuple[Switch, ...] = ()) -> ModelRates:
    problem = load(write(tmp_path, "c.json", CONFIG), write(tmp_path, "r.json", {"requests": []}))
    return model_rates(read_system(tmp_path / "c.json"), problem.pool, RateTable(rates, switches))


def test_a_relative_rate_is_found_under_the_configurations_names(tmp_path: Path) -> None:
    found = known(tmp_path, Rate("google/vit", "cuda:1", 0.3, width=2), Rate("chat", "fast", 1.5))
    assert found.table.rate("vit", "slow", 2) == 0.3
    assert found.table.rate("chat", "fast") == 1.5
    assert (found.item_s, found.ignored) == ({}, [])


def test_absolute_rates_give_seconds_per_item_and_the_ratio_of_speeds(tmp_path: Path) -> None:
    """The first type known, `fast`, runs at its speed 2: 50 items take 1 s there and 5 s on the other."""
    rates = Rate("chat", "fast", 50.0, unit="tokens/s"), Rate("chat", "cuda:1", 10.0, unit="tokens/s")
    found = known(tmp_path, *rates, Rate("chat", "slow", 9.0))
    assert found.item_s == {"chat": 2 / 50}
    assert 50 * found.item_s["chat"] / (found.table.rate("chat", "fast") or 0) == pytest.approx(1.0)
    assert 50 * found.item_s["chat"] / (found.table.rate("chat", "slow") or 0) == pytest.approx(5.0)


def test_a_wide_model_takes_the_rate_of_its_width_else_of_one_device(tmp_path: Path) -> None:
    one = Rate("google/vit", "cuda:1", 8.0, unit="items/s")
    assert known(tmp_path, one).item_s == {"vit": 1 / 8}
    assert known(tmp_path, one, Rate("google/vit", "cuda:1", 12.0, width=2, unit="items/s")).item_s == {"vit": 1 / 12}


def test_two_units_for_one_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'chat' has rates in items/s and in tokens/s"):
        known(tmp_path, Rate("chat", "fast", 5.0, unit="items/s"), Rate("chat", "slow", 5.0, unit="tokens/s"))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (Rate("chatt", "fast", 2.0), "kind 'chatt' is not known; did you mean 'chat'"),
        (Rate("chat", "fasst", 2.0), "device 'fasst' is not known; did you mean 'fast'"),
        (Switch("chat", 2.0, "google/vitt"), "from 'google/vitt' is not known; did you mean 'google/vit'"),
    ],
)
def test_a_slip_in_a_name_is_refused(tmp_path: Path, table: Rate | Switch, message: str) -> None:
    with pytest.raises(InputError, match=message):
        known(
            tmp_path,
            *([table] if isinstance(table, Rate) else []),
            switches=() if isinstance(table, Rate) else (table,),
        )


def test_what_the_configuration_does_not_have_is_ignored_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RateTable([Rate("newton", "cpu", 2.0)], links=[Link("a", "b", 100.0)]).write(tmp_path / "rates.json")
    words = ["--config", str(write(tmp_path, "c.json", CONFIG)), "--rates", str(tmp_path / "rates.json")]
    requests = write(tmp_path, "r.json", {"requests": [{"request_id": "a", "workflow_id": "talk"}]})
    assert main(["workflow", "validate", *words, "--requests", str(requests)]) == 0
    err = capsys.readouterr().err
    assert "the rate table's kind 'newton' is nothing that" in err
    assert "device 'cpu'" in err


def run(folder: Path, requests: list[dict[str, Any]], **more: Any) -> dict[str, Start]:
    """Run, check against the files, decide again; the starts by request."""
    config, rows = write(folder, "c.json", CONFIG | more), write(folder, "r.json", {"requests": requests})
    rates = folder / "rates.json" if (folder / "rates.json").exists() else None
    journal = folder / "journal.jsonl"
    simulated(load(config, rows, rates=rates), "baseline", journal=journal)
    assert check_journal(journal, config, rows).faults == []
    assert main(["replay", str(journal)]) == 0
    return {entry.event.job: entry.event for entry in Reader(journal) if isinstance(entry.event, Start)}


def test_items_take_as_long_as_the_rate_of_the_gpu_says(tmp_path: Path) -> None:
    rates = [{"kind": "chat", "device": "fast", "rate": 50.0, "unit": "tokens/s"}]
    rates += [{"kind": "chat", "device": "cuda:1", "rate": 10.0, "unit": "tokens/s"}]
    write(tmp_path, "rates.json", {"rates": rates})
    asked = [{"request_id": f"r{i}", "workflow_id": "talk", "node_items": {"say": 100}} for i in range(4)]
    asked[3] = {"request_id": "r3", "workflow_id": "talk"}  # 120 tokens, as the model has on average
    starts = run(tmp_path, asked)
    per_s = {0: 50.0, 1: 50.0, 2: 10.0, 3: 10.0}
    for name, start in starts.items():
        items = 120 if name == "r3" else 100
        assert start.run_s == pytest.approx(items / per_s[start.devices[0]]), name
    assert {gpu for start in starts.values() for gpu in start.devices} == {0, 1, 2, 3}


def test_switches_of_a_table_are_prices_cold_ones_too(tmp_path: Path) -> None:
    switches = [{"to": "chat", "seconds": 1.25}, {"to": "google/vit", "from": "chat", "seconds": 0.75}]
    write(tmp_path, "more.json", {"switches": [*switches, {"to": "chat", "from": "google/vit", "seconds": 9.0}]})
    write(tmp_path, "rates.json", {"switches": [{"to": "chat", "seconds": 1.5}]})  # --rates counts more
    asked = [{"request_id": f"c{i}", "workflow_id": "talk", "node_execution_times": {"say": 1}} for i in range(4)]
    starts = run(tmp_path, [*asked, {"request_id": "v", "workflow_id": "look"}], rates="more.json")
    assert {starts[f"c{i}"].setup_s for i in range(4)} == {1.5}
    assert starts["v"].setup_s == 0.75


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"workflow_id": "look", "node_items": {"see": 3}}, "no rate table knows how many items of 'vit'"),
        ({"workflow_id": "talk", "node_items": {"say": 0}}, "node_items.say: .*expected a positive number"),
        ({"workflow_id": "talk", "node_items": {"sai": 1}}, "not a node of workflow 'talk'; did you mean 'say'"),
        (
            {"workflow_id": "talk", "node_items": {"say": 1}, "node_execution_times": {"say": 1}},
            "has a time as well; expected items or seconds",
        ),
    ],
)
def test_items_that_cannot_be_used_are_a_fault(tmp_path: Path, request_: dict[str, Any], message: str) -> None:
    write(tmp_path, "rates.json", {"rates": [{"kind": "chat", "device": "fast", "rate": 5.0, "unit": "items/s"}]})
    with pytest.raises(InputError, match=message):
        run(tmp_path, [{"request_id": "a"} | request_])


# --- what the other levels write ------------------------------------------------------------------


def test_a_table_that_dispatch_tune_wrote(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def update(batch):\n    return batch * 2.0\n")
    words = ["dispatch", "tune", f"{tmp_path / 'model.py'}:update", "--shape", "2000,4", "--kind", "chat"]
    assert main([*words, "--types", "cuda:1", "--out", str(tmp_path / "rates.json")]) == 0
    table = RateTable.read(tmp_path / "rates.json")
    assert {(rate.kind, rate.device) for rate in table.rates.values()} == {("chat", "cuda:1")}
    starts = run(
        tmp_path, [{"request_id": "a", "workflow_id": "talk", "node_execution_times": {"say": 3}}], gpus="slow:1"
    )
    assert starts["a"].run_s == pytest.approx(3.0)  # one device is its own reference


def _layer(number: int, seconds: float) -> dict[str, Any]:
    return {"layer": number, "time": seconds, "shape_in": [[4]], "shape_out": [[4]], "memory": 1.0}


def test_a_table_that_pipeline_convert_wrote(tmp_path: Path) -> None:
    for device, times in (("fast", [0.25, 0.25]), ("cuda:1", [1.0, 1.5])):
        profile = {"model_name": "google/vit", "batch_size": 4, "dtype": "torch.float32", "layers": 2}
        profile |= {"profile_data": [_layer(i, s) for i, s in enumerate(times, start=1)]}
        write(tmp_path, "profile.yml", profile)
        words = ["pipeline", "convert", device, "-i", str(tmp_path / "profile.yml"), "-o", str(tmp_path / "types.yml")]
        words += ["--memory-mb", "1000", "--bandwidth-mbps", "100"]
        assert main([*words, "--rates", str(tmp_path / "rates.json"), "--reference", "fast"]) == 0
    starts = run(
        tmp_path, [{"request_id": f"v{i}", "workflow_id": "look", "node_execution_times": {"see": 3}} for i in (0, 1)]
    )
    assert {start.devices: start.run_s for start in starts.values()} == {(0, 1): 3.0, (2, 3): pytest.approx(15.0)}


def test_a_table_that_host_measure_wrote(tmp_path: Path) -> None:
    """A program as a model, cores as devices: it takes as long as it took, and twice as long for two runs."""
    words = ["host", "measure", "--cores", "1", "--name", "chat", "--rates-out", str(tmp_path / "rates.json")]
    assert main([*words, "--", sys.executable, "-c", "sum(range(1000))"]) in (None, 0)
    took_s = 1 / (RateTable.read(tmp_path / "rates.json").per_s("chat", "core", "runs/s") or 0)
    asked = [{"request_id": f"r{i}", "workflow_id": "talk", "node_items": {"say": i}} for i in (1, 2)]
    starts = run(tmp_path, asked, gpu_types={"core": {}}, gpus="core:2")
    assert starts["r1"].run_s == pytest.approx(took_s)
    assert starts["r2"].run_s == pytest.approx(2 * took_s)


def test_a_table_that_pipeline_plan_wrote(tmp_path: Path) -> None:
    """A chain of devices is one device of the workflow: the plan's throughput is its rate."""
    files = zip(("-M", "-T", "-D"), ("models.yml", "device_types.yml", "devices.yml"), strict=True)
    words = [word for flag, name in files for word in (flag, str(EXAMPLES / "pipeline" / name))]
    assert main(["pipeline", "plan", "-m", "encoder", *words, "--rates-out", str(tmp_path / "rates.json")]) == 0
    [rate] = RateTable.read(tmp_path / "rates.json").rates.values()
    assert (rate.kind, rate.unit) == ("encoder", "items/s")
    models = {"encoder": {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 5}}
    workflows = {"embed": {"nodes": [{"id": "encode", "model": "encoder"}]}}
    asked = [{"request_id": "a", "workflow_id": "embed", "node_items": {"encode": 640}}]
    chains = {"rig": {"measured_as": rate.device}}
    starts = run(tmp_path, asked, models=models, workflows=workflows, gpu_types=chains, gpus="rig:1")
    assert starts["a"].run_s == pytest.approx(640 / rate.rate)


def test_reading_has_a_rate_of_its_own(tmp_path: Path) -> None:
    rates = [
        Rate("chat", device, rate, unit="prefill tokens/s") for device, rate in (("fast", 1000.0), ("slow", 250.0))
    ]
    found = known(tmp_path, *rates, Rate("chat", "fast", 50.0, unit="tokens/s"))
    assert found.prefill_s == {"chat": 2 / 1000}
    assert found.item_s == {"chat": 2 / 50}
    assert found.table.per_s("chat", "fast", "prefill tokens/s") == 2.0
    assert found.table.per_s("chat", "slow", "prefill tokens/s") == 0.5


def test_tokens_take_what_reading_and_writing_take_on_their_gpu(tmp_path: Path) -> None:
    """500 tokens are read in 0.5 s or 2 s; 100 are written in 2 s, or on the slow GPU, of speed 1, in 4 s."""
    rates = [
        {"kind": "chat", "device": "fast", "rate": 1000.0, "unit": "prefill tokens/s"},
        {"kind": "chat", "device": "cuda:1", "rate": 250.0, "unit": "prefill tokens/s"},
        {"kind": "chat", "device": "fast", "rate": 50.0, "unit": "tokens/s"},
    ]
    write(tmp_path, "rates.json", {"rates": rates})
    tokens = {"say": {"input": 500, "output": 100}}
    asked = [{"request_id": f"r{i}", "workflow_id": "talk", "node_tokens": tokens} for i in range(4)]
    expected = {0: (2.5, 0.5), 1: (2.5, 0.5), 2: (6.0, 2.0), 3: (6.0, 2.0)}
    for start in run(tmp_path, asked).values():
        assert (start.run_s, start.first_s) == pytest.approx(expected[start.devices[0]])


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([{"concurrency": 0}], "rates.0.concurrency: expected at least 1 at once, found 0"),
        ([{"concurrency": 4}], "the rate of 'chat' on 'fast' at 4 at once is known, but not that of one alone"),
        ([{"concurrency": 4, "unit": "tokens/s"}], "the rate of 'chat' on 'fast' at 4 at once is known, but not"),
        ([{}, {"concurrency": 4, "unit": "prefill tokens/s"}], "'chat' reads prefill tokens/s at 4 at once"),
    ],
)
def test_rates_at_once_that_cannot_be_used(tmp_path: Path, rates: list[dict[str, Any]], message: str) -> None:
    write(tmp_path, "rates.json", {"rates": [{"kind": "chat", "device": "fast", "rate": 0.5} | rate for rate in rates]})
    with pytest.raises(InputError, match=message):
        run(tmp_path, [])


def test_rates_at_once_are_kept_relative_to_one_alone(tmp_path: Path) -> None:
    rates = Rate("chat", "fast", 50.0, unit="tokens/s"), Rate("chat", "fast", 30.0, unit="tokens/s", concurrency=8)
    found = known(tmp_path, *rates)
    assert found.table.rate("chat", "fast") == 2.0
    assert found.table.at_once("chat", "fast") == {1: 2.0, 8: pytest.approx(1.2)}
