"""The best plan there is: the planner under its name among the methods."""

from __future__ import annotations

from dovetail.core.registry import policy
from dovetail.pipeline.planner import plan

exact = policy("exact", level="pipeline")(plan)
