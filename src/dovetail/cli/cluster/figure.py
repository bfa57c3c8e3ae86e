"""`dovetail cluster figure`: what is published of clusters, each by one command: a table, JSON, and a picture."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from dovetail.cli.cluster.flags import JobFlags, RuleFlags, Words, WorkFlags
from dovetail.cli.common import Format, Numbers, Pairs, pairs, print_json, print_table, progress
from dovetail.cli.complete import policies_of
from dovetail.cluster import LONGEST_QUEUE
from dovetail.core.errors import DovetailError, InputError

if TYPE_CHECKING:
    from dovetail.core.results.comparison import Comparison

app = App(name="figure", help="Published figures by one command each: a table or JSON, and a picture.")
_WORK, _JOBS, _RULES = WorkFlags(), JobFlags(), RuleFlags()
_NO_PAIR = {"difference": 0.0, "plus_minus": 0.0, "pairs": 0}  # the first policy was stopped
_AWARE = ("max_min_fairness", "max_min_fairness_perf")
_Reals = Annotated[tuple[float, ...], Parameter(consume_multiple=True, negative=())]
_Policies = Annotated[Words, policies_of("cluster"), Parameter(alias=["-p", "--policies"])]
_Processes = Annotated[int | None, Parameter(alias="-j")]


@app.command
def rounds(
    *,
    intervals: _Reals = (360.0, 720.0, 1440.0, 2880.0),
    policy: _Policies = _AWARE,
    seeds: Numbers = (0, 1, 2),
    work: WorkFlags = _WORK,
    jobs: JobFlags = _JOBS,
    rules: RuleFlags = _RULES,
    longest_queue: float = LONGEST_QUEUE,
    processes: _Processes = None,
    out: Path | None = None,
    format: Format = "table",
) -> int:
    """Completion times against the length of a round, beside shares that are carried out exactly.

    Example: dovetail cluster figure rounds --jobs-per-hour 2 -s 40 -e 100 -c 8:8:8 --out rounds.svg

    Parameters
    ----------
    intervals
        Seconds of a round.
    policy
        One or more policies; differences are to the first one.
    seeds
        Seeds of generated jobs, for means and differences with 95 % confidence intervals.
    longest_queue
        A run whose queue grows beyond so many times all accelerators is stopped as unstable, and has no figures.
    processes
        How many runs at a time; by default one per core.
    out
        A picture of the average JCT over the round length; its name ends in .svg.
    format
        table or json.
    """
    from dovetail.cluster import round_lengths

    _check(out)
    with progress("figure", 1) as done:
        found = round_lengths(
            work.scenario(jobs, rules), intervals, policy, **_how(seeds, longest_queue, processes, done), **rules.how()
        )
    rows = [
        [row["interval_s"] or "ideal", row["policy"], *_hours(row, "avg_jct_s"), _rounded(row["over_ideal"])]
        for row in found
    ]
    names = ["round s", "policy", "average JCT h", "- first policy's h", "over ideal"]
    return _show(found, names, rows, out, format, "interval_s", "avg_jct_s")


@app.command
def types(
    *,
    types: Words = ("v100", "k80"),
    total: int = 24,
    shares: _Reals = (0.0, 0.25, 0.5, 0.75, 1.0),
    policy: _Policies = _AWARE,
    seeds: Numbers = (0, 1, 2),
    work: WorkFlags = _WORK,
    jobs: JobFlags = _JOBS,
    rules: RuleFlags = _RULES,
    longest_queue: float = LONGEST_QUEUE,
    processes: _Processes = None,
    out: Path | None = None,
    format: Format = "table",
) -> int:
    """What knowing types is worth, against the mix of two types.

    Example: dovetail cluster figure types --types v100 k80 --total 24 --shares 0 0.5 1 --jobs 40 --out types.svg

    Parameters
    ----------
    types
        Two types.
    total
        Accelerators of both together.
    shares
        Shares of them that are of the first type.
    policy
        One or more policies; differences are to the first one.
    seeds
        Seeds of generated jobs, for means and differences with 95 % confidence intervals.
    longest_queue
        A run whose queue grows beyond so many times all accelerators is stopped as unstable, and has no figures.
    processes
        How many runs at a time; by default one per core.
    out
        A picture of the makespan over the share; its name ends in .svg.
    format
        table or json.
    """
    from dovetail.cluster import type_mixes

    _check(out)
    if work.cluster_spec != _WORK.cluster_spec:
        raise InputError("--cluster-spec: the clusters are made of --types, --total and --shares")
    with progress("figure", 1) as done:
        scenario = work.scenario(jobs, rules)
        found = type_mixes(
            scenario, types, total, shares, policy, **_how(seeds, longest_queue, processes, done), **rules.how()
        )
    rows = [
        [f"{100 * row['share']:g} %", row["policy"], *_hours(row, "makespan_s"), *_hours(row, "avg_jct_s")]
        for row in found
    ]
    names = [types[0], "policy", "makespan h", "- first policy's h", "average JCT h", "- first policy's h "]
    return _show(found, names, rows, out, format, "share", "makespan_s")


@app.command
def cost(
    *,
    policy: _Policies = (
        "max_sum_throughput_perf",
        "max_sum_throughput_normalized_by_cost_perf",
        "max_sum_throughput_normalized_by_cost_perf_SLOs",
    ),
    seeds: Numbers = (0, 1, 2),
    work: WorkFlags = _WORK,
    jobs: JobFlags = _JOBS,
    rules: RuleFlags = _RULES,
    longest_queue: float = LONGEST_QUEUE,
    processes: _Processes = None,
    out: Path | None = None,
    format: Format = "table",
) -> int:
    """What policies cost, relative to the first one on the same jobs, and the deadlines that they miss.

    Example: dovetail cluster figure cost --assign-SLOs --jobs 40 --seeds 0 1 2 3

    Parameters
    ----------
    policy
        The baseline, and others.
    seeds
        Seeds of generated jobs, for ratios with 95 % confidence intervals.
    longest_queue
        A run whose queue grows beyond so many times all accelerators is stopped as unstable, and has no figures.
    processes
        How many runs at a time; by default one per core.
    out
        A picture of the cost over the average JCT, both relative to the first policy's; its name ends in .svg.
    format
        table or json.
    """
    from dovetail.cluster import relative_costs

    _check(out)
    with progress("figure", 1) as done:
        found = relative_costs(
            work.scenario(jobs, rules), policy, **_how(seeds, longest_queue, processes, done), **rules.how()
        )
    rows = []
    for row in found:
        least, most = row["relative_cost_least"], row["relative_cost_most"]
        sure = "" if least is None else f"{least:.3f} to {most:.3f}"
        spent, late = _rounded(row["total_cost"], 2), _rounded(row["slo_violations"], 2)
        figures = [_rounded(row["relative_cost"]), sure, _rounded(row["relative_avg_jct"])]
        rows.append([row["policy"], "stopped" if spent is None else spent, *figures, late])
    names = ["policy", "cost", "over the first's", "95 % interval", "JCT over the first's", "missed deadlines"]
    return _show(found, names, rows, out, format, "relative_avg_jct", "relative_cost")


@app.command
def times(
    *,
    job_counts: Numbers = (32, 64, 128, 256, 512, 1024, 2048),
    policy: _Policies = _AWARE,
    trials: int = 3,
    cluster_spec: Annotated[str, Parameter(alias="-c")] = "8:8:8",
    throughputs_file: Path | None = None,
    entities: int = 0,
    jobs: JobFlags = _JOBS,
    out: Path | None = None,
    format: Format = "table",
) -> int:
    """CPU time of one allocation against the number of jobs, with an accelerator of each type for every four jobs.

    Example: dovetail cluster figure times --job-counts 32 128 512 -p max_min_fairness_perf finish_time_fairness_perf

    Parameters
    ----------
    job_counts
        Numbers of jobs.
    policy
        One or more policies.
    trials
        So many sets of jobs of each size; medians are shown.
    cluster_spec
        The cluster whose types are used.
    throughputs_file
        Steps per second of every job; without it, the built-in model's estimates.
    entities
        Jobs belong to so many entities.
    out
        A picture of the time of a warm call over the number of jobs; its name ends in .svg.
    format
        table or json.
    """
    from dovetail.cluster import policy_times

    _check(out)
    work = WorkFlags(cluster_spec=cluster_spec, entities=(str(entities),) if entities else ())
    scenario = work.scenario(jobs, RuleFlags(throughputs_file=throughputs_file))
    with progress("figure", 1) as done:
        found = policy_times(scenario, job_counts, policy, trials=trials, progress=lambda made, of: done(made / of))
    rows = [
        [row["jobs"], row["policy"], *(round(1e3 * row[key], 3) for key in ("cold_s", "warm_s", "largest_s"))]
        for row in found
    ]
    names = ["jobs", "policy", "first call ms", "later calls ms", "longest ms"]
    return _show(found, names, rows, out, format, "jobs", "warm_s")


@app.command
def entities(
    journal: Path | None = None,
    /,
    *,
    parts: int = 20,
    policy: Annotated[str, policies_of("cluster"), Parameter(alias="-p")] = "max_min_fairness_water_filling_perf",
    option: Pairs | None = None,
    work: WorkFlags = _WORK,
    jobs: JobFlags = _JOBS,
    rules: RuleFlags = _RULES,
    out: Path | None = None,
    format: Format = "table",
) -> int:
    """What each entity has of the accelerators over time, beside what its weight entitles it to.

    Example: dovetail cluster figure entities --entities research=2 product=1 --jobs 60 -c 8:8:8 --out shares.svg

    Parameters
    ----------
    journal
        A recorded run; without it one is simulated.
    parts
        Into so many equal parts the run is cut.
    policy
        Who decides.
    option
        Options of the policy: --option inner=research=fifo.
    out
        A picture of each entity's share over time; its name ends in .svg.
    format
        table or json.
    """
    from dovetail import cluster

    _check(out)
    run: Any = journal
    if journal is None:
        scenario = work.scenario(jobs, rules)
        if not scenario.entities and scenario.trace is None:
            raise InputError("--entities: expected weights of entities, NAME=WEIGHT ..., or a number")
        with progress("simulating", 1) as done:
            run = cluster.simulate(
                scenario,
                policy,
                options=pairs("--option", option),
                progress=lambda made, of: done(made / of),
                **rules.how(),
            )
    found = cluster.entity_shares(run, parts)
    begin_s = found[0]["time_s"]
    rows = [
        [
            round((row["time_s"] - begin_s) / 3600, 2),
            row["entity"],
            round(row["accelerators"], 2),
            *map(_percent, _shares(row)),
        ]
        for row in found
    ]
    names = [
        "h after first arrival" if begin_s else "from h",
        "entity",
        "accelerators",
        "entitled %",
        "of accelerators %",
        "of progress %",
    ]
    return _show(found, names, rows, out, format, "time_s", "share", "entity")


def _shares(row: dict[str, Any]) -> list[float | None]:
    return [row["entitled"], row["share"], row["progress_share"]]


def _check(out: Path | None) -> None:
    if out is not None and out.suffix.lower() != ".svg":
        raise InputError(f"--out {out}: expected a name that ends in .svg")


def _how(seeds: tuple[int, ...], longest_queue: float, processes: int | None, done: Any) -> dict[str, Any]:
    how = {"seeds": seeds, "longest_queue": longest_queue, "processes": processes}
    return how | {"progress": lambda made, of: done(made / of)}


def _hours(row: dict[str, Any], key: str) -> list[str]:
    """A mean in hours, and its difference to the first policy's with the same seeds."""
    if row[key] is None:
        return ["stopped", ""]
    apart = row["paired"].get(key, _NO_PAIR)
    half = f" ± {row[f'{key}_plus_minus'] / 3600:.2f}" if row["seeds"] > 1 else ""
    text = f"{apart['difference'] / 3600:+.2f}" if apart["difference"] or apart["plus_minus"] else ""
    text += f" ± {apart['plus_minus'] / 3600:.2f}" if text and apart["pairs"] > 1 else ""
    return [f"{row[key] / 3600:.2f}{half}", text]


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)


def _percent(value: float | None) -> float | None:
    return None if value is None else round(100 * value, 1)


def _show(
    found: Comparison,
    names: list[str],
    rows: list[list[Any]],
    out: Path | None,
    format: Format,
    x: str,
    y: str,
    by: str = "policy",
) -> int:
    if format == "json":
        print_json(found.rows)
    else:
        print_table(names, rows)
        for note in found.notes:
            print(f"\nnote: {note}")
    if out is not None:  # the last: it may not be possible, and took long
        if all(row.get(y) is None for row in found):
            raise DovetailError(f"--out {out}: there is nothing to draw: no policy has a {y}")
        found.plot(x, y, by=by).save(out)
        if format != "json":
            print(f"\nPicture written to {out}")
    return 0 if any(row.get("makespan_s", 0) is not None for row in found) else 1
