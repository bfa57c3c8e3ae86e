"""`dovetail pipeline export`: a plan as what other engines run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from dovetail.cli.common import Format, Pairs, check_writable, pairs, print_json, value, whole_numbers

_Texts = Annotated[tuple[str, ...], Parameter(negative=())]


def export(
    plan: Path,
    /,
    *,
    to: Literal["torch", "llama.cpp", "vllm", "exo"],
    model: str | None = None,
    config: Path | None = None,
    argument: Pairs | None = None,
    shape: _Texts = (),
    input_dtype: str = "",
    weights: Path | None = None,
    seed: int = 0,
    cut: Literal["auto", "sequential", "graph"] = "auto",
    out: Path | None = None,
    format: Format = "table",
) -> int:
    """Write a plan as what other engines run, and say what of it they cannot take.

    torch: a script for torch.distributed.pipelining; llama.cpp and vllm: the command; exo: a script that places the
    model. What is lost goes to stderr, a line each. Exit code 2 if the engine has no such thing at all.

    Example: dovetail pipeline export plan.json --to vllm --model meta-llama/Meta-Llama-3-8B

    Parameters
    ----------
    plan
        A plan as `dovetail pipeline plan` or `plan-generation` gives it with --format json.
    to
        torch, llama.cpp, vllm or exo.
    model
        What the engine calls the model: a name or file; for torch what `dovetail pipeline run` takes.
    config
        The model's config.json, if the plan is not of plan-generation.
    argument
        NAME=VALUE arguments of the model's factory (torch).
    shape
        The shape of each input without the batch dimension (torch).
    input_dtype
        The dtype of the inputs, where it is not the model's (torch).
    weights
        Weights to load (torch).
    seed
        Of the random weights (torch).
    cut
        As the model was cut for the plan: auto, sequential or graph (torch).
    out
        Write it to this file instead of printing it.
    format
        table, or json: the text, its version and what is lost as data.
    """
    from dovetail.pipeline import export as make_export

    check_writable(out)
    made = make_export(
        plan,
        to=to,
        model=model,
        config=config,
        argument={key: value(text) for key, text in pairs("--argument", argument).items()},
        shape=[whole_numbers("--shape", text) for text in shape],
        input_dtype=input_dtype,
        weights=weights,
        seed=seed,
        cut=cut,
        out=out,
    )
    if format == "json":
        print_json(made)
    else:
        print(made.text if out is None else f"Written: {out}")
    print(f"for {made.version}", file=sys.stderr)
    for loss in made.losses:
        print(f"lost: {loss}", file=sys.stderr)
    return 0
