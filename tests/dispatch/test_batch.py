"""Batches of every form, seen as ranges of items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from dovetail.core.errors import InputError
from dovetail.dispatch.inputs.batch import Pieces, Slices, SourceCursor, TensorBatch, TreeBatch, as_source
from dovetail.dispatch.inputs.cursor import LocalCursor


def taken(cursor: Any, sizes: list[int]) -> list[tuple[int, int]]:
    return [cursor.take(size) for size in sizes]


def test_slices_as_the_older_generator_cut_them() -> None:
    source = Slices(50, 2000)
    cursor = LocalCursor(0, source.total)
    found = [source.slice(*cursor.take(n)) for n in (1, 2, 1000, 946, 5)]
    assert [(cut.start, cut.stop) for cut in found] == [(50, 51), (51, 53), (53, 1053), (1053, 1999), (1999, 2000)]
    assert cursor.remaining == 0


def test_a_tensor_is_cut_along_any_dimension_without_copies() -> None:
    tensor = torch.rand(5, 100, 5, 2, 3)
    for dim, length in ((1, 100), (-1, 3), (0, 5), (-4, 100)):
        source = as_source(tensor, dim)
        assert isinstance(source, TensorBatch)
        assert source.total == length
        part = source.slice(1, 3)
        assert torch.equal(part, tensor.narrow(dim, 1, 2))
        assert part.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr()


class Pair(NamedTuple):
    left: Tensor
    right: Tensor


def test_a_tree_keeps_its_form_and_passes_broadcast_entries_whole() -> None:
    strain, temperature, scale = torch.rand(5, 100, 6), torch.rand(5, 1, 6), torch.rand(5)
    source = TreeBatch({"a": Pair(strain, temperature), "b": [scale, 3.0, "text"]}, dim=1)
    assert source.total == 100
    cut = source.slice(90, 100)
    assert isinstance(cut["a"], Pair)
    assert torch.equal(cut["a"].left, strain[:, 90:])
    assert cut["a"].right is temperature
    assert cut["b"][0] is scale
    assert cut["b"][1:] == [3.0, "text"]
    assert [leaf is temperature or leaf is scale for leaf in source.whole()] == [True, True]


def test_a_batch_of_one_item_is_cut_like_any_other() -> None:
    source = TreeBatch((torch.rand(1, 3), torch.rand(1)))
    assert source.total == 1
    assert [part.shape[0] for part in source.slice(0, 0)] == [0, 0]


def test_sizes_that_do_not_fit_are_refused_with_their_place() -> None:
    with pytest.raises(InputError, match=r"expected 1 or 4, found 3 for batch\.y\.0"):
        TreeBatch({"x": torch.rand(4), "y": [torch.rand(3)]})
    with pytest.raises(InputError, match="nothing of the batch, a dict, has the dimension 0"):
        TreeBatch({"x": torch.tensor(1.0)})
    with pytest.raises(InputError, match="has no dimension 2"):
        as_source(torch.rand(4, 4), 2)
    with pytest.raises(InputError, match="expected start <= stop"):
        Slices(5, 4)
    with pytest.raises(InputError, match="found int"):
        as_source(7)


def pieces() -> Iterator[dict[str, Tensor]]:
    for start, stop in ((0, 3), (3, 4), (4, 10)):
        yield {"x": torch.arange(start, stop)}


@pytest.mark.parametrize("total", [None, 10])
def test_a_generator_is_regrouped_and_read_no_further_than_needed(total: int | None) -> None:
    source = Pieces(pieces(), total=total)
    cursor = SourceCursor(source)
    assert cursor.remaining == (float("inf") if total is None else 10)
    assert taken(cursor, [2]) == [(0, 2)]
    assert source._read == 3
    assert taken(cursor, [4, 9]) == [(2, 6), (6, 10)]
    assert cursor.remaining == 0
    assert source.slice(2, 6)["x"].tolist() == [2, 3, 4, 5]
    source.forget(4)
    assert len(source._held) == 1
    assert source.slice(6, 10)["x"].tolist() == [6, 7, 8, 9]


def test_a_generator_that_ends_early_or_exactly() -> None:
    exact = SourceCursor(Pieces(pieces()))
    assert taken(exact, [10, 5]) == [(0, 10), (10, 10)]
    assert exact.remaining == 0
    with pytest.raises(InputError, match="promised 12 items, found 10"):
        SourceCursor(Pieces(pieces(), total=12)).take(12)
    with pytest.raises(InputError, match="promised 7 items, found"):
        SourceCursor(Pieces(pieces(), total=7)).take(10)
    with pytest.raises(InputError, match="total -1: expected a number of items"):
        Pieces(pieces(), total=-1)


@pytest.mark.parametrize("sizes", [(4, 3), (1, 4), (4, 1), (1, 1, 5)])
def test_what_goes_whole_to_every_chunk_is_not_joined(sizes: tuple[int, ...]) -> None:
    pieces = Pieces({"x": torch.full((n, 2), float(n)), "t": torch.ones(1, 2)} for n in sizes)
    pieces.fetch(0, sum(sizes))
    found = pieces.slice(0, sum(sizes))
    assert found["x"].tolist() == [[float(n)] * 2 for n in sizes for _ in range(n)]
    assert found["t"].shape == (1, 2)
