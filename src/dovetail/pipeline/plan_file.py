"""A plan as it was printed, read back and checked: what runs or simulates it need not doubt it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail.core.files import Document, Key
from dovetail.pipeline.inputs import Pipeline, check_number
from dovetail.pipeline.plan import Plan


def read_plan(path: Path) -> Plan:
    """A plan as `dovetail pipeline plan --format json` printed it."""
    doc = Document.read(path)
    data: Any = doc.data
    if isinstance(data, dict) and data.get("feasible") is False:
        raise doc.error(("feasible",), "holds no plan: planning found none")
    if isinstance(data, dict) and "points" in data and "complete" in data:
        raise doc.error(("points",), "holds a Pareto front; expected one plan")
    if isinstance(data, dict):
        data = {key: value for key, value in data.items() if key not in ("what_if", "curves")}
    found = doc.convert(data, Plan)
    if not found.stages:
        raise doc.error(("stages",), "expected at least one stage")
    if found.batch_size < 1:
        raise doc.error(("batch_size",), f"expected 1 or more, found {found.batch_size}")
    check_number(doc, ("enter_s",), found.enter_s)
    _check_stages(doc, found)
    return found


def _check_stages(doc: Document, plan: Plan) -> None:
    """Stages hold all layers in order, each on hosts of its own."""
    used: set[str] = set()
    before = 0
    for i, stage in enumerate(plan.stages):
        for key in ("compute_s", "send_s"):
            check_number(doc, ("stages", i, key), getattr(stage, key))
        first, last = stage.layers
        if first != before + 1 or last < first:
            raise doc.error(("stages", i, "layers"), f"expected layers from {before + 1} on, found {first} to {last}")
        before = last
        for host in (stage.host, *stage.replicas):
            if not host or host in used:
                raise doc.error(("stages", i), f"expected hosts that no other stage has, found {host!r}")
            used.add(host)
    if plan.problem is not None:
        _check_problem(doc, plan.problem, before)


def _check_problem(doc: Document, problem: Pipeline, layers: int) -> None:
    """What the plan was made for is about as many layers."""
    if problem.layers != layers:
        raise doc.error(("problem", "layers"), f"expected {layers}, as in the stages, found {problem.layers}")
    lists: list[tuple[tuple[Key, ...], list[float], int]] = [
        (("mem_mib",), problem.mem_mib, layers),
        (("cut_bytes",), list(problem.cut_bytes), layers + 1),
        *((("classes", k, "time_s"), device.time_s, layers) for k, device in enumerate(problem.classes)),
    ]
    for keys, values, length in lists:
        if len(values) != length:
            raise doc.error(("problem", *keys), f"expected {length} values, found {len(values)}")
        for i, value in enumerate(values):
            check_number(doc, ("problem", *keys, i), value)
