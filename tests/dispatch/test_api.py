"""The level from Python: what its functions take, give back, and say of what is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dovetail import dispatch, read_journal
from dovetail.core.errors import InputError, PolicyError
from dovetail.dispatch import Device, Dispatcher, View

CURVES = {"devices": {"gpu": {"latency_s": 0.004, "rate": 2e5}, "cpu": {"points": [[1, 0.001], [1000, 0.03]]}}}
TWO = [Device("first", where="cpu"), Device("second", where="cpu")]
EXAMPLE = Path(__file__).parents[2] / "examples" / "dispatch" / "curves.yml"


class Halves:
    """Each device that is free takes half of what is left."""

    def next(self, device: int, view: View) -> int:
        return max(1, int(min(view.remaining, 1e6) / 2))


def test_a_simulated_run_tells_all_of_itself(tmp_path: Path) -> None:
    run = dispatch.simulate(CURVES, items=20_000, slower={"cpu": 2}, noise=0.1, seed=3, journal=tmp_path / "run.jsonl")
    assert run.journal == tmp_path / "run.jsonl"
    assert run.header.policy == run.metrics["policy"] == "finish_together"
    assert sum(run.items.values()) == 20_000
    assert run.metrics["makespan_s"] == run.makespan_s
    assert run.bound is not None
    assert 0 < run.bound <= run.makespan_s
    assert run.check().valid
    assert run.replay().difference is None
    assert "chunk 0" in str(run.explain("chunk 0"))
    assert "<svg" in run.plot().svg
    assert len(run.frame()["job"]) == run.metrics["chunks"]
    assert "cpu" in run.report(tmp_path / "page.html").read_text()
    assert "20,000 items in" in repr(run)
    again = read_journal(run.journal)
    assert (again.metrics["makespan_s"], again.bound) == (run.makespan_s, run.bound)


def test_a_journal_that_nobody_asked_for_goes_with_the_run() -> None:
    run = dispatch.simulate(CURVES, items=1000)
    path = run.journal
    assert path.is_file()
    del run
    assert not path.exists()
    with pytest.raises(InputError, match="was not recorded"):
        _ = dispatch.simulate(CURVES, items=1000, journal=False).journal


def test_curves_may_be_a_file_what_stands_in_it_devices_or_measurements(tmp_path: Path) -> None:
    file = tmp_path / "curves.json"
    dispatch.tune(torch.sin, torch.rand(3000), cache=False).save_curves(file)
    assert [device.name for device in dispatch.load(file)] == ["cpu"]
    assert [device.name for device in dispatch.load(str(EXAMPLE))] == ["a100", "l4", "cpu"]
    devices = dispatch.load(CURVES, slower={"cpu": 3})
    assert [device.slower for device in devices] == [1.0, 3.0]
    by_devices = dispatch.simulate(devices, items=9000)
    assert by_devices.metrics == dispatch.simulate(CURVES, items=9000, slower={"cpu": 3}).metrics
    points = [{"device": "cpu", "size": n, "seconds": s} for n, s in ((1, 0.001), (1000, 0.03))]
    assert dispatch.load(points)[0].curve.points == devices[1].curve.points
    frames: Any = pytest.importorskip("pandas")
    assert dispatch.load(frames.DataFrame(points))[0].curve.points == devices[1].curve.points


@pytest.mark.parametrize("policy", [Halves, Halves(), f"{__file__}:Halves"], ids=["class", "object", "file"])
def test_a_policy_of_ones_own_goes_where_a_name_does(policy: Any) -> None:
    run = dispatch.simulate(CURVES, items=4096, policy=policy)
    assert run.header.policy.endswith("Halves")
    assert run.check().valid
    assert run.replay().difference is None
    assert dispatch.compare(CURVES, items=4096, policies=[policy, "guided"])[0]["makespan_s"] == run.makespan_s
    with Dispatcher(torch.sin, TWO, policy, cache=False, journal=True) as dispatcher:
        outcome = dispatcher.attempt(torch.rand(256))
        assert outcome.recorded.replay().difference is None


class Answers:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def next(self, device: int, view: View) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [2.5, None, "all"])
def test_a_policy_that_answers_no_number_is_told(answer: Any) -> None:
    told = f"Answers.next gave {answer!r}, expected a whole number of items"
    with pytest.raises(PolicyError, match=told):
        dispatch.simulate(CURVES, items=100, policy=Answers(answer))
    with (
        Dispatcher(torch.sin, "cpu", Answers(answer), cache=False) as dispatcher,
        pytest.raises(PolicyError, match=told),
    ):
        dispatcher.run(torch.rand(100))


def test_a_policy_may_answer_with_numbers_of_numpy() -> None:
    run = dispatch.simulate(CURVES, items=100, policy=Answers(np.int64(30)))
    assert run.metrics["chunks"] == 4
    assert run.check().valid


def test_fixed_takes_the_sizes_it_is_given_else_those_of_the_curves() -> None:
    assert dispatch.simulate(CURVES, items=10_000, policy="fixed", options={"size": 100}).metrics["chunks"] == 100
    assert 2 < dispatch.simulate(CURVES, items=10_000, policy="fixed").metrics["chunks"] < 100


def test_compare_has_a_row_for_each_policy_and_each_device_alone() -> None:
    found = dispatch.compare(CURVES, items=5000, policies="guided,fixed")
    assert [row["policy"] for row in found] == ["guided", "fixed", "gpu alone", "cpu alone"]
    one = dispatch.simulate(CURVES, items=5000, policy="guided")
    assert found[0] == {key: one.metrics[key] for key in ("policy", "makespan_s", "efficiency", "chunks")}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "expected either curves or model"),
        ({"curves": CURVES, "model": "radret"}, "expected either curves or model"),
        ({"model": ["radret"]}, "no such model"),
        ({"curves": "nowhere.yml"}, "nowhere.yml"),
        ({"curves": 3}, "curves: expected a path"),
        ({"curves": {"devices": {"a": {"rate": 0, "latency_s": 1}}}}, "curves: devices.a: expected latency_s >= 0"),
        ({"curves": {"devices": {"a": {"rte": 1}}}}, "curves: devices.a.rte: unknown key"),
        ({"curves": [{"device": "a", "size": "x", "seconds": 1}]}, "curves: 0.size: expected float, found str"),
        ({"curves": [{"device": "a", "size": 1, "seconds": -1}]}, "curves: devices.a.points: expected"),
        ({"curves": CURVES, "items": 2.5}, "items 2.5: expected a whole number"),
        ({"curves": CURVES, "items": -1}, "items -1: expected a whole number"),
        ({"curves": CURVES, "items": None}, "items None: expected a whole number"),
        ({"curves": CURVES, "noise": "much"}, "noise 'much': expected a number"),
        ({"curves": CURVES, "seed": "x"}, "seed 'x': expected a whole number"),
        ({"curves": CURVES, "slower": {"tpu": 2}}, "slower tpu: no such device"),
        ({"curves": CURVES, "slower": 2}, "slower 2: expected factors by device"),
        ({"curves": CURVES, "policy": "guied"}, "did you mean 'guided'"),
        ({"curves": CURVES, "policy": None}, "expected a dispatch policy"),
        ({"curves": CURVES, "policy": object()}, "policy object: expected an object with next"),
        ({"curves": CURVES, "policy": "guided", "options": {"kk": 1}}, "has no option 'kk'"),
        ({"curves": CURVES, "policy": Halves(), "options": {"k": 1}}, "has its options already"),
        ({"curves": CURVES, "journal": 3}, "journal: expected a path, found 3"),
        ({"curves": CURVES, "journal": "nowhere/at/all/run.jsonl"}, "nowhere/at/all/run.jsonl"),
    ],
)
def test_wrong_values_are_told_in_a_sentence(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dispatch.simulate(**given)


def test_a_journal_is_not_written_over_the_curves(tmp_path: Path) -> None:
    file = tmp_path / "curves.yml"
    file.write_text(EXAMPLE.read_text())
    with pytest.raises(InputError, match="is the same file as the input"):
        dispatch.simulate(file, journal=str(file))
    assert file.read_text() == EXAMPLE.read_text()


def test_an_outcome_has_its_figures_and_with_a_journal_all_the_rest(tmp_path: Path) -> None:
    with Dispatcher(torch.sin, TWO, sizes=100, cache=False, journal=True) as dispatcher:
        with pytest.raises(InputError, match="nothing has run yet"):
            _ = dispatcher.recorded
        outcomes = [dispatcher.attempt(torch.rand(n)) for n in (1000, 2000)]
    for items, outcome in zip((1000, 2000), outcomes, strict=True):
        run = outcome.recorded
        assert sum(outcome.metrics["items"].values()) == sum(run.items.values()) == items
        assert run.metrics["rate"] == outcome.report.rate
        assert run.check().valid
        assert run.replay().difference is None
        assert run.bound is not None
        assert "first" in run.report(tmp_path / "page.html").read_text()
    assert dispatcher.recorded.journal == outcomes[1].recorded.journal != outcomes[0].recorded.journal


def test_without_a_journal_an_outcome_has_its_figures() -> None:
    with Dispatcher(torch.sin, "cpu", sizes=100, cache=False) as dispatcher:
        outcome = dispatcher.attempt(torch.rand(1000))
        assert outcome.metrics["items"] == {"cpu": 1000}
        assert outcome.metrics["policy"] == "fixed"
        with pytest.raises(InputError, match="was not recorded"):
            outcome.recorded.check()
        dispatcher.run(torch.rand(50))  # a direct call
        assert dispatcher.recorded.items == {"cpu": 50}
        assert dispatcher.attempt(torch.rand(0)).metrics["items"] == {}


def test_tune_gives_rates_and_curves() -> None:
    found = dispatch.tune(torch.sin, torch.rand(3000), devices=TWO, kind="sine", types="a,b", cache=False)
    assert [row["device"] for row in found] == ["first", "second"]
    table = found.rates()
    assert table.rate("sine", "a") == 1.0
    assert table.per_s("sine", "b", "items/s") == found.measured[1].rate
    assert dispatch.simulate(found.curves, items=10_000).check().valid
    assert "settled" in repr(found)


def test_bench_has_the_devices_alone_and_together(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    given: dict[str, Any] = {"journal": tmp_path / "run.jsonl", "progress": lambda *counts: seen.append(counts)}
    found = dispatch.bench(torch.sin, torch.rand(2000), devices=TWO, policies=Halves, repeats=1, **given)
    assert [row["run"] for row in found] == ["first alone", "second alone", "Halves"]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert found.recorded.journal == given["journal"]
    assert found.recorded.check().valid
    assert found.recorded.metrics["items"] == found.together[0].items
    options = {"device": "cpu", "sub_batch_size": 100}
    by_type = dispatch.bench(torch.sin, shape=(500, 2), scheduler="SimpleScheduler", options=options, repeats=1)
    assert by_type.together[0].items == {"cpu": 500}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"function": 3, "shape": (3,)}, "3: expected a function or a module, found int"),
        ({"function": torch.sin}, "either batch or shape"),
        ({"function": torch.sin, "shape": (3, 2.5)}, "shape .*: expected at least one size"),
        ({"function": torch.sin, "shape": 3}, "shape 3: expected at least one size"),
        ({"function": torch.sin, "batch": 3.5}, "expected a tensor or a tree of tensors"),
        ({"function": torch.sin, "shape": (3,), "dtype": 3}, "dtype 3: no such type"),
        ({"function": torch.sin, "shape": (3,), "devices": None}, "device None: expected a name"),
        ({"function": torch.sin, "shape": (3,), "devices": "cpu,"}, "devices cpu,: expected names with commas"),
        ({"function": torch.sin, "shape": (3,), "types": ["a", "b"]}, "types a,b: expected 1 different names"),
    ],
)
def test_tune_says_what_is_wrong(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dispatch.tune(**given)


def test_an_error_of_ones_own_function_is_ones_own() -> None:
    def refuse(batch: Any) -> Any:
        raise ZeroDivisionError("no")

    with pytest.raises(ZeroDivisionError):
        dispatch.tune(refuse, torch.rand(10), cache=False)


def test_devices_are_those_that_pytorch_sees() -> None:
    found = dispatch.devices()
    assert found[-1].name == "cpu"
    assert [device.name for device in found[:-1]] == [f"cuda:{i}" for i in range(torch.cuda.device_count())]


WITHOUT = """
import sys
sys.modules["torch"] = None
from dovetail import DovetailError, dispatch
from dovetail.cli import main
run = dispatch.simulate(model="radret", items=50_000)
assert run.check().valid and run.replay().difference is None
assert dispatch.compare(model="radret", items=50_000).rows
for name in ("Dispatcher", "tune", "bench", "devices", "SimpleScheduler"):
    try:
        getattr(dispatch, name)
    except DovetailError as error:
        assert "pip install 'dovetail[torch]'" in str(error), error
    else:
        raise AssertionError(name)
codes = [main(["dispatch", command, "math:sqrt", "--shape", "3"]) for command in ("tune", "bench")]
assert 1 not in codes and 0 not in codes, codes
"""


def test_without_pytorch_simulations_run_and_the_rest_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("pip install 'dovetail[torch]'") == 2
    assert "internal error" not in done.stderr
