"""Many runs on the same workloads: every planning with every assignment at every size, as often as asked; resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.confidence import mean
from dovetail.core.errors import InputError
from dovetail.core.output import atomic_write
from dovetail.host.export import as_csv, cell_text, comparison_csv, comparison_row, run_files
from dovetail.host.inputs.generate import keep_or_write, request_lines
from dovetail.host.inputs.parameters import Parameters
from dovetail.host.inputs.requests import read_requests
from dovetail.host.metrics import Programs, means_by_priority
from dovetail.host.options import HostOptions, Profile
from dovetail.host.scheduler import make_scheduler
from dovetail.host.simulate import Workload, run

_MEASURED = (
    "makespan_s",
    "mean_first_run_s",
    "mean_turnaround_s",
    "mean_total_s",
    "mean_waiting_s",
    "core_use",
    "throughput_per_h",
)

PARAMETERS = Parameters(
    time_distribution="normal",
    time_gap=(15.0, 5.0),
    resources_distribution="random",
    resources_per_container=(2, 17),
)


class ExperimentCell(Struct, frozen=True, kw_only=True):
    """One run: where its workload lies, and how it is scheduled."""

    requests: str
    containers: int
    repeat: int
    cores: int
    work: float | None
    curves: dict[str, str]
    options: HostOptions
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

    cell: ExperimentCell
    totals: dict[str, float]
    priorities: dict[int, dict[str, float]] = {}


def usual_policies(profile: Profile = "clean") -> tuple[list[str], list[str]]:
    """The plannings and assignments that are compared unless others are named."""
    plans, assigns = ["fcfs", "priority"], ["strict", "max_prop", "always_attend"]
    return (plans, assigns) if profile == "legacy" else ([*plans, "rr"], [*assigns, "efficient"])


def plan_cells(
    out: Path,
    parameters: Parameters,
    policies: Sequence[HostOptions],
    *,
    sizes: Sequence[int],
    repeats: int = 1,
    seed: int = 0,
    cores: int = 16,
    work: float | None = None,
    curves: Mapping[str, str] | None = None,
) -> list[ExperimentCell]:
    """Every size under all policies, each repeat on a workload of its own, which is written to `out`."""
    if not sizes or min(*sizes, repeats) < 1:
        raise InputError(f"expected sizes and repeats from 1 on, found sizes {list(sizes)}, repeats {repeats}")
    for options in policies:
        make_scheduler(
            1, {}, options
        )  # policies that do not exist, or do not go together, are refused before anything runs
    files = write_workloads(out, parameters, sizes, repeats, seed)
    return [
        ExperimentCell(
            requests=files[size, repeat],
            containers=size,
            repeat=repeat,
            cores=cores,
            work=work,
            curves=dict(curves or {}),
            options=options,
            malleable=parameters.malleable,
            model=parameters.tf_model,
        )
        for size in sizes
        for options in policies
        for repeat in range(1, repeats + 1)
    ]


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


def run_cell(out: Path, cell: ExperimentCell) -> Result:
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
    result = Result(cell, programs.totals().as_dict(), priorities)
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
        options = HostOptions(plan=row["plan"], assign=row["assign"])
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


def run_all(
    out: Path, cells: Sequence[ExperimentCell], progress: Callable[[int], None] = lambda done: None
) -> list[Result]:
    """All cells in turn; those that were made before are only read."""
    results = []
    for done, cell in enumerate(cells, start=1):
        results.append(run_cell(out, cell))
        progress(done)
    return results


def write_comparison(out: Path, name: str, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The comparison, in the older columns and with intervals; gives the rows of the latter."""
    rows = summarise(results)
    atomic_write(out / f"{name}.csv", comparison(results))
    atomic_write(out / f"{name}_ci95.csv", table_csv(rows))
    return rows
