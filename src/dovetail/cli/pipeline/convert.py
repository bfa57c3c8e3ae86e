"""`dovetail pipeline convert`: turn what was profiled into the planner's files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dovetail.cli.common import Force, print_table

MemoryMB = Annotated[float | None, Parameter(name=["--memory-mb", "-dtm"])]
BandwidthMbps = Annotated[float | None, Parameter(name=["--bandwidth-mbps", "-dtb"])]


def convert(
    device_type: str | None = None,
    /,
    *,
    input: Annotated[Path, Parameter(name=["--input", "-i"])] = Path("profiler_results.yml"),
    output: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
    memory_mb: MemoryMB = None,
    bandwidth_mbps: BandwidthMbps = None,
    rates: Path | None = None,
    reference: str | None = None,
    force: Force = False,
) -> int:
    """Turn a profile file into the planner's files.

    Without a device type models.yml is extended by the model; with one, device_types.yml by the layers' times on it.

    Example: dovetail pipeline convert -i profiler_results.yml -o models.yml

    Parameters
    ----------
    device_type
        The device type that was profiled.
    input
        The profile file, also of the older profiler.
    output
        models.yml or, with a device type, device_types.yml; other entries in it are kept.
    memory_mb
        MiB of memory of a new device type.
    bandwidth_mbps
        Mibit/s of a new device type's network.
    rates
        Also write the speed of the whole model on each type into this table of rates.
    reference
        The device type whose speed is 1 in that table.
    force
        Replace what is there already.
    """
    from dovetail.pipeline import convert as convert_profiles

    made = convert_profiles(
        device_type,
        input=input,
        output=output,
        memory_mb=memory_mb,
        bandwidth_mbps=bandwidth_mbps,
        rates=rates,
        reference=reference,
        force=force,
    )
    for warning in made.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    print(f"Written: {made.path}")
    if rates is not None:
        print_table(["model", "device type", "rate"], [[rate.kind, rate.device, rate.rate] for rate in made.rates])
        print(f"Written: {rates}")
    return 0
