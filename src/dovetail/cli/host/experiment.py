"""`dovetail host experiment`: every planning with every assignment, on the same workloads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from dovetail.cli.common import Format, print_json, print_table, progress
from dovetail.cli.complete import host_rules
from dovetail.cli.host.flags import NO_FLAGS, Curves, SchedulingFlags


def experiment(
    runs: int,
    containers: int,
    /,
    *,
    parameters: Path | None = None,
    plans: Annotated[list[str], host_rules("planning"), Parameter(consume_multiple=True, negative=())] | None = None,
    assigns: Annotated[list[str], host_rules("assignment"), Parameter(consume_multiple=True, negative=())]
    | None = None,
    repeats: int = 1,
    cores: int = 16,
    rules: SchedulingFlags = NO_FLAGS,
    work: float | None = None,
    curves: Curves | None = None,
    seed: int = 0,
    name: str = "comparison",
    out: Path | None = None,
    format: Format = "table",
) -> int:
    """Compare every planning with every assignment on the same workloads.

    RUNS sizes are simulated, the first with CONTAINERS programs, each with twice as many as the one before. With --out
    the results of a run are in OUT/POLICY/ASSIGNMENT/<n>Contenedores_<version>, the comparison in OUT/NAME.csv, with
    confidence intervals in OUT/NAME_ci95.csv; interrupted, the same command goes on where it stopped.

    Example: dovetail host experiment 3 8 --repeats 5 --work 1300

    Parameters
    ----------
    runs
        How many sizes.
    containers
        Programs of the first size.
    parameters
        parameters.json: how programs and their arrivals are drawn.
    plans
        The planning policies to compare; by default all that are installed (legacy: fcfs and priority).
    assigns
        The assignments; by default all that are installed (legacy: without efficient).
    repeats
        Workloads of each size, for means with 95 % confidence intervals.
    cores
        The cores of the machine.
    work
        Core-seconds of work of every program; by default 1000, or what the curve says.
    curves
        As in `dovetail host simulate`.
    seed
        Of the generated workloads.
    name
        Of the comparison.
    out
        A folder for the results, such as Data/log of the older scheduler; without it nothing is written.
    format
        table or json.
    """
    from dovetail import host

    with progress("simulating", 1) as done:
        found = host.experiment(
            runs,
            containers,
            parameters=parameters,
            plans=plans,
            assigns=assigns,
            repeats=repeats,
            cores=cores,
            work=work,
            curves=curves,
            seed=seed,
            name=name,
            out=out,
            progress=lambda made, of: done(made / of),
            **rules.chosen(),
        )
    if format == "json":
        print_json(found.rows)
        return 0
    _show_experiment(found.rows)
    if out is not None:
        print(f"\nComparison written to {out / f'{name}.csv'} and {out / f'{name}_ci95.csv'}")
    return 0


def _show_experiment(rows: Sequence[dict[str, Any]]) -> None:
    shown = {"makespan_s": 1, "mean_first_run_s": 1, "mean_turnaround_s": 1, "core_use": 3, "throughput_per_h": 2}

    def cell(row: dict[str, Any], key: str, digits: int) -> str | float:
        half = row[f"{key}_ci95"]
        value = round(row[key], digits)
        return value if half is None else f"{value:.{digits}f} ± {half:.{digits}f}"

    table = [
        [row["containers"], row["plan"], row["assign"], *(cell(row, key, digits) for key, digits in shown.items())]
        for row in rows
    ]
    print_table(["containers", "plan", "assign", *shown], table)
