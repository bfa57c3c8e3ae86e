"""How one request grows: by what was drawn for it, or by what really happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import NormalDist
from typing import TypeVar

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Grew
from dovetail.core.loop.executor import chance
from dovetail.core.tasks import Task, TaskGraph
from dovetail.workflow.inputs.growth.rules import GrowthRules, Outcome

T = TypeVar("T")
_NORMAL = NormalDist()
FixedOutcome = str | None | dict[str, int]  # where to, nothing, or so many copies


class RequestGrowth:
    """A request that grows: `grow` says what the end of a node adds.

    The second instance of a node is called `node#2`, and so on, in the order in which they are added.

    >>> from dovetail.core.tasks import Task
    >>> from dovetail.workflow.inputs.growth.rules import Outcome
    >>> rules = GrowthRules((Task("think", "llm"),), {"think": {"think": Outcome(0.5, ("think",), at_most=2)}})
    >>> request = RequestGrowth("r", rules, TaskGraph("agent", rules.nodes, []), lambda instance, node: 4.0)
    >>> request.grow("think", "think").edges, request.grow("think#2", "think").edges, request.grow("think#3", "think")
    ((('think', 'think#2'),), (('think#2', 'think#3'),), None)
    """

    def __init__(self, job: str, rules: GrowthRules, graph: TaskGraph, size: Callable[[str, str], float]) -> None:
        self._job, self._rules, self._size = job, rules, size
        self._tasks = {task.name: task for task in rules.nodes}
        names = [task.name for task in graph.tasks]
        self._numbers = Counter(names)
        self._successors = {name: tuple(names[j] for j in graph.before[i]) for i, name in enumerate(names)}
        self.origin = {name: (name, 0) for name in names}  # of each instance: its node, and how often it came back

    def grow(self, task: str, outcome: str | None, copies: int = 1) -> Grew | None:
        """What the end of this task adds if that is its outcome: nothing if a loop has gone back often enough."""
        node, rounds = self.origin[task]
        rule = None if outcome is None else self._rules.then[node][outcome]
        if outcome is None or rule is None or not copies or (rule.at_most and rounds >= rule.at_most):
            return None
        joined = self._successors[task]
        sources = {source for source, _ in rule.edges}
        names: list[str] = []
        edges: list[tuple[str, str]] = []
        for _ in range(copies):
            own = {name: self._name(name) for name in rule.nodes}
            names += own.values()
            edges.append((task, own[outcome]))
            edges += ((own[source], own[target]) for source, target in rule.edges)
            edges += ((own[name], successor) for name in rule.nodes if name not in sources for successor in joined)
            for name, instance in own.items():
                self.origin[instance] = (name, rounds + 1 if rule.at_most and name == node else 0)
                after = tuple(own[target] for source, target in rule.edges if source == name)
                self._successors[instance] = after or joined
        nodes = [self.origin[name][0] for name in names]
        tasks = tuple(
            self._tasks[node] if name == node else _renamed(self._tasks[node], name)
            for name, node in zip(names, nodes, strict=True)
        )
        sizes = tuple(self._size(name, node) for name, node in zip(names, nodes, strict=True))
        why = f"goes back to {outcome}, {rounds + 1} of at most {rule.at_most} times" if rule.at_most else ""
        why = why or f"goes on with {outcome}" + (f", {copies} times" if copies > 1 else "")
        return Grew(self._job, task, tasks, tuple(edges), sizes, why)

    def _name(self, node: str) -> str:
        self._numbers[node] += 1
        return node if self._numbers[node] == 1 else f"{node}#{self._numbers[node]}"


def _renamed(task: Task, name: str) -> Task:
    return Task(name, task.kind, task.width)


class Later(Struct, frozen=True, gc=False):
    """What a request's file says of nodes that it may be given: seconds by node or instance (`think#2`), and outcomes
    that are fixed, one after the other for each node; with none left, nothing is added."""

    sizes: dict[str, float]
    outcomes: dict[str, list[FixedOutcome]] = {}
    spread: dict[str, float] = {}  # of nodes whose time is an estimate: its standard deviation


def draw(job: str, rules: GrowthRules, graph: TaskGraph, later: Later, seed: int) -> dict[str, Grew]:
    """All that a request will be given, by the task whose end adds it. It depends on the seed and on names alone, so
    that a request grows alike under every policy, on every pool.

    Instances are numbered depth first: all that comes of a node's end before its neighbour's.
    """
    request = RequestGrowth(job, rules, graph, lambda instance, node: _size_s(job, instance, node, later, seed))
    fixed = {node: list(reversed(outcomes)) for node, outcomes in later.outcomes.items()}
    found: dict[str, Grew] = {}
    stack = [task.name for task in reversed(graph.tasks)]
    while stack:
        task = stack.pop()
        node, _ = request.origin[task]
        if node not in rules.then:
            continue
        outcome, copies = _outcome(job, task, node, rules, fixed, seed)
        event = request.grow(task, outcome, copies)
        if event is not None:
            found[task] = event
            stack += [added.name for added in reversed(event.tasks)]
    return found


def recorded(
    job: str, rules: GrowthRules, graph: TaskGraph, events: Mapping[str, Grew]
) -> tuple[dict[str, list[FixedOutcome]], dict[str, float]]:
    """What a request was given, by the task whose end added it, as a file says it: outcomes, and the sizes of added
    nodes under the names that they have when these outcomes are drawn."""
    request = RequestGrowth(job, rules, graph, lambda instance, node: 0.0)
    outcomes: dict[str, list[FixedOutcome]] = {}
    sizes: dict[str, float] = {}
    stack = [(task.name, task.name) for task in reversed(graph.tasks)]
    while stack:
        task, was_called = stack.pop()
        node, _ = request.origin[task]
        if node not in rules.then:
            continue
        event = events.get(was_called)
        chosen = None if event is None else chosen_outcome(event, rules.then[node])
        outcomes.setdefault(node, []).append(chosen)
        if event is None or chosen is None:
            continue
        to, copies = next(iter(chosen.items())) if isinstance(chosen, dict) else (chosen, 1)
        again = request.grow(task, to, copies)
        if again is None:
            raise InputError(f"{job}: {was_called} goes back to {to} more often than its workflow allows")
        names = [(new.name, old.name) for new, old in zip(again.tasks, event.tasks, strict=True)]
        sizes |= {new: size for (new, _), size in zip(names, event.sizes, strict=True)}
        stack += reversed(names)
    return outcomes, sizes


def chosen_outcome(event: Grew, then: Mapping[str, Outcome]) -> FixedOutcome:
    """Which outcome added these tasks."""
    added = [task.name.partition("#")[0] for task in event.tasks]
    for target, outcome in then.items():
        copies, rest = divmod(len(added), len(outcome.nodes))
        if not rest and added == [*outcome.nodes] * copies:
            return target if outcome.copies == ((1, 1.0),) else {target: copies}
    raise InputError(f"{event.job}: {event.task} adds {', '.join(added)}, which its workflow does not know")


def _outcome(
    job: str, task: str, node: str, rules: GrowthRules, fixed: Mapping[str, list[FixedOutcome]], seed: int
) -> tuple[str | None, int]:
    """Where a node's end leads, and how many times."""
    chosen: FixedOutcome
    if node in fixed:
        chosen = fixed[node].pop() if fixed[node] else None
        if isinstance(chosen, dict):
            ((chosen, copies),) = chosen.items()
            return chosen, copies
    else:
        then = rules.then[node]
        chosen = _pick(((name, rule.chance) for name, rule in then.items()), chance(seed, "then", job, task))
    if chosen is None:
        return None, 0
    return chosen, _pick(rules.then[node][chosen].copies, chance(seed, "copies", job, task)) or 0


def _pick(choices: Iterable[tuple[T, float]], drawn: float) -> T | None:
    """The choice that a number from 0 to 1 falls on, None if it falls on what their chances leave."""
    for choice, share in choices:
        drawn -= share
        if drawn < 0:
            return choice
    return None


def _size_s(job: str, instance: str, node: str, later: Later, seed: int) -> float:
    """Seconds that an added node takes: as given for it or its node, else as estimated, with the model's spread."""
    given = later.sizes.get(instance, later.sizes[node])
    std = later.spread.get(node)
    if not std or (instance in later.sizes and instance != node):
        return given
    return max(given / 100, given + std * _NORMAL.inv_cdf(chance(seed, "size", job, instance)))
