"""The supervisor's turns as a journal holds them: what it was told and what it decided, each with its reason.

Told the same again at the same times, a fresh supervisor decides the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.events import Decided, Instruction, Observed, Stimulus
from dovetail.core.journal import Header
from dovetail.pipeline.live.replan import replanner
from dovetail.pipeline.live.supervisor import (
    Action,
    Assign,
    Broke,
    Delivered,
    Erred,
    Event,
    Feed,
    FinishRun,
    Halt,
    Joined,
    Kill,
    LaunchHosts,
    Lived,
    Lost,
    Patience,
    Prepared,
    Stirred,
    Supervisor,
)
from dovetail.pipeline.plan import Plan

_EVENTS: dict[str, type[Struct]] = {
    "joined": Joined,
    "prepared": Prepared,
    "beat": Lived,
    "stirs": Stirred,
    "lost": Lost,
    "broke": Broke,
    "error": Erred,
    "delivered": Delivered,
}
_WHAT = {kind: what for what, kind in _EVENTS.items()}
_TICK = "time"  # nothing happened, and that was enough


def observed(events: Sequence[Event], acted: bool) -> list[Observed]:
    """What the supervisor was told; that it acted on silence is told too."""
    told = [Observed(_WHAT[type(event)], msgspec.to_builtins(event)) for event in events]
    return told or ([Observed(_TICK)] if acted else [])


def decided(action: Action) -> Decided:
    """A decision and its reason."""
    if isinstance(action, LaunchHosts):
        return Decided("launch", "the plan uses them", {"hosts": list(action.hosts)})
    if isinstance(action, Halt):
        return Decided("halt", action.why)
    if isinstance(action, Assign):
        stages = [{"hosts": stage.hosts, "layers": list(stage.layers)} for stage in action.plan.stages]
        why = f"the best plan for the hosts there are: {action.plan.throughput_items_s:.6g} items/s"
        return Decided("assign", why, {"plan": action.generation, "stages": stages})
    if isinstance(action, Feed):
        return Decided("feed", "all its hosts are ready", {"plan": action.generation})
    if isinstance(action, Kill):
        return Decided("give up", action.why, {"host": action.host})
    assert isinstance(action, FinishRun)
    return Decided("finish", action.why or "everything came out", {"complete": not action.why})


class SupervisorTurns:
    """A supervisor behind the core's protocol for schedulers: observations in, decisions out."""

    hears = (Observed,)
    decides = (Decided,)

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def handle(self, stimuli: Sequence[Stimulus], now: float) -> list[Instruction]:
        told = [each for each in stimuli if isinstance(each, Observed) and (each.what in _EVENTS or each.what == _TICK)]
        if not told:
            return []
        events: list[Any] = [
            msgspec.convert(each.facts, _EVENTS[each.what], strict=False) for each in told if each.what in _EVENTS
        ]
        actions = self._supervisor.handle(events, now)
        return [decided(action) for action in actions]

    def close(self, now: float) -> list[Instruction]:
        return []


def supervisor_of(header: Header) -> SupervisorTurns:
    """The supervisor of a recorded run, before its first turn."""
    plan = msgspec.convert(header.facts["plan"], Plan)
    patience = msgspec.convert(header.facts["patience"], Patience)
    asked, without = header.options.get("microbatches"), frozenset(header.facts.get("without", ()))
    total = None if asked is None else int(asked)
    return SupervisorTurns(Supervisor(plan, total, replanner(plan, without), patience))
