"""`dovetail pipeline plan`: where to cut a model, and which device gets which layers."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from dovetail.cli.common import Flag, Numbers, Pairs, pairs, print_json, print_table, progress
from dovetail.core.errors import InputError

if TYPE_CHECKING:
    from dovetail.core.charts import Chart
    from dovetail.pipeline.explain import WhatIf
    from dovetail.pipeline.inputs.problem import Pipeline
    from dovetail.pipeline.plan import Constraints, Infeasible, Plan

_Objective = Literal["throughput", "latency", "batch", "devices", "energy", "money", "pareto"]


def plan(
    *,
    model_name: Annotated[str, Parameter(alias="-m")] = "google/vit-base-patch16-224",
    models_file: Annotated[Path, Parameter(alias="-M")] = Path("models.yml"),
    dev_types_file: Annotated[Path, Parameter(alias="-T")] = Path("device_types.yml"),
    dev_file: Annotated[Path, Parameter(alias="-D")] = Path("devices.yml"),
    batch_size: Annotated[Numbers, Parameter(alias="-b")] = (8,),
    dtype: Annotated[str, Parameter(alias="-d")] = "torch.float32",
    buffers_in: Annotated[int, Parameter(alias="-i")] = 2,
    buffers_out: Annotated[int, Parameter(alias="-o")] = 2,
    links: Path | None = None,
    objective: _Objective = "throughput",
    microbatches: int = 8,
    slack: float = 0.0,
    latency_cap_s: float | None = None,
    first: str | None = None,
    last: str | None = None,
    max_stages: int | None = None,
    cuts: Numbers = (),
    data_mbps: float | None = None,
    replicas: int = 1,
    link_bits: Numbers = (32,),
    method: str = "exact",
    option: Pairs | None = None,
    points: int = 20,
    what_ifs: Annotated[bool, Parameter(name="--what-if", negative=())] = False,
    curves: Flag = False,
    rates_out: Path | None = None,
    format: Literal["table", "json", "yaml"] = "table",
) -> int:
    """Plan where to cut a model and which device gets which layers.

    Exit code 3 if there is no plan; the reasons are told.

    Example: dovetail pipeline plan -m google/vit-base-patch16-224 --what-if

    Parameters
    ----------
    model_name
        A model of the models file.
    models_file
        Models: layers, memory and cut sizes.
    dev_types_file
        Device types: bandwidth, memory and profiles.
    dev_file
        The hosts of each type.
    batch_size
        Microbatch size; of several, the one with the highest throughput is chosen.
    dtype
        Data type of the profile and of what is sent.
    buffers_in
        Buffers for what a stage receives.
    buffers_out
        Buffers for what a stage sends.
    links
        Bandwidth and latency between hosts or types, or the map of every host's neighbours; without it a link is as
        fast as its slower end.
    objective
        throughput, latency (of one microbatch), batch (of so many), devices (fewest), energy or money (per item), or
        pareto: every plan that no other beats in bottleneck, latency and number of devices.
    microbatches
        How many, for objective batch.
    slack
        For objective devices: how far above the least bottleneck it may be, 0.05 for 5 %.
    latency_cap_s
        The longest that one microbatch may take.
    first
        Host that must hold the first stage.
    last
        Host that must hold the last stage.
    max_stages
        At most so many devices.
    cuts
        Layers after which a cut is allowed; all if left out.
    data_mbps
        Bandwidth of the host that sends the input and takes the output; without it those transfers are free.
    replicas
        Up to so many devices of a type may take turns at one stage.
    link_bits
        Widths that values may have on a link: the widest that does not slow the pipeline is chosen.
    method
        exact, or for comparison auction, equal, speed-proportional, memory-proportional, parameter-proportional.
    option
        Options of the method: --method auction --option mode=latency data_host=mb-0.
    points
        For objective pareto: show at most so many plans.
    what_ifs
        Also what one device more or fewer of each type would change.
    curves
        Also the throughput of the best plan by number of devices, and by speed of the links.
    rates_out
        Add the plan's rate to this table of rates, where other levels read it.
    format
        table, json, or yaml: the schedule that a pipeline runtime reads.
    """
    from dovetail.pipeline.explain import curves as make_curves
    from dovetail.pipeline.explain import what_if
    from dovetail.pipeline.export import add_rates, plan_rates
    from dovetail.pipeline.inputs.files import read_pipeline
    from dovetail.pipeline.plan import Constraints, Infeasible
    from dovetail.pipeline.policies.base import best_plan, check_method

    if not batch_size:
        raise InputError("--batch-size: expected at least one value")
    options = pairs("--option", option)
    constraints = Constraints(
        latency_cap_s=latency_cap_s,
        first=first,
        last=last,
        max_stages=max_stages,
        allowed_cuts=frozenset(cuts) or None,
        data_mbps=data_mbps,
        replicas=replicas,
        link_bits=link_bits or (32,),
    )
    problem = constraints.problem()
    if problem:
        raise InputError(problem)
    if method != "exact":
        check_method(method, options)
        _check_unconstrained(method, objective, constraints)
    elif options:
        raise InputError(f"--option {next(iter(options))}: method exact has no options")
    problems = [
        read_pipeline(
            models_file,
            dev_types_file,
            dev_file,
            model=model_name,
            batch_size=size,
            dtype=dtype,
            buffers_in=buffers_in,
            buffers_out=buffers_out,
            links=links,
        )
        for size in batch_size
    ]
    _check_cuts(problems[0], cuts)
    for warning in dict.fromkeys(warning for pipeline in problems for warning in pipeline.warnings):
        print(f"warning: {warning}", file=sys.stderr)
    if objective == "pareto":
        if len(problems) > 1:
            raise InputError("--objective pareto: expected one batch size")
        return _pareto(problems[0], constraints, points, format)
    found = best_plan(
        problems,
        method,
        options,
        objective=objective,
        constraints=constraints,
        microbatches=microbatches,
        slack=slack,
    )
    if isinstance(found, Infeasible):
        return _infeasible(found, format)
    pipeline, best = found
    changes = what_if(pipeline, best, constraints) if what_ifs else []
    if rates_out is not None and best.stages:
        add_rates(rates_out, plan_rates(best))
    _show(best, changes, make_curves(pipeline, constraints) if curves else [], format)
    return 0


def _check_cuts(pipeline: Pipeline, cuts: tuple[int, ...]) -> None:
    outside = [cut for cut in cuts if not 1 <= cut <= pipeline.layers]
    if outside:
        raise InputError(f"--cuts {outside[0]}: {pipeline.model} has layers 1 to {pipeline.layers}")


def _check_unconstrained(method: str, objective: str, constraints: Constraints) -> None:
    """Methods for comparison know neither objectives nor constraints: to ask them for some is an error."""
    from dovetail.pipeline.plan import Constraints

    if objective != "throughput":
        raise InputError(f"--objective {objective}: expected method exact, found {method}")
    free = Constraints()
    for name in constraints.__struct_fields__:
        if getattr(constraints, name) != getattr(free, name):
            flag = "--cuts" if name == "allowed_cuts" else f"--{name.replace('_', '-')}"
            raise InputError(f"{flag}: expected method exact, found {method}, which keeps no constraints")


def _pareto(pipeline: Pipeline, constraints: Constraints, points: int, format: str) -> int:
    from dovetail.pipeline.export import front_rows
    from dovetail.pipeline.pareto import front
    from dovetail.pipeline.plan import Infeasible

    if format == "yaml":
        raise InputError("--format yaml is for one plan; expected table or json")
    with progress("sweeping caps on the bottleneck", total=1.0) as done:
        found = front(pipeline, constraints, points, done)
    if isinstance(found, Infeasible):
        return _infeasible(found, format)
    if format == "json":
        print_json(found)
        return 0
    print_table(*front_rows(found))
    shown = f"{len(found.points)} of {found.found} plans" if len(found.points) < found.found else f"{found.found} plans"
    print(f"\n{shown} that no other beats in bottleneck, latency and devices")
    if not found.complete:
        print("There may be more: the search was cut short.")
    print("Plan for one of them with --max-stages DEVICES --latency-cap-s LATENCY (rounded up).")
    return 0


def _infeasible(found: Infeasible, format: str) -> int:
    from dovetail.pipeline.export import schedule_yaml

    if format == "json":
        print_json({"feasible": False, "reasons": found.reasons})
    elif format == "yaml":
        print(schedule_yaml(None), end="")
    for reason in found.reasons:
        print(f"no plan: {reason}", file=sys.stderr)
    return 3


def _show(best: Plan, changes: list[WhatIf], charts: list[Chart], format: str) -> None:
    from dovetail.pipeline.export import COLUMNS, schedule_yaml, stage_rows

    if format == "yaml":
        print(schedule_yaml(best), end="")
        return
    if format == "json":
        rows = {key: getattr(best, key) for key in best.__struct_fields__}
        print_json(rows | ({"what_if": changes} if changes else {}) | ({"curves": charts} if charts else {}))
        return
    if not best.stages:
        print(f"{best.model} has no layers: there is nothing to plan")
        return
    print_table(COLUMNS, stage_rows(best))
    proof = "optimal" if best.optimal else f"by {best.method}"
    if not best.optimal and best.bound_s:
        proof += f", at most {100 * (best.value / best.bound_s - 1):.2f} % above the best possible"
    print(f"\nbottleneck {best.bottleneck_s:.6f} s per microbatch of {best.batch_size} ({proof})")
    print(f"throughput {best.throughput_items_s:.3f} items/s, latency of one microbatch {best.latency_s:.6f} s")
    print(f"binding: {best.binding}")
    if changes:
        print()
        shown = [
            [f"{c.change:+d} {c.type}", c.bottleneck_s, c.ratio and round(100 * (c.ratio - 1), 2)] for c in changes
        ]
        print_table(["what if", "bottleneck s", "change %"], shown)
    for chart in charts:
        print(f"\n{chart.title}\n")
        print_table([chart.x, chart.y], [[x, round(y, 3)] for series in chart.series for x, y in series.points])
