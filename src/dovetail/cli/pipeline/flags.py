"""The flags that `pipeline profile` and `pipeline profile-generation` share: what is measured, and where and how."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cyclopts import Parameter

from dovetail.cli.common import Pairs, pairs, value, whole_numbers
from dovetail.cli.pipeline.convert import BandwidthMbps, MemoryMB


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class MeasuringFlags:
    """How a model is measured.

    Parameters
    ----------
    argument
        NAME=VALUE arguments of a factory, or changes to a configuration.
    weights
        Weights to load: of torch.save, or safetensors (a file, an index or a folder); random ones by default.
    seed
        Of random weights and inputs.
    device
        cpu, cuda or cuda:N.
    threads
        Threads of the CPU; by default as torch chooses, but no more than --cores.
    cores
        Run on these cores only, such as 0,1.
    warmup
        Rounds that do not count.
    repeats
        Rounds at least.
    seconds
        Time for each layer at most, once these are done.
    calm_s
        If other programs disturbed, wait so long at most for a calm machine, and measure again.
    memory_mb
        MiB of memory of a new device type.
    bandwidth_mbps
        Mibit/s of a new device type's network.
    """

    argument: Pairs | None = None
    weights: Path | None = None
    seed: int = 0
    device: str = "cpu"
    threads: int | None = None
    cores: str = ""
    warmup: int = 3
    repeats: int = 7
    seconds: float = 0.5
    calm_s: float = 5.0
    memory_mb: MemoryMB = None
    bandwidth_mbps: BandwidthMbps = None

    def chosen(self) -> dict[str, Any]:
        """As `pipeline.profile` and `pipeline.profile_generation` take them."""
        return asdict(self) | {
            "argument": {key: value(text) for key, text in pairs("--argument", self.argument).items()},
            "cores": whole_numbers("--cores", self.cores),
        }


AS_USUAL = MeasuringFlags()
