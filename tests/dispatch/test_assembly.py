"""Results put together as one call would have returned them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from dovetail.core.errors import InputError
from dovetail.dispatch.inputs.trees import leaves
from dovetail.dispatch.live.assembly import Collected, Preallocated

CPU = torch.device("cpu")


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_chunks_land_in_their_place_in_any_order(order: list[int]) -> None:
    whole: dict[str, Any] = {"a": torch.rand(3, 10, 6), "b": (torch.rand(2, 10),)}
    ranges = [(0, 4), (4, 8), (8, 10)]
    output = Preallocated(10, 1, CPU)
    for i in order:
        start, stop = ranges[i]
        output.write(start, stop, {"a": whole["a"][:, start:stop], "b": (whole["b"][0][:, start:stop],)})
    found = output.result()
    assert torch.equal(found["a"], whole["a"])
    assert torch.equal(found["b"][0], whole["b"][0])


def test_what_does_not_depend_on_the_batch_passes_through() -> None:
    fixed = torch.rand(6, 6)
    output = Preallocated(10, 0, CPU)
    for start, stop in ((0, 6), (6, 10)):  # the first chunk has as many items as the fixed part has rows
        output.write(start, stop, (torch.arange(start, stop), fixed))
    found, passed = output.result()
    assert found.tolist() == list(range(10))
    assert torch.equal(passed, fixed)


def test_what_has_no_batch_dimension_yet_differs_is_refused() -> None:
    output = Preallocated(10, 0, CPU)
    output.write(0, 5, torch.tensor(1.0))
    with pytest.raises(InputError, match=r"yet differs between chunks; give join=.*or reduce="):
        output.write(5, 10, torch.tensor(2.0))


def test_one_chunk_for_all_is_not_copied() -> None:
    result = torch.rand(4)
    output = Preallocated(4, 0, CPU)
    output.write(0, 4, result)
    assert output.result() is result


def test_results_of_a_graph_are_joined_so_that_derivatives_flow() -> None:
    leaf = torch.rand(6, requires_grad=True)
    output = Preallocated(6, 0, CPU)
    for start in (3, 0):
        output.write(start, start + 3, leaf[start : start + 3] ** 2)
    output.result().sum().backward()
    assert torch.allclose(leaf.grad, 2 * leaf)  # type: ignore[arg-type]


def test_a_chunk_of_another_form_is_refused() -> None:
    output = Preallocated(10, 0, CPU)
    output.write(0, 5, (torch.rand(5), torch.rand(5)))
    with pytest.raises(InputError, match="chunks differ in what they return: result"):
        output.write(5, 10, (torch.rand(5),))


@pytest.mark.parametrize("tree", [lambda x: x, lambda x: {"y": x}])
def test_a_chunk_of_another_shape_or_type_is_refused(tree: Any) -> None:
    output = Preallocated(10, 0, CPU)
    output.write(0, 5, tree(torch.rand(5, 6)))
    for wrong in (torch.rand(5, 1), torch.rand(5, 6, dtype=torch.float64), torch.ones(5, 6, dtype=torch.int64)):
        with pytest.raises(InputError, match=r"expected \[5, 6\] of torch.float32"):
            output.write(5, 10, tree(wrong))


def test_parts_go_to_their_places_by_themselves_only_where_nothing_is_beside_them() -> None:
    class Named(dict):  # type: ignore[type-arg]
        pass

    plain, named = Named(y=torch.rand(5)), Named(y=torch.rand(5))
    named.name = "own"  # type: ignore[attr-defined]
    for first, other, alone in ((plain, plain, True), (plain, named, False), (named, plain, False)):
        output = Preallocated(10, 0, CPU)
        output.write(0, 5, first)
        assert (output.places(5, 10, other) is not None) == alone


def test_a_name_that_is_no_number_stays_apart_from_the_text() -> None:
    output = Preallocated(10, 0, CPU)
    for start in (0, 5):
        output.write(start, start + 5, {"nan": torch.ones(5), float("nan"): torch.zeros(5)})
    assert [part.tolist() for part in output.result().values()] == [[1.0] * 10, [0.0] * 10]


@pytest.mark.parametrize("tree", [lambda x: x, lambda x: {"y": x}])
def test_who_writes_late_does_not_reach_what_was_given_out(tree: Any) -> None:
    output = Preallocated(10, 0, CPU)
    for start in (0, 5):
        output.write(start, start + 5, tree(torch.ones(5)))
    output.detached = True
    (given,) = [leaf for _, leaf in leaves(output.result())]
    output.write(5, 10, tree(torch.zeros(5)))
    assert given.tolist() == [1.0] * 10


def test_collected_results_are_reduced_in_order_or_listed() -> None:
    reduced = Collected(0, None, reduce=sum)
    listed = Collected(0, None, join="list")
    for start in (4, 0):
        reduced.write(start, start + 4, 10 + start)
        listed.write(start, start + 4, 10 + start)
    assert reduced.result() == 24
    assert listed.result() == [10, 14]


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux' account of a process's memory")
def test_the_memory_of_large_results_is_asked_for_in_large_pages() -> None:
    def is_asked(tensor: torch.Tensor) -> bool:
        middle = tensor.data_ptr() + tensor.numel() * tensor.element_size() // 2
        inside = False
        for line in Path("/proc/self/smaps").read_text().splitlines():
            if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
                inside = int(found[1], 16) <= middle < int(found[2], 16)
            elif inside and line.startswith("VmFlags:"):
                return "hg" in line.split()
        raise AssertionError("the tensor is nowhere")

    output = Preallocated(1 << 24, 0, CPU)
    output.write(0, 4, torch.ones(4))
    assert is_asked(output.result())
    assert not is_asked(torch.empty(1 << 24))  # 64 MiB, as the system gives them
