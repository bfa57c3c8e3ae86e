"""`dovetail dispatch bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dovetail.cli.common import Force, Format, Pairs, pairs, print_json, print_table, progress, value, whole_numbers
from dovetail.cli.complete import PYTHON_NAMES, policies_of
from dovetail.cli.dispatch.words import check_outputs, file_of


def bench(
    function: Annotated[str, PYTHON_NAMES],
    /,
    *,
    devices: str | None = None,
    shape: str | None = None,
    dtype: str = "float32",
    batch: Annotated[str | None, PYTHON_NAMES] = None,
    dim: int | None = None,
    policies: Annotated[str | None, policies_of("dispatch")] = None,
    scheduler: str | None = None,
    name: str | None = None,
    option: Pairs | None = None,
    repeats: int = 5,
    journal: Path | None = None,
    force: Force = False,
    format: Format = "table",
) -> int:
    """Run a function on each device alone and on all together.

    Together they work under one or several policies, or as a scheduler says.

    Examples:

    dovetail dispatch bench model.py:update --shape 100000,6 --devices cuda:0,cpu --policies guided,fixed

    dovetail dispatch bench model.py:update --shape 100000,6 --scheduler schedulers.yml --name both --journal run.jsonl

    Parameters
    ----------
    function
        The function or module: file.py:name or package.module:name.
    devices
        Names with commas between them; cpu by default.
    shape
        The shape of a batch of random numbers.
    dtype
        Their type.
    batch
        Instead of a shape: a batch, or a function that makes one, as file.py:name.
    dim
        The dimension of the batch; 0 by default.
    policies
        Names with commas between them; finish_together by default.
    scheduler
        Instead of devices and policies: a YAML or JSON file of schedulers, or the type of one, such as SimpleScheduler.
    name
        Which scheduler of that file; not needed if it has one.
    option
        NAME=VALUE of the scheduler of that type, or of the one policy.
    repeats
        Runs of each; the median counts.
    journal
        Write the median run as a journal here, for `dovetail check` and `dovetail report`; for one policy or scheduler.
    force
        Replace a journal that is there.
    format
        table or json.
    """
    from dovetail.dispatch import bench as measure

    sources = [file_of(function), file_of(batch), Path(scheduler) if scheduler else None]
    check_outputs({"--journal": journal}, force, *sources)
    sizes = whole_numbers("--shape", shape) if shape is not None else None
    words = pairs("--option", option)
    with progress("measuring", total=1.0) as bar:
        found = measure(
            function,
            batch,
            devices=devices,
            shape=sizes,
            dtype=dtype,
            dim=dim,
            policies=policies,
            options=words if scheduler is not None else {key: value(text) for key, text in words.items()},
            scheduler=scheduler,
            name=name,
            repeats=repeats,
            journal=journal,
            progress=lambda done, total: bar(done / total),
        )
    if format == "json":
        shown = [
            {key: getattr(run, key) for key in ("policy", "rate", "efficiency", "items")} for run in found.together
        ]
        print_json({"function": function, "alone": found.alone, "together": shown})
        return 0
    rows: list[list[object]] = []
    for row in found:
        share = None if row["efficiency"] is None else round(100 * row["efficiency"], 1)
        rows.append([row["run"], round(row["rate"]), share, row["size"]])
    print_table(["", "items/s", "% of the sum", "size"], rows)
    if journal is not None:
        print(f"Journal written to {journal}")
    return 0
