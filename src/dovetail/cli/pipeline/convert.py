"""`dovetail pipeline convert`: turn what was profiled into the planner's files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from dovetail.cli.common import Force, print_table
from dovetail.core.errors import InputError

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
    from dovetail.core.output import refuse_overwrite
    from dovetail.pipeline.profile.convert import PlannerFile, check_reference, to_rates
    from dovetail.pipeline.profile.files import read_profiles

    path = output or Path("models.yml" if device_type is None else "device_types.yml")
    refuse_overwrite([path, *([rates] if rates is not None else [])], [input])
    if device_type is None and (memory_mb is not None or bandwidth_mbps is not None or rates is not None):
        raise InputError("memory, bandwidth and rates belong to a device type: name one")
    if (rates is None) != (reference is None):
        raise InputError("--rates and --reference belong together")
    profiles = read_profiles(input)
    if rates is not None and reference is not None and reference != device_type:
        check_reference(path, profiles[0].model_name, reference)
    for warning in PlannerFile(path, device_type, memory_mb, bandwidth_mbps, force).extend(profiles):
        print(f"warning: {warning}", file=sys.stderr)
    print(f"Written: {path}")
    if rates is not None and reference is not None:
        made = to_rates(path, profiles[0].model_name, reference, rates)
        print_table(["model", "device type", "rate"], [[rate.kind, rate.device, rate.rate] for rate in made])
        print(f"Written: {rates}")
    return 0
