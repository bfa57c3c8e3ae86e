"""The results of a sweep as one table, a row per run."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from dovetail.cluster.sweeps.cell import SweepRow
from dovetail.core.errors import InputError
from dovetail.core.files.output import atomic_write, written_whole
from dovetail.core.files.reading import read_bytes

KEYS = ("cluster", "policy", "profiling_percentage", "num_reference_models", "jobs_per_hour", "num_total_jobs", "seed")
COLUMNS = (
    *KEYS,
    *("status", "reason", "jobs", "completed", "rejected", "makespan_s", "bound_makespan_s"),
    *("avg_jct_s", "bound_avg_jct_s", "median_jct_s", "p95_jct_s", "avg_jct_low_s", "avg_jct_high_s"),
    *("utilization", "total_cost"),
    *("slo_violations", "slo_jobs", "rho_mean", "rho_p95", "rho_max", "jain", "envy"),
    *("leases", "rounds", "allocations", "policy_s", "cpu_s"),
)


def read_sweep(folder: Path) -> list[SweepRow]:
    """All results in a folder, in the order of what tells them apart."""
    if not (folder / "sweep.json").is_file():
        raise InputError(f"{folder}: expected the folder of a sweep, found no sweep.json in it")
    rows = []
    for path in sorted((folder / "raw_logs").rglob("*.json")):
        try:
            row: SweepRow = msgspec.json.decode(read_bytes(path))
            rows.append({key: row[key] for key in (*KEYS, "status", "reason")} | row)
        except (msgspec.DecodeError, KeyError, TypeError):
            raise InputError(f"{path}: not a result of a sweep; remove it, and run the sweep again") from None
    return sorted(rows, key=lambda row: [_sortable(row[key]) for key in KEYS])


def _sortable(value: Any) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return (value is not None, value if is_number else 0.0, "" if is_number else str(value))


def write_table(rows: Sequence[SweepRow], folder: Path) -> list[Path]:
    """Write results.csv, one row per run, and results.parquet where pyarrow is installed; gives what was written."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow(COLUMNS)
    for row in rows:
        out.writerow(["" if row.get(name) is None else row[name] for name in COLUMNS])
    atomic_write(folder / "results.csv", text.getvalue().encode())
    if find_spec("pyarrow") is None:
        return [folder / "results.csv"]
    pyarrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    table = pyarrow.Table.from_pylist([{name: row.get(name) for name in COLUMNS} for row in rows])
    with written_whole(folder / "results.parquet") as file:
        parquet.write_table(table, file)
    return [folder / "results.csv", folder / "results.parquet"]
