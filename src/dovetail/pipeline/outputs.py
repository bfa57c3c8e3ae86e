"""The level's results: the schedule as a YAML list, and a plan as rows for people."""

from __future__ import annotations

from typing import Any

import yaml

from dovetail.pipeline.plan import Plan


def schedule_yaml(plan: Plan | None) -> str:
    """The schedule in the form that pipeline runtimes read: `- host: [first, last]`, in the order of the stages."""
    if plan is None or not plan.stages:
        return "[]\n"
    rows = [{stage.host: list(stage.layers)} for stage in plan.stages]
    return yaml.safe_dump(rows, default_flow_style=None, sort_keys=False)


COLUMNS = ("host", "type", "layers", "compute s", "send s", "memory MiB", "limit MiB", "use %")


def stage_rows(plan: Plan) -> list[list[Any]]:
    """One row per stage under `COLUMNS`."""
    return [
        [
            " + ".join([stage.host, *stage.replicas]),
            stage.type,
            f"{stage.layers[0]} to {stage.layers[1]}",
            round(stage.compute_s, 6),
            round(stage.send_s, 6),
            round(stage.mem_mib, 1),
            round(stage.mem_limit_mib, 1),
            round(100 * stage.utilisation, 1),
        ]
        for stage in plan.stages
    ]
