"""`dovetail workflow validate` and `bound`: what the input files say before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.cli.common import Flag, Format, Pairs, pairs, print_json, print_table
from dovetail.cli.workflow.words import CONFIG, REQUESTS, warn
from dovetail.workflow import Mode, OnError


def validate(
    *,
    gpus: str | None = None,
    mode: Mode = "offline",
    config: Path = CONFIG,
    requests: Path = REQUESTS,
    rates: Path | None = None,
    format: Format = "table",
) -> int:
    """Check the input files without running anything.

    Example: dovetail workflow validate --gpus 4 --config system_config.yaml --requests workflow_requests.yaml

    Parameters
    ----------
    gpus
        The pool that they shall run on.
    mode
        online also needs the times of arrival.
    config
        Models, workflows, GPU types and costs.
    requests
        The requests.
    rates
        A rate table.
    format
        table or json.
    """
    from dovetail.workflow import load

    problem = load(config, requests, gpus=gpus, mode=mode, rates=rates)
    warn(problem)
    facts = problem.describe()
    if format == "json":
        print_json(facts)
    else:
        print_table(["what", "found"], [[key.replace("_", " "), value] for key, value in facts.items()])
    return 0


def bound(
    *,
    gpus: str | None = None,
    mode: Mode = "offline",
    config: Path = CONFIG,
    requests: Path = REQUESTS,
    on_error: OnError = "fail",
    cost: Pairs | None = None,
    rates: Path | None = None,
    exact: Flag = False,
    time_limit_s: float = 60.0,
    format: Format = "table",
) -> int:
    """Give the lower bounds that no schedule can beat.

    Example: dovetail workflow bound --gpus 4 --config system_config.yaml --requests workflow_requests.yaml

    Parameters
    ----------
    gpus
        The pool.
    mode
        offline, or online with the times of arrival.
    config
        Models, workflows, GPU types and costs.
    requests
        The requests.
    on_error
        A request that cannot run: fail, or leave it out of the bounds (reject, skip).
    cost
        Cost rules over those of the configuration.
    rates
        A rate table.
    exact
        Also the optimal makespan, by CP-SAT: for some thirty nodes at most.
    time_limit_s
        How long CP-SAT may search.
    format
        table or json.
    """
    from msgspec import structs

    from dovetail.workflow import bound as lower_bounds
    from dovetail.workflow import load, optimum

    problem = load(config, requests, gpus=gpus, mode=mode, on_error=on_error, costs=pairs("--cost", cost), rates=rates)
    warn(problem)
    figures: dict[str, Any] = {f"bound_{key}": value for key, value in structs.asdict(lower_bounds(problem)).items()}
    if exact:
        best = optimum(problem, time_limit_s)
        figures |= {"best_makespan_s": best.value_s, "best_is_optimal": best.optimal, "exact_bound_s": best.bound_s}
    if format == "json":
        print_json(figures)
    else:
        print_table(["bound", "value"], [[key, value] for key, value in figures.items()])
    return 0
