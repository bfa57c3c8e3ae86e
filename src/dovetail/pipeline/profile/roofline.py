"""An estimate of a model's layer times on a device that is not at hand: the slower of its arithmetic and its memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.pipeline.inputs.problem import LARGEST, MIB
from dovetail.pipeline.models.spec import Chain, need_torch
from dovetail.pipeline.profile.measure import LayerProfile, ProfileResult, shapes, tied_weights, weight_bytes

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Value


class Peak(Struct, frozen=True, kw_only=True):
    """What a maker says of a device: TFLOP/s by dtype (dense), GB/s (10**9 bytes) of memory, GiB of memory.

    `operation_s` is the time to launch one operation: a guess of ours, which matters for small layers only.
    """

    name: str
    tflops: dict[str, float]
    memory_gbps: float
    memory_gib: float = 0.0
    operation_s: float = 5e-6


def _gpu(name: str, float32: float, half: float, memory_gbps: float, memory_gib: float) -> Peak:
    tflops = {"torch.float32": float32, "torch.float16": half, "torch.bfloat16": half}
    return Peak(name=name, tflops=tflops, memory_gbps=memory_gbps, memory_gib=memory_gib)


def _cpu(name: str, float32: float, memory_gbps: float) -> Peak:
    return Peak(name=name, tflops={"torch.float32": float32}, memory_gbps=memory_gbps, operation_s=2e-6)


# Published figures: float32 without TF32, half precision with matrix units but without sparsity.
PEAKS = {
    "t4": _gpu("NVIDIA T4", 8.1, 65.0, 320.0, 16),  # NVIDIA T4 datasheet
    "v100": _gpu("NVIDIA V100 SXM2", 15.7, 125.0, 900.0, 32),  # NVIDIA V100 datasheet; bfloat16 is emulated
    "a10": _gpu("NVIDIA A10", 31.2, 125.0, 600.0, 24),  # NVIDIA A10 datasheet
    "a100": _gpu("NVIDIA A100 SXM 80 GB", 19.5, 312.0, 2039.0, 80),  # NVIDIA A100 datasheet
    "l4": _gpu("NVIDIA L4", 30.3, 121.0, 300.0, 24),  # NVIDIA L4 datasheet, halved: it gives sparse figures
    "l40s": _gpu("NVIDIA L40S", 91.6, 362.0, 864.0, 48),  # NVIDIA L40S datasheet
    "h100": _gpu("NVIDIA H100 SXM", 67.0, 989.0, 3350.0, 80),  # NVIDIA H100 datasheet, halved: sparse figures
    "h200": _gpu("NVIDIA H200 SXM", 67.0, 989.0, 4800.0, 141),  # NVIDIA H200 datasheet, halved: sparse figures
    "rtx4090": _gpu("NVIDIA GeForce RTX 4090", 82.6, 165.2, 1008.0, 24),  # NVIDIA Ada architecture whitepaper
    "mi300x": _gpu("AMD Instinct MI300X", 163.4, 1307.4, 5300.0, 192),  # AMD MI300X datasheet
    # Cores x base clock x operations per cycle; memory channels x rate. From the makers' product pages.
    "epyc7763": _cpu("AMD EPYC 7763, 64 cores", 64 * 2.45e-3 * 32, 8 * 25.6),  # two 256-bit FMA units
    "xeon8380": _cpu("Intel Xeon Platinum 8380, 40 cores", 40 * 2.3e-3 * 64, 8 * 25.6),  # two 512-bit FMA units
    "raspberrypi4": _cpu("Raspberry Pi 4", 4 * 1.5e-3 * 8, 12.8),  # Cortex-A72: one 128-bit FMA unit; LPDDR4-3200
}


def peak(name: str) -> Peak:
    """A device of the table.

    >>> peak("h200").memory_gbps
    4800.0
    """
    found = PEAKS.get(name.lower())
    if found is None:
        raise InputError(f"no published figures of {name!r} here{did_you_mean(name.lower(), PEAKS)}")
    return found


def given_peak(name: str, dtypes: Sequence[str], tflops: float | None, memory_gbps: float | None) -> Peak:
    """The peak of a device by the figures that are given, or else by what is published."""
    if tflops is None and memory_gbps is None:
        return peak(name)
    if tflops is None or memory_gbps is None or not (0 < tflops <= LARGEST and 0 < memory_gbps <= LARGEST):
        raise InputError("--peak-tflops and --memory-gbps belong together, both more than 0")
    return Peak(name=name, tflops=dict.fromkeys(dtypes, tflops), memory_gbps=memory_gbps)


class Cost(Struct, frozen=True):
    """What a layer does: arithmetic operations, bytes read and written, and kernels launched."""

    flops: int
    moved_bytes: int
    operations: int

    def seconds(self, device: Peak, dtype: str, efficiency: float) -> float:
        """The time on a device, of whose arithmetic and memory rates this share is reached.

        >>> device = Peak(name="x", tflops={"torch.float32": 1.0}, memory_gbps=100.0, operation_s=0.0)
        >>> Cost(10**12, 10**9, 1).seconds(device, "torch.float32", 0.5)
        2.0
        """
        if dtype not in device.tflops:
            raise InputError(f"{device.name}: no figure for {dtype}; known: {', '.join(sorted(device.tflops))}")
        arithmetic = self.flops / (device.tflops[dtype] * 1e12)
        memory = self.moved_bytes / (device.memory_gbps * 1e9)
        return max(arithmetic, memory) / efficiency + self.operations * device.operation_s


def estimate_chain(
    chain: Chain,
    device: Peak,
    batch_size: int = 8,
    dtype: str = "torch.float32",
    *,
    efficiency: float = 0.5,
) -> ProfileResult:
    """A profile that was not measured: its layers are run on tensors without data, and what they do is counted."""
    need_torch("an estimate")
    if not 0 < efficiency <= 1:
        raise InputError(f"efficiency: expected more than 0 and at most 1, found {efficiency:g}")
    if batch_size < 1:
        raise InputError(f"batch size: expected 1 or more, found {batch_size}")
    if any(hasattr(layer, "weight_bytes") for layer in chain.layers):
        raise InputError(f"{chain.name}: an ONNX model can be measured, but not estimated")
    from torch._subclasses.fake_tensor import FakeTensorMode

    from dovetail.pipeline.models.graph_layers import outline

    mode = FakeTensorMode()
    with mode:
        value = chain.inputs(batch_size, dtype)
    layers = []
    for i, name in enumerate(chain.names, 1):
        with mode:
            out, cost, activation_bytes = count(outline(chain.layers[i - 1], mode, dtype), value)
        layers.append(
            LayerProfile(
                layer=i,
                name=name,
                time_s=cost.seconds(device, dtype, efficiency),
                spread_s=0.0,
                repeats=0,
                memory_mib=weight_bytes(chain.layers[i - 1], dtype) / MIB,
                activation_mib=activation_bytes / MIB,
                shape_in=shapes(value),
                shape_out=shapes(out),
            )
        )
        value = out
    return ProfileResult(
        model=chain.name,
        layers=len(chain.layers),
        batch_size=batch_size,
        dtype=dtype,
        device=device.name,
        threads=0,
        profile=tuple(layers),
        whole_s=sum(layer.time_s for layer in layers),
        source="estimated",
        tied=tied_weights(chain, dtype),
    )


def count(run: Callable[[Value], Value], value: Value) -> tuple[Any, Cost, int]:
    """The result of a call, what it does, and the most bytes its tensors hold at one time."""
    from torch.utils.flop_counter import FlopCounterMode

    from dovetail.pipeline.profile.live_bytes import LiveBytes

    with LiveBytes() as live:
        out = run(value)
    with FlopCounterMode(display=False) as counter:
        run(value)
    return out, Cost(counter.get_total_flops(), live.moved, live.operations), live.highest
