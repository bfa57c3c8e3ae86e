"""`dovetail pipeline plan-generation`: where to cut a language model, for its prompts and for its tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from dovetail.cli.common import Flag, Format, Numbers, print_json, print_table
from dovetail.cli.pipeline.plan import infeasible

if TYPE_CHECKING:
    from dovetail.pipeline import Plan


def plan_generation(
    config: Path,
    /,
    *,
    model_name: Annotated[str, Parameter(alias="-m")] = "",
    dev_types_file: Annotated[Path, Parameter(alias="-T")] = Path("device_types.yml"),
    dev_file: Annotated[Path, Parameter(alias="-D")] = Path("devices.yml"),
    links: Path | None = None,
    prompt: int = 512,
    context: int = 4096,
    concurrency: int = 1,
    groups: int | None = None,
    dtype: Annotated[str | None, Parameter(alias="-d")] = None,
    weight_bits: float = 0,
    cache_dtype: str | None = None,
    tensor_parallel: Numbers = (1,),
    memory_use: float = 0.9,
    split_ends: Flag = False,
    objective: Literal["tokens", "ttft"] = "tokens",
    ttft_cap_s: float | None = None,
    tokens_floor_s: float | None = None,
    max_devices: int | None = None,
    longest: Annotated[bool, Parameter(name="--max-context", negative=())] = False,
    time_limit_s: Annotated[float, Parameter(alias="--time-limit")] = 10.0,
    format: Format = "table",
) -> int:
    """Plan where to cut a language model: prefill, decode and the memory of contexts.

    The layers are cut once: a prompt goes through the stages for its first token, then groups of requests for a token
    each. Exit code 1 if there is no plan; the reasons are told.

    Example: dovetail pipeline plan-generation examples/pipeline/llama-3-8b.json -T examples/pipeline/gpu_types.yml
    -D examples/pipeline/gpus.yml --concurrency 16 --ttft-cap-s 0.5

    Parameters
    ----------
    config
        The model's public config.json, or its folder.
    model_name
        The model's name in the profiles of the device types; by default what the configuration or its file is called.
    dev_types_file
        Device types: bandwidth, memory, and rates (roofline) or profiles of prefill and decode.
    dev_file
        The hosts of each type.
    links
        Bandwidth and latency between hosts or types; between devices of one type, also that of tensor-parallel groups.
    prompt
        Tokens of a prompt.
    context
        Tokens of a request in all; its keys and values are kept for so many, and tokens are costed in full contexts.
    concurrency
        Requests at once.
    groups
        In how many groups they decode, one behind another through the stages; by default the best number.
    dtype
        Of weights and values, where it is not the configuration's.
    weight_bits
        Bits of a block's weight, where they are fewer than the dtype has: 8 or 4 for a quantised model. By default what
        the configuration's quantization_config says, or hf_quant_config.json beside it.
    cache_dtype
        Dtype of keys and values; by default what the same files say, else the model's.
    tensor_parallel
        How many alike devices may share every layer of a stage, such as 1 2 4.
    memory_use
        The share of a device's memory that weights, keys and values may fill; the rest is for what computing needs.
    split_ends
        The embedding and the head may be stages of their own; other engines do not have that.
    objective
        tokens (most per second, of all requests) or ttft: the first token soonest.
    ttft_cap_s
        The longest that a prompt may take to its first token, with nothing else under way.
    tokens_floor_s
        Tokens per second of all requests, at least.
    max_devices
        At most so many devices.
    longest
        Plan for the longest context for which there is a plan, and say it.
    time_limit_s
        Seconds for the search, and before it for that of --max-context; what is not proven by then is said.
    format
        table or json: a plan as `dovetail pipeline plan` gives it, with what it generates.
    """
    from msgspec.structs import replace

    from dovetail.pipeline import InfeasibleError, load_generation, max_context
    from dovetail.pipeline import plan_generation as make_plan

    problem = load_generation(
        config,
        dev_types_file,
        dev_file,
        model_name=model_name,
        prompt=prompt,
        context=max(context, prompt + 1) if longest else context,
        concurrency=concurrency,
        dtype=dtype,
        weight_bits=weight_bits,
        cache_dtype=cache_dtype,
        tensor_parallel=tensor_parallel or (1,),
        memory_use=memory_use,
        split_ends=split_ends,
        links=links,
    )
    limits = {"ttft_cap_s": ttft_cap_s, "tokens_floor_s": tokens_floor_s}
    try:
        if longest:
            found = max_context(
                problem,
                groups=groups,
                max_devices=max_devices,
                time_limit_s=time_limit_s,
                notice=lambda text: print(f"warning: {text}", file=sys.stderr),
                **limits,
            )
            problem = replace(problem, load=replace(problem.load, context=found))
        for warning in dict.fromkeys(problem.warnings):
            print(f"warning: {warning}", file=sys.stderr)
        best = make_plan(
            problem, objective=objective, groups=groups, max_devices=max_devices, time_limit_s=time_limit_s, **limits
        )
    except InfeasibleError as error:
        return infeasible(error, format)
    if format == "json":
        print_json(best)
    else:
        _show(best)
    return 0


def _show(best: Plan) -> None:
    told = best.generation
    assert told is not None
    rows: list[list[object]] = [
        [
            stage.host,
            stage.type,
            f"{stage.layers[0]} to {stage.layers[1]}",
            round(1000 * prefill_s, 3),
            round(1000 * stage.compute_s, 3),
            round(1000 * stage.send_s, 3),
            round(stage.mem_mib, 1),
            round(kv_mib, 1),
            round(stage.mem_slack_mib, 1),
        ]
        for stage, prefill_s, kv_mib in zip(best.stages, told.prefill_s, told.kv_mib, strict=True)
    ]
    columns = ["host", "type", "layers", "prefill ms", "decode ms", "send ms", "memory MiB", "of it cache", "left MiB"]
    print_table(columns, rows)
    size = best.batch_size
    print(f"\n{told.tokens_s:,.4g} tokens/s of {told.concurrency} requests in {told.groups} groups of up to {size}")
    print(f"a token for each takes {1000 * told.step_s:,.4g} ms in contexts of {told.context} tokens")
    print(f"first token of a prompt of {told.prompt} after {1000 * told.ttft_s:,.4g} ms")
    print(f"layer times are {told.source}; {best.objective}: {best.proof()}; binding: {best.binding}")
