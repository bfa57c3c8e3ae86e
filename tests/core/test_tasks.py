"""Shapes: the order of tasks, what is wrong with one, and the longest paths, against brute force."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.tasks import Task, TaskGraph, TaskGraphError

Drawn = tuple[int, list[tuple[int, int]], list[float]]


@st.composite
def graphs(draw: st.DrawFn) -> Drawn:
    """Tasks in a hidden order, edges along it, each maybe given twice, and a size for each task."""
    n = draw(st.integers(1, 7))
    order = draw(st.permutations(range(n)))
    possible = [(order[i], order[j]) for i in range(n) for j in range(i + 1, n)]
    edges = draw(st.lists(st.sampled_from(possible), max_size=12)) if possible else []
    sizes = draw(st.lists(st.integers(0, 20).map(float), min_size=n, max_size=n))
    return n, edges, sizes


def build(n: int, edges: list[tuple[int, int]]) -> TaskGraph:
    return TaskGraph("random", [Task(f"p{i}", "kind") for i in range(n)], [(f"p{i}", f"p{j}") for i, j in edges])


def paths_from(i: int, edges: list[tuple[int, int]]) -> Iterator[list[int]]:
    """Every path that starts at a task, however short."""
    yield [i]
    for source, target in set(edges):
        if source == i:
            for path in paths_from(target, edges):
                yield [i, *path]


@given(graphs())
def test_every_part_comes_after_its_predecessors(drawn: Drawn) -> None:
    n, edges, _ = drawn
    order = build(n, edges).topological
    assert sorted(order) == list(range(n))
    assert all(order.index(i) < order.index(j) for i, j in edges)


@given(graphs())
def test_neighbours_are_those_of_the_edges_each_once(drawn: Drawn) -> None:
    n, edges, _ = drawn
    graph = build(n, edges)
    assert [sorted(after) for after in graph.after] == [sorted({i for i, j in edges if j == k}) for k in range(n)]
    assert [list(before) for before in graph.before] == [sorted({j for i, j in edges if i == k}) for k in range(n)]
    assert graph.roots == tuple(k for k in range(n) if all(j != k for _, j in edges))


@given(graphs())
def test_a_tail_is_the_longest_of_all_paths_from_a_part_to_an_end(drawn: Drawn) -> None:
    n, edges, sizes = drawn
    expected = [max(sum(sizes[i] for i in path) for path in paths_from(k, edges)) for k in range(n)]
    graph = build(n, edges)
    assert graph.tails(sizes) == expected
    assert graph.longest_path(sizes) == max(expected)


@given(graphs())
def test_a_head_is_the_longest_of_all_paths_that_lead_to_a_part(drawn: Drawn) -> None:
    n, edges, sizes = drawn
    backwards = [(j, i) for i, j in edges]
    expected = [max(sum(sizes[i] for i in path[1:]) for path in paths_from(k, backwards)) for k in range(n)]
    assert build(n, edges).heads(sizes) == expected


@given(graphs(), st.data())
def test_a_cycle_is_refused_and_named_in_its_direction(drawn: Drawn, data: st.DataObject) -> None:
    n, edges, _ = drawn
    path = data.draw(st.sampled_from([path for k in range(n) for path in paths_from(k, edges)]))
    edges = [*edges, (path[-1], path[0])]
    with pytest.raises(TaskGraphError, match=r"^random: cycle ") as caught:
        build(n, edges)
    ring = [int(name[1:]) for name in str(caught.value).removeprefix("random: cycle ").split(" -> ")]
    assert ring[0] == ring[-1]
    assert len(set(ring)) == len(ring) - 1
    assert all(edge in edges for edge in pairwise(ring))


def test_a_part_that_waits_for_itself_is_a_cycle() -> None:
    with pytest.raises(TaskGraphError, match=r"^w: cycle a -> a$"):
        TaskGraph("w", [Task("a", "x")], [("a", "a")])


def test_a_long_cycle_is_found_as_well() -> None:
    n = 20_000
    with pytest.raises(TaskGraphError, match="cycle p"):
        build(n, [(i, (i + 1) % n) for i in range(n)])


def test_two_parts_of_one_name_are_refused() -> None:
    with pytest.raises(TaskGraphError, match=r"^w: two tasks have the same name$"):
        TaskGraph("w", [Task("a", "x"), Task("a", "y")], [])


@pytest.mark.parametrize("edge", [("a", "nobody"), ("nobody", "a")])
def test_an_edge_to_nowhere_is_refused(edge: tuple[str, str]) -> None:
    with pytest.raises(TaskGraphError, match=r"^w: 'nobody' is not a task$"):
        TaskGraph("w", [Task("a", "x")], [edge])


def test_a_reason_for_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TaskGraphError, match=r"^w: 'nobody' is not a task$"):
        TaskGraph("w", [Task("a", "x")], [], never={"nobody": "waits for ever"})


def test_a_part_that_can_never_be_ready_is_no_root() -> None:
    graph = TaskGraph("w", [Task("a", "x"), Task("b", "x")], [], never={"b": "waits for nothing that exists"})
    assert graph.roots == (0,)
    assert graph.never == {1: "waits for nothing that exists"}


def test_nothing_is_a_shape_too() -> None:
    graph = TaskGraph("empty", [], [])
    assert (graph.topological, graph.roots, graph.longest_path([])) == ((), (), 0.0)


@pytest.mark.parametrize(
    ("least", "most", "fitting", "words"),
    [(None, None, [3], "3"), (2, None, [2, 3], "2 to 3"), (None, 4, [3, 4], "3 to 4"), (2, 4, [2, 3, 4], "2 to 4")],
)
def test_a_range_without_one_end_ends_at_the_width(
    least: int | None, most: int | None, fitting: list[int], words: str
) -> None:
    task = Task("a", "x", 3, least, most)
    assert [devices for devices in range(8) if task.fits(devices)] == fitting
    assert task.needs == words
