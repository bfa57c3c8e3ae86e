"""`dovetail workflow validate` and `bound`: what the input files say before anything runs."""

from __future__ import annotations

from typing import Any

from dovetail.cli.common import Flag, Format, print_json, print_table
from dovetail.cli.workflow.flags import INPUTS, InputFlags


def validate(
    *, gpus: str | None = None, inputs: InputFlags = INPUTS, live: Flag = False, format: Format = "table"
) -> int:
    """Check the input files without running anything.

    Example: dovetail workflow validate --gpus 4 --config system_config.yaml --requests workflow_requests.yaml
    Example: dovetail workflow validate --live --config system_config.yaml

    Parameters
    ----------
    gpus
        The pool that they shall run on.
    live
        Also whether they can be run for real: sources of models, data between nodes, inputs of requests. A service
        has no file of requests: without one only the configuration is looked at.
    format
        table or json.
    """
    problem = inputs.load(gpus, no_requests=live and inputs.requests == INPUTS.requests)
    facts = problem.describe()
    if live:
        from dovetail.workflow import check_live

        facts["live"] = check_live(problem)
    if format == "json":
        print_json(facts)
    else:
        print_table(["what", "found"], [[key.replace("_", " "), _in_words(value)] for key, value in facts.items()])
    return 0


def _in_words(value: Any) -> Any:
    """
    >>> _in_words({"sources": {"path": 3, "url": 1}, "left_out": 0})
    'sources path 3, url 1; left out 0'
    """
    if not isinstance(value, dict):
        return value
    inner = any(isinstance(item, dict) for item in value.values())
    return ("; " if inner else ", ").join(f"{name.replace('_', ' ')} {_in_words(item)}" for name, item in value.items())


def bound(
    *,
    gpus: str | None = None,
    inputs: InputFlags = INPUTS,
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
    exact
        Also the optimal makespan, by CP-SAT: for some thirty nodes at most.
    time_limit_s
        How long CP-SAT may search.
    format
        table or json.
    """
    from msgspec import structs

    from dovetail.workflow import bound as lower_bounds
    from dovetail.workflow import optimum

    problem = inputs.load(gpus)
    figures: dict[str, Any] = {f"bound_{key}": value for key, value in structs.asdict(lower_bounds(problem)).items()}
    if exact:
        best = optimum(problem, time_limit_s)
        figures |= {"best_makespan_s": best.value_s, "best_is_optimal": best.optimal, "exact_bound_s": best.bound_s}
    if format == "json":
        print_json(figures)
    else:
        print_table(["bound", "value"], [[key, value] for key, value in figures.items()])
    return 0
