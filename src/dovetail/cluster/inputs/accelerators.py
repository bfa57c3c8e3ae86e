"""Published figures of accelerators, K80 to H200: what an estimate of a job's speed starts from.

All are of one accelerator as a program sees it: half a K80 board, one of the two dies of an MI250. TFLOP/s are dense,
in the precision that training in single precision uses there: FP32, or TF32 (FP32 matrix on AMD) from 2020 on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dovetail.core.errors import InputError, did_you_mean


class Accelerator(NamedTuple):
    """`link_gb_s` is one direction to a neighbour in the same server. `reach` is below 1 where even well-tuned programs
    stay further below the peak than elsewhere."""

    tflops: float
    memory_gb_s: float
    memory_gib: float
    link_gb_s: float = 16.0  # PCIe 3.0 x16
    reach: float = 1.0


_PCIE4, _PCIE5 = 32.0, 64.0
# Sources: data sheets of NVIDIA (Tesla K80, M40, P4, P40, P100, V100, T4; A10 to A100; L4, L40S; H100, H200), product
# pages of its GeForce and RTX cards, and data sheets of AMD (Instinct MI100, MI250, MI300X).
ACCELERATORS: Mapping[str, Accelerator] = {
    # Two K80s share a slot; and Kepler's peak assumes two instructions issued at once, which it seldom does.
    "k80": Accelerator(4.37, 240, 12, 8, 0.55),
    "m40": Accelerator(6.8, 288, 24),
    "p4": Accelerator(5.5, 192, 8),
    "p40": Accelerator(11.8, 346, 24),
    "p100": Accelerator(9.3, 732, 16),
    "v100": Accelerator(15.7, 900, 16, 150),
    "v100-32": Accelerator(15.7, 900, 32, 150),
    "t4": Accelerator(8.1, 320, 16),
    "rtx2080ti": Accelerator(13.4, 616, 11),
    "rtx6000": Accelerator(16.3, 672, 24),
    "rtx3090": Accelerator(35.6, 936, 24, _PCIE4),
    "rtx4090": Accelerator(82.6, 1008, 24, _PCIE4),
    "rtxa6000": Accelerator(77.4, 768, 48, _PCIE4),
    "a10": Accelerator(62.5, 600, 24, _PCIE4),
    "a30": Accelerator(82, 933, 24, _PCIE4),
    "a40": Accelerator(74.8, 696, 48, _PCIE4),
    "a100": Accelerator(156, 1555, 40, 300),
    "a100-80": Accelerator(156, 2039, 80, 300),
    "l4": Accelerator(60, 300, 24, _PCIE4),
    "l40s": Accelerator(183, 864, 48, _PCIE4),
    "h100": Accelerator(495, 3350, 80, 450),
    "h100-pcie": Accelerator(378, 2000, 80, _PCIE5),
    "h200": Accelerator(495, 4800, 141, 450),
    "mi100": Accelerator(46.1, 1229, 32, _PCIE4),
    "mi250": Accelerator(45.3, 1638, 64, 50),
    "mi300x": Accelerator(653.7, 5300, 192, 64),
}
_OTHER_NAMES = {
    "v100-16": "v100",
    "v100m16": "v100",
    "v100m32": "v100-32",
    "a100-40": "a100",
    "h100-sxm": "h100",
    "2080ti": "rtx2080ti",
    "3090": "rtx3090",
    "4090": "rtx4090",
    "a6000": "rtxa6000",
}


def accelerator(name: str) -> Accelerator:
    """The figures of an accelerator, by its usual name in any spelling.

    >>> accelerator("A100 80GB").memory_gib
    80
    """
    plain = name.lower().replace("_", "-").replace(" ", "-").removesuffix("gb").removeprefix("nvidia-")
    plain = plain.removeprefix("tesla-").removeprefix("amd-")
    plain = _OTHER_NAMES.get(plain, plain)
    found = ACCELERATORS.get(plain) or ACCELERATORS.get(plain.replace("-", ""))
    if found is None:
        raise InputError(f"no published figures for the accelerator {name!r}{did_you_mean(plain, ACCELERATORS)}")
    return found
