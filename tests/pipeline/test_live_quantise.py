"""Quantised tensors: what comes back, how small it is, and what is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch: Any = pytest.importorskip("torch")

from dovetail.pipeline.live.quantise import RAW, clip_factor, decode, encode  # noqa: E402
from dovetail.pipeline.live.width import LinkSpeed, choose_bits  # noqa: E402
from dovetail.pipeline.plan import LINK_WIDTHS  # noqa: E402

NARROW = [bits for bits in LINK_WIDTHS if bits != RAW]


def _round_trip(value: Any, bits: int = RAW, clip: bool = False) -> Any:
    heads, buffers = encode(value, bits, clip)
    return decode(heads, [bytearray(buffer) for buffer in buffers], not isinstance(value, tuple))


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ],
)
@pytest.mark.parametrize("shape", [(3, 4), (0, 4), (), (2, 0), (1, 2, 3, 4)])
def test_raw_is_exact(dtype: Any, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 10).to(dtype)
    back = _round_trip(tensor)
    assert back.dtype == dtype
    assert back.shape == tensor.shape
    assert torch.equal(back, tensor)


def test_a_tuple_stays_a_tuple() -> None:
    value = (torch.randn(2, 3), torch.arange(4), torch.randn(2, 2).t())
    back = _round_trip(value, 8)
    assert isinstance(back, tuple)
    assert torch.equal(back[1], value[1])  # integers are never quantised
    assert torch.allclose(back[2], value[2], atol=0.05)


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from(NARROW),
    items=st.integers(1, 3),
    size=st.integers(1, 20),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e6]),
    shift=st.sampled_from([0.0, 100.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_error_is_at_most_half_a_step_of_each_item(
    bits: int, items: int, size: int, scale: float, shift: float, dtype: Any, seed: int
) -> None:
    x = (torch.randn(items, size, generator=torch.Generator().manual_seed(seed)) * scale + shift * scale).to(dtype)
    back = _round_trip(x, bits)
    low, high = x.double().aminmax(dim=1, keepdim=True)
    step = (high - low) / (2**bits - 1)
    rounding = 4 * torch.finfo(dtype).eps * x.double().abs().amax(dim=1, keepdim=True)
    assert ((back.double() - x.double()).abs() <= step / 2 * 1.001 + rounding).all()


@pytest.mark.parametrize("bits", NARROW)
def test_values_are_packed_densely(bits: int) -> None:
    x = torch.randn(4, 1000)
    _, buffers = encode(x, bits)
    assert sum(map(len, buffers)) == 4000 * bits // 8 + 4 * 16  # and a range of two numbers for each item


@pytest.mark.parametrize("bits", NARROW)
def test_every_level_is_used_and_comes_back(bits: int) -> None:
    x = torch.arange(2**bits, dtype=torch.float64).reshape(1, -1)
    assert torch.equal(_round_trip(x, bits), x)


def test_items_do_not_share_a_range() -> None:
    x = torch.stack([torch.linspace(0, 1, 50), torch.linspace(0, 1e6, 50)])
    assert (_round_trip(x, 8)[0] - x[0]).abs().max() < 0.005


def test_constant_items_are_exact() -> None:
    x = torch.full((2, 9), 0.3)
    assert torch.equal(_round_trip(x, 4), x)


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_values_that_are_not_finite_are_left_alone(bad: float) -> None:
    x = torch.tensor([[1.0, bad, 3.0]])
    assert torch.equal(_round_trip(x, 8).nan_to_num(), x.nan_to_num())


def test_a_range_too_wide_for_its_dtype_is_left_alone() -> None:
    x = torch.tensor([[-3e38, 0.1, 3e38]])
    assert torch.equal(_round_trip(x, 8), x)


def test_halves_are_not_sent_wider() -> None:
    x = torch.randn(2, 64).to(torch.bfloat16)
    _, buffers = encode(x, 16)
    assert sum(map(len, buffers)) == 2 * 64 * 2
    assert torch.equal(_round_trip(x, 16), x)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_clipping_loses_less_when_there_are_outliers(bits: int) -> None:
    generator = torch.Generator().manual_seed(1)
    sign = torch.rand(1, 20000, generator=generator) - 0.5
    x = -sign.sign() * torch.log1p(-2 * sign.abs())  # a Laplace distribution
    plain, clipped = ((_round_trip(x, bits, clip) - x).square().mean() for clip in (False, True))
    assert clipped < 0.8 * plain


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_clip_factor_is_the_least_loss(bits: int) -> None:
    from math import exp

    def loss(x: float) -> float:
        return 2 * exp(-x) + x * x / (3 * 4.0**bits)

    best = clip_factor(bits)
    assert loss(best) < min(loss(best * 0.98), loss(best * 1.02))


WIDE = (32, 16, 12, 8, 6, 4, 2)


@given(
    now=st.sampled_from(WIDE),
    speed=st.floats(1e3, 1e9),
    budget=st.floats(1e-4, 10),
    size=st.floats(1e2, 1e7),
)
def test_width_meets_the_budget_if_any_does_and_then_stays(now: int, speed: float, budget: float, size: float) -> None:
    measured = LinkSpeed(speed, 1.0)

    def needs(bits: int) -> float:
        return size * (bits / 32) / speed

    chosen = choose_bits(now, WIDE, size, 32, measured, budget)
    assert chosen in WIDE
    if needs(min(WIDE)) <= budget:
        assert needs(chosen) <= budget
    else:
        assert chosen == min(WIDE)
    wider = [bits for bits in WIDE if bits > chosen]
    assert all(needs(bits) > 0.85 * budget for bits in wider)
    assert choose_bits(chosen, WIDE, size, 32, measured, budget) == chosen


@given(st.sampled_from(WIDE), st.floats(1e3, 1e6), st.floats(1.0, 10.0))
def test_a_faster_link_is_never_narrower(now: int, speed: float, faster: float) -> None:
    slow, fast = (choose_bits(now, WIDE, 1e5, 32, LinkSpeed(s, 1.0), 0.1) for s in (speed, speed * faster))
    assert fast >= slow


def test_small_changes_of_speed_do_not_flap() -> None:
    """Around the speed at which 16 bits just do, the width changes once and not back and forth."""
    bits, seen = 16, set()
    for k in range(40):
        speed = 1e6 * (1 + 0.06 * (-1) ** k)  # 16 bits need 0.94 or 1.06 of the budget
        bits = choose_bits(bits, WIDE, 2e6, 32, LinkSpeed(speed, 1.0), 1.0)
        seen.add(bits)
    assert seen == {16, 12} or seen == {12}
