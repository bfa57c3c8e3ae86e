"""`dovetail pipeline profile-generation`: measure how a language model reads prompts and decodes tokens."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dovetail.cli.common import (
    Flag,
    Force,
    Format,
    check_writable,
    print_json,
    print_table,
    progress,
)
from dovetail.cli.pipeline.flags import AS_USUAL, MeasuringFlags

_Counts = Annotated[list[int], Parameter(consume_multiple=True, negative=())]


def profile_generation(
    model: str,
    /,
    *,
    model_name: str | None = None,
    prompt: _Counts = [512],  # noqa: B006
    context: _Counts = [4096],  # noqa: B006
    sequences: _Counts = [1],  # noqa: B006
    dtype: str | None = None,
    hand_over: Flag = False,
    to: Annotated[Path, Parameter(name=["--to"])] = Path("device_types.yml"),
    device_type: str,
    force: Force = False,
    how: MeasuringFlags = AS_USUAL,
    format: Format = "table",
) -> int:
    """Measure a language model's layers: prompts and tokens apart, for plan-generation.

    The whole model runs on this device, and when each layer begins is noted. The times are added to the device types,
    from which `dovetail pipeline plan-generation` reads them; between numbers that were measured it interpolates.

    Example: dovetail pipeline profile-generation hf:llama/ --prompt 512 --context 4096 --sequences 1 8
    --device-type laptop -dtm 16384 -dtb 1000

    Parameters
    ----------
    model
        hf:CONFIG: a Hugging Face config.json or its folder.
    model_name
        The name in the file; what the configuration or its folder is called by default.
    prompt
        Tokens of a prompt; several are measured one after another.
    context
        Tokens in all that a token is decoded in; several are possible.
    sequences
        Requests that are decoded at once; 1 and the most that will be planned for, at least.
    dtype
        Of weights and values, where it is not the configuration's.
    hand_over
        Also measure, by short runs in processes of their own, what stages take to hand over to each other.
    to
        The file of device types to extend.
    device_type
        The device type in it.
    force
        Replace what is there already.
    format
        table or json.
    """
    from dovetail.pipeline import profile_generation as measure

    check_writable(to)
    with progress("profiling", total=len(prompt) + len(context) * len(sequences)) as done:
        found = measure(
            model,
            model_name=model_name,
            prompt=prompt,
            context=context,
            sequences=sequences,
            dtype=dtype,
            hand_over=hand_over,
            to=to,
            device_type=device_type,
            force=force,
            **how.chosen(),
            progress=done,
            notice=lambda text: print(f"warning: {text}", file=sys.stderr),
        )
    if format == "json":
        print_json(found)
    else:
        print_table(["phase", "tokens", "at once", "ms", "tokens/s"], [_row(each) for each in found])
    print(f"Written: {to}", file=sys.stderr)
    return 0


def _row(profile: dict[str, Any]) -> list[object]:
    whole_s, at_once = sum(profile["time_s"]), profile["batch_size"]
    tokens = profile["tokens"] if profile["phase"] == "prefill" else at_once
    return [profile["phase"], profile["tokens"], at_once, 1000 * whole_s, tokens / whole_s]
