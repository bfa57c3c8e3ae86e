"""`dovetail cluster sweep`: many simulations over policies, loads and seeds; one table and one page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter
from msgspec.structs import replace

from dovetail.cli.cluster.flags import JobFlags, RuleFlags, Words, window_of, within
from dovetail.cli.common import Flag, Format, Numbers, atomic_write, make_folder, print_json, print_table, progress
from dovetail.cluster.inputs.choices import LONGEST_QUEUE
from dovetail.core.errors import InputError

if TYPE_CHECKING:
    from dovetail.cluster.inputs.scenario import Scenario
    from dovetail.cluster.sweeps.cell import SweepCell, SweepRow
    from dovetail.cluster.sweeps.grid import LoadClimb, SweepGrid, SweepKind

app = App(name="sweep", help="Sweep over policies, loads and seeds; a sweep that was interrupted goes on.")
_AUTOMATIC, _RANGE = Group("Automatic sweep"), Group("Sweep over fixed range")
_JOBS, _RULES = JobFlags(), RuleFlags()
_CLUSTERS = ("25:0:0", "12:12:0", "16:8:0", "8:8:8")
_Shares = Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative=())]


@app.command
def continuous(
    *,
    log_dir: Annotated[Path, Parameter(alias="-l")] = Path("logs"),
    window_start: Annotated[int, Parameter(alias="-s")] = 0,
    window_end: Annotated[int, Parameter(alias="-e")] = 5000,
    timeout: Annotated[float | None, Parameter(alias="-t")] = None,
    processes: Annotated[int | None, Parameter(alias="-j")] = None,
    policies: Annotated[Words, Parameter(alias="-p")] = (),
    cluster_spec: Annotated[Words, Parameter(alias="-c")] = _CLUSTERS,
    seeds: Numbers = (0, 1, 2, 3, 4),
    cutoff_throughputs_file: Path | None = None,
    jobs: JobFlags = _JOBS,
    rules: RuleFlags = _RULES,
    verbose: Annotated[Flag, Parameter(alias="-v")] = False,
    checkpoint_threshold: int | None = None,
    profiling_percentages: _Shares = (1.0,),
    num_reference_models: Numbers = (),
    longest_queue: float = LONGEST_QUEUE,
    utilization_threshold: Annotated[float | None, Parameter(alias="-u", group=_AUTOMATIC)] = None,
    throughput_lower_bound: Annotated[float | None, Parameter(alias="-a", group=_RANGE)] = None,
    throughput_upper_bound: Annotated[float | None, Parameter(alias="-b", group=_RANGE)] = None,
    num_data_points: Annotated[int, Parameter(alias="-n", group=_RANGE)] = 20,
    format: Format = "table",
) -> int:
    """Sweep over arrival rates: jobs arrive without end, and those in a window are measured.

    The log directory gets raw_logs/CLUSTER/POLICY/seed=S/lambda=L.log as the older sweeps wrote it, the same as JSON,
    results.csv (and results.parquet where pyarrow is installed) and the page sweep.html. The same command again goes on
    where it was interrupted; another configuration in the same folder is refused.

    Exit code 3 if a run failed, was unstable or took too long.

    Example: dovetail cluster sweep continuous -s 400 -e 500 -l logs -p max_min_fairness max_min_fairness_perf
    --seeds 0 1 2 -c 36:36:36 -a 0 -b 4 -n 5

    Parameters
    ----------
    log_dir
        The folder for all results.
    window_start
        The first job that is measured.
    window_end
        The job before which measuring ends.
    timeout
        Seconds that each run may take.
    processes
        How many runs at a time; by default one per core.
    policies
        Policies to sweep; all of them if left out.
    cluster_spec
        Clusters: v100:p100:k80, TYPE=COUNT,... or files.
    seeds
        Seeds of the generated jobs.
    cutoff_throughputs_file
        JSON with jobs per hour by cluster and policy: loads from there on are left out.
    verbose
        Tell of every run that ends.
    checkpoint_threshold
        Accepted, and not used: every finished run is kept.
    profiling_percentages
        Shares of pairs that are profiled, for policies that pack.
    num_reference_models
        Numbers of models whose pairs are all profiled; all of them if left out.
    longest_queue
        A run whose queue grows beyond so many times all accelerators is stopped as unstable.
    utilization_threshold
        Raise the load until the cluster is used more than this (0 to 1), in steps of -a, up to -b.
    throughput_lower_bound
        The lightest load, in jobs per hour; 0 itself is left out.
    throughput_upper_bound
        The heaviest load.
    num_data_points
        How many loads, evenly spaced.
    format
        table or json.
    """
    from dovetail.cluster.inputs.scenario import Scenario
    from dovetail.cluster.sweeps.grid import climbs, loads_between

    low, high = throughput_lower_bound, throughput_upper_bound
    if utilization_threshold is None and (low is None or high is None):
        raise InputError("give the loads: -a and -b in jobs per hour with -n points, or -u for an automatic sweep")
    if utilization_threshold is not None and not 0 < utilization_threshold <= 1:
        raise InputError(f"--utilization-threshold {utilization_threshold}: expected more than 0, up to 1")
    within("--longest-queue", longest_queue, "more than 0", 1e-9)
    for share in profiling_percentages:
        within("--profiling-percentages", share, "0 to 1", most=1)
    for number in num_reference_models:
        within("--num-reference-models", number, "1 or more", 1)
    base = Scenario(window=window_of(window_start, window_end))
    grid = _grid(
        "continuous",
        log_dir,
        base,
        jobs,
        rules,
        clusters=cluster_spec,
        policies=policies,
        seeds=seeds,
        loads=() if low is None or high is None or utilization_threshold else loads_between(low, high, num_data_points),
        profiled=profiling_percentages,
        references=num_reference_models or (None,),
        cutoffs=_cutoffs(cutoff_throughputs_file),
        timeout_s=timeout,
        long=longest_queue,
    )
    tasks = None
    if utilization_threshold is not None:
        tasks = climbs(grid, utilization_threshold, low or None, high or float("inf"))
    return _run(grid, tasks, processes, verbose, format)


@app.command
def static(
    *,
    log_dir: Annotated[Path, Parameter(alias="-l")] = Path("logs"),
    timeout: Annotated[float | None, Parameter(alias="-t")] = None,
    processes: Annotated[int | None, Parameter(alias="-j")] = None,
    policies: Annotated[Words, Parameter(alias="-p")] = (),
    cluster_spec: Annotated[Words, Parameter(alias="-c")] = _CLUSTERS,
    seeds: Numbers = (0, 1, 2, 3, 4),
    jobs: JobFlags = _JOBS,
    rules: RuleFlags = _RULES,
    verbose: Annotated[Flag, Parameter(alias="-v")] = False,
    num_total_jobs_lower_bound: Annotated[int, Parameter(alias="-a", group=_RANGE)],
    num_total_jobs_upper_bound: Annotated[int, Parameter(alias="-b", group=_RANGE)],
    num_data_points: Annotated[int, Parameter(alias="-n", group=_RANGE)] = 20,
    format: Format = "table",
) -> int:
    """Sweep over numbers of jobs, all of which are there at the start.

    Files, resuming and exit codes are those of `sweep continuous`.

    Example: dovetail cluster sweep static -l logs -p fifo min_total_duration_perf --seeds 0 -c 8:8:8 -a 0 -b 40 -n 3

    Parameters
    ----------
    log_dir
        The folder for all results.
    timeout
        Seconds that each run may take.
    processes
        How many runs at a time; by default one per core.
    policies
        Policies to sweep; all of them if left out.
    cluster_spec
        Clusters: v100:p100:k80, TYPE=COUNT,... or files.
    seeds
        Seeds of the generated jobs.
    verbose
        Tell of every run that ends.
    num_total_jobs_lower_bound
        The fewest jobs; 0 itself is left out.
    num_total_jobs_upper_bound
        The most jobs.
    num_data_points
        How many numbers of jobs, evenly spaced.
    format
        table or json.
    """
    from dovetail.cluster.inputs.scenario import Scenario
    from dovetail.cluster.sweeps.grid import loads_between

    loads = loads_between(num_total_jobs_lower_bound, num_total_jobs_upper_bound, num_data_points, whole=True)
    grid = _grid(
        "static",
        log_dir,
        Scenario(),
        jobs,
        rules,
        clusters=cluster_spec,
        policies=policies,
        seeds=seeds,
        loads=loads,
        timeout_s=timeout,
    )
    return _run(grid, None, processes, verbose, format)


@app.command
def compare(a: Path, b: Path, /, *, out: Path | None = None, format: Format = "table") -> None:
    """Compare two sweeps: figures of the second over those of the first, where both have a result.

    Where both have the same seeds, and so the same jobs, the mean difference between them is shown with half its 95 %
    confidence interval: what the seed alone changes, which both share, is not in it.

    Example: dovetail cluster sweep compare logs/before logs/after --out compare.html

    Parameters
    ----------
    a
        The folder of the first sweep.
    b
        The folder of the second one.
    out
        A page with the lines of both.
    format
        table or json.
    """
    from dovetail.cluster.sweeps.table import read_sweep
    from dovetail.report.sweep_page import COMPARED, compared_sweeps, sweep_page

    rows_a, rows_b = read_sweep(a), read_sweep(b)
    compared = compared_sweeps(rows_a, rows_b)
    if not compared:
        raise InputError(f"{a} and {b} have no cluster, policy and load in common")
    if out is not None:
        named = [
            row | {"policy": f"{folder.name}: {row['policy']}"}
            for folder, rows in ((a, rows_a), (b, rows_b))
            for row in rows
        ]
        atomic_write(out, sweep_page(named, f"{a.name} and {b.name}"))
    if format == "json":
        print_json(compared)
        return
    names = ["cluster", "policy", "load", "JCT h A", "JCT h B", "B - A", "B / A"]
    names += ["P95", "makespan", "use", "cost", "rho"]
    print_table(names, [_compared(row, COMPARED) for row in compared])


def _compared(row: SweepRow, keys: Sequence[str]) -> list[Any]:
    jct = row["avg_jct_s"]
    hours = [round(jct[side] / 3600, 2) for side in "ab"] if jct else [row["a"], row["b"]]
    apart = ""
    if jct and "difference" in jct:
        apart = f"{jct['difference'] / 3600:+.2f}"
        apart += f" ± {jct['plus_minus'] / 3600:.2f}" if jct["common_seeds"] > 1 else ""
    ratios = [row[key]["ratio"] if row[key] else None for key in keys]
    rounded = [None if ratio is None else round(ratio, 3) for ratio in ratios]
    return [row["cluster"], row["policy"], row["load"], *hours, apart, *rounded]


def _grid(
    kind: SweepKind,
    folder: Path,
    base: Scenario,
    jobs: JobFlags,
    rules: RuleFlags,
    *,
    policies: tuple[str, ...],
    **more: Any,
) -> SweepGrid:
    from dovetail.cluster.policies import make
    from dovetail.cluster.sweeps.grid import SweepGrid
    from dovetail.core import registry

    for flag, name in (("--cluster-spec", "clusters"), ("--seeds", "seeds"), ("--profiling-percentages", "profiled")):
        if more.get(name) == ():
            raise InputError(f"{flag}: expected at least one value")
    names = tuple(dict.fromkeys(policies)) or tuple(registry.names("cluster"))
    for name in names:
        make(name)
    return SweepGrid(
        kind=kind, folder=folder, base=rules.apply(jobs.apply(base)), how=rules.how(), policies=names, **more
    )


def _cutoffs(path: Path | None) -> dict[str, dict[str, float]]:
    from dovetail.core.files import Document

    if path is None:
        return {}
    doc = Document.read(path)
    return doc.convert(doc.data, dict[str, dict[str, float]])


def _run(grid: SweepGrid, tasks: list[LoadClimb] | None, processes: int | None, verbose: bool, format: Format) -> int:
    from dovetail.cluster.inputs.scenario import load
    from dovetail.cluster.sweeps.cell import kept, run_cell
    from dovetail.cluster.sweeps.grid import RESULTS, claim, run_climbs, run_grid
    from dovetail.core.output import refuse_overwrite

    within("--processes", processes, "1 or more", 1)
    within("--timeout", grid.timeout_s, "seconds, more than 0", 1e-9)
    for cluster in grid.clusters:
        load(replace(grid.base, cluster=cluster, jobs=1, window=None))  # errors show before anything is written
    refuse_overwrite([grid.folder / name for name in ("sweep.json", *RESULTS)], grid.base.files())
    make_folder(grid.folder)
    claim(grid)
    run = run_and_tell if verbose else run_cell
    try:
        if tasks is not None:
            with progress("sweeping", len(tasks)) as done:
                run_climbs(tasks, processes, done, run)
        else:
            cells = grid.cells()
            if not cells:
                raise InputError("no load is left to run: every one is cut off, or 0")
            there = sum(kept(cell) is not None for cell in cells)
            if there:
                print(f"{there} of {len(cells)} runs have a result already", file=sys.stderr)
            with progress("sweeping", len(cells) - there) as done:
                run_grid(grid, processes, done, run)
    except KeyboardInterrupt:
        print(f"{len(_finish(grid))} runs are kept in {grid.folder}; the same command goes on", file=sys.stderr)
        raise
    rows = _finish(grid)
    _show(rows, grid, format)
    return 0 if all(row["status"] == "done" for row in rows) else 3


def run_and_tell(cell: SweepCell) -> SweepRow:
    """Run a cell, in whatever process, and say how it went."""
    from dovetail.cluster.sweeps.cell import run_cell

    row = run_cell(cell)
    amount = f"{row['jobs_per_hour']:g} jobs/h" if row["jobs_per_hour"] else f"{row['num_total_jobs']} jobs"
    text = f"{row['cluster']} {row['policy']} seed {row['seed']} {amount}: {row['status']}"
    if "avg_jct_s" in row:
        text += f", average JCT {row['avg_jct_s']:.0f} s, utilization {row['utilization']:.3f}"
    print(text + (f" ({row['reason']})" if row["reason"] else ""), file=sys.stderr, flush=True)
    return row


def _finish(grid: SweepGrid) -> list[SweepRow]:
    """The table and the page of all results in the folder."""
    from dovetail.cluster.sweeps.table import read_sweep, write_table
    from dovetail.report.sweep_page import sweep_page

    rows = read_sweep(grid.folder)
    if rows:
        write_table(rows, grid.folder)
        title = f"{grid.kind.capitalize()} sweep {grid.folder.name}"
        atomic_write(grid.folder / "sweep.html", sweep_page(rows, title))
    return rows


def _show(rows: Sequence[SweepRow], grid: SweepGrid, format: Format) -> None:
    from dovetail.report.sweep_page import groups

    if format == "json":
        print_json([{key: value for key, value in row.items() if key != "jct_quantiles_s"} for row in rows])
        return
    shown = []
    for group in groups(rows):
        values: list[Any] = [None] * 4
        if group.means:
            jct, use = group.means["avg_jct_s"], group.means["utilization"]
            text = f"{jct.value / 3600:.2f}" + (f" ± {jct.half / 3600:.2f}" if jct.half else "")
            last = group.means["makespan_s"].value / 3600
            values = [text, round(last, 2), round(100 * use.value, 1), round(group.means["rho_mean"].value, 3)]
        shown.append([group.cluster, group.line, group.load, group.seeds, *values, group.status])
    what = "jobs" if grid.kind == "static" else "jobs/h"
    names = ["cluster", "policy", what, "seeds", "average JCT h", "makespan h", "use %", "mean rho", "status"]
    print_table(names, shown)
    for name in dict.fromkeys(row["policy"] for row in rows):
        reasons = [row["reason"] for row in rows if row["policy"] == name and row["status"] == "failed"]
        if reasons:
            print(f"\n{name}: {len(reasons)} runs failed, the first: {reasons[0]}")
    print(f"\nTable and page written to {grid.folder / 'results.csv'} and {grid.folder / 'sweep.html'}")
