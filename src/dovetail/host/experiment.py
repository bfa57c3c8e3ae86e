"""Many runs on the same workloads: every planning with every assignment at every size, as often as asked; resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.confidence import mean
from dovetail.core.errors import InputError
from dovetail.core.files import atomic_write
from dovetail.host.generate import request_lines
from dovetail.host.inputs import Parameters, read_requests
from dovetail.host.metrics import Programs, means_by_priority
from dovetail.host.options import Options
from dovetail.host.outputs import as_csv, cell_text, comparison_csv, comparison_row, run_files, totals_of
from dovetail.host.simulation import Workload, run

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
    """What a cell came to; its cell is kept so that a resumed experiment knows it again. `priorities` are the mean
    times of each, where the planning goes by them."""

    cell: Cell
    totals: dict[str, float]
    priorities: dict[int, dict[str, float]] = {}


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
    atomic_write(path, text)


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
        atomic_write(folder / name, text)
    priorities = means_by_priority(programs.rows.values()) if cell.options.plan == "priority" else {}
    result = Result(cell, totals_of(programs.totals()), priorities)
    atomic_write(done, msgspec.json.format(msgspec.json.encode(result)) + b"\n")
    return result


def _groups(results: Iterable[Result]) -> dict[tuple[int, str, str, str], list[Result]]:
    """The repeats of each size and pair of policies."""
    groups: dict[tuple[int, str, str, str], list[Result]] = {}
    for result in results:
        cell = result.cell
        key = (cell.containers, cell.options.plan, cell.options.assign, cell.version)
        groups.setdefault(key, []).append(result)
    return groups


def summarise(results: Iterable[Result]) -> list[dict[str, Any]]:
    """A row for each size and pair of policies: means over the repeats, with their intervals."""
    rows = []
    for (containers, plan, assign, version), group in _groups(results).items():
        row: dict[str, Any] = {
            "containers": containers,
            "plan": plan,
            "assign": assign,
            "version": version,
            "runs": len(group),
        }
        for name in _MEASURED:
            found = mean([result.totals[name] for result in group])
            row |= {name: found.value, f"{name}_ci95": found.half if len(group) > 1 else None}
        rows.append(row)
    return rows


def comparison(results: Sequence[Result]) -> str:
    """The comparison CSV: means over the repeats; under priorities also the times of each of them."""
    rows = []
    for row, group in zip(summarise(results), _groups(results).values(), strict=True):
        options = Options(plan=row["plan"], assign=row["assign"])
        rows.append(comparison_row(row["containers"], options, row["version"], row))
        for priority in sorted({priority for result in group for priority in result.priorities}):
            runs = [result.priorities[priority] for result in group if priority in result.priorities]
            times = {name: mean([run[name] for run in runs]).value for name in runs[0]}
            rows.append(comparison_row(row["containers"], options, row["version"], row | times, priority))
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
