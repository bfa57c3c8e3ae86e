"""What the ends of a workflow's nodes may add, how likely, and how much that comes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from dovetail.core.tasks import Task, TaskGraph


class Outcome(Struct, frozen=True, omit_defaults=True):
    """One of the things that may happen when a node ends: so many copies of `nodes` are added, side by side.

    A loop adds what lies between the node that it goes back to and its own once more, and does so `at_most` so often.
    """

    chance: float
    nodes: tuple[str, ...]  # in the order of the file
    edges: tuple[tuple[str, str], ...] = ()
    copies: tuple[tuple[int, float], ...] = ((1, 1.0),)  # how many, how likely
    at_most: int = 0  # 0: no loop

    @property
    def mean_copies(self) -> float:
        return sum(count * chance for count, chance in self.copies)

    @property
    def most_copies(self) -> int:
        return max(count for count, _ in self.copies)


class GrowthRules(Struct, frozen=True):
    """All nodes of a workflow, and by node and target what its end may add; the rest of the chances: nothing.

    What is added lies between the node and its successors: these wait for it too.

    >>> loop = Outcome(0.5, ("think",), at_most=2)
    >>> rules = GrowthRules((Task("think", "llm"),), {"think": {"think": loop}})
    >>> rules.expected(["think"]), rules.most(["think"])
    ({'think': 1.75}, 3)
    """

    nodes: tuple[Task, ...]
    then: dict[str, dict[str, Outcome]]

    @property
    def optional(self) -> frozenset[str]:
        """The nodes that are not there when a request arrives."""
        outcomes = [outcome for then in self.then.values() for outcome in then.values() if not outcome.at_most]
        return frozenset(name for outcome in outcomes for name in outcome.nodes)

    @property
    def models(self) -> frozenset[str]:
        return frozenset(node.kind for node in self.nodes)

    def expected(self, nodes: Iterable[str]) -> dict[str, float]:
        """How often each node runs in the mean, in a request that begins with these."""
        begin, known = [*nodes], dict[str, dict[str, float]]()
        for name in self._added_first(begin):
            known[name] = self._expected(name, known)
        return _sum([(known[name], 1.0) for name in begin])

    def expected_of(self, graph: TaskGraph) -> dict[str, float]:
        """The same of a request that begins with the nodes of this graph."""
        return self.expected(task.name for task in graph.tasks)

    def _expected(self, name: str, known: Mapping[str, dict[str, float]]) -> dict[str, float]:
        """What comes of one instance of a node, in the mean: itself, what it adds, and what comes of that."""
        parts, again, loop = [({name: 1.0}, 1.0)], list[tuple[dict[str, float], float]](), None
        for outcome in self.then.get(name, {}).values():
            if outcome.at_most:
                loop = outcome
                again = [(known[other], outcome.chance) for other in outcome.nodes if other != name]
            else:
                share = outcome.chance * outcome.mean_copies
                parts += ((known[other], share) for other in outcome.nodes)
        found = _sum(parts)
        if loop is not None:
            for _ in range(loop.at_most):
                found = _sum([*parts, *again, (found, loop.chance)])
        return found

    def most(self, nodes: Iterable[str]) -> int:
        """How many nodes a request that begins with these can come to."""
        begin, known = [*nodes], dict[str, int]()
        for name in self._added_first(begin):
            known[name] = self._most(name, known)
        return sum(known[name] for name in begin)

    def _most(self, name: str, known: Mapping[str, int]) -> int:
        added, again, rounds = 0, 0, 0
        for outcome in self.then.get(name, {}).values():
            most = sum(known[other] for other in outcome.nodes if other != name)
            if outcome.at_most:
                again, rounds = most, outcome.at_most
            else:
                added = max(added, most * outcome.most_copies)
        found = 1 + added
        for _ in range(rounds):
            found = 1 + max(added, again + found)
        return found

    def adds(self, name: str) -> Iterator[str]:
        """The nodes that the end of a node may add; itself only where it is not by a loop."""
        for outcome in self.then.get(name, {}).values():
            for other in outcome.nodes:
                if not (outcome.at_most and other == name):
                    yield other

    def _added_first(self, nodes: Iterable[str]) -> list[str]:
        """These nodes and all that they may add, each after what it adds itself."""
        found: dict[str, None] = {}
        for begin in nodes:
            path = [] if begin in found else [(begin, self.adds(begin))]
            while path:
                name, left = path[-1]
                other = next((other for other in left if other not in found), None)
                if other is None:
                    found[name] = None
                    path.pop()
                else:
                    path.append((other, self.adds(other)))
        return [*found]


def said_of(node: str, given: object) -> object:
    """What a request says of a node by its name; of an instance that was added (think#2), if nothing else, what it says
    of its node."""
    return given.get(node, given.get(node.partition("#")[0])) if isinstance(given, dict) else None


def _sum(parts: Iterable[tuple[dict[str, float], float]]) -> dict[str, float]:
    """Counts, each so many times, added up."""
    total: dict[str, float] = {}
    for counts, times in parts:
        for name, count in counts.items():
            total[name] = total.get(name, 0.0) + times * count
    return total
