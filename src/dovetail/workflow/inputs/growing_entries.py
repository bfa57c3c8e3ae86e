"""What requests say of nodes that they may be given while they run: times of instances, and outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import compress

from dovetail.core.errors import did_you_mean
from dovetail.core.tasks import TaskGraph
from dovetail.workflow.inputs.growth.request import FixedOutcome, Later
from dovetail.workflow.inputs.system import MOST, System


class EntryFault(Exception):  # noqa: N818
    """What is wrong with one request, and under which key."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class GrowingEntries:
    """The requests of one workflow whose nodes may add others; `expected` is how often each node runs in the mean."""

    def __init__(self, system: System, graph: TaskGraph) -> None:
        self._rules = rules = system.growth[graph.name]
        self._names = [task.name for task in graph.tasks]
        self._is_first = [name not in rules.optional for name in self._names]
        self.expected = dict.fromkeys(self._names, 0.0) | rules.expected(compress(self._names, self._is_first))
        self._spread = {task.name: std for task in graph.tasks if (std := system.spread_s(task.kind))}

    def first(self, sizes: Sequence[float]) -> tuple[float, ...]:
        """The sizes of the nodes that are there at the start."""
        return tuple(compress(sizes, self._is_first))

    def later(
        self,
        sizes: Sequence[float],
        given: Collection[str],
        times: Mapping[str, float],
        tokens: Collection[str],
        outcomes: Mapping[str, list[FixedOutcome]],
    ) -> Later:
        """What a request says of its nodes, all of which have a size; `times` may name instances too (think#2)."""
        own = {name: time for name, time in times.items() if "#" in name and name.partition("#")[0] in self.expected}
        for name, time in own.items():
            if not 0 < time <= MOST:
                found = f"expected a positive number up to {MOST:g}, found {time}"
                raise EntryFault(f"node_execution_times.{name}", found)
            if name.partition("#")[0] in tokens:
                raise EntryFault(f"node_execution_times.{name}", "its node has tokens as well; expected one of them")
        self._check(outcomes)
        spread = {name: std for name, std in self._spread.items() if name not in given}
        return Later(dict(zip(self._names, sizes, strict=True)) | own, dict(outcomes), spread)

    def _check(self, outcomes: Mapping[str, list[FixedOutcome]]) -> None:
        then = self._rules.then
        for node, chosen in outcomes.items():
            if node not in then:
                message = f"expected a node that adds others (then:), found {node!r}{did_you_mean(node, then)}"
                raise EntryFault(f"outcomes.{node}", message)
            for i, outcome in enumerate(chosen):
                to, copies = outcome, None
                if isinstance(outcome, dict):
                    if len(outcome) != 1:
                        raise EntryFault(f"outcomes.{node}.{i}", f"expected one outcome, found {len(outcome)}")
                    ((to, copies),) = outcome.items()
                if to is None:
                    continue
                if to not in then[node]:
                    message = f"{to!r} is no outcome of {node!r}{did_you_mean(str(to), then[node])}"
                    raise EntryFault(f"outcomes.{node}.{i}", message)
                allowed = {0, *(count for count, _ in then[node][to].copies)}
                if copies is not None and copies not in allowed:
                    message = f"expected {', '.join(map(str, sorted(allowed)))} copies of {to!r}, found {copies}"
                    raise EntryFault(f"outcomes.{node}.{i}", message)
