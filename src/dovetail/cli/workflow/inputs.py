"""`dovetail workflow generate` and `import`: where request files and configurations come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from cyclopts import App

from dovetail.cli.common import Flag, Format, Pairs, pairs, print_json, print_table
from dovetail.cli.workflow.traces import finish, register_all
from dovetail.core.errors import InputError
from dovetail.core.files.output import refuse_overwrite
from dovetail.workflow import REQUEST_LINES, ArrivalPattern, FileFormat

import_app = App(name="import", help="Turn workflows of other systems into our files.")
register_all(import_app)


def generate(
    *,
    config: Path = Path("system_config.yaml"),
    preset: Literal["synthetic", "thrash", "agents"] | None = None,
    requests: int = 500,
    duration: float | None = None,
    rate: float | None = None,
    arrivals: ArrivalPattern = "poisson",
    workflow: Pairs | None = None,
    tenant: Pairs | None = None,
    seed: int = 0,
    start: str = "2024-01-01T00:00:00",
    out: Path = Path("workflow_requests.jsonl"),
    file_format: FileFormat | None = None,
    format: Format = "table",
) -> int:
    """Generate requests for a configuration; a seed gives its bytes.

    Example: dovetail workflow generate --config system_config.yaml --requests 1000 --rate 25 --seed 1 --out r.jsonl

    Parameters
    ----------
    config
        The configuration to generate for; with --preset, where to write one.
    preset
        Write a made-up configuration first: synthetic (random, from the seed), thrash (many models, few GPUs) or
        agents (whose nodes add others by chance).
    requests
        How many.
    duration
        Minutes over which they arrive; 20 if neither this nor the rate is given.
    rate
        Requests per minute.
    arrivals
        poisson, uniform or bursty.
    workflow
        Weights of the workflows: --workflow chat=3 draw=1; all alike if left out.
    tenant
        How much each tenant sends: --tenant ann=3 bob=1; all that the configuration names alike if left out.
    seed
        Of everything random.
    start
        When the first may arrive.
    out
        The file to write.
    file_format
        json, yaml or jsonl; by default from the file's suffix.
    format
        How the statistics are printed: table or json.
    """
    from dovetail.workflow import agents_system, synthetic_system, thrash_system, write_config
    from dovetail.workflow import generate as make_requests

    refuse_overwrite([out], [config], REQUEST_LINES)
    if preset is not None and config.exists():
        raise InputError(f"{config}: exists already; name another file for the preset's configuration")
    weights = _weights("--workflow", workflow)
    shares = _weights("--tenant", tenant)
    presets = {"synthetic": lambda: synthetic_system(seed), "thrash": thrash_system, "agents": agents_system}
    system = None if preset is None else presets[preset]()
    made = make_requests(
        config if system is None else system,
        requests=requests,
        duration=duration,
        rate=rate,
        arrivals=arrivals,
        workflows=weights or None,
        tenants=shares or None,
        seed=seed,
        start=start,
    )
    counted = made.write(out, file_format)
    if system is not None:
        write_config(config, system)
    if format == "json":
        print_json(counted)
    else:
        rows: list[list[Any]] = [["requests", counted.requests], ["nodes", counted.nodes], ["span s", counted.span_s]]
        rows += [[f"workflow {name}", count] for name, count in sorted(counted.workflows.items())]
        rows += [[f"GPU-hours {name}", round(hours, 3)] for name, hours in sorted(counted.gpu_hours.items())]
        print_table(["what", "count"], rows)
        print(f"\nRequests written to {out}")
    return 0


@import_app.command
def comfyui(
    files: list[Path],
    /,
    *,
    out: Path = Path("system_config.yaml"),
    requests: Path | None = None,
    types: Path | None = None,
    force: Flag = False,
    keep_utility: Flag = False,
    keep_loaders: Flag = False,
    format: Format = "table",
) -> int:
    """Import ComfyUI workflows, in the editor's format or the API's, or from the pictures and films that they made.

    Only what ComfyUI would run is counted. Order is kept: what comes before and after a dropped node stays in that
    order.

    Example: dovetail workflow import comfyui portrait.json upscale.png --out system_config.yaml

    Parameters
    ----------
    files
        Workflow files; each becomes a workflow.
    out
        The configuration to write.
    requests
        Also write a request of each workflow to this file.
    types
        Node types that the files use, such as a ComfyUI server's answer to /object_info; most need not be told.
    force
        Write over files that exist.
    keep_utility
        Keep nodes such as LoadImage, which need no GPU.
    keep_loaders
        Keep loader nodes; by default they become the models that others use.
    format
        table or json.
    """
    from dovetail.workflow import import_comfyui

    outputs = [out] if requests is None else [out, requests]
    refuse_overwrite(outputs, files if types is None else [*files, types], REQUEST_LINES)
    result = import_comfyui(files, types=types, keep_utility=keep_utility, keep_loaders=keep_loaders)
    return finish(result, out, requests, force, format)


@import_app.command
def wfcommons(
    files: list[Path],
    /,
    *,
    out: Path = Path("system_config.yaml"),
    requests: Path = Path("workflow_requests.yaml"),
    force: Flag = False,
    width: Literal["one", "cores"] = "one",
    switch_s: float = 0.0,
    format: Format = "table",
) -> int:
    """Import WfCommons instances (WfFormat): each becomes a workflow and a request with its measured run times.

    Example: dovetail workflow import wfcommons blast.json --out system_config.yaml --requests workflow_requests.yaml

    Parameters
    ----------
    files
        Instance files.
    out
        The configuration to write.
    requests
        The requests to write.
    force
        Write over files that exist.
    width
        GPUs of a node: one, or as many as the task had cores.
    switch_s
        What changing from one program to another costs.
    format
        table or json.
    """
    from dovetail.workflow import import_wfcommons

    refuse_overwrite([out, requests], files, REQUEST_LINES)
    return finish(import_wfcommons(files, width=width, switch_s=switch_s), out, requests, force, format)


def _weights(option: str, given: Pairs | None) -> dict[str, float]:
    return {name: _number(option, name, text) for name, text in pairs(option, given, verbatim=True).items()}


def _number(option: str, name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"{option} {name}={text}: expected a number") from None
