"""Typed work: what a job consists of, in which order its tasks may run, and how large each task is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from weakref import WeakValueDictionary

from msgspec import Struct

_SMALL = 100  # tasks of a graph that keeps the one that it grew from alive


class Task(Struct, frozen=True, omit_defaults=True):
    """One schedulable task of a job: its kind (what must be resident to run it) and how many devices it spans.

    A malleable task has a range of widths, `least` to `most`, and may change within it while it runs. Without a range
    its width is fixed.

    >>> [Task("a", "llm", 2).fits(n) for n in (1, 2)], [Task("a", "cnn", 4, 1, 8).fits(n) for n in (0, 1, 8, 9)]
    ([False, True], [False, True, True, False])
    """

    name: str
    kind: str
    width: int = 1
    least: int | None = None
    most: int | None = None

    def fits(self, devices: int) -> bool:
        """Whether it can run on so many devices."""
        if self.least is None and self.most is None:
            return devices == self.width
        least = self.width if self.least is None else self.least
        return least <= devices <= (self.width if self.most is None else self.most)

    @property
    def needs(self) -> str:
        """How many devices it can run on, in words."""
        if self.least is None and self.most is None:
            return str(self.width)
        return f"{self.width if self.least is None else self.least} to {self.width if self.most is None else self.most}"


class TaskGraphError(ValueError):
    """The tasks and their order do not form a directed acyclic graph."""


class TaskGraph:
    """The tasks of one type of job and their order; shared by all jobs of that type.

    >>> graph = TaskGraph("chain", [Task("a", "llm"), Task("b", "sd", 2)], [("a", "b")])
    >>> graph.after, graph.before, graph.topological
    (((), (0,)), ((1,), ()), (0, 1))
    >>> graph.longest_path([3.0, 4.0])
    7.0
    """

    __slots__ = (
        "__weakref__",
        "_grown",
        "_grown_from",
        "_topological",
        "added",
        "after",
        "before",
        "index",
        "name",
        "never",
        "roots",
        "tasks",
        "waits",
        "widths",
    )

    def __init__(
        self,
        name: str,
        tasks: Iterable[Task],
        edges: Iterable[tuple[str, str]],
        never: Mapping[str, str] | None = None,
    ) -> None:
        """`never` names tasks that can never become ready, with the reason (kept for faulty legacy inputs)."""
        self.name = name
        self.tasks = tuple(tasks)
        self.widths = [task.width for task in self.tasks]
        self.index = {task.name: i for i, task in enumerate(self.tasks)}
        if len(self.index) != len(self.tasks):
            raise TaskGraphError(f"{name}: two tasks have the same name")
        after: list[list[int]] = [[] for _ in self.tasks]
        before: list[list[int]] = [[] for _ in self.tasks]
        for source, target in dict.fromkeys(edges):
            s, t = self._find(source), self._find(target)
            before[s].append(t)
            after[t].append(s)
        self.after = tuple(map(tuple, after))
        self.waits = [len(a) for a in after]  # how many tasks each one waits for
        self.before = tuple(tuple(sorted(b)) for b in before)
        self.never = {self._find(task): why for task, why in (never or {}).items()}
        self.roots = tuple(i for i, a in enumerate(self.after) if not a and i not in self.never)
        self.added: list[tuple[int, int]] = []  # the edges beyond those of the graph that it grew from
        self._topological: tuple[int, ...] | None = self._sort()
        self._grown: WeakValueDictionary[object, TaskGraph] | None = None
        self._grown_from: TaskGraph | None = None  # kept alive, so that jobs that grow alike meet there

    @property
    def topological(self) -> tuple[int, ...]:
        """Places of tasks, each after those that it waits for."""
        if self._topological is None:
            self._topological = self._sort()
        return self._topological

    def grown(self, tasks: Sequence[Task], edges: Sequence[tuple[str, str]]) -> TaskGraph:
        """This graph with more tasks and edges; its own tasks keep their places. Jobs that grow alike share the graph.

        >>> graph = TaskGraph("loop", [Task("a", "llm"), Task("end", "llm")], [("a", "end")])
        >>> more = graph.grown([Task("a#2", "llm")], [("a", "a#2"), ("a#2", "end")])
        >>> more.after, more is graph.grown([Task("a#2", "llm")], [("a", "a#2"), ("a#2", "end")])
        (((), (0, 2), (0,)), True)
        """
        if self._grown is None:
            self._grown = WeakValueDictionary()
        key = (tuple(tasks), tuple(edges))
        found = self._grown.get(key)
        if found is None:
            found = self._grown[key] = self._extended(tasks, edges)
            if len(found.tasks) <= _SMALL:
                found._grown_from = self
        return found

    def _extended(self, tasks: Sequence[Task], edges: Sequence[tuple[str, str]]) -> TaskGraph:
        """A copy with more tasks and edges; looks only at these and at what follows them."""
        found, first = copy(self), len(self.tasks)
        found._topological = found._grown = found._grown_from = None
        found.tasks = (*self.tasks, *tasks)
        found.widths = [*self.widths, *(task.width for task in tasks)]
        found.index = self.index | {task.name: i for i, task in enumerate(tasks, first)}
        if len(found.index) != len(found.tasks):
            raise TaskGraphError(f"{self.name}: two tasks have the same name")
        after, before = ([*known, *((),) * len(tasks)] for known in (self.after, self.before))
        found.added = []
        for source, target in dict.fromkeys(edges):
            s, t = found._find(source), found._find(target)
            if t not in before[s]:
                found.added.append((s, t))
                before[s] = tuple(sorted((*before[s], t)))
                after[t] = tuple(sorted((*after[t], s)))
        found.after, found.before = tuple(after), tuple(before)
        found.waits = [*self.waits, *(0 for _ in tasks)]
        for _, t in found.added:
            found.waits[t] = len(after[t])
        roots = (*self.roots, *range(first, len(found.tasks)))
        found.roots = tuple(i for i in roots if not after[i])
        if found._has_new_cycle():
            found._sort()  # says which
        return found

    def _has_new_cycle(self) -> bool:
        """Whether the edges that were added close one: all of it would follow them."""
        found = dict.fromkeys(t for _, t in self.added)
        follow = list(found)
        for i in follow:
            new = [j for j in self.before[i] if j not in found]
            found.update(dict.fromkeys(new))
            follow += new
        waiting = Counter(j for i in follow for j in self.before[i])
        order = [i for i in follow if not waiting[i]]
        for i in order:
            for j in self.before[i]:
                waiting[j] -= 1
                if not waiting[j]:
                    order.append(j)
        return len(order) < len(follow)

    def _find(self, task: str) -> int:
        if task not in self.index:
            raise TaskGraphError(f"{self.name}: {task!r} is not a task")
        return self.index[task]

    def _sort(self) -> tuple[int, ...]:
        waiting = [len(a) for a in self.after]
        order = [i for i, count in enumerate(waiting) if count == 0]
        for i in order:
            for j in self.before[i]:
                waiting[j] -= 1
                if waiting[j] == 0:
                    order.append(j)
        if len(order) < len(self.tasks):
            raise TaskGraphError(f"{self.name}: cycle {' -> '.join(self._cycle(set(order)))}")
        return tuple(order)

    def _cycle(self, sorted_parts: set[int]) -> list[str]:
        """Every unsorted task has an unsorted predecessor: walk back until one repeats."""
        at = next(i for i in range(len(self.tasks)) if i not in sorted_parts)
        path: dict[int, None] = {}
        while at not in path:
            path[at] = None
            at = next(i for i in self.after[at] if i not in sorted_parts)
        walked = list(path)
        ring = [*walked[walked.index(at) :], at]
        return [self.tasks[i].name for i in reversed(ring)]

    def tails(self, sizes: Sequence[float]) -> list[float]:
        """For each task, the longest path from its start to the end of the job (its upward rank)."""
        tail = [0.0] * len(self.tasks)
        for i in reversed(self.topological):
            tail[i] = sizes[i] + max((tail[j] for j in self.before[i]), default=0.0)
        return tail

    def heads(self, sizes: Sequence[float]) -> list[float]:
        """For each task, the longest path of predecessors that must finish before it starts."""
        head = [0.0] * len(self.tasks)
        for i in self.topological:
            head[i] = max((head[j] + sizes[j] for j in self.after[i]), default=0.0)
        return head

    def longest_path(self, sizes: Sequence[float]) -> float:
        return max(self.tails(sizes), default=0.0)


class TaskGraphRecord(Struct, frozen=True, omit_defaults=True):
    """A graph as the header keeps it."""

    name: str
    tasks: tuple[Task, ...]
    edges: tuple[tuple[str, str], ...] = ()
    never: dict[str, str] = {}

    @classmethod
    def of(cls, graph: TaskGraph) -> TaskGraphRecord:
        names = [task.name for task in graph.tasks]
        edges = tuple((names[i], names[j]) for i, targets in enumerate(graph.before) for j in targets)
        return cls(graph.name, graph.tasks, edges, {names[i]: why for i, why in graph.never.items()})

    def build(self) -> TaskGraph:
        return TaskGraph(self.name, self.tasks, self.edges, self.never)
