"""Whether what the ends of nodes added is what their workflow allows, with an account of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.core.events import Arrived, Complete, Grew, Reject
from dovetail.core.findings import Findings
from dovetail.core.journal import Header
from dovetail.workflow.facts import WorkflowFacts
from dovetail.workflow.inputs.growth.rules import GrowthRules, Outcome


class GrowthCheck:
    """Follows requests of workflows whose nodes may add others: what is added is one of the outcomes, whole, between
    the node and its successors, and loops go back no more often than they may."""

    def __init__(self, header: Header, facts: WorkflowFacts, faults: Findings) -> None:
        self._faults, self._rules = faults, facts.growth
        self._graphs = header.build_graphs()
        self._open: dict[str, _Followed] = {}
        self._still: set[str] = set()  # requests of workflows that do not grow

    def step(self, n: int, t: float, events: Sequence[Any]) -> None:
        for event in events:
            if isinstance(event, Arrived):
                if event.of not in self._rules:
                    self._still.add(event.job)
                elif event.of in self._graphs and not event.fault:
                    graph = self._graphs[event.of]
                    names = [task.name for task in graph.tasks]
                    after = {name: {names[j] for j in graph.before[i]} for i, name in enumerate(names)}
                    self._open[event.job] = _Followed(self._rules[event.of], after)
            elif isinstance(event, Complete | Reject):
                self._open.pop(event.job, None)
                self._still.discard(event.job)
            elif isinstance(event, Grew) and event.job in self._still:
                self._faults.add(
                    "growth", f"{event.job}/{event.task}", "adds nodes, but its workflow has none that may be added"
                )
            elif isinstance(event, Grew) and event.job in self._open:
                problem = self._open[event.job].grow(event)
                if problem is not None:
                    self._faults.add("growth", f"{event.job}/{event.task}", problem)


class _Followed:
    """A request: its workflow's rules, and of each instance which node it is, how often it came back, what follows."""

    def __init__(self, rules: GrowthRules, after: dict[str, set[str]]) -> None:
        self._rules = rules
        self._after = after
        self._round = dict.fromkeys(after, 0)
        self._grew: set[str] = set()

    def _may(self, task: str, outcome: Outcome) -> bool:
        return not outcome.at_most or self._round.get(task, 0) < outcome.at_most

    def grow(self, event: Grew) -> str | None:
        """What is wrong with tasks that are added; they are followed in any case."""
        problem = "adds nodes twice" if event.task in self._grew else self._problem(event, self._rules)
        self._grew.add(event.task)
        for task in event.tasks:
            again = _node(task.name) == _node(event.task)
            self._round[task.name] = self._round.get(event.task, 0) + 1 if again else 0
            self._after[task.name] = set()
        for source, target in event.edges:
            self._after.setdefault(source, set()).add(target)
        return problem

    def _problem(self, event: Grew, rules: GrowthRules) -> str | None:
        then, added = rules.then.get(_node(event.task), {}), [_node(task.name) for task in event.tasks]
        fitting = [
            (target, outcome)
            for target, outcome in then.items()
            for count, _ in outcome.copies
            if count and added == [*outcome.nodes] * count
        ]
        if not fitting:
            known = ", ".join(then) or "it has none"
            return f"adds {', '.join(added) or 'nothing'}, which is none of its outcomes: {known}"
        target, outcome = fitting[0]
        if not self._may(event.task, outcome):
            return f"goes back to {target} once more, but it has done so {outcome.at_most} times, as often as it may"
        nodes = {node.name: node for node in rules.nodes}
        for task in event.tasks:
            expected = nodes[_node(task.name)]
            if (task.kind, task.width) != (expected.kind, expected.width):
                found = f"found {task.kind!r} on {task.width} GPUs, expected {expected.kind!r} on {expected.width}"
                return f"adds {task.name}: {found}"
        if set(event.edges) != self._edges(event, target, outcome):
            return f"adds {target} with other edges than its workflow says"
        return None

    def _edges(self, event: Grew, target: str, outcome: Outcome) -> set[tuple[str, str]]:
        """From the node to each copy, within it as in the file, and from its last nodes to what follows the node."""
        names, size = [task.name for task in event.tasks], len(outcome.nodes)
        expected: set[tuple[str, str]] = set()
        for first in range(0, len(names), size):
            copy = dict(zip(outcome.nodes, names[first : first + size], strict=True))
            inner = {(copy[source], copy[to]) for source, to in outcome.edges}
            last = set(copy.values()) - {source for source, _ in inner}
            expected |= inner | {(event.task, copy[target])}
            expected |= {(one, to) for one in last for to in self._after.get(event.task, ())}
        return expected


def _node(instance: str) -> str:
    return instance.partition("#")[0]
