"""`dovetail cluster sweep`: many simulations over policies, loads and seeds; one table and one page."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from dovetail.cli.cluster.flags import JobFlags, RuleFlags, Words, window_of
from dovetail.cli.common import Flag, Format, Numbers, interval, print_json, print_table, progress
from dovetail.cli.complete import policies_of
from dovetail.cluster import LONGEST_QUEUE
from dovetail.core.errors import InputError
from dovetail.core.parallel import CellEngine

if TYPE_CHECKING:
    from dovetail.cluster import Scenario, Sweep, SweepKind

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
    engine: CellEngine | None = None,
    address: str | None = None,
    policies: Annotated[Words, policies_of("cluster"), Parameter(alias="-p")] = (),
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

    A load that a policy cannot bear (unstable) is a result. Exit code 3 if a run failed or took too long.

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
    engine
        local: processes of this machine; ray: the nodes of a cluster, which must see the files and the folder.
    address
        Of the Ray cluster, which is then the engine; without one --engine ray starts a private cluster here.
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
    from dovetail.cluster import Scenario, loads_between

    low, high = throughput_lower_bound, throughput_upper_bound
    loads: tuple[float, ...] = ()
    if utilization_threshold is None:
        if low is None or high is None:
            raise InputError("give the loads: -a and -b in jobs per hour with -n points, or -u for an automatic sweep")
        loads = loads_between(low, high, num_data_points)
        if low == 0:
            print("note: a load of 0 is left out", file=sys.stderr)
    return _run(
        "continuous",
        log_dir,
        Scenario(window=window_of(window_start, window_end)),
        jobs,
        rules,
        verbose,
        format,
        clusters=cluster_spec,
        policies=policies,
        seeds=seeds,
        loads=loads,
        profiling_percentages=profiling_percentages,
        num_reference_models=num_reference_models,
        cutoffs=cutoff_throughputs_file,
        utilization_threshold=utilization_threshold,
        step=low or None,
        most=high or float("inf"),
        timeout=timeout,
        longest_queue=longest_queue,
        processes=processes,
        engine=engine,
        address=address,
    )


@app.command
def static(
    *,
    log_dir: Annotated[Path, Parameter(alias="-l")] = Path("logs"),
    timeout: Annotated[float | None, Parameter(alias="-t")] = None,
    processes: Annotated[int | None, Parameter(alias="-j")] = None,
    engine: CellEngine | None = None,
    address: str | None = None,
    policies: Annotated[Words, policies_of("cluster"), Parameter(alias="-p")] = (),
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
    engine
        local: processes of this machine; ray: the nodes of a cluster, which must see the files and the folder.
    address
        Of the Ray cluster, which is then the engine; without one --engine ray starts a private cluster here.
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
    from dovetail.cluster import Scenario, loads_between

    return _run(
        "static",
        log_dir,
        Scenario(),
        jobs,
        rules,
        verbose,
        format,
        clusters=cluster_spec,
        policies=policies,
        seeds=seeds,
        loads=loads_between(num_total_jobs_lower_bound, num_total_jobs_upper_bound, num_data_points, whole=True),
        timeout=timeout,
        processes=processes,
        engine=engine,
        address=address,
    )


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
    from dovetail.cluster import Sweep, compare_sweeps, read_results

    sweeps = [read_results(a), read_results(b)]
    compared = compare_sweeps(*sweeps).rows
    if out is not None:
        named = [
            row | {"policy": f"{folder.name}: {row['policy']}"}
            for folder, found in zip((a, b), sweeps, strict=True)
            for row in found.runs
        ]
        Sweep(named).report(out, f"{a.name} and {b.name}")
    if format == "json":
        print_json(compared)
        return
    names = ["cluster", "policy", "load", "JCT h A", "JCT h B", "B - A", "B / A"]
    names += ["P95", "makespan", "use", "cost", "rho"]
    print_table(names, [_compared(row) for row in compared])


@app.command
def paired(
    log_dir: Path,
    /,
    *,
    against: str | None = None,
    figures: Words = ("avg_jct_s",),
    format: Format = "table",
) -> None:
    """Compare the policies of one sweep, seed by seed: differences and ratios with 95 % confidence intervals.

    All policies had the same jobs with a seed. Means whose bands overlap may differ for certain all the same.

    Example: dovetail cluster sweep paired logs --against max_min_fairness --figures avg_jct_s makespan_s

    Parameters
    ----------
    log_dir
        The folder of the sweep.
    against
        The policy that the others are compared with; the first if left out.
    figures
        Which figures: avg_jct_s, p95_jct_s, makespan_s, utilization, cost_per_job, rho_mean, jain, envy, late.
    format
        table or json.
    """
    from dovetail.cluster import read_results

    rows = read_results(log_dir).paired(against, figures).rows
    if format == "json":
        print_json(rows)
        return
    _differences(rows)


def _differences(rows: list[dict[str, Any]]) -> None:
    names = ["cluster", "policy", "load", "against", "figure", "difference", "ratio", "seeds", "smaller in", "sure"]
    shown = []
    for row in rows:
        unit = 3600 if row["figure"].endswith("_s") else 1
        apart = f"{row['difference'] / unit:+.3f}" + (f" ± {row['plus_minus'] / unit:.3f}" if row["pairs"] > 1 else "")
        figure = row["figure"].removesuffix("_s") + (" h" if unit > 1 else "")
        sure, ratio = "yes" if row["sure"] else "no", interval(row).removesuffix(" *")
        one = [row["cluster"], row["policy"], row["load"], row["against"], figure, apart, ratio]
        shown.append([*one, row["pairs"], row["smaller_in"], sure])
    print_table(names, shown)


def _compared(row: dict[str, Any]) -> list[Any]:
    jct = row["avg_jct_s"]
    hours = [round(jct[side] / 3600, 2) for side in "ab"] if jct else [row["a"], row["b"]]
    apart = ""
    if jct and "difference" in jct:
        apart = f"{jct['difference'] / 3600:+.2f}"
        apart += f" ± {jct['plus_minus'] / 3600:.2f}" if jct["common_seeds"] > 1 else ""
    keys = ("avg_jct_s", "p95_jct_s", "makespan_s", "utilization", "cost_per_job", "rho_mean")
    ratios = [row[key]["ratio"] if row[key] else None for key in keys]
    rounded = [None if ratio is None else round(ratio, 3) for ratio in ratios]
    return [row["cluster"], row["policy"], row["load"], *hours, apart, *rounded]


def _run(
    kind: SweepKind,
    log_dir: Path,
    base: Scenario,
    jobs: JobFlags,
    rules: RuleFlags,
    verbose: bool,
    format: Format,
    **more: Any,
) -> int:
    from dovetail.cluster import read_results, run_cell, sweep

    if not more["clusters"]:
        raise InputError("--cluster-spec: expected at least one value")
    begun = False

    def show(made: int, of: int) -> None:
        nonlocal begun
        if made and not begun:
            print(f"{made} of {of} runs have a result already", file=sys.stderr)
        begun = True
        done(made / of)

    try:
        with progress("sweeping", 1) as done:
            found = sweep(
                rules.apply(jobs.apply(base)),
                kind=kind,
                log_dir=log_dir,
                progress=show,
                run=run_and_tell if verbose else run_cell,
                **rules.how(),
                **more,
            )
    except KeyboardInterrupt:
        if (kept := read_results(log_dir)).runs:
            _show(kept, kind, log_dir, format, more["policies"])
        print(f"{len(kept.runs)} runs are kept in {log_dir}; the same command goes on", file=sys.stderr)
        raise
    _show(found, kind, log_dir, format, more["policies"])
    return 3 if any(row["status"] in ("failed", "timeout") for row in found.runs) else 0


def run_and_tell(cell: Any) -> dict[str, Any]:
    """Run a cell, in whatever process, and say how it went."""
    from dovetail.cluster import run_cell

    row = run_cell(cell)
    amount = f"{row['jobs_per_hour']:g} jobs/h" if row["jobs_per_hour"] else f"{row['num_total_jobs']} jobs"
    text = f"{row['cluster']} {row['policy']} seed {row['seed']} {amount}: {row['status']}"
    if "avg_jct_s" in row:
        text += f", average JCT {row['avg_jct_s']:.0f} s, utilization {row['utilization']:.3f}"
    print(text + (f" ({row['reason']})" if row["reason"] else ""), file=sys.stderr, flush=True)
    return row


def _show(found: Sweep, kind: SweepKind, log_dir: Path, format: Format, policies: Sequence[str]) -> None:
    if format == "json":
        print_json([{key: value for key, value in row.items() if key != "jct_quantiles_s"} for row in found.runs])
        return
    shown = []
    for row in found:
        values: list[Any] = [None] * 4
        if "avg_jct_s" in row:
            half = row["avg_jct_s_plus_minus"]
            text = f"{row['avg_jct_s'] / 3600:.2f}" + (f" ± {half / 3600:.2f}" if half else "")
            use = round(100 * row["utilization"], 1)
            values = [text, round(row["makespan_s"] / 3600, 2), use, round(row["rho_mean"], 3)]
        shown.append([row["cluster"], row["policy"], row["load"], row["seeds"], *values, row["status"]])
    what = "jobs" if kind == "static" else "jobs/h"
    names = ["cluster", "policy", what, "seeds", "average JCT h", "makespan h", "use %", "mean rho", "status"]
    print_table(names, shown)
    for name in dict.fromkeys(row["policy"] for row in found.runs):
        reasons = [row["reason"] for row in found.runs if row["policy"] == name and row["status"] == "failed"]
        if reasons:
            print(f"\n{name}: {len(reasons)} runs failed, the first: {reasons[0]}")
    lines = dict.fromkeys(row["policy"] for row in found)
    if len(lines) > 1 and any(row["seeds"] > 1 for row in found):
        first = policies[0] if policies and policies[0] in lines else None
        print("\nSeed by seed, against one policy:\n")
        _differences(found.paired(first).rows)
    print(f"\nTable and page written to {log_dir / 'results.csv'} and {log_dir / 'sweep.html'}")
