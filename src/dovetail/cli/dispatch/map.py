"""`dovetail dispatch map`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from dovetail.cli.common import Format, print_json, print_table, progress, whole_numbers
from dovetail.cli.complete import PYTHON_NAMES
from dovetail.core.parallel import CellEngine


def map(
    function: Annotated[str, PYTHON_NAMES],
    dataset: str,
    out: Path,
    /,
    *,
    devices: str | None = None,
    sizes: str | None = None,
    items: int | None = None,
    to: str | None = None,
    backend: str | None = None,
    on_error: Literal["retry", "fail", "skip"] = "retry",
    engine: CellEngine | None = None,
    address: str | None = None,
    format: Format = "table",
) -> int:
    """Call a function on every item of a dataset larger than memory; results go to files.

    Killed or interrupted, the same command goes on where it stopped. Another function, dataset or option is refused.

    Examples:

    dovetail dispatch map model.py:embed images embeddings --devices cuda:0,cuda:1,cpu

    dovetail dispatch map model.py:embed images embeddings --engine ray --address 10.0.0.7:6379

    Parameters
    ----------
    function
        The function or module: file.py:name or package.module:name.
    dataset
        A folder of .npy, .safetensors or .parquet files, or one file; or a Dataset, DataLoader or iterable, or a
        function that makes it, as file.py:name.
    out
        The folder that results go to: 000000.npy, 000001.npy, ... and manifest.json, which says what they were made of.
    devices
        Names with commas between them; cpu by default, and on a Ray cluster all that its nodes have.
    sizes
        Items of a call: one for all devices, or one each with commas between them; by default found by measuring.
    items
        Items of a shard; by default about 64 MiB of them.
    to
        safetensors, parquet or npy; by default what the dataset's files are, else safetensors.
    backend
        thread (default), or process for functions that hold Python's lock.
    on_error
        retry (default): another device tries what fails, then the map ends; fail: it ends at once; skip: the other
        shards are done first.
    engine
        local (default), or ray: whole shards on the nodes of a Ray cluster, which must all see the same folders.
    address
        Of the Ray cluster, which is then the engine; without one --engine ray starts a private cluster here.
    format
        table or json.
    """
    from dovetail.dispatch import map as map_over

    with progress("mapping", total=1.0) as bar:
        found = map_over(
            function,
            dataset,
            out,
            devices=devices,
            sizes=whole_numbers("--sizes", sizes) if sizes is not None else None,
            items=items,
            to=to,
            backend=backend,
            on_error=on_error,
            engine=engine,
            address=address,
            progress=lambda done, total: bar(done / total if total else 0.0),
        )
    rows = {
        "shards": found.shards,
        "items": found.items,
        "shards_before": found.shards_before,
        "items_before": found.items_before,
        "seconds": round(found.seconds, 3),
        "rate": round(found.rate, 1),
    }
    if format == "json":
        print_json({"out": str(out), **rows, "devices": found.devices})
        return 0
    shares = [[f"by {name}", count] for name, count in found.devices.items()]
    print_table(["", str(out)], [[name.replace("_", " "), value] for name, value in rows.items()] + shares)
    return 0
