"""`dovetail cluster plan`: the cheapest or fewest accelerators that keep a target."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from dovetail.cli.cluster.flags import JobFlags, RuleFlags, WorkFlags
from dovetail.cli.common import Format, Numbers, Pairs, atomic_write, pairs, print_json, print_table, progress
from dovetail.cli.complete import policies_of
from dovetail.cluster import DEFAULT, LONGEST_QUEUE, Minimise
from dovetail.core.errors import InputError

if TYPE_CHECKING:
    from dovetail.cluster import ClusterPlan

_WORK, _JOBS, _RULES = WorkFlags(), JobFlags(), RuleFlags()
_SHOWN = 12  # plans in the table
_PAID = "Cost is from the first arrival until all is done, `held` offers while held (simulate's: all while held)."


def plan(
    *,
    p95: float | None = None,
    p99: float | None = None,
    mean: float | None = None,
    makespan: float | None = None,
    deadlines: float | None = None,
    percentile: Pairs | None = None,
    minimise: Minimise = "cost",
    policy: Annotated[str, policies_of("cluster"), Parameter(alias="-p")] = DEFAULT,
    option: Pairs | None = None,
    work: WorkFlags = _WORK,
    jobs: JobFlags = _JOBS,
    rules: RuleFlags = _RULES,
    seeds: Numbers = (),
    max_runs: int = 100,
    longest_queue: float = LONGEST_QUEUE,
    out: Path | None = None,
    format: Format = "table",
) -> int:
    """Find the cheapest or fewest accelerators that keep completion times or deadlines within limits.

    --cluster-spec says how many of each type there may be; its file may have several offers of one type: reserved, on
    demand, spot. Exit code 1 if not even all of them keep the limits.

    Example: dovetail cluster plan --p95 36000 -t jobs.csv -c a100=32,l4=64 --minimise accelerators

    Example: dovetail cluster plan --deadlines 0.05 -t jobs.csv -c offers.yaml --out cluster.yaml

    Parameters
    ----------
    p95
        The 95th percentile of completion times, in seconds.
    p99
        The 99th percentile.
    mean
        The mean completion time.
    makespan
        The time from the first arrival until everything is done.
    deadlines
        The largest share of deadlines that may be missed, 0 to 1.
    percentile
        Any other percentile, as 90=3600.
    minimise
        cost: what is paid from the first arrival until all is done; accelerators: how many there are.
    policy
        Who decides.
    option
        Options of the policy.
    seeds
        Several seeds for generated jobs and failures: limits hold for the upper end of the mean's 95 % interval.
    max_runs
        How many plans to simulate at most.
    longest_queue
        A run whose queue grows beyond so many times all accelerators is stopped: the plan fails.
    out
        Write the plan here as a cluster's file, for simulate -c.
    format
        table or json.
    """
    from dovetail import cluster
    from dovetail.core.files.output import refuse_overwrite

    scenario = work.scenario(jobs, rules)
    if out is not None:
        refuse_overwrite([out], scenario.files())
    with progress("planning", max_runs) as done:
        found = cluster.plan(
            scenario,
            policy,
            p95=p95,
            p99=p99,
            mean=mean,
            makespan=makespan,
            deadlines=deadlines,
            percentile=_percentiles(percentile),
            minimise=minimise,
            seeds=seeds,
            options=pairs("--option", option),
            max_runs=max_runs,
            longest_queue=longest_queue,
            progress=done,
            **rules.how(),
        )
    if out is not None and found.plan is not None:
        atomic_write(out, found.cluster_file())
    if format == "json":
        print_json({"gap": found.gap} | {name: getattr(found, name) for name in found.__struct_fields__})
    else:
        _show(found, out)
    return 0 if found.plan is not None else 1


def _percentiles(given: Pairs | None) -> dict[float, float]:
    found = {}
    for q, limit in pairs("--percentile", given, verbatim=True).items():
        try:
            found[float(q)] = float(limit)
        except ValueError:
            raise InputError(f"--percentile {q}={limit}: expected numbers, as 90=3600") from None
    return found


def _show(found: ClusterPlan, out: Path | None) -> None:
    best = found.plan
    shown = {id(each): each for each in [*([best] if best else []), *found.smaller]}
    others = sorted(found.tried, key=lambda each: (not each.keeps, found.value(each)))
    for each in others[: max(_SHOWN - len(shown), 0)]:
        shown.setdefault(id(each), each)
    rows = []
    for each in sorted(shown.values(), key=lambda each: (found.value(each), each.accelerators)):
        counts = ", ".join(f"{count} {name}" for name, count in each.counts.items() if count) or "none"
        figures = [_figure(name, each.figures[name], each.plus_minus.get(name)) for name in found.targets]
        cost = _money(each.cost) if all(map(isfinite, each.figures.values())) else "-"
        rows.append([counts, cost, *figures, each.by, "the plan" if each is best else _keeps(each)])
    if rows:
        print_table(["accelerators", "cost", *(_named(name) for name in found.targets), "by", "keeps it"], rows)
        if hidden := sum(id(each) not in shown for each in found.tried):
            print(f"({hidden} more were simulated; --format json has them)")
        print()
    limits = " and ".join(f"{_named(name)} <= {_figure(name, limit)}" for name, limit in found.targets.items())
    if best is None:
        print(f"{limits}: no plan ({found.reason})")
    else:
        counts = ", ".join(f"{count} {name}" for name, count in best.counts.items() if count)
        print(f"{limits}: {counts}, cost {_money(best.cost)} ({found.reason})")
        print(_least(found))
        print(_PAID)
        alone = ", ".join(f"{_named(name)} {_figure(name, value)}" for name, value in found.alone.items())
        print(f"If no job ever waited: {alone}.")
        if found.exact:
            print(f"Simulated plans: {found.runs}; all that could be better were simulated or ruled out.")
    for sentence in found.late_in_words():
        print(f"{sentence}.")
    for note in found.notes:
        print(f"note: {note}")
    if out is not None and best is not None:
        print(f"Written to {out}")


def _least(found: ClusterPlan) -> str:
    """What no plan can be below, and how far this one is above it."""
    gap = "" if found.gap is None else f"{100 * found.gap:.1f} % more"
    if found.minimise == "cost":
        this = f"; this one costs {gap}" if gap else ""
        return f"No plan can cost less than {_money(found.least)}, whatever the policy{this}."
    this = f"; this one has {gap}" if gap else ""
    return f"No plan can have fewer than {found.least:.0f} accelerators, whatever the policy{this}."


def _keeps(each: Any) -> str:
    return "yes" if each.keeps else f"no: {each.why}" if each.why else "no"


def _named(target: str) -> str:
    return "missed" if target == "deadlines" else f"{target} s"


def _figure(target: str, value: float, half: float | None = None) -> str:
    plus = "" if half is None else f" ± {_figure(target, half)}"
    return (f"{100 * value:.1f} %" if target == "deadlines" else f"{value:,.0f}") + plus


def _money(value: float) -> str:
    return f"{value:,.2f}"
