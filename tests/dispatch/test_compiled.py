"""Functions that are compiled for every size anew: few sizes, first calls that do not count, rows that fill up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.dispatch import Dispatcher
from dovetail.dispatch.chunk import ResultFormError
from dovetail.dispatch.inputs.devices import NodeDevice as Device
from dovetail.dispatch.inputs.size_search import SizeSearch
from dovetail.dispatch.live.compiled import is_compiled
from dovetail.dispatch.policies.base import DeviceState
from tests.waiting import until

TWO = [Device("a", where="cpu"), Device("b", where="cpu")]
BUCKETS = {256 * 8**k for k in range(10)}


class Compiling:
    """Notes the sizes that it was called with, and whether two threads met a new one at once."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function, self.sizes, self.lock, self.twice = function, dict[int, int](), Lock(), 0

    def __call__(self, batch: Any) -> Any:
        rows = len(batch["x"] if isinstance(batch, dict) else batch)
        if rows not in self.sizes:
            free = self.lock.acquire(blocking=False)
            self.twice += not free
            result = self.function(batch)
            self.sizes[rows] = 0
            if free:
                self.lock.release()
        else:
            result = self.function(batch)
        self.sizes[rows] += 1
        return result


def a_tree(n: int) -> Any:
    return {"x": torch.rand(n, 3), "scale": torch.full((1, 3), 2.0), "y": np.arange(n), "name": "same"}


KINDS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda n: torch.rand(n, 3), lambda x: x.sin()),
    "ndarray": (lambda n: np.random.default_rng(n).random((n, 2)), np.sqrt),
    "dict": (a_tree, lambda d: {"z": d["x"] * d["scale"], "w": d["y"] + 1, "name": d["name"]}),
}


def same(found: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
    if isinstance(expected, str):
        return bool(found == expected)
    return type(found) is type(expected) and bool((found == expected).all())


@dataclass
class Counted:
    """A dataclass that counts its rows when it is made."""

    x: Any

    def __post_init__(self) -> None:
        self.rows = len(self.x)

    def __str__(self) -> str:
        return f"{self.x}"


@dataclass
class Beside:
    """A dataclass that keeps what is none of its fields."""

    x: Any
    kept: InitVar[Any]

    def __post_init__(self, kept: Any) -> None:
        self.own = kept


class Texts(list):  # type: ignore[type-arg]
    """A list that counts what it is made of."""

    def __init__(self, texts: Any) -> None:
        super().__init__(texts)
        self.own = len(self)


@pytest.mark.parametrize("shapes", ["few", "padded"])
@pytest.mark.parametrize("devices", ["cpu", TWO], ids=["one", "two"])
@pytest.mark.parametrize("kind", KINDS)
def test_few_sizes_whatever_batches_come(kind: str, devices: Any, shapes: Any) -> None:
    make, function = KINDS[kind]
    called, totals = Compiling(function), (5000, 1, 255, 256, 257, 40_003, 77, 5000, 3001)
    with Dispatcher(called, devices, shapes=shapes, cache=False) as dispatcher:
        for n in totals:
            batch = make(n)
            assert same(dispatcher.run(batch), function(batch))
    others = set(called.sizes) - BUCKETS
    assert others <= (set() if shapes == "padded" else {n % 256 for n in totals})
    assert not called.twice


@pytest.mark.parametrize("devices", ["cpu", TWO], ids=["one", "two"])
@pytest.mark.parametrize("totals", [(1, 257, 1), (257,), (2,)], ids=str)
def test_what_goes_whole_to_every_chunk_is_not_filled_up(totals: tuple[int, ...], devices: Any) -> None:
    def product(batch: Any) -> Any:
        return batch[0] @ batch[1].T

    with Dispatcher(product, devices, sizes=256, shapes="padded", cache=False) as dispatcher:
        dispatcher.run((torch.ones(300, 3), torch.ones(1, 3), torch.ones(300, 3)))  # others tell nothing of these
        for n in totals:
            assert torch.equal(dispatcher.run((torch.ones(n, 3), torch.ones(1, 3))), torch.full((n, 1), 3.0))


def test_pieces_of_one_row_beside_a_whole_part() -> None:
    pieces = [(torch.full((n, 3), float(n)), torch.ones(1, 3)) for n in (1, 1, 3)]
    with Dispatcher(lambda b: b[0] @ b[1].T, "cpu", sizes=1, shapes="padded", cache=False) as dispatcher:
        assert dispatcher.run(iter(pieces)).tolist() == [[3.0], [3.0], [9.0], [9.0], [9.0]]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: x.sum(0), "result has 2 rows for a chunk that was filled up to 256: expected one per item"),
        (lambda x: x.sum(), "result has no rows"),
        (lambda x: {"y": 2 * x, "mean": x.mean(0, keepdim=True)}, "result.mean has 1 rows"),
        (lambda x: (x, len(x)), "result.1, of type int, has no rows"),
        (lambda x: (x, SimpleNamespace(rows=len(x))), "result.1, of type SimpleNamespace, has no rows"),
        (lambda x: Counted(x), "what result keeps beside its parts has no rows"),
        (lambda x: Beside(2, [f"{row}" for row in x]), "what result keeps beside its parts has no rows"),
        (lambda x: Beside(2, (x, "MPa")), "what result keeps beside its parts has no rows"),
        (lambda x: Beside(2, {f"k{i}": "" for i in range(len(x))}), "what result keeps beside its parts has no rows"),
        (lambda x: Texts(f"{row}" for row in x), "what result keeps beside its parts has no rows"),
        (lambda x: {f"k{i}": "text" for i in range(len(x))}, "result, of type dict, has 256 parts, and no rows"),
        (lambda x: [x[0, 0] * x for _ in x], "result has an entry per row, or rows in its entries"),
        (lambda x: (x, range(len(x))), "result.1, of type range, has no rows"),
        (lambda x: (x, slice(0, len(x))), "result.1, of type slice, has no rows"),
        (lambda x: (x, bytes(len(x))), "result.1, of type bytes, has no rows"),
        (lambda x: (x, frozenset(range(len(x)))), "result.1, of type frozenset, has no rows"),
    ],
)
def test_copies_do_not_count_in_what_has_no_rows(function: Any, told: str) -> None:
    x = torch.ones(100, 2)
    padded = Dispatcher(function, "cpu", shapes="padded", reduce=list, cache=False)
    with padded, pytest.raises(ResultFormError, match=told):
        padded.run(x)
    with Dispatcher(function, "cpu", shapes="few", reduce=list, cache=False) as dispatcher:
        assert str(dispatcher.run(x)) == str([function(x)])


@pytest.mark.parametrize("made", [lambda x: (row for row in x), lambda x: Lock()], ids=["generator", "lock"])
def test_what_cannot_be_copied_is_refused_in_words(made: Any) -> None:
    with (
        Dispatcher(lambda x: (x, made(x)), "cpu", shapes="padded", reduce=list, cache=False) as padded,
        pytest.raises(ResultFormError, match=r"result\.1, of type (generator|lock), has no rows"),
    ):
        padded.run(torch.ones(100, 2))


def test_copies_are_cut_off_tuples_and_not_off_dictionaries_whose_parts_have_rows() -> None:
    def function(x: Any) -> Any:
        return tuple(f"{row}" for row in x.tolist()), {f"k{i}": i * x for i in range(256)}, Beside(x, ["MPa", True])

    x = torch.arange(4).reshape(2, 2)
    with Dispatcher(function, "cpu", shapes="padded", cache=False) as dispatcher:
        assert str(dispatcher.run(x)) == str(function(x))


def test_copies_are_cut_off_lists_with_an_entry_per_row() -> None:
    def rows(x: Any) -> Any:
        return {"text": [f"{row}" for row in x.tolist()], "parts": [[row, 2 * row] for row in x], "unit": "MPa"}

    x = torch.arange(600).reshape(300, 2)
    with Dispatcher(rows, TWO, sizes=256, shapes="padded", cache=False) as dispatcher:
        assert str(dispatcher.run(x)) == str(rows(x))
        assert str(dispatcher.run(x[:3])) == str(rows(x[:3]))


def test_what_cannot_be_filled_up_is_called_as_it_is() -> None:
    with Dispatcher(lambda texts: [len(text) for text in texts], "cpu", shapes="padded", cache=False) as dispatcher:
        assert dispatcher.run(["a", "bb", "ccc"]) == [1, 2, 3]


def test_a_size_that_comes_again_and_again_is_worth_to_be_compiled() -> None:
    called, x = Compiling(torch.sin), torch.rand(3000)
    with Dispatcher(called, TWO, shapes="padded", cache=False) as dispatcher:

        def one_call() -> bool:
            dispatcher.run(x)
            return dispatcher.report.way.startswith("one call on")

        until(one_call)  # when each device has done a chunk, so its thread was woken
        before = called.sizes[3000]
        dispatcher.run(x)
        dispatcher.run(x[:2999])  # about as many, but not compiled
    assert called.sizes[3000] >= before
    assert 2999 not in called.sizes


@settings(max_examples=30, deadline=None)
@given(st.floats(-6, -3), st.floats(4, 8), st.floats(0.1, 30))
def test_time_that_compiling_takes_does_not_count(latency: float, rate: float, compile_s: float) -> None:
    state, compiled = DeviceState("cpu", few=True), set[int]()
    search = state.search
    assert search is not None
    for _ in range(200):
        if search.settled:
            break
        size = search.size
        seconds = 10**latency + size / 10**rate
        state.observed(size, seconds + compile_s * (size not in compiled))
        compiled.add(size)
    assert search.settled
    assert compiled <= BUCKETS
    curve = state.curve
    assert curve is not None
    assert curve.seconds(256) == pytest.approx(10**latency + 256 / 10**rate)
    fastest = max(size / (10**latency + size / 10**rate) for size in compiled)
    assert curve.rate >= 0.9 * fastest


def test_what_is_left_and_too_small_is_one_size() -> None:
    search = SizeSearch(few=True)
    assert search.bucket(30, 100) == 100
    assert search.bucket(300, 300) == 256
    assert search.bucket(1 << 40, 1 << 41) in {256 * 8**k for k in range(20)}


def test_compiled_functions_are_known() -> None:
    assert is_compiled(torch.compile(torch.sin, backend="eager", dynamic=False))
    assert not is_compiled(torch.nn.Linear(2, 2))
    assert not is_compiled(np.sin)
    jax = pytest.importorskip("jax")
    assert is_compiled(jax.jit(lambda x: x))


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_torch_compile_has_few_forms(mode: Any) -> None:
    seen: list[int] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        seen.append(inputs[0].shape[0])
        return graph.forward

    torch._dynamo.reset()
    function = torch.compile(lambda x: 2 * x, backend=backend, dynamic=False)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the devices have: a form is compiled for each number of threads
    try:
        with Dispatcher(function, TWO, cache=False, mode=mode) as dispatcher:
            for n in (9_000, 10_001, 11_002):
                x = torch.rand(n)
                assert torch.equal(dispatcher.run(x), 2 * x)
    finally:
        torch.set_num_threads(threads)
    torch._dynamo.reset()
    assert set(seen) <= BUCKETS | {n % 256 for n in (9_000, 10_001, 11_002)}
    # PyTorch puts the form called last first, so a call beside another may pass its own by and compile it anew.
    assert len(seen) == len(set(seen)) or mode == "async"


def test_other_shapes_are_refused() -> None:
    with pytest.raises(InputError, match="shapes 'some': expected 'any', 'few' or 'padded'"):
        Dispatcher(torch.sin, shapes="some")  # type: ignore[arg-type]
