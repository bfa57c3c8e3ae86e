"""Many runs on the same workloads: every planning with every assignment at every size, as often as asked; resumable."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.files import written_whole
from dovetail.host.generate import request_lines
from dovetail.host.inputs import Parameters, read_requests
from dovetail.host.metrics import Programs
from dovetail.host.options import Options
from dovetail.host.outputs import as_csv, cell_text, comparison_csv, comparison_row, run_files, totals_of
from dovetail.host.simulation import Workload, run

# The two-sided 95 % quantile of Student's t by degrees of freedom; beyond, that of the normal distribution.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_MEASURED = (
    "makespan_s",
    "mean_first_run_s",
    "mean_turnaround_s",
    "mean_total_s",
    "mean_waiting_s",
    "core_use",
    "throughput_per_h",
)


class Cell(Struct, frozen=True, kw_only=True):
    """One run: where its workload lies, and how it is scheduled."""

    requests: str
    containers: int
    repeat: int
    cores: int
    work: float | None
    curves: dict[str, str]
    options: Options
    malleable: bool = True
    model: str = ""

    @property
    def version(self) -> str:
        return "maleable" if self.malleable else "original"

    def folder(self, out: Path) -> Path:
        """`<policy>/<assignment>/<n>Contenedores_<version>`, and from the second repeat on a folder in it."""
        place = out / self.options.plan / self.options.assign / f"{self.containers}Contenedores_{self.version}"
        return place if self.repeat == 1 else place / f"repeat-{self.repeat}"


class Result(Struct, frozen=True):
    """What a cell came to; its cell is kept so that a resumed experiment knows it again."""

    cell: Cell
    totals: dict[str, float]


def write_workloads(
    out: Path, parameters: Parameters, sizes: Sequence[int], repeats: int, seed: int
) -> dict[tuple[int, int], str]:
    """One request file for each size and repeat, shared by all policies; one that is there must be the same."""
    names = {}
    for containers in sizes:
        for repeat in range(1, repeats + 1):
            name = f"requests_{containers}" + (f"_{repeat}" if repeat > 1 else "") + ".txt"
            lines = request_lines(parameters, hash_seed(seed, containers, repeat), containers)
            keep_or_write(out / name, lines)
            names[containers, repeat] = name
    return names


def hash_seed(seed: int, containers: int, repeat: int) -> int:
    """A seed of its own for each workload.

    >>> len({hash_seed(0, n, r) for n in (8, 16) for r in (1, 2)})
    4
    """
    return (seed * 1_000_003 + containers) * 1_000_003 + repeat


def keep_or_write(path: Path, text: str) -> None:
    """Write a file, or keep it if it is the same; never over another."""
    if path.exists() and path.is_file():
        if path.read_text() != text:
            raise InputError(
                f"{path}: exists and holds something else; name another file, or another folder with --out"
            )
        return
    with written_whole(path) as file:
        file.write(text.encode())


def run_cell(out: Path, cell: Cell) -> Result:
    """One run with its files, or what it came to if it was made before; the summary is written last."""
    folder = cell.folder(out)
    done = folder / "summary.json"
    if done.is_file():
        try:
            found = msgspec.json.decode(done.read_bytes(), type=Result)
        except (msgspec.DecodeError, msgspec.ValidationError):
            found = None
        if found is not None and found.cell == cell:
            return found
        raise InputError(f"{done}: is of another experiment; name another folder with --out")
    requests = read_requests(out / cell.requests)
    workload = Workload.of(requests, cell.cores, cell.work, cell.curves, cell.malleable)
    programs = Programs(cell.cores)
    run(workload, cell.options, [programs])
    for name, text in run_files(programs, cell.options, cell.cores, cell.model, cell.version).items():
        with written_whole(folder / name) as file:
            file.write(text.encode())
    result = Result(cell, totals_of(programs.totals()))
    with written_whole(done) as file:
        file.write(msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


class Mean(Struct, frozen=True):
    """A mean and half of its 95 % confidence interval; None with one run.

    >>> Mean.of([1.0, 2.0, 3.0]).value
    2.0
    """

    value: float
    half: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        count = len(values)
        if count < 2:
            return cls(values[0], None)
        t = _T95[count - 2] if count - 2 < len(_T95) else 1.96
        return cls(statistics.fmean(values), t * statistics.stdev(values) / sqrt(count))


def summarise(results: Iterable[Result]) -> list[dict[str, Any]]:
    """A row for each size and pair of policies: means over the repeats, with their intervals."""
    groups: dict[tuple[int, str, str, str], list[Result]] = {}
    for result in results:
        cell = result.cell
        key = (cell.containers, cell.options.plan, cell.options.assign, cell.version)
        groups.setdefault(key, []).append(result)
    rows = []
    for (containers, plan, assign, version), group in groups.items():
        row: dict[str, Any] = {
            "containers": containers,
            "plan": plan,
            "assign": assign,
            "version": version,
            "runs": len(group),
        }
        for name in _MEASURED:
            mean = Mean.of([result.totals[name] for result in group])
            row |= {name: mean.value, f"{name}_ci95": mean.half}
        rows.append(row)
    return rows


def comparison(results: Sequence[Result]) -> str:
    """The comparison CSV: means over the repeats."""
    rows = []
    for row in summarise(results):
        options = Options(plan=row["plan"], assign=row["assign"])
        rows.append(comparison_row(row["containers"], options, row["version"], row))
    return comparison_csv(rows)


def table_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """The means with their intervals."""
    columns = list(rows[0])
    return as_csv(columns, ([cell_text(row[column]) for column in columns] for row in rows))


def run_all(out: Path, cells: Sequence[Cell], progress: Callable[[int], None] = lambda done: None) -> list[Result]:
    """All cells in turn; those that were made before are only read."""
    results = []
    for done, cell in enumerate(cells, start=1):
        results.append(run_cell(out, cell))
        progress(done)
    return results
