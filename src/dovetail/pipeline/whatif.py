"""What one device more or fewer of each type would change."""

from __future__ import annotations

from msgspec import Struct

from dovetail.pipeline.change import with_hosts
from dovetail.pipeline.inputs import Pipeline
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan


class WhatIf(Struct):
    """A change of the pool and the least bottleneck after it; None if there is no plan any more."""

    type: str
    change: int
    bottleneck_s: float | None
    ratio: float | None


def what_if(pipeline: Pipeline, now: Plan, constraints: Constraints | None = None) -> list[WhatIf]:
    """The least bottleneck with one device more and one fewer of each class."""
    rows = []
    for k, device in enumerate(pipeline.classes):
        for change in (1, -1):
            if change > 0:
                hosts = [*device.hosts, f"one more {device.name}"]
            else:  # hosts of a class are alike but for a pin
                free = [host for host in device.hosts if constraints is None or host not in constraints.pinned]
                if not free:
                    continue
                hosts = [host for host in device.hosts if host != free[-1]]
            other = plan(with_hosts(pipeline, k, hosts), "throughput", constraints)
            value = other.bottleneck_s if isinstance(other, Plan) else None
            ratio = value / now.bottleneck_s if value is not None and now.bottleneck_s else None
            rows.append(WhatIf(device.type, change, value, ratio))
    return rows
