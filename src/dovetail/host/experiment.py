"""Many runs on the same workloads: every planning with every assignment at every size, as often as asked; resumable."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from itertools import product
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, check_functions
from dovetail.core.files.document import Source, as_path, checked
from dovetail.core.files.output import atomic_write
from dovetail.core.files.plain import scalar
from dovetail.core.results.comparison import Comparison
from dovetail.core.results.confidence import mean
from dovetail.host.compat.scheduler import ASSIGNS, PLANS
from dovetail.host.curves import curves_by_image
from dovetail.host.export import as_csv, cell_text, comparison_csv, comparison_row, run_files
from dovetail.host.inputs.generate import keep_or_write, request_lines
from dovetail.host.inputs.parameters import Parameters, read_parameters
from dovetail.host.inputs.requests import read_requests
from dovetail.host.inputs.workload import Workload
from dovetail.host.metrics import means_by_priority
from dovetail.host.options import Count, HostOptions, Scheduling
from dovetail.host.policies import Assignment, Planning, names
from dovetail.host.scheduler import Policies, make_scheduler
from dovetail.host.simulate import chosen_policies, run

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


def experiment(
    runs: int,
    containers: int,
    *,
    parameters: Source | None = None,
    plans: Sequence[str | Planning | type[Planning]] | None = None,
    assigns: Sequence[str | Assignment | type[Assignment]] | None = None,
    repeats: int = 1,
    cores: int = 16,
    work: float | None = None,
    curves: str | Mapping[str, str] | Iterable[str] | None = None,
    seed: int = 0,
    name: str = "comparison",
    out: str | PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Unpack[Scheduling],
) -> Comparison:
    """Compare every planning with every assignment on the same random workloads.

    >>> found = experiment(1, 8, plans=["fcfs"], assigns=["strict", "max_prop"], repeats=2, work=300)
    >>> [(row["plan"], row["assign"], row["runs"]) for row in found]
    [('fcfs', 'strict', 2), ('fcfs', 'max_prop', 2)]

    Parameters
    ----------
    runs
        How many sizes; each has twice as many programs as the one before.
    containers
        Programs of the first size.
    parameters
        parameters.json, or a dict in its place: how programs and their arrivals are drawn.
    plans
        The plannings to compare: names, file.py:name, or your own; by default all that are installed, with
        profile="legacy" those that the older scheduler had.
    assigns
        The assignments, likewise.
    repeats
        Workloads of each size, for means with 95 % confidence intervals.
    cores, work, curves
        As `load` takes them.
    seed
        Of the generated workloads.
    name
        Of the comparison.
    out
        A folder for the results: those of a run are in POLICY/ASSIGNMENT/<n>Contenedores_<version>, the comparison in
        NAME.csv, with confidence intervals in NAME_ci95.csv. What is there is gone on with. By default none is kept.
    progress
        Is told how many runs are done, and of how many.
    options
        As `simulate` takes them.
    """
    check_functions(progress=progress)
    found = PARAMETERS if parameters is None else read_parameters(parameters)
    older = options.get("profile") == "legacy"
    plans = (PLANS if older else names(Planning)) if plans is None else _several("plans", plans)
    assigns = (ASSIGNS if older else names(Assignment)) if assigns is None else _several("assigns", assigns)
    chosen = [chosen_policies(found, plan, assign, options) for plan, assign in product(plans, assigns)]
    runs, containers, repeats = (
        checked(value, Count, label)
        for label, value in (("runs", runs), ("containers", containers), ("repeats", repeats))
    )
    place = None if out is None else as_path(out, "out")
    for each, _ in chosen:
        if each.profile == "legacy":
            make_scheduler(1, {}, each)  # what the older scheduler did not have is refused before anything runs
    sizes, by_image = [containers * 2**i for i in range(runs)], curves_by_image(curves)
    with TemporaryDirectory() if place is None else nullcontext(place) as folder:
        place = Path(folder)
        files = write_workloads(place, found, sizes, repeats, checked(seed, int, "seed"))
        cells = [
            ExperimentCell(
                requests=files[size, repeat],
                containers=size,
                repeat=repeat,
                cores=checked(cores, Count, "cores"),
                work=scalar(work),
                curves=by_image,
                options=each,
                malleable=found.malleable,
                model=found.tf_model,
            )
            for size in sizes
            for each, _ in chosen
            for repeat in range(1, repeats + 1)
        ]
        own = {options.title: policies for options, policies in chosen if policies is not None}
        told = (lambda done: None) if progress is None else lambda done: progress(done, len(cells))
        results = run_all(place, cells, told, own)
        rows = write_comparison(place, name, results)
    shown = [key for key in _MEASURED if key not in ("mean_total_s", "mean_waiting_s")]
    return Comparison(rows, ["containers", "plan", "assign", *shown])


def _several(name: str, given: Any) -> Sequence[Any]:
    if not isinstance(given, list | tuple) or not given:
        raise InputError(f"{name}: expected a list of policies, found {given!r}")
    return given


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


def run_cell(out: Path, cell: ExperimentCell, policies: Policies | None = None) -> Result:
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
    programs = run(workload, cell.options, policies=policies).programs
    for name, text in run_files(programs, cell.options, cell.cores, cell.model, cell.version).items():
        atomic_write(folder / name, text)
    by_priority = (policies or Policies.named(cell.options)).plan.by_priority
    priorities = means_by_priority(programs.rows.values()) if by_priority else {}
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
    out: Path,
    cells: Sequence[ExperimentCell],
    progress: Callable[[int], None] = lambda done: None,
    own: Mapping[str, Policies] | None = None,
) -> list[Result]:
    """All cells in turn; those that were made before are only read. `own` are policies that no name leads to."""
    results = []
    for done, cell in enumerate(cells, start=1):
        results.append(run_cell(out, cell, (own or {}).get(cell.options.title)))
        progress(done)
    return results


def write_comparison(out: Path, name: str, results: Sequence[Result]) -> list[dict[str, Any]]:
    """The comparison, in the older columns and with intervals; gives the rows of the latter."""
    rows = summarise(results)
    atomic_write(out / f"{name}.csv", comparison(results))
    atomic_write(out / f"{name}_ci95.csv", table_csv(rows))
    return rows
