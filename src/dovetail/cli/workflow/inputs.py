"""`dovetail workflow generate` and `import`: where request files and configurations come from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App

from dovetail.cli.common import Flag, Format, Pairs, pairs, print_json, print_table
from dovetail.core.errors import InputError
from dovetail.core.output import refuse_overwrite
from dovetail.workflow.choices import ArrivalPattern, FileFormat

if TYPE_CHECKING:
    from dovetail.workflow.inputs.importers.common import Imported

import_app = App(name="import", help="Turn workflows of other systems into our files.")


def generate(
    *,
    config: Path = Path("system_config.yaml"),
    preset: Literal["synthetic", "thrash"] | None = None,
    requests: int = 500,
    duration: float | None = None,
    rate: float | None = None,
    arrivals: ArrivalPattern = "poisson",
    workflow: Pairs | None = None,
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
        Write a made-up configuration first: synthetic (random, from the seed) or thrash (many models, few GPUs).
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
    from dovetail.workflow.inputs.configuration import read_system
    from dovetail.workflow.inputs.generate import Statistics
    from dovetail.workflow.inputs.generate import generate as make_rows
    from dovetail.workflow.inputs.synthetic import synthetic_system, thrash_system
    from dovetail.workflow.inputs.write import file_format as format_of
    from dovetail.workflow.inputs.write import write_config, write_requests

    refuse_overwrite([out], [config])
    if preset is not None and config.exists():
        raise InputError(f"{config}: exists already; name another file for the preset's configuration")
    chosen = file_format or format_of(out)
    weights = {
        name: _number(name, value) for name, value in pairs("--workflow", workflow, verbatim=True).items()
    } or None
    if preset is not None:
        made = thrash_system() if preset == "thrash" else synthetic_system(seed)
        write_config(config, made)
    system = read_system(config)
    if rate is None and duration is None:
        duration = 20.0
    asked: dict[str, Any] = {
        "requests": requests,
        "duration_min": duration,
        "rate_per_min": rate,
        "seed": seed,
        "start": start,
        "workflows": weights,
        "arrivals": arrivals,
    }
    counted = Statistics()
    write_requests(counted.count(system, make_rows(system, **asked)), out, chosen, asked)
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
    force: Flag = False,
    keep_utility: Flag = False,
    keep_loaders: Flag = False,
    format: Format = "table",
) -> int:
    """Import ComfyUI workflows, in the user interface's format or the API's.

    Order is kept: what comes before and after a dropped node stays in that order.

    Example: dovetail workflow import comfyui portrait.json upscale.json --out system_config.yaml

    Parameters
    ----------
    files
        Workflow files; each becomes a workflow.
    out
        The configuration to write.
    requests
        Also write a request of each workflow to this file.
    force
        Write over files that exist.
    keep_utility
        Keep nodes such as LoadImage, which need no GPU.
    keep_loaders
        Keep loader nodes; by default they become the models that others use.
    format
        table or json.
    """
    from dovetail.workflow.inputs.importers.comfyui import import_comfyui

    _refuse(files, out, requests, force)
    result = import_comfyui(files, keep_utility=keep_utility, keep_loaders=keep_loaders)
    return _finish(result, out, requests, format)


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
    from dovetail.workflow.inputs.importers.wfcommons import import_wfcommons

    _refuse(files, out, requests, force)
    return _finish(import_wfcommons(files, width=width, switch_s=switch_s), out, requests, format)


def _refuse(files: Sequence[Path], out: Path, requests: Path | None, force: bool) -> None:
    """Before anything is read: what cannot be written, or must not be."""
    from dovetail.workflow.inputs.write import file_format as format_of

    outputs = [path for path in (out, requests) if path is not None]
    refuse_overwrite(outputs, files)
    for path in outputs:
        format_of(path)
        if path.is_file() and not force:
            raise InputError(f"{path}: exists already; --force writes over it")


def _finish(result: Imported, out: Path, requests: Path | None, format: Format) -> int:
    from dovetail.workflow.inputs.write import file_format as format_of
    from dovetail.workflow.inputs.write import write_config, write_requests

    write_config(out, result.config)
    if requests is not None:
        write_requests(result.requests, requests, format_of(requests))
    facts: dict[str, Any] = {
        "models": len(result.config["models"]),
        "workflows": len(result.config["workflows"]),
        "nodes": sum(len(w["nodes"]) for w in result.config["workflows"].values()),
        "requests": len(result.requests),
        "dropped": result.dropped,
        "notes": result.notes,
    }
    if format == "json":
        print_json(facts)
        return 0
    print_table(["what", "count"], [[key, facts[key]] for key in ("models", "workflows", "nodes", "requests")])
    if result.dropped:
        print("\nDropped, order kept: " + ", ".join(f"{name} x{count}" for name, count in result.dropped.items()))
    for note in result.notes:
        print(f"note: {note}")
    print(f"\nConfiguration written to {out}")
    if requests is not None:
        print(f"Requests written to {requests}")
    return 0


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InputError(f"--workflow {name}={text}: expected a number") from None
