"""What a workflow's file says of nodes that are added while a request runs (`then:`), checked and made rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from dovetail.core.errors import did_you_mean
from dovetail.core.tasks import Task
from dovetail.workflow.inputs.growth.rules import GrowthRules, Outcome

MOST_NODES = 10_000  # that one request may come to
MOST_LEVELS = 1000  # of nodes that add nodes that add nodes
_SUM = 1 + 1e-9


Copies = int | list[int] | dict[Any, float]


class ThenEntry(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Where a node's end may lead: with which `chance`, how often at most if that is back, and in how many copies: a
    number, the least and the most of as likely ones, or numbers with their chances."""

    chance: float = 1.0
    at_most: int | None = None
    copies: Copies | None = None


Then = dict[str, float | ThenEntry]


class ThenFault(Exception):  # noqa: N818
    """What is wrong, and where below the workflow."""

    def __init__(self, keys: Sequence[str | int], message: str) -> None:
        super().__init__(message)
        self.keys = tuple(keys)


def growth_rules(tasks: Sequence[Task], thens: Sequence[Then], edges: Sequence[tuple[str, str]]) -> GrowthRules | None:
    """The rules of a workflow whose nodes these are, each with what may follow its end; None if nothing may."""
    if not any(thens):
        return None
    names = [task.name for task in tasks]
    before, after = _neighbours(names, edges)
    rules: dict[str, dict[str, Outcome]] = {}
    added_by: dict[str, str] = {}  # optional nodes, and which then names them first
    for i, (name, then) in enumerate(zip(names, thens, strict=True)):
        if "#" in name:
            raise ThenFault(("nodes", i, "id"), f"node {name!r}: '#' is for the numbers of nodes that are added")
        earlier = _reach(name, before)
        for target, given in then.items():
            keys = ("nodes", i, "then", target)
            if target not in before:
                raise ThenFault(keys, f"node {name!r}: {target!r} is not a node{did_you_mean(target, names)}")
            loop = target in earlier
            nodes = _reach(target, after) & (earlier if loop else set(names))
            entry = given if isinstance(given, ThenEntry) else ThenEntry(given)
            outcome = _outcome(keys, entry, loop, nodes, names, edges)
            rules.setdefault(name, {})[target] = outcome
            if not loop:
                added_by |= {node: f"{target!r}, which {name!r} adds" for node in outcome.nodes if node not in added_by}
        if sum(outcome.chance for outcome in rules.get(name, {}).values()) > _SUM:
            found = sum(outcome.chance for outcome in rules[name].values())
            raise ThenFault(("nodes", i, "then"), f"node {name!r}: the chances add up to {found:g}, expected at most 1")
        if sum(outcome.at_most > 0 for outcome in rules.get(name, {}).values()) > 1:
            raise ThenFault(
                ("nodes", i, "then"), f"node {name!r}: goes back to two nodes, expected one loop for a node"
            )
    for i, (source, target) in enumerate(edges):
        if target in added_by and source not in added_by:
            told = f"{target!r} is or follows {added_by[target]}"
            hint = "it cannot be there from the start; what follows a node waits for what that adds"
            raise ThenFault(("edges", i), f"edge {source} -> {target}: {told}: {hint}")
    whole = GrowthRules(tuple(tasks), rules)
    starts = [name for name in names if name not in added_by]
    if not starts:
        raise ThenFault(("nodes",), "every node is added by another one: none is there at the start")
    _refuse_endless(whole, names)
    if (most := whole.most(starts)) > MOST_NODES:
        raise ThenFault(("nodes",), f"a request may come to {most:,} nodes, expected at most {MOST_NODES:,}")
    return whole


def _neighbours(names: Iterable[str], edges: Sequence[tuple[str, str]]) -> tuple[dict[str, set[str]], ...]:
    before: dict[str, set[str]] = {name: set() for name in names}
    after: dict[str, set[str]] = {name: set() for name in names}
    for source, target in edges:
        before[target].add(source)
        after[source].add(target)
    return before, after


def _reach(start: str, step: Mapping[str, set[str]]) -> set[str]:
    """A node, and all that can be reached from it."""
    found, left = {start}, [start]
    while left:
        new = step[left.pop()] - found
        found |= new
        left += new
    return found


def _outcome(
    keys: Sequence[str | int],
    entry: ThenEntry,
    loop: bool,
    nodes: set[str],
    names: Sequence[str],
    edges: Sequence[tuple[str, str]],
) -> Outcome:
    if not 0 < entry.chance <= 1:
        raise ThenFault((*keys, "chance"), f"expected a chance above 0 and up to 1, found {entry.chance:g}")
    if loop and entry.copies is not None:
        raise ThenFault((*keys, "copies"), "leads back to an earlier node: a loop has no copies")
    if loop and entry.at_most is None:
        example = f"{{chance: {entry.chance:g}, at_most: 5}}"
        raise ThenFault(keys, f"leads back to an earlier node: say how often at most, as {example}")
    if not loop and entry.at_most is not None:
        raise ThenFault((*keys, "at_most"), "does not lead back to an earlier node; at_most is for loops")
    if loop and not 0 < (entry.at_most or 0) <= MOST_NODES:
        raise ThenFault((*keys, "at_most"), f"expected a number from 1 to {MOST_NODES:,}, found {entry.at_most}")
    own = tuple((source, target) for source, target in edges if source in nodes and target in nodes)
    return Outcome(
        entry.chance,
        tuple(name for name in names if name in nodes),
        tuple(dict.fromkeys(own)),
        _copies((*keys, "copies"), entry.copies),
        entry.at_most or 0,
    )


def _copies(keys: Sequence[str | int], given: Copies | None) -> tuple[tuple[int, float], ...]:
    """Numbers of copies, each with its chance."""
    if isinstance(given, dict):
        try:
            chances = {int(count): chance for count, chance in given.items()}
        except (TypeError, ValueError):
            raise ThenFault(keys, f"expected numbers of copies and their chances, found {given}") from None
        if not chances or not all(0 < chance <= 1 for chance in chances.values()) or sum(chances.values()) > _SUM:
            raise ThenFault(keys, f"expected chances above 0 that add up to at most 1, found {given}")
    elif isinstance(given, list):
        if len(given) != 2 or given[0] > given[1] or given[1] > MOST_NODES:
            raise ThenFault(keys, f"expected the least and the most, as [2, 5], found {given}")
        counts = range(given[0], given[1] + 1)
        chances = dict.fromkeys(counts, 1 / len(counts))
    else:
        chances = {1 if given is None else given: 1.0}
    if min(chances) < 0 or not 0 < max(chances) <= MOST_NODES:
        raise ThenFault(keys, f"expected numbers from 0 to {MOST_NODES:,}, some above 0, found {given}")
    return tuple(chances.items())


def _refuse_endless(rules: GrowthRules, names: Sequence[str]) -> None:
    """What is added must not add itself again without end (only loops go back), nor come to no end of levels."""
    levels: dict[str, int] = {}  # of nodes that are done
    for begin in names:
        path = {} if begin in levels else {begin: rules.adds(begin)}
        while path:
            name = next(reversed(path))
            other = next((other for other in path[name] if other not in levels), None)
            if other is None:
                levels[name] = 1 + max((levels[added] for added in rules.adds(name)), default=0)
                if levels[name] > MOST_LEVELS:
                    message = f"node {name!r}: nested too deeply, expected at most {MOST_LEVELS:,} levels of then"
                    raise ThenFault(("nodes", names.index(name), "then"), message)
                del path[name]
            elif other in path:
                ring = " -> ".join([*list(path)[list(path).index(other) :], other])
                message = f"node {other!r} may be added again without end: {ring}; a loop goes back to an earlier node"
                raise ThenFault(("nodes", names.index(other), "then"), message)
            else:
                path[other] = rules.adds(other)
