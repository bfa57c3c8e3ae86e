"""`dovetail pipeline profile`: measure a model's layers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from dovetail.cli.common import (
    Flag,
    Force,
    Format,
    check_writable,
    print_json,
    print_table,
    progress,
    whole_numbers,
)
from dovetail.cli.complete import PYTHON_NAMES
from dovetail.cli.pipeline.flags import AS_USUAL, MeasuringFlags

if TYPE_CHECKING:
    from dovetail.pipeline import ProfileResult

Many = Parameter(consume_multiple=True, negative=())


def profile(
    model: Annotated[str, PYTHON_NAMES],
    /,
    *,
    model_name: str | None = None,
    shape: Annotated[list[str], Many] | None = None,
    input_dtype: str = "",
    cut: Literal["auto", "sequential", "graph"] = "auto",
    batch_size: Annotated[list[int], Many] = [8],  # noqa: B006
    dtype: Annotated[list[str], Many] = ["torch.float32"],  # noqa: B006
    layers: tuple[int, int] | None = None,
    share: float | None = None,
    scale_to_whole: Flag = False,
    estimate_for: str | None = None,
    peak_tflops: float | None = None,
    memory_gbps: float | None = None,
    efficiency: float = 0.5,
    out: Path = Path("profiler_results.yml"),
    to: Annotated[list[Path], Many] | None = None,
    device_type: str | None = None,
    force: Force = False,
    how: MeasuringFlags = AS_USUAL,
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
    model_name
        The name in the files; that of the factory or file by default.
    shape
        The shape of each input without the batch dimension, such as 3,224,224; asked of the model by default.
    input_dtype
        The dtype of the inputs, where it is not the model's (token ids: torch.int64).
    cut
        auto, sequential (the children) or graph.
    batch_size
        Items in a microbatch; several are measured one after another.
    dtype
        Of weights and values: torch.float32, torch.float16, torch.bfloat16, torch.float64; several are possible.
    layers
        Measure only from this layer to that one; the file may be completed later.
    share
        Measure with so many cores' worth of time, such as 0.5, as `share` in hosts.yml; implies --scale-to-whole.
    scale_to_whole
        Scale the layers' times so that their sum is the time of all of them in one go.
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
    force
        Replace what is there already.
    format
        table or json.
    """
    from dovetail.pipeline import profile as profile_model

    files = to or []
    check_writable(out, *files)
    with progress("profiling", total=len(batch_size) * len(dtype)) as done:
        results = profile_model(
            model,
            model_name=model_name,
            shape=[whole_numbers("--shape", text) for text in shape or []],
            input_dtype=input_dtype,
            cut=cut,
            batch_size=batch_size,
            dtype=dtype,
            layers=layers,
            share=share,
            scale_to_whole=scale_to_whole,
            estimate_for=estimate_for,
            peak_tflops=peak_tflops,
            memory_gbps=memory_gbps,
            efficiency=efficiency,
            out=out,
            to=files,
            device_type=device_type,
            force=force,
            **how.chosen(),
            progress=done,
            notice=lambda text: print(f"warning: {text}", file=sys.stderr),
        )
    _show(results, format)
    print(f"Written: {', '.join(map(str, [out, *files]))}", file=sys.stderr)
    return 0


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
        if result.busy:
            print(f"marked busy: other programs took {100 * result.busy:.0f} % of the time")
