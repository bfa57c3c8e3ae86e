"""The level's results: the schedule as a YAML list, a plan as rows for people, and its rate for other levels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dovetail.core.rates import Rate, RateTable
from dovetail.pipeline.plan import Plan

if TYPE_CHECKING:  # not at run time: `sched-pipeline` imports little
    from dovetail.pipeline.pareto import Front


def schedule_yaml(plan: Plan | None) -> str:
    """The schedule in the form that pipeline runtimes read: `- host: [first, last]`, in the order of the stages."""
    if plan is None or not plan.stages:
        return "[]\n"
    rows = [{stage.host: list(stage.layers)} for stage in plan.stages]
    return yaml.safe_dump(rows, default_flow_style=None, sort_keys=False, allow_unicode=True)


COLUMNS = ("host", "type", "layers", "compute s", "send s", "slack s", "memory MiB", "left MiB", "use %")


def add_rates(path: Path, found: RateTable) -> None:
    """Write what was found into a table of rates; what else that holds is kept."""
    (RateTable.read(path) | found if path.exists() else found).write(path)


def plan_rates(plan: Plan) -> RateTable:
    """How fast the plan runs its model, as another level reads it: the chain of stages is one device."""
    return RateTable([Rate(plan.model, plan.chain, plan.throughput_items_s, source="estimated", unit="items/s")])


def stage_rows(plan: Plan) -> list[list[Any]]:
    """One row per stage under `COLUMNS`."""
    return [
        [
            " + ".join(stage.hosts),
            stage.type,
            f"{stage.layers[0]} to {stage.layers[1]}",
            round(stage.compute_s, 6),
            round(stage.send_s, 6),
            round(stage.slack_s, 6),
            round(stage.mem_mib, 1),
            round(stage.mem_slack_mib, 1),
            round(100 * stage.utilisation, 1),
        ]
        for stage in plan.stages
    ]


def front_rows(front: Front) -> tuple[list[str], list[list[Any]]]:
    """Columns and one row per plan of a Pareto front; energy and money only where they are known."""
    columns = ["bottleneck s", "items/s", "latency s", "devices"]
    known = [key for key in ("energy_j_per_item", "money_per_item") if any(getattr(p, key) for p in front.points)]
    columns += [{"energy_j_per_item": "J/item", "money_per_item": "money/item"}[key] for key in known]
    rows = [
        [
            round(p.bottleneck_s, 6),
            round(p.throughput_items_s, 3),
            round(p.latency_s, 6),
            len(p.hosts),
            *(getattr(p, key) for key in known),
            ", ".join(f"{stage.host} {stage.layers[0]}-{stage.layers[1]}" for stage in p.stages),
        ]
        for p in front.points
    ]
    return [*columns, "stages"], rows
