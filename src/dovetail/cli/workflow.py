"""`dovetail workflow`: schedule workflows of many models on a pool of GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyclopts import App

from dovetail.cli.common import Flag, Format, Pairs, newest, pairs, print_json, print_table
from dovetail.cli.workflow_inputs import generate, import_app
from dovetail.cli.workflow_run import CONFIG, REQUESTS, run, warn
from dovetail.cli.workflow_study import compare, plan
from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.workflow.choices import Mode, OnError
from dovetail.workflow.problem import WorkflowProblem

app = App(name="workflow", help="Schedule workflows of many models on a pool of GPUs.")
for verb in (run, compare, plan, generate, import_app):
    app.command(verb)

_EXACT_NODES = 30


@app.command
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
    problem = WorkflowProblem.read(config, requests, gpus=gpus, mode=mode, rates=rates)
    warn(problem)
    facts = {
        "models": len(problem.models),
        "workflows": len(problem.graphs),
        "requests": len(problem.requests),
        "gpus": len(problem.pool),
        "gpu_seconds": sum(problem.requests.forecast.values()),
        "durations": dict(problem.requests.estimates),
    }
    if format == "json":
        print_json(facts)
    else:
        print_table(["what", "found"], [[key.replace("_", " "), value] for key, value in facts.items()])
    return 0


@app.command
def policies(*, format: Format = "table") -> int:
    """List the policies, what each promises, and its options.

    Example: dovetail workflow policies

    Parameters
    ----------
    format
        table or json.
    """
    listed = registry.listing("workflow")
    if format == "json":
        print_json([{"policy": name, "promise": promise, "options": options} for name, promise, options, _ in listed])
    else:
        shown = [[p.name, p.promise, " ".join(f"{key}={value}" for key, value in p.options.items())] for p in listed]
        print_table(["policy", "promise", "options"], shown)
    return 0


@app.command
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
    problem = WorkflowProblem.read(
        config, requests, gpus=gpus, mode=mode, on_error=on_error, costs=pairs("--cost", cost), rates=rates
    )
    warn(problem)
    bounds = problem.new_bounds()
    for at_s, request in problem.requests.arrivals():
        bounds.add(at_s, request)
    found = bounds.result()
    figures: dict[str, Any] = {f"bound_{key}": value for key, value in _fields(found).items()}
    if exact:
        best = _optimum(problem, time_limit_s)
        figures |= {"best_makespan_s": best.value_s, "best_is_optimal": best.optimal, "exact_bound_s": best.bound_s}
    if format == "json":
        print_json(figures)
    else:
        print_table(["bound", "value"], [[key, value] for key, value in figures.items()])
    return 0


def _optimum(problem: WorkflowProblem, time_limit_s: float) -> Any:
    from dovetail.workflow.inputs.costs import CostRules
    from dovetail.workflow.optimise.exact import solve

    known = CostRules(problem.costs.pcie_gb_s, problem.costs.overhead_s)
    if problem.costs != known or problem.rates:
        raise InputError("--exact knows only the default rules of price: no cost extension and no rate table")
    nodes = sum(
        len(problem.graphs[request.of].tasks) for _, request in problem.requests.arrivals() if not request.fault
    )
    if nodes > _EXACT_NODES:
        raise InputError(f"--exact is for {_EXACT_NODES} nodes at most, these requests have {nodes}")
    view, windows = problem.new_view(), problem.pool.windows
    for name, model in problem.models.items():
        if len(view.roomy_windows(name, aligned=False)) < len(windows(model.width, aligned=False)):
            raise InputError(f"--exact knows no limits of memory, and {name!r} does not fit on every GPU")
    loads = {name: model.load_s for name, model in problem.models.items()}
    reload_s = view.residents.reload_s
    return solve(problem.requests.arrivals(), problem.graphs, problem.pool, loads, reload_s, time_limit_s=time_limit_s)


@app.command
def explain(
    request: str,
    node: str | None = None,
    /,
    *,
    journal: Path | None = None,
    format: Format = "table",
) -> int:
    """Tell why a node waited and why it went where it went.

    Example: dovetail workflow explain req_001 generate --journal dovetail_journal.jsonl

    Parameters
    ----------
    request
        The request's id.
    node
        One of its nodes; all of them if left out.
    journal
        The run's journal; by default the newest *_journal.jsonl here.
    format
        table for sentences, json for data.
    """
    from dovetail.core.explain import explain as tell
    from dovetail.core.explain import sentences
    from dovetail.core.journal import open_journal

    if journal is None:
        journal = newest("*_journal.jsonl")
        if journal is None:
            raise InputError("no *_journal.jsonl in this folder: name one with --journal")
    stories = tell(open_journal(journal), request, node)
    if format == "json":
        print_json(stories)
    else:
        print("\n\n".join("\n".join(sentences(story)) for story in stories))
    return 0


def _fields(struct: Any) -> dict[str, Any]:
    return {key: getattr(struct, key) for key in struct.__struct_fields__}
