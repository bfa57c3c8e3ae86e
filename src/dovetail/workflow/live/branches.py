"""What the end of a node adds, decided by what it gave: an output `then`, or the tests of `decide:`; else nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from dovetail.core.errors import did_you_mean
from dovetail.core.events import Grew
from dovetail.workflow.inputs.growth.request import RequestGrowth, chosen_outcome
from dovetail.workflow.inputs.growth.rules import Outcome
from dovetail.workflow.live.data_flow import ONE, DataFlow, NodeFlow
from dovetail.workflow.live.values import ValueFaultError

_BY_OUTPUT = "its output says so"
THEN = "then"  # the output that names what follows: a name, nothing, or {name: copies}


class Branches:
    """How one request grows. `fixed` are outcomes that the request itself gives, for nodes whose outputs say nothing,
    one after the other."""

    def __init__(
        self, job: str, flow: DataFlow, size: Callable[[str, str], float], fixed: Mapping[str, list[Any]] | None = None
    ) -> None:
        self._flow = flow
        self._growth = None if flow.rules is None else RequestGrowth(job, flow.rules, flow.graph, size)
        self._fixed = {node: list(reversed(outcomes)) for node, outcomes in (fixed or {}).items()}

    def grow(self, task: str, outputs: Mapping[str, Any]) -> Grew | None:
        """What the end of this task adds."""
        flow = self._flow.node_of(task)
        if self._growth is None or not flow.node.then:
            return None
        branch, copies, because = self._decide(flow, outputs)
        if branch is None:
            return None
        outcome = self._outcome(flow, branch)
        most = max(count for count, _ in outcome.copies)
        if copies > most:
            because += f"; {copies} copies were asked for, {most} are allowed"
            copies = most
        if copies and copies not in (allowed := [count for count, _ in outcome.copies]):
            expected = ", ".join(map(str, sorted({0, *allowed})))
            raise ValueFaultError(f"node {task!r} asks for {copies} copies of {branch!r}; expected {expected}")
        event = self._growth.grow(task, branch, copies)
        return None if event is None else replace(event, why=f"{event.why}: {because}")

    def again(self, task: str, outputs: Mapping[str, Any], event: Grew | None) -> None:
        """What the end of this task added before a restart."""
        flow = self._flow.node_of(task)
        if self._growth is None or not flow.node.then:
            return
        if event is None or not event.why.endswith(_BY_OUTPUT):
            self._decide(flow, outputs)  # it may have used up what the request says
        if event is not None:
            chosen = chosen_outcome(event, self._outcomes(flow))
            branch, copies = next(iter(chosen.items())) if isinstance(chosen, dict) else (chosen, 1)
            self._growth.grow(event.task, branch, copies)

    def outcome_of(self, event: Grew) -> Outcome:
        """By which outcome it was added."""
        then = self._outcomes(self._flow.node_of(event.task))
        chosen = chosen_outcome(event, then)
        return then[next(iter(chosen)) if isinstance(chosen, dict) else str(chosen)]

    def _outcomes(self, flow: NodeFlow) -> Mapping[str, Outcome]:
        return {} if self._flow.rules is None else self._flow.rules.then.get(flow.node.id, {})

    def _decide(self, flow: NodeFlow, outputs: Mapping[str, Any]) -> tuple[str | None, int, str]:
        """The branch, how many copies of it, and why."""
        if THEN in outputs:
            return (*self._said(flow, outputs[THEN]), _BY_OUTPUT)
        for branch, decision in flow.node.decide.items():
            if copies := decision.times(outputs):
                copies = copies if decision.each is not UNSET else self._copies(flow, branch)
                return branch, copies, decision.in_words()
        if fixed := self._fixed.get(flow.node.id):
            return (*self._said(flow, fixed.pop()), "its request says so")
        return None, 0, ""

    def _said(self, flow: NodeFlow, said: Any) -> tuple[str | None, int]:
        said = said.tolist() if hasattr(said, "tolist") else said
        if said is None or said == "" or said == {}:
            return None, 0
        if isinstance(said, str):
            return said, self._copies(flow, said)
        if isinstance(said, dict) and len(said) == 1:
            ((branch, copies),) = said.items()
            if isinstance(copies, int) and not isinstance(copies, bool) and copies >= 0:
                return branch, copies
        expected = f"expected one of {', '.join(flow.node.then)}, nothing, or {{name: copies}}"
        raise ValueFaultError(f"node {flow.node.id!r}: then is {said!r}; {expected}")

    def _copies(self, flow: NodeFlow, branch: str) -> int:
        copies = self._outcome(flow, branch).copies
        if len(copies) > 1:
            raise ValueFaultError(
                f"node {flow.node.id!r}: how many copies of {branch!r}? expected {{{branch}: copies}}"
            )
        return copies[0][0]

    def _outcome(self, flow: NodeFlow, branch: str) -> Outcome:
        then = self._outcomes(flow)
        if branch not in then:
            raise ValueFaultError(
                f"node {flow.node.id!r} goes on with {branch!r}, no such branch{did_you_mean(branch, then)}"
            )
        return then[branch]


def is_fan_out(outcome: Outcome) -> bool:
    return outcome.copies != ONE
