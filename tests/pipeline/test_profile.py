"""Profiling a chain: what is measured, counted and put back in place."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dovetail.core.errors import InputError
from dovetail.pipeline.hardware import BUSY, Disturbance, OtherPrograms, _processor_s, placed_on
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import Chain, ModelSpec
from dovetail.pipeline.profile.measure import Effort, highest_use, profile_chain, weight_bytes
from tests.waiting import until

torch = pytest.importorskip("torch")

EXAMPLE = f"{Path(__file__).parents[2] / 'examples/pipeline/transformer.py'}:encoder"
QUICK = Effort(1, 3, 3)


@pytest.fixture(scope="module")
def chain() -> Chain:
    return load(ModelSpec(source=EXAMPLE, arguments={"blocks": 2, "width": 16, "heads": 2, "sequence": 5}))


def test_every_layer_has_time_memory_and_shapes(chain: Chain) -> None:
    told: list[float] = []
    found = profile_chain(chain, 3, effort=QUICK, done=told.append)
    assert (found.model, found.layers, found.batch_size, found.dtype) == ("encoder", 4, 3, "torch.float32")
    assert found.source == "measured"
    assert [layer.name for layer in found.profile] == ["attention1", "mlp1", "attention2", "mlp2"]
    assert all(layer.time_s > 0 and layer.spread_s >= 0 and layer.repeats == 3 for layer in found.profile)
    assert all(layer.shape_in == layer.shape_out == ((5, 16),) for layer in found.profile)
    attention = 4 * (2 * 16 + 48 * 16 + 48 + 16 * 16 + 16)
    assert found.profile[0].memory_mib * 2**20 == attention
    assert found.sum_s == pytest.approx(sum(layer.time_s for layer in found.profile))
    assert found.whole_s > 0
    assert told == sorted(told)
    assert told[-1] == 1.0


def test_half_precision_halves_the_weights_and_leaves_the_chain_as_it_was(chain: Chain) -> None:
    full, half = (profile_chain(chain, 1, dtype, effort=QUICK) for dtype in ("torch.float32", "torch.bfloat16"))
    for one, two in zip(full.profile, half.profile, strict=True):
        assert two.memory_mib == one.memory_mib / 2
        assert two.activation_mib == pytest.approx(one.activation_mib / 2)
    assert weight_bytes(chain.layers[0], "torch.float32") == full.profile[0].memory_mib * 2**20
    assert {p.dtype for p in chain.layers[0].parameters()} == {torch.float32}  # type: ignore[attr-defined]


def test_some_layers_can_be_measured_alone(chain: Chain) -> None:
    found = profile_chain(chain, 2, first=2, last=3, effort=QUICK)
    assert [layer.layer for layer in found.profile] == [2, 3]
    assert found.layers == 4


def test_a_slow_layer_is_measured_as_slow() -> None:
    """Times belong to their layers: of two that sleep, the second sleeps four times as long."""

    class Sleep(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self, seconds: float) -> None:
            super().__init__()
            self.seconds = seconds

        def forward(self, x: Any) -> Any:
            time.sleep(self.seconds)
            return x

    chain = Chain("sleeper", [Sleep(0.002), Sleep(0.008)], ["a", "b"], shapes=((1,),))
    found = profile_chain(chain, 1, effort=QUICK)
    assert found.profile[0].time_s >= 0.002
    assert found.profile[1].time_s >= 0.008
    assert found.whole_s >= 0.010


def test_the_highest_use_is_of_what_lives_at_one_time() -> None:
    def run(x: Any) -> Any:
        y = x + 1  # 4000 bytes
        y = y * 2  # 8000 with the one before
        return y.view(10, 100) + y.view(10, 100)  # again 8000; views cost nothing

    out: Any
    out, most = highest_use(run, torch.zeros(1000), "cpu")
    assert most == 8000
    assert out.shape == (10, 100)


def test_threads_and_cores_are_put_back() -> None:
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    core = min(cores)
    with placed_on(None, [core]):
        assert os.sched_getaffinity(0) == {core}
        assert torch.get_num_threads() == 1
    with placed_on(3):
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == threads
    assert os.sched_getaffinity(0) == cores


def test_bad_requests_are_refused(chain: Chain) -> None:
    with pytest.raises(InputError, match="batch size: expected 1 or more, found 0"):
        profile_chain(chain, 0)
    with pytest.raises(InputError, match="layers 2 to 9"):
        profile_chain(chain, 1, first=2, last=9)
    with pytest.raises(InputError, match="device 'gpu': expected cpu, cuda"):
        profile_chain(chain, 1, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="this machine has 0 CUDA devices"):
            profile_chain(chain, 1, device="cuda")
    with pytest.raises(InputError, match="expected 1 <= least <= most"):
        Effort(1, 5, 2)
    with pytest.raises(InputError, match="cores 4095: expected some of"), placed_on(None, [4095]):
        pass
    with pytest.raises(InputError, match="threads: expected 1 or more"), placed_on(0):
        pass


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda(chain: Chain) -> None:
    found = profile_chain(chain, 2, device="cuda", effort=QUICK)
    assert all(layer.time_s > 0 and layer.activation_mib > 0 for layer in found.profile)


class Watch:
    """Stands in for what the system tells of other programs."""

    shares: list[float]

    def share(self) -> float:
        return self.shares.pop(0)


@pytest.mark.parametrize(
    ("shares", "calm_s", "busy"),
    [
        ([0.04], 60.0, 0.0),  # next to nothing is nothing
        ([0.4], 0.0, 0.4),
        ([0.4, 0.3, 0.01, 0.02], 60.0, 0.0),  # it waits until it is calm, and measures again
        ([0.4, 0.01, 0.2, 0.01, 0.0], 60.0, 0.0),  # also if it was disturbed then
    ],
)
def test_what_other_programs_disturb_is_marked_or_repeated(
    chain: Chain, monkeypatch: pytest.MonkeyPatch, shares: list[float], calm_s: float, busy: float
) -> None:
    monkeypatch.setattr(Watch, "shares", shares, raising=False)
    monkeypatch.setitem(profile_chain.__globals__, "Disturbance", Watch)
    assert profile_chain(chain, 1, effort=Effort(0, 1, 1, calm_s=calm_s)).busy == busy
    assert shares == []


def test_who_keeps_cores_busy_is_told_by_what_is_idle(tmp_path: Path) -> None:
    stat = tmp_path / "stat"  # busy time is counted in samples, which miss or meet processes that are paused in step
    stat.write_text("cpu  99999 0 99999 50 7 0 0 3 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n")
    ticks = os.sysconf("SC_CLK_TCK")
    assert _processor_s(str(stat)) == (57 / ticks, 3 / ticks)
    cores = os.cpu_count() or 1
    assert _processor_s("/nonexistent")[0] >= time.monotonic() * cores - cores  # nobody is known: all was idle


def test_a_neighbour_on_the_same_core_is_noticed() -> None:
    core, of_all = min(os.sched_getaffinity(0)), BUSY / (os.cpu_count() or 1)  # it has half of one core at most
    with placed_on(cores=[core]), subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        try:
            watch, others = Disturbance(), OtherPrograms(time.process_time())
            until(lambda: sum(range(100_000)) and watch.share() > BUSY and others.share(time.process_time()) > of_all)
        finally:
            neighbour.kill()
