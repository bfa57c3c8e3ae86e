"""Tensors as bytes for a link: raw, or quantised to 2..16 bits per value, with a range for each item."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import exp, log, prod
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dovetail.pipeline.models.spec import Value

RAW = 32  # this width, and any that a dtype does not exceed, means: as it is


class TensorHead(Struct, frozen=True, array_like=True):
    """What it takes to make a tensor of its bytes again. Of a quantised one, the ranges follow the values."""

    dtype: str
    shape: tuple[int, ...]
    bits: int = RAW


def encode(value: Value, bits: int = RAW, clip: bool = False) -> tuple[list[TensorHead], list[memoryview]]:
    """The heads and buffers of a value that is to be sent with so many bits per number.

    Integers, and numbers that are not all finite, are sent as they are. `clip` bounds each item's range where a
    Laplace distribution of its spread would lose least, so that outliers do not coarsen all others.
    """
    heads, buffers = [], []
    for tensor in value if isinstance(value, tuple) else (value,):
        tensor = tensor.detach()
        packed = _quantise(tensor, bits, clip) if _narrows(tensor, bits) else None
        heads.append(TensorHead(str(tensor.dtype), tuple(tensor.shape), RAW if packed is None else bits))
        buffers += [_bytes(part) for part in packed or (tensor,)]
    return heads, buffers


def decode(
    heads: Sequence[TensorHead], buffers: Sequence[bytearray | memoryview], single: bool, device: str = "cpu"
) -> Value:
    """The value that was encoded, but for what quantisation lost."""
    import torch

    left = iter(buffers)
    made = []
    for head in heads:
        dtype: torch.dtype = getattr(torch, head.dtype.removeprefix("torch."))
        if head.bits == RAW:
            tensor = _tensor(next(left), dtype).reshape(head.shape)
        else:
            packed, ranges = _tensor(next(left), torch.uint8), _tensor(next(left), torch.float64)
            numbers = _unpack(packed, prod(head.shape), head.bits).reshape(head.shape[0], -1)
            low, step = ranges.reshape(2, -1, 1)
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            tensor = (numbers.to(wide) * step.to(wide) + low.to(wide)).to(dtype).reshape(head.shape)
        made.append(tensor.to(device))
    return made[0] if single else tuple(made)


def _narrows(tensor: Tensor, bits: int) -> bool:
    fewer = bits < min(RAW, 8 * tensor.element_size())
    return tensor.dtype.is_floating_point and fewer and tensor.dim() > 0 and tensor.numel() > 0


def _quantise(tensor: Tensor, bits: int, clip: bool) -> tuple[Tensor, Tensor] | None:
    """Packed numbers, and the low end and step of each item; None if some range is not finite."""
    import torch

    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    x = tensor.reshape(tensor.shape[0], -1).to(wide)
    low, high = torch.aminmax(x, dim=1, keepdim=True)
    low, high = low.double(), high.double()
    if clip:
        deviation, mean = (part.double() for part in torch.std_mean(x, dim=1, keepdim=True, correction=0))
        reach = clip_factor(bits) * deviation * 0.5**0.5  # a Laplace distribution's scale is its deviation / sqrt 2
        low, high = torch.maximum(low, mean - reach), torch.minimum(high, mean + reach)
    most = 2**bits - 1
    step = (high - low) / most
    # The numbers are computed in `wide`, where a step may be too small to divide by.
    if not (torch.isfinite(low) & torch.isfinite(step) & torch.isfinite(high.to(wide) - low.to(wide))).all():
        return None
    divisor = torch.where(step.to(wide) > 0, step.to(wide), torch.ones_like(step, dtype=wide))
    numbers = ((x - low.to(wide)) / divisor).round_().clamp_(0, most).to(torch.int32)
    return _pack(numbers.reshape(-1), bits), torch.cat([low.reshape(-1), step.reshape(-1)])


@lru_cache
def clip_factor(bits: int) -> float:
    """Where to clip a Laplace distribution, in its scales, so that clipping and rounding together lose least.

    Its x solves x * e**x = 3 * 4**bits: the derivative of 2 * e**-x + x**2 / (3 * 4**bits) is 0 there.

    >>> [round(clip_factor(bits), 2) for bits in (2, 4, 8)]
    [2.83, 5.03, 9.9]
    """
    target = 3.0 * 4.0**bits
    x = log(target)
    for _ in range(32):
        x -= (x * exp(x) - target) / (exp(x) * (x + 1))
    return x


def _pack(numbers: Tensor, bits: int) -> Tensor:
    """Numbers of so many bits, densely as bytes: whole bytes as planes of their own, then what is left of each."""
    import torch

    planes = []
    while bits >= 8:
        planes.append((numbers & 0xFF).to(torch.uint8))
        numbers, bits = numbers >> 8, bits - 8
    if bits:
        eights = torch.nn.functional.pad(numbers, (0, -len(numbers) % 8)).reshape(-1, 8)
        together = torch.zeros(len(eights), dtype=torch.int64, device=numbers.device)
        for i in range(8):
            together |= eights[:, i].to(torch.int64) << (bits * i)
        planes.append(together.view(torch.uint8).reshape(-1, 8)[:, :bits].reshape(-1))
    return torch.cat(planes)


def _unpack(packed: Tensor, count: int, bits: int) -> Tensor:
    import torch

    numbers = torch.zeros(count, dtype=torch.int32)
    shift = 0
    while bits >= 8:
        numbers |= packed[:count].to(torch.int32) << shift
        packed, shift, bits = packed[count:], shift + 8, bits - 8
    if bits:
        words = torch.zeros(len(packed) // bits, 8, dtype=torch.uint8)
        words[:, :bits] = packed.reshape(-1, bits)
        together = words.view(torch.int64)
        shifts = torch.arange(8, dtype=torch.int64) * bits
        rest = ((together >> shifts) & (2**bits - 1)).to(torch.int32)
        numbers |= rest.reshape(-1)[:count] << shift
    return numbers


def _bytes(tensor: Tensor) -> memoryview:
    import torch

    flat = tensor.cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _tensor(buffer: bytearray | memoryview, dtype: torch.dtype) -> Tensor:
    import torch

    return torch.frombuffer(buffer, dtype=dtype) if buffer else torch.empty(0, dtype=dtype)
