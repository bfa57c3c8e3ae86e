"""How fast the 26 job templates run on any known accelerator, from published figures: an estimate that needs no file.

A step takes the host's time, plus its arithmetic at the accelerator's FLOP/s, plus its memory traffic at the memory's
bandwidth; how much of either peak is reached, and the host's time, were fitted for each model family to the measured
rates of the old system on V100, P100 and K80. The median error against these is 9 % alone, 15 % for wide jobs and 21 %
for pairs. It is largest where the measurements are odd: Recommendation was measured slowest on the fastest GPU.

A wide job sums the steps of its ranks, each of which also waits for an all-reduce of the gradients. Two jobs on one
accelerator run at full speed as long as they keep it busy less than all the time together, else both slow down alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dovetail.cluster.inputs.accelerators import Accelerator, accelerator
from dovetail.cluster.inputs.templates import TEMPLATES, Template
from dovetail.cluster.inputs.workload import Throughputs

WIDTHS = (1, 2, 4, 8)
_UPDATE = 24  # bytes moved per parameter and step: weights twice, gradient twice, momentum and update
_STATE = 16  # bytes kept per parameter: weight, gradient, two moments
_LINK = 0.2  # share of a link's bandwidth that an all-reduce of many small tensors reaches
_FRAMEWORK_MIB = 500.0
_HOST = 0.5  # how much a job's time on the host is in the way of another job beside it, as the device's time is
_USABLE = 0.95  # of an accelerator's memory


class Family(NamedTuple):
    """What one item of a batch costs (training, forwards and backwards), and what of the peaks is reached."""

    gflop: float
    traffic_mb: float  # activations written and read
    memory_mib: float  # activations kept
    parameters: float  # millions
    host_s: float  # per step
    host_item_s: float
    compute: float  # share of the peak FLOP/s
    bandwidth: float  # share of the peak bandwidth
    wide: bool = True


# FLOPs are 6 times the multiply-adds of a forward pass; traffic and memory from the sizes of the layers' outputs.
FAMILIES = {
    "ResNet-18": Family(3.34, 40, 12, 11.2, 0.0195, 0.0, 0.82, 0.58),  # CIFAR-10, 32 x 32
    "ResNet-50": Family(24.6, 400, 84, 25.6, 0.0306, 0.0, 0.59, 0.62),  # ImageNet, 224 x 224
    "Transformer": Family(4.6, 45, 20, 52.0, 0.0577, 0.000291, 0.29, 0.73),  # 6 + 6 layers of 512, 16 tokens a side
    "LM": Family(1.53, 37, 15, 13.6, 0.00718, 0.000055, 0.62, 0.31),  # 2 LSTM layers of 200, 35 tokens, 33k words
    "Recommendation": Family(0.06, 0.4, 0.4, 24.0, 0.0062, 0.0000174, 0.82, 0.82, wide=False),
    "A3C": Family(0.0, 0.0, 100.0, 1.0, 0.176, 0.0, 0.56, 0.66, wide=False),
    "CycleGAN": Family(2040.0, 12_000, 3500, 28.0, 0.03, 0.0, 0.64, 0.64, wide=False),  # 256 x 256
}


def analytic(types: Sequence[str], *, network_gbit_s: float = 10.0, widths: Sequence[int] = WIDTHS) -> Throughputs:
    """Estimated throughputs of all templates on these types.

    >>> rates = analytic(["v100", "h100"])
    >>> rates.source, rates.alone[rates.index()["ResNet-50 (batch size 64)", 1]].round(1).tolist()
    ('estimated', [4.0, 20.6])
    """
    devices = [accelerator(name) for name in types]
    kinds = [(t.model, w) for w in widths for t in TEMPLATES if w == 1 or FAMILIES[t.family].wide]
    templates = {template.model: template for template in TEMPLATES}
    alone = np.zeros((len(kinds), len(types)))
    spread, busy, memory_mib = np.zeros_like(alone), np.zeros_like(alone), np.zeros(len(kinds))
    for k, (model, width) in enumerate(kinds):
        template = templates[model]
        memory_mib[k] = _memory_mib(template, width)
        for t, device in enumerate(devices):
            busy_s, step_s = _step_s(template, device)
            near_s = step_s + _reduce_s(template, width, device.link_gb_s * _LINK)
            far_s = step_s + _reduce_s(template, width, min(network_gbit_s / 8, device.link_gb_s * _LINK))
            alone[k, t], spread[k, t], busy[k, t] = (
                width / near_s,
                width / far_s,
                (busy_s + _HOST * (near_s - busy_s)) / near_s,
            )
    usable_mib = np.array([device.memory_gib * 1024 * _USABLE for device in devices])
    fits = memory_mib[:, None] <= usable_mib
    alone, spread = alone * fits, spread * fits
    together = memory_mib[:, None, None] + memory_mib[None, :, None] - _FRAMEWORK_MIB <= usable_mib
    alike = np.array([[a == b for _, b in kinds] for _, a in kinds])
    slowdown = np.maximum(1.0, busy[:, None, :] + busy[None, :, :])
    pairs = alone[:, None, :] / slowdown * together * alike[:, :, None] * (alone > 0)[None, :, :]
    return Throughputs(tuple(types), kinds, alone, spread, pairs, "estimated")


def _step_s(template: Template, device: Accelerator) -> tuple[float, float]:
    """Seconds of a step that the accelerator is busy, and all of them."""
    family, items = FAMILIES[template.family], template.batch
    compute_s = items * family.gflop / (1e3 * device.tflops * device.reach * family.compute)
    traffic_gb = items * family.traffic_mb / 1e3 + family.parameters * _UPDATE / 1e3
    memory_s = traffic_gb / (device.memory_gb_s * device.reach * family.bandwidth)
    busy_s = compute_s + memory_s
    return busy_s, busy_s + family.host_s + items * family.host_item_s


def _reduce_s(template: Template, width: int, gb_s: float) -> float:
    """Seconds of a ring all-reduce of the gradients."""
    gradient_gb = FAMILIES[template.family].parameters * 4 / 1e3
    return 2 * (width - 1) / width * gradient_gb / gb_s


def _memory_mib(template: Template, width: int) -> float:
    family = FAMILIES[template.family]
    per_parameter = _STATE + (8 if width > 1 else 0)  # buffers of the all-reduce
    return _FRAMEWORK_MIB + template.batch * family.memory_mib + family.parameters * 1e6 * per_parameter / 2**20
