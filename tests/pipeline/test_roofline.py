"""Estimates: arithmetic counted exactly, the slower side wins, and nothing pretends to be measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from dovetail.core.errors import InputError
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import Chain, ModelSpec
from dovetail.pipeline.profile.roofline import PEAKS, Cost, Peak, count, estimate_chain, peak

torch = pytest.importorskip("torch")

EXAMPLE = f"{Path(__file__).parents[2] / 'examples/pipeline/transformer.py'}:encoder"
DEVICE = Peak(name="x", tflops={"torch.float32": 1.0}, memory_gbps=100.0, operation_s=1e-6)


@pytest.fixture(scope="module", params=["sequential", "graph"])
def chain(request: pytest.FixtureRequest) -> Chain:
    arguments = {"blocks": 2, "width": 32, "heads": 2, "sequence": 8}
    return load(ModelSpec(source=EXAMPLE, arguments=arguments, cut=request.param))


def test_arithmetic_is_counted_exactly(chain: Chain) -> None:
    """Matrix products alone count: four of them and two with the sequence in attention, eight times w*w in the MLP."""
    batch, tokens, width = 4, 8, 32
    value = chain.inputs(batch, "torch.float32", "meta")
    _, attention, _ = count(chain.part(1, 1, "meta"), value)
    _, mlp, _ = count(chain.part(2, 2, "meta"), value)
    assert attention.flops == 2 * batch * tokens * (4 * width * width + 2 * tokens * width)
    assert mlp.flops == 2 * batch * tokens * 8 * width * width
    values = batch * tokens * width
    weights = 8 * width * width + 5 * width + 2 * width
    # Norm, widen, gelu, narrow, add: each reads and writes; of the last, both operands.
    assert mlp.moved_bytes >= 4 * ((2 + 1 + 4 + 4 + 4 + 4 + 1 + 3) * values + weights)
    assert mlp.operations == 5


def test_the_slower_of_arithmetic_and_memory_counts() -> None:
    arithmetic, memory = Cost(10**12, 10**6, 10), Cost(10**6, 10**11, 10)
    assert arithmetic.seconds(DEVICE, "torch.float32", 0.5) == pytest.approx(2.0 + 1e-5)
    assert memory.seconds(DEVICE, "torch.float32", 1.0) == pytest.approx(1.0 + 1e-5)
    with pytest.raises(InputError, match=r"x: no figure for torch.float16; known: torch.float32"):
        memory.seconds(DEVICE, "torch.float16", 1.0)


def test_an_estimate_says_so_and_grows_with_the_batch(chain: Chain) -> None:
    small, large = (estimate_chain(chain, peak("h200"), size, "torch.float16") for size in (1, 4096))
    assert small.source == "estimated"
    assert small.device == "NVIDIA H200 SXM"
    assert all(a.time_s < b.time_s for a, b in zip(small.profile, large.profile, strict=True))
    assert [layer.shape_out for layer in small.profile] == [((8, 32),)] * 4
    assert small.whole_s == pytest.approx(small.sum_s)
    assert small.profile[0].memory_mib * 2**20 == 2 * (4 * 32 * 32 + 4 * 32 + 2 * 32)


def test_bad_requests_are_refused(chain: Chain) -> None:
    with pytest.raises(InputError, match="no published figures of 'h20' here; did you mean 'h200'"):
        peak("h20")
    with pytest.raises(InputError, match="efficiency: expected more than 0"):
        estimate_chain(chain, DEVICE, efficiency=0)
    with pytest.raises(InputError, match="batch size"):
        estimate_chain(chain, DEVICE, 0)


def test_every_published_figure_is_plausible() -> None:
    for device in PEAKS.values():
        assert 0 < device.tflops["torch.float32"] < 1000
        assert 10 < device.memory_gbps < 10_000
