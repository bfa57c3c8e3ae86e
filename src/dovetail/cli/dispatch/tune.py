"""`dovetail dispatch tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dovetail.cli.common import Force, Format, print_json, print_table, progress, whole_numbers
from dovetail.cli.complete import PYTHON_NAMES
from dovetail.cli.dispatch.words import check_outputs, file_of


def tune(
    function: Annotated[str, PYTHON_NAMES],
    /,
    *,
    devices: str = "cpu",
    shape: str | None = None,
    dtype: str = "float32",
    batch: Annotated[str | None, PYTHON_NAMES] = None,
    dim: int = 0,
    kind: str | None = None,
    types: str | None = None,
    out: Path | None = None,
    curves: Path | None = None,
    force: Force = False,
    format: Format = "table",
) -> int:
    """Find each device's best sub-batch size and its rate.

    Each device runs the batch by itself, in chunks that grow until larger ones gain nothing. What was found is kept for
    later runs of the same function on batches of the same form.

    Example: dovetail dispatch tune model.py:update --shape 100000,6 --devices cuda:0,cpu --out rates.json

    Parameters
    ----------
    function
        The function or module: file.py:name or package.module:name.
    devices
        Names with commas between them.
    shape
        The shape of a batch of random numbers.
    dtype
        Their type.
    batch
        Instead of a shape: a batch, or a function that makes one, as file.py:name.
    dim
        The dimension of the batch.
    kind
        What the function is called in the rate table; its name by default.
    types
        What the devices are called in the rate table, with commas between them; their names by default.
    out
        Write a rate table here, relative to the first device.
    curves
        Write the measured curves here, for `dovetail dispatch simulate`.
    force
        Replace what is there.
    format
        table or json.
    """
    from dovetail.dispatch import tune as measure

    check_outputs({"--out": out, "--curves": curves}, force, file_of(function), file_of(batch))
    sizes = whole_numbers("--shape", shape) if shape is not None else None
    with progress("tuning", total=1.0) as bar:
        found = measure(
            function,
            batch,
            devices=devices,
            shape=sizes,
            dtype=dtype,
            dim=dim,
            kind=kind,
            types=types,
            progress=lambda done, total: bar(done / total),
        )
    if out is not None:
        found.rates().write(out)
    if curves is not None:
        found.save_curves(curves)
    if format == "json":
        print_json({"function": function, "devices": found.rows})
        return 0
    columns = ("device", "hardware", "size", "rate", "latency_s", "settled")
    rows = [[round(row[key]) if key == "rate" else row[key] for key in columns] for row in found]
    print_table(["device", "hardware", "best size", "items/s", "shortest call s", "settled"], rows)
    for path in filter(None, (out, curves)):
        print(f"Written: {path}")
    return 0
