"""`dovetail pipeline profile`: measure a model's layers."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dovetail.cli.common import (
    Flag,
    Force,
    Format,
    Pairs,
    check_writable,
    pairs,
    print_json,
    print_table,
    progress,
    value,
    whole_numbers,
)
from dovetail.cli.pipeline.convert import BandwidthMbps, MemoryMB
from dovetail.core.errors import InputError, did_you_mean
from dovetail.pipeline.models.spec import FLOAT_DTYPES

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Chain
    from dovetail.pipeline.profile.measure import ProfileResult

Many = Parameter(consume_multiple=True, negative=())


def profile(
    model: str,
    /,
    *,
    argument: Pairs | None = None,
    model_name: str | None = None,
    shape: Annotated[list[str], Many] | None = None,
    input_dtype: str = "",
    weights: Path | None = None,
    cut: Literal["auto", "sequential", "graph"] = "auto",
    seed: int = 0,
    batch_size: Annotated[list[int], Many] = [8],  # noqa: B006
    dtype: Annotated[list[str], Many] = ["torch.float32"],  # noqa: B006
    layers: tuple[int, int] | None = None,
    device: str = "cpu",
    threads: int | None = None,
    cores: str = "",
    share: float | None = None,
    scale_to_whole: Flag = False,
    warmup: int = 3,
    repeats: int = 7,
    seconds: float = 0.5,
    estimate_for: str | None = None,
    peak_tflops: float | None = None,
    memory_gbps: float | None = None,
    efficiency: float = 0.5,
    out: Path = Path("profiler_results.yml"),
    to: Annotated[list[Path], Many] | None = None,
    device_type: str | None = None,
    memory_mb: MemoryMB = None,
    bandwidth_mbps: BandwidthMbps = None,
    force: Force = False,
    format: Format = "table",
) -> int:
    """Measure a model's layers: time, memory and shapes.

    The model is cut into layers: an nn.Sequential into its children, any other module along its graph. Layers are run
    round after round until their median times are sure. The results are added to a profile file, and with --to also to
    the planner's files.

    Example: dovetail pipeline profile examples/pipeline/transformer.py:encoder --to models.yml device_types.yml
    --device-type laptop -dtm 4096 -dtb 1000

    Parameters
    ----------
    model
        package.module:factory, file.py:factory, file.onnx, or hf:CONFIG (a Hugging Face config.json or its folder).
    argument
        NAME=VALUE arguments of the factory, or changes to the configuration.
    model_name
        The name in the files; that of the factory or file by default.
    shape
        The shape of each input without the batch dimension, such as 3,224,224; asked of the model by default.
    input_dtype
        The dtype of the inputs, where it is not the model's (token ids: torch.int64).
    weights
        A state_dict to load (torch.save or safetensors).
    cut
        auto, sequential (the children) or graph.
    seed
        Of the random weights and inputs.
    batch_size
        Items in a microbatch; several are measured one after another.
    dtype
        Of weights and values: torch.float32, torch.float16, torch.bfloat16, torch.float64; several are possible.
    layers
        Measure only from this layer to that one; the file may be completed later.
    device
        cpu, cuda or cuda:N.
    threads
        Threads of the CPU; by default as torch chooses, but no more than --cores.
    cores
        Run on these cores only, such as 0,1.
    share
        Measure with so many cores' worth of time, such as 0.5, as `share` in hosts.yml; implies --scale-to-whole.
    scale_to_whole
        Scale the layers' times so that their sum is the time of all of them in one go.
    warmup
        Rounds that do not count.
    repeats
        Rounds at least.
    seconds
        Time for each layer at most, once these are done.
    estimate_for
        Do not measure: estimate for this device, from published figures or --peak-tflops and --memory-gbps.
    peak_tflops
        TFLOP/s of that device in this dtype.
    memory_gbps
        GB/s of that device's memory.
    efficiency
        The share of the published figures that is reached.
    out
        The profile file; what it holds is kept.
    to
        Files of the planner to extend: models.yml, device_types.yml.
    device_type
        The device type in device_types.yml.
    memory_mb
        MiB of memory of a new device type.
    bandwidth_mbps
        Mibit/s of a new device type's network.
    force
        Replace what is there already.
    format
        table or json.
    """
    from dovetail.core.output import refuse_overwrite
    from dovetail.pipeline.models.load import load
    from dovetail.pipeline.models.spec import ModelSpec
    from dovetail.pipeline.profile.convert import PlannerFile
    from dovetail.pipeline.profile.files import expected_in, merge_into, profile_of, write_profiles

    files = to or []
    source = Path(model.rpartition(":")[0] or model)
    refuse_overwrite([out, *files], [source if source.is_file() else None, weights])
    check_writable(out, *files)
    targets = [PlannerFile(path, _device_type(path, device_type), memory_mb, bandwidth_mbps, force) for path in files]
    spec = ModelSpec(
        source=model,
        arguments={key: value(text) for key, text in pairs("--argument", argument).items()},
        shapes=tuple(whole_numbers("--shape", text) for text in shape or []),
        input_dtype=input_dtype and _dtype(input_dtype),
        weights=None if weights is None else str(weights),
        seed=seed,
        cut=cut,
    )
    runs = [(size, _dtype(name, FLOAT_DTYPES)) for name in dtype for size in batch_size]
    _check_sizes(batch_size)
    chain = load(spec)
    chain.name = model_name or chain.name
    part = layers or (1, len(chain.layers))
    if not 1 <= part[0] <= part[1] <= len(chain.layers):
        raise InputError(f"--layers {part[0]} {part[1]}: {chain.name} has layers 1 to {len(chain.layers)}")
    expected = expected_in(out, chain.name, len(chain.layers), part, runs, force=force)
    for target in targets:  # an error now, not after the measurement
        target.extend(expected, write=False)
    if estimate_for is not None:
        if layers is not None or share is not None or scale_to_whole:
            raise InputError("--layers, --share and --scale-to-whole: an estimate is of all layers on a whole device")
        from dovetail.pipeline.profile.roofline import estimate_chain, given_peak

        peak = given_peak(estimate_for, [kind for _, kind in runs], peak_tflops, memory_gbps)
        results = [estimate_chain(chain, peak, size, dtype, efficiency=efficiency) for size, dtype in runs]
    elif peak_tflops is not None or memory_gbps is not None:
        raise InputError("--peak-tflops and --memory-gbps: name the device with --estimate-for")
    else:
        from dovetail.pipeline.hardware import placed_on
        from dovetail.pipeline.profile.measure import Effort

        effort = Effort(warmup, repeats, max(200, repeats), seconds=seconds)
        placed = placed_on(threads, whole_numbers("--cores", cores))
        how = {
            "device": device,
            "effort": effort,
            "share": share,
            "scale_to_whole": scale_to_whole,
        }
        results = _measured(chain, runs, part, placed, how)
    together = merge_into(out, [profile_of(result) for result in results], force=force)
    write_profiles(out, together)
    fresh = [each for each in together if (each.batch_size, each.dtype) in runs]
    for warning in [warning for target in targets for warning in target.extend(fresh)]:
        print(f"warning: {warning}", file=sys.stderr)
    _show(results, format)
    print(f"Written: {', '.join(map(str, [out, *files]))}", file=sys.stderr)
    return 0


def _device_type(path: Path, device_type: str | None) -> str | None:
    """The device type that a file of the planner is extended by; None for models.yml."""
    if "device" in path.name:
        if device_type is None:
            raise InputError(f"--to {path}: name the device with --device-type")
        return device_type
    if "model" in path.name:
        return None
    raise InputError(f"--to {path}: expected a name with 'models' or 'device_types' in it")


def _check_sizes(batch_sizes: Sequence[int]) -> None:
    if not batch_sizes or min(batch_sizes) < 1:
        raise InputError(f"--batch-size: expected 1 or more, found {min(batch_sizes, default='none')}")


def _dtype(name: str, known: Sequence[str] = (*FLOAT_DTYPES, "torch.int64", "torch.int32")) -> str:
    full = name if name.startswith("torch.") else f"torch.{name}"
    if full not in known:
        raise InputError(f"unknown dtype {name!r}{did_you_mean(full, known)}")
    return full


def _measured(
    chain: Chain,
    runs: Sequence[tuple[int, str]],
    part: tuple[int, int],
    placed: AbstractContextManager[None],
    how: dict[str, Any],
) -> list[ProfileResult]:
    from dovetail.pipeline.profile.measure import profile_chain

    if hasattr(os, "getloadavg") and os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        print("warning: other programs keep this machine busy; times will be longer than they are", file=sys.stderr)
    results = []
    with placed, progress("profiling", total=len(runs)) as done:
        for number, (size, dtype) in enumerate(runs):

            def tell(share: float, number: int = number) -> None:
                done(number + min(share, 1.0))

            first, last = part
            results.append(profile_chain(chain, size, dtype, first=first, last=last, done=tell, **how))
    return results


def _show(results: Sequence[ProfileResult], format: str) -> None:
    if format == "json":
        rows = [{key: getattr(result, key) for key in result.__struct_fields__} for result in results]
        print_json([row | {"sum_s": result.sum_s} for row, result in zip(rows, results, strict=True)])
        return
    for result in results:
        title = f"{result.model}: batch size {result.batch_size}, {result.dtype}, {result.source} for {result.device}"
        rows_of = [
            [
                layer.layer,
                layer.name,
                1000 * layer.time_s,
                1000 * layer.spread_s,
                layer.memory_mib,
                layer.activation_mib,
                " ".join("x".join(map(str, shape)) or "1" for shape in layer.shape_out),
            ]
            for layer in result.profile
        ]
        print_table(["layer", "name", "ms", "spread", "weights MiB", "activations MiB", "out"], rows_of, title)
        print(f"\nsum of the layers {1000 * result.sum_s:.4g} ms, {result.batch_size / result.sum_s:.4g} items/s")
        if result.source == "measured" and result.sum_s > 0:
            off = 100 * (result.sum_s / result.whole_s - 1)
            print(f"all of them in one go {1000 * result.whole_s:.4g} ms (the sum is {off:+.1f} % off)")
