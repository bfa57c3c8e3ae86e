"""Whatever has rows goes in and comes out as one plain call gives it. Oracle: the plain call."""

from __future__ import annotations

import collections
import copy
import dataclasses
import gc
import threading
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
sparse = pytest.importorskip("scipy.sparse")

from torch.utils import _pytree as pytree  # noqa: E402

from dovetail.core.errors import InputError  # noqa: E402
from dovetail.dispatch import Device, Dispatcher, Pool, register_batch_type  # noqa: E402
from dovetail.dispatch.chunk import ResultFormError  # noqa: E402
from dovetail.dispatch.inputs import kinds  # noqa: E402
from dovetail.dispatch.inputs.batch import Pieces  # noqa: E402
from tests.waiting import until  # noqa: E402

TWO = [Device("first", where="cpu"), Device("second", where="cpu")]


@dataclasses.dataclass(frozen=True)
class State:
    """A frozen dataclass with something beside its tensors."""

    strain: Any
    stress: Any
    name: str = "steel"
    computed: list[int] = dataclasses.field(default_factory=list, init=False, compare=False)


class Pair(NamedTuple):
    left: Any
    right: Any


class Titled(list):  # type: ignore[type-arg]
    """A list of another type, with something beside its entries."""

    title = "none"


class Ends(tuple):  # type: ignore[type-arg]
    """A tuple of another type, that is made of two values."""

    __slots__ = ()

    def __new__(cls, left: Any, right: Any) -> Ends:
        return super().__new__(cls, (left, right))

    def __getnewargs__(self) -> Any:
        return tuple(self)


class Measured(np.ndarray):
    """An array of another type, with a unit."""

    unit = ""

    def __array_finalize__(self, made_from: Any) -> None:
        self.unit = getattr(made_from, "unit", "")

    def __reduce__(self) -> Any:
        return with_unit, (np.asarray(self), self.unit)


def titled(title: str, *parts: Any) -> Titled:
    made = Titled(parts)
    made.title = title
    return made


def with_unit(x: Any, unit: str) -> Measured:
    made: Measured = x.view(Measured)
    made.unit = unit
    return made


def kept_beside(x: Any, kept: Any) -> State:
    """A dataclass that has something that is none of its fields."""
    made = State(x, 2 * x)
    vars(made)["kept"] = kept
    return made


def measured(n: int) -> Any:
    return with_unit(np.arange(n), "MPa")


@dataclasses.dataclass
class Counted:
    """A dataclass that counts its rows when it is made."""

    x: Any

    def __post_init__(self) -> None:
        self.rows = len(self.x)


class Registered:
    """A pytree of the user's own, as PyTorch lets one be registered."""

    def __init__(self, x: Any, unit: Any) -> None:
        self.x = x
        self.unit = unit


pytree.register_pytree_node(
    Registered, lambda r: ([r.x], r.unit), lambda parts, unit: Registered(next(iter(parts)), unit)
)


class Tabled(Registered):
    """One with names, whose context is an array."""


pytree.register_pytree_node(
    Tabled,
    lambda r: ([r.x], r.unit),
    lambda parts, unit: Tabled(next(iter(parts)), unit),
    flatten_with_keys_fn=lambda r: ([(pytree.MappingKey("x"), r.x)], r.unit),
)


class Marked(torch.Tensor):  # type: ignore[misc,name-defined]
    """A tensor of another type, which PyTorch keeps through its functions."""


class Cells:
    """A type that nobody knows."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


register_batch_type(
    Cells,
    rows=lambda cells: len(cells.names),
    cut=lambda cells, start, stop: Cells(cells.names[start:stop]),
    join=lambda parts: Cells([name for part in parts for name in part.names]),
)


def rows(n: int) -> Any:
    return torch.arange(3.0 * n).reshape(n, 3)


def frame(n: int) -> Any:
    kinds = pandas.Categorical(["ab"[i % 2] for i in range(n)], categories=["a", "b", "c"])
    when = pandas.date_range("2026-01-01", periods=n, tz="UTC")
    columns = {"x": np.arange(n) * 0.5, "k": kinds, "when": when, "t": [f"row {i}" for i in range(n)]}
    return pandas.DataFrame(columns, index=pandas.RangeIndex(n, name="item"))


def named(n: int) -> Any:
    pairs = [(f"r{i}", i % 3) for i in range(n)]
    index = pandas.MultiIndex.from_tuples(pairs, names=["a", "b"]) if n else pandas.MultiIndex.from_arrays([[], []])
    return frame(n).set_index(index)


def columns(n: int) -> Any:
    return polars.DataFrame(
        {"x": np.arange(n) * 0.5, "t": [f"row {i}" for i in range(n)]}, schema_overrides={"t": polars.String}
    )


def table(n: int) -> Any:
    arrow = import_module("pyarrow")
    schema = arrow.schema([("x", arrow.float64()), ("t", arrow.string())], metadata={"from": "here"})
    return arrow.table({"x": np.arange(n) * 0.5, "t": [f"row {i}" for i in range(n)]}, schema=schema)


def masked(n: int) -> Any:
    return np.ma.masked_array(np.arange(n), mask=np.arange(n) % 3 == 0)


def structured(n: int) -> Any:
    return np.array([(i, i / 2) for i in range(n)], dtype=[("i", "i4"), ("x", "f8")])


def hidden(x: Any) -> Any:
    return pytest.importorskip("transformers.modeling_outputs").BaseModelOutput(2 * x, hidden_states=(x, x + 1))


def compressed(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch says once that they are new
        return x.to_sparse_csr()


def jax() -> Any:
    return import_module("jax.numpy")


def strains(n: int) -> Any:
    return import_module("neml2").SR2(torch.arange(12.0 * n).reshape(n, 2, 6), sub_batch_ndim=1)


def cached(x: Any) -> Any:
    cache = pytest.importorskip("transformers").DynamicCache()
    for layer in range(3):
        cache.update(x + layer, 2 * x, layer)
    return cache


def recounted(f: Any) -> Any:
    return pandas.DataFrame({"y": 2 * f["x"].to_numpy(), "t": f["t"].to_numpy()})


CASES: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "tensor": (rows, lambda x: 2 * x),
    "a tensor and nothing": (rows, lambda x: (2 * x, None)),
    "a tensor and constants": (rows, lambda x: {"y": 2 * x, "scale": 3.5, "nan": float("nan"), "table": torch.eye(50)}),
    "types": (rows, lambda x: (x > 4, x.to(torch.int16), x.to(torch.bfloat16), x.to(torch.complex64))),
    "a dataclass": (rows, lambda x: State(2 * x, x[:, 0])),
    "dataclass to dataclass": (
        lambda n: State(rows(n), rows(n)),
        lambda s: dataclasses.replace(s, stress=2 * s.strain),
    ),
    "a list of another type": (lambda n: titled("both", rows(n), rows(n)), lambda x: titled(x.title, x[0], 3.5, x)),
    "a tuple of another type": (lambda n: Ends(rows(n), rows(n)), lambda x: Ends(x[0], (type(x).__name__, x[1]))),
    "entries of a list of another type": (
        lambda n: titled("texts", *(f"text {i}" for i in range(n))),
        lambda texts: titled(texts.title, *(text.upper() for text in texts)),
    ),
    "names that look alike": (
        rows,
        lambda x: {1: x, "1": 2 * x, "a.b": 3 * x, "a": {"b": 4 * x}, None: 5 * x, "None": 6 * x},
    ),
    "names of numbers that look alike": (
        rows,
        lambda x: {1: {5: 3 * x}, 1.5: 4 * x, "inf": x, float("inf"): 2 * x},
    ),
    "named tuples": (lambda n: Pair(rows(n), rows(n)), lambda p: Pair(p.left + p.right, (p.left,))),
    "torch's return types": (rows, lambda x: x.max(dim=1)),
    "other dictionaries": (
        lambda n: collections.OrderedDict(b=rows(n), a=rows(n)),
        lambda x: (collections.OrderedDict(z=x["a"], y=x["b"]), collections.UserDict(q=x["a"])),
    ),
    "a registered pytree": (lambda n: Registered(rows(n), "MPa"), lambda r: Registered(2 * r.x, r.unit)),
    "a tensor's subclass": (lambda n: rows(n).as_subclass(Marked), lambda x: {"y": 2 * x}),
    "a sparse tensor": (lambda n: rows(n).to_sparse(), lambda x: 2 * x),
    "a graph of derivatives": (lambda n: rows(n).requires_grad_(), lambda x: (2 * x, x.detach())),
    "a model's output": (rows, hidden),
    "a cache of keys": (rows, lambda x: cached(x[:, None, None])),
    "arrays": (lambda n: np.arange(2.0 * n).reshape(n, 2), lambda x: 2 * x),
    "arrays in a dictionary": (
        lambda n: {"i": np.arange(n, dtype=np.uint16), "x": np.arange(n) * 0.5, "one": np.ones((1, 2)), "s": 2},
        lambda d: {"y": d["x"] * d["s"] + d["one"][0, 0], "i": d["i"], "m": d["x"][:, None] > 1},
    ),
    "array and tensor": (lambda n: (np.arange(n), rows(n)), lambda xt: (torch.from_numpy(xt[0].copy()), xt[1].numpy())),
    "texts in an array": (lambda n: np.arange(n), lambda x: np.array([f"{v}" for v in x], dtype=str)),
    "objects in an array": (
        lambda n: np.array([{"i": i} for i in range(n)], dtype=object),
        lambda x: np.array([None, *(each["i"] for each in x)], dtype=object)[1:],
    ),
    "dates in an array": (lambda n: np.arange(n).astype("M8[D]"), lambda x: x + np.timedelta64(1, "D")),
    "a masked array": (masked, lambda x: x + 1),
    "a structured array": (structured, lambda x: x[["i"]]),
    "an array of another type": (measured, lambda x: {"unit": x.unit, "x": 2 * x}),
    "a sparse matrix": (lambda n: sparse.random_array((n, 9), density=0.3, format="csr", rng=1), lambda x: 2 * x),
    "a frame": (frame, lambda f: f.assign(y=2 * f["x"])),
    "a frame with an index": (named, lambda f: f[["k", "x"]]),
    "a frame that counts anew": (frame, recounted),
    "a series of a frame": (frame, lambda f: (f["x"] * 2, f["x"].to_numpy())),
    "an index that counts from 1": (
        frame,
        lambda f: recounted(f).set_axis(pandas.RangeIndex(1, len(f) + 1, name="n"), axis=0),
    ),
    "an index": (frame, lambda f: f.index),
    "indices of many kinds": (named, lambda f: (f.index, pandas.Index(f["t"]), pandas.RangeIndex(len(f)))),
    "polars": (columns, lambda f: f.with_columns(y=polars.col("x") * 2)),
    "a polars series": (columns, lambda f: f["t"]),
    "arrow": (table, lambda t: t.append_column("y", t["x"])),
    "arrow without columns": (table, lambda t: t.select([])),
    "arrow's columns": (table, lambda t: (t["x"], t["t"].combine_chunks())),
    "arrow's record batches": (
        lambda n: table(n).combine_chunks().to_batches()[0] if n else table(1).to_batches()[0].slice(0, 0),
        lambda b: b.select(["t"]),
    ),
    "jax's arrays": (lambda n: jax().arange(2.0 * n).reshape(n, 2), lambda x: {"y": 2 * x, "table": jax().eye(7)}),
    "neml2's tensors": (
        lambda n: {"strain": strains(n), "alone": strains(1).dynamic_batch[0]},
        lambda d: {"y": d["strain"] + d["alone"], "x": d["strain"]},
    ),
    "texts": (lambda n: [f"text {i}" for i in range(n)], lambda texts: [text.upper() for text in texts]),
    "texts of a tensor": (rows, lambda x: ([f"{row.sum()}" for row in x], x)),
    "boxes of unlike number": (
        rows,
        lambda x: [{"boxes": torch.ones(50 + int(row[0]), 4), "label": int(row[0])} for row in x],
    ),
    "a type of the user's": (lambda n: Cells([f"c{i}" for i in range(n)]), lambda c: Cells([2 * n for n in c.names])),
}


NEEDS = {"jax's arrays": "jax", "neml2's tensors": "neml2"} | {case: "pyarrow" for case in CASES if "arrow" in case}
INSTALLED = [case for case in CASES if case not in NEEDS or find_spec(NEEDS[case])]


def same(found: Any, expected: Any) -> bool:
    """Of one type, one form, and equal to the last digit; written without what is tested."""
    if type(found) is not type(expected):
        return False
    if isinstance(found, torch.Tensor):
        found, expected = (x.to_dense() if x.is_sparse else x for x in (found, expected))
        return bool(found.dtype == expected.dtype and torch.equal(found, expected))
    if isinstance(found, Measured) and found.unit != expected.unit:
        return False
    if isinstance(found, np.ndarray):
        exact = np.ma.allequal if isinstance(found, np.ma.MaskedArray) else np.array_equal
        return bool(found.dtype == expected.dtype and found.shape == expected.shape and exact(found, expected))
    if isinstance(found, pandas.DataFrame | pandas.Series):
        check = (
            pandas.testing.assert_frame_equal
            if isinstance(found, pandas.DataFrame)
            else pandas.testing.assert_series_equal
        )
        check(found, expected, check_exact=True)
        return True
    if isinstance(found, pandas.Index):
        pandas.testing.assert_index_equal(found, expected, exact=True)
        return True
    if isinstance(found, sparse.csr_array):
        return found.shape == expected.shape and not (found != expected).nnz
    if type(found).__module__.startswith("jax"):
        return same(np.asarray(found), np.asarray(expected))
    if hasattr(found, "equals"):  # polars and Arrow
        schemas = [getattr(x, "schema", getattr(x, "type", getattr(x, "dtype", None))) for x in (found, expected)]
        kept = [getattr(schema, "metadata", None) for schema in schemas]
        return (
            schemas[0] == schemas[1]
            and kept[0] == kept[1]
            and len(found) == len(expected)
            and bool(found.equals(expected))
        )
    if isinstance(found, Cells | Registered | State) or type(found).__module__.startswith("neml2"):
        return same(vars(found), vars(expected))
    if hasattr(found, "layers") or (hasattr(found, "keys") and not isinstance(found, collections.abc.Mapping)):
        return same(vars(found), vars(expected))
    if isinstance(found, collections.abc.Mapping):
        return list(found) == list(expected) and all(same(found[key], expected[key]) for key in expected)
    if isinstance(found, list | tuple):
        beside = [getattr(x, "title", None) for x in (found, expected)]
        return beside[0] == beside[1] and len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected) or (found != found and expected != expected)


@pytest.mark.parametrize("case", CASES)
def test_every_type_comes_back_as_the_plain_call_gives_it(case: str) -> None:
    pytest.importorskip(NEEDS.get(case, "torch"))
    make, function = CASES[case]

    @settings(max_examples=15, deadline=None)
    @given(n=st.integers(0, 40), size=st.integers(1, 41), which=st.integers(0, 1))
    def check(n: int, size: int, which: int) -> None:
        found = Dispatcher(function, pool=(one, two)[which], sizes=size, cache=False).run(make(n))
        assert same(found, function(make(n)))

    with Pool(TWO[:1]) as one, Pool(TWO) as two:
        check()


@pytest.mark.parametrize("case", [case for case in CASES if case != "a graph of derivatives"])
def test_iterables_of_every_type(case: str) -> None:
    pytest.importorskip(NEEDS.get(case, "torch"))
    make, function = CASES[case]
    whole = Pieces([make(23)])
    whole.fetch(0, 23)
    pieces = (whole.slice(start, stop) for start, stop in ((0, 1), (1, 9), (9, 10), (10, 23)))
    with Dispatcher(function, TWO, sizes=5, cache=False) as dispatcher:
        assert same(dispatcher.run(pieces), function(make(23)))


FORMS: dict[str, tuple[Any, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "hard mask": (np.ma.masked_array(np.arange(23), hard_mask=True), lambda x: x, lambda x: x.hardmask),
    "fill value": (np.ma.masked_array(np.arange(23), fill_value=77), lambda x: 2 * x, lambda x: x.fill_value),
    "coalesced": (rows(23).to_sparse(), lambda x: 2 * x, lambda x: x.is_coalesced()),
    "not coalesced": (rows(23).to_sparse(), lambda x: torch.cat([x, x], 1), lambda x: x.is_coalesced()),
    "parameter": (rows(23), lambda x: torch.nn.Parameter(2 * x), lambda x: (type(x), x.is_leaf, x.requires_grad)),
    "memory format": (
        torch.rand(23, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda x: 2 * x,
        lambda x: x.stride(),
    ),
    "order of dimensions": (rows(23), lambda x: (2 * x).T.contiguous().T, lambda x: x.stride()),
    "parts of a larger tensor": (rows(23), lambda x: torch.cat([x, x], 1)[:, :3] + 0, lambda x: x.stride()),
    "order of an array": (rows(23).numpy(), lambda x: np.asfortranarray(2 * x), lambda x: x.strides),
    "size": (rows(23), lambda x: (x, x.shape[1:]), lambda x: (type(x[1]), x[1])),
}


@pytest.mark.parametrize("case", FORMS)
@pytest.mark.parametrize("devices", [TWO[:1], TWO])
def test_forms_are_those_of_the_plain_call(case: str, devices: Any) -> None:
    batch, function, form = FORMS[case]
    with Dispatcher(function, devices, sizes=7, cache=False) as dispatcher:
        assert form(dispatcher.run(batch)) == form(function(batch))


@pytest.mark.parametrize("empty", [range(0), range(7, 3)])
def test_a_range_of_no_items_calls_the_function_once(empty: range) -> None:
    seen: list[slice] = []

    def ones(rows: slice) -> Any:
        seen.append(rows)
        return torch.ones(rows.stop - rows.start)

    with Dispatcher(ones, TWO, cache=False) as dispatcher:
        assert len(dispatcher.run(empty)) == 0
    assert seen == [slice(empty.start, empty.start, 1)]


@pytest.mark.parametrize("dim", [1, -2, 2, -1])
@pytest.mark.parametrize("backend", [lambda x: x, lambda x: x.numpy()])
def test_rows_along_any_dimension(dim: int, backend: Any) -> None:
    x = backend(torch.arange(3.0 * 10 * 11).reshape(3, 10, 11))

    def function(d: dict[str, Any]) -> Any:
        return {"y": 2 * d["x"] + d["scale"], "text": ([d["x"] + 1], "a")}

    batch = {"x": x, "scale": backend(torch.ones(3, 1, 1))}
    with Dispatcher(function, TWO, sizes=4, dim=dim, cache=False) as dispatcher:
        assert same(dispatcher.run(batch), function(batch))


def test_every_type_through_processes() -> None:
    pytest.importorskip("cloudpickle")
    with Pool(TWO, "process") as pool:
        for case in INSTALLED:
            make, function = CASES[case]
            if case not in ("a graph of derivatives", "arrow without columns"):  # neither is kept by pickle
                for size in (4, 40):
                    found = Dispatcher(function, pool=pool, sizes=size, cache=False).run(make(23))
                    assert same(found, function(make(23))), case


@pytest.mark.parametrize("size", [4, 100])
@pytest.mark.parametrize("function", [lambda x: x, lambda x: (x, None), lambda x: x.sum()])
def test_the_list_of_results_for_who_asks(function: Any, size: int) -> None:
    x = torch.arange(10)
    with Dispatcher(function, TWO, sizes=size, join="list", cache=False) as dispatcher:
        assert same(dispatcher.run(x), [function(part) for part in x.split(size)])


class Odd:
    """Nobody knows how to join these, nor whether two are the same."""


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (x, Odd()), r"result\.1, of type Odd, has no rows that are known: give join=.*reduce=.*register"),
        (lambda x: {"y": x, "odd": {1: Odd()}}, r"result\.odd\.1, of type Odd, has no"),
        (lambda x: (row for row in x), "result, of type generator, has no rows that are known"),
        (lambda x: {"a": x}.values(), "result, of type dict_values, has no rows that are known"),
        (lambda x: pandas.array(x.tolist()), "result, of type IntegerArray, has no rows that are known"),
    ],
)
def test_what_cannot_be_joined_is_refused_on_the_first_chunk(function: Any, message: str) -> None:
    seen: list[int] = []

    def counted(x: Any) -> Any:
        seen.append(len(x))
        return function(x)

    with Dispatcher(counted, "cpu", sizes=3, cache=False) as dispatcher, pytest.raises(InputError, match=message):
        dispatcher.run(torch.arange(30))
    assert seen == [3]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (
            lambda x: (x, x.sum()),
            r"result\.1, of shape \[\], has no rows of the batch, yet differs between chunks; give join=",
        ),
        (lambda x: (x, float(x.sum())), r"result\.1, of type float, has no rows of the batch, yet differs"),
        (lambda x: float(x.sum()), "result, of type float, has no rows"),
        (
            lambda x: {"y": x} if x[0] == 0 else {"z": x},
            "chunks differ in what they return: result\\.[yz] is not in all",
        ),
        (lambda x: x.numpy() if x[0] == 0 else x, "differs between chunks|chunks differ in what they return"),
        (lambda x: np.asarray(x, dtype=float if x[0] else int), "expected \\[3\\] of (int|float)64"),
        (
            lambda x: pandas.DataFrame({"a": x}) if x[0] else columns(3),
            "result, .*has no rows of the batch, yet differs",
        ),
        (lambda x: columns(3) if x[0] else columns(3).select("x"), "result cannot be joined"),
        (lambda x: [x, x.sum(), x], "a list with an entry per row, or one with rows in its entries"),
        (lambda x: x[:-1], "result, of shape"),
        (
            lambda x: compressed(x[:, None]),
            "of torch.sparse_csr is neither cut nor joined: give its to_sparse_coo",
        ),
        (lambda x: (x, torch.tensor(10**9 + int(x[0]))), r"result\.1, of shape \[\], has no rows of the batch, yet"),
        (lambda x: (x, 2e-10 * (1 + x[0])), r"result\.1, of shape \[\], has no rows of the batch, yet"),
        (lambda x: (x, np.array(2e-10 * (1 + int(x[0])))), r"result\.1, of shape \[\], has no rows of the batch, yet"),
        (
            lambda x: pandas.DataFrame({"x": x}, index=pandas.Index(np.arange(len(x)))),
            "its index counts from 0 in every chunk.*return a RangeIndex",
        ),
        (
            lambda x: pandas.DataFrame({"a": x.numpy()} if x[0] else {"b": x.numpy()}),
            "columns or types differ: (a|b): int64 and (a|b): int64",
        ),
        (
            lambda x: Counted(x),
            "what result keeps beside its parts, .*, is the same in all chunks of 3 rows, and differs",
        ),
        (
            lambda x: Counted(x) if x[0] else Counted(x[:, None]),
            r"chunks differ in what they return: result\.x is \[3(, 1)?\] of torch\.int64, expected \[3(, 1)?\] of",
        ),
        (lambda x: kept_beside(x, f"{len(x)} rows"), r"what result keeps.* is the same in all chunks .*join='list'"),
        (lambda x: kept_beside(x, range(len(x))), "what result keeps beside its parts.* is the same in all"),
        (lambda x: kept_beside(x, slice(len(x))), "what result keeps beside its parts.* is the same in all"),
        (lambda x: kept_beside(x, bytes(len(x))), "what result keeps beside its parts.* is the same in all"),
        (lambda x: kept_beside(x, 1) if x[0] else State(x, x), "what result keeps beside its parts differs between"),
        (lambda x: State(x, x) if x[0] else kept_beside(x, 1), "what result keeps beside its parts differs between"),
        (
            lambda x: titled(f"from {x[0]}", *(f"{row}" for row in x)),
            r"what result keeps beside its parts differs between chunks; give join='list', .*or reduce=",
        ),
        (
            lambda x: with_unit(x.numpy().astype("U9"), f"from {x[0]}"),
            "what result keeps beside its parts differs between",
        ),
        (lambda x: with_unit(x.numpy(), f"{len(x)}"), "what result keeps beside its parts.* is the same in all chunks"),
        (
            lambda x: titled(f"{len(x)}", *(f"{row}" for row in x)),
            "what result keeps beside its parts.* is the same in all chunks",
        ),
        (lambda x: {"y": Registered(x, f"from {x[0]}")}, r"what result\.y keeps beside its parts.* differs between"),
        (lambda x: [x, titled(f"from {x[0]}", 1)], r"what result\.1 keeps beside its parts.* differs between"),
        (
            lambda x: (x, SimpleNamespace(x=x)),
            r"result\.1, of type SimpleNamespace, has no rows of the batch, yet differs",
        ),
        (
            lambda x: torch.nested.nested_tensor(list(x[:, None])),
            "nested tensor is neither cut nor joined: give the list",
        ),
        (
            lambda x: pandas.Series(x.numpy(), name="y", dtype=float if x[0] else int),
            "columns or types differ: y: (float|int)64 and y: (float|int)64",
        ),
    ],
)
def test_chunks_that_differ_are_refused(function: Any, message: str) -> None:
    with Dispatcher(function, TWO, sizes=3, cache=False) as dispatcher, pytest.raises(InputError, match=message):
        dispatcher.run(torch.arange(30))


def test_what_is_beside_may_be_of_the_device_of_the_chunk() -> None:
    for function in (lambda x: kept_beside(x, place_of(x)), lambda x: kept_beside(x, [place_of(x)])):
        with Dispatcher(function, TWO, sizes=3, cache=False) as dispatcher:
            assert torch.equal(dispatcher.run(torch.arange(30)).stress, 2 * torch.arange(30))


def test_a_cache_whose_layers_are_on_several_devices() -> None:
    def function(x: Any) -> Any:
        cache = cached(x[:, None, None])
        for layer in cache.layers:
            layer.device = place_of(x[:, 0])
        return cache

    with Dispatcher(function, TWO, sizes=3, cache=False) as dispatcher:
        assert torch.equal(dispatcher.run(rows(30)).layers[1].keys, rows(30)[:, None, None] + 1)


def place_of(x: Any) -> Any:
    return torch.device("cpu") if int(x[0]) else torch.device("cuda", 0)


def test_what_is_beside_may_hold_itself() -> None:
    def function(x: Any) -> Any:
        kept: list[Any] = []
        kept.append(kept)
        return kept_beside(x, kept)

    with Dispatcher(function, TWO, sizes=3, cache=False) as dispatcher:
        assert torch.equal(dispatcher.run(torch.arange(30)).strain, torch.arange(30))


def test_a_context_of_a_pytree_may_be_an_array() -> None:
    with Dispatcher(lambda x: Tabled(x, np.arange(3)), TWO, sizes=3, cache=False) as dispatcher:
        found = dispatcher.run(torch.arange(30))
    assert torch.equal(found.x, torch.arange(30))
    assert found.unit.tolist() == [0, 1, 2]


@pytest.mark.parametrize("on_error", ["retry", "skip"])
def test_what_is_beside_is_not_compared_with_fewer_rows_where_chunks_failed(on_error: Any) -> None:
    def failing(x: Any) -> Any:
        if x[0] == 27:
            raise ValueError("always")
        return kept_beside(x, len(x))

    with Dispatcher(failing, "cpu", sizes=3, on_error=on_error, retries=0, cache=False) as dispatcher:
        outcome = dispatcher.attempt(torch.arange(30))
    assert [(failure.start, failure.stop) for failure in outcome.failures] == [(27, 30)]
    assert outcome.missing == [(27, 30)]


def test_metadata_that_differ_between_chunks_are_refused() -> None:
    arrow = pytest.importorskip("pyarrow")

    def told(t: Any) -> Any:
        return t.replace_schema_metadata({"first": str(t["x"][0])})

    def field(t: Any) -> Any:
        described = arrow.schema([t.schema.field("x").with_metadata({"first": str(t["x"][0])})])
        return t.select(["x"]).cast(described).combine_chunks().to_batches()[0]

    def with_attrs(f: Any) -> Any:
        f.attrs = {"first": f["x"].iloc[0]}
        return f

    for function, batch, message in (
        (told, table(9), "their metadata differ"),
        (field, table(9), "their metadata differ"),
        (with_attrs, frame(9), "their attrs differ"),
    ):
        with Dispatcher(function, TWO, sizes=3, cache=False) as dispatcher, pytest.raises(InputError, match=message):
            dispatcher.run(batch)


def test_that_results_were_refused_is_remembered() -> None:
    x = torch.rand(100_000)
    with Dispatcher(lambda x: {"y": x.exp().sin(), "m": x.mean()}, TWO, cache=False) as dispatcher:
        with pytest.raises(InputError, match="differs between chunks"):
            dispatcher.run(x)
        assert [floor.unjoinable for floor in dispatcher.tuning._floors.values()] == [True]


def test_a_function_joins_what_has_no_rows() -> None:
    def mean(values: list[Any], sizes: list[int]) -> Any:
        return sum(value * size for value, size in zip(values, sizes, strict=True)) / sum(sizes)

    x = torch.arange(10, dtype=torch.float64)
    with Dispatcher(
        lambda x: {"y": 2 * x, "loss": x.mean(), "k": 3}, TWO, sizes=3, join=mean, cache=False
    ) as dispatcher:
        found = dispatcher.run(x)
    assert same({**found, "loss": float(found["loss"])}, {"y": 2 * x, "loss": 4.5, "k": 3})


@pytest.mark.parametrize("join", [3, "lists"])
def test_a_join_that_is_none_is_refused(join: Any) -> None:
    with pytest.raises(InputError, match="expected a function or 'list'"):
        Dispatcher(rows, "cpu", join=join)
    with pytest.raises(InputError, match="no reduce beside it"):
        Dispatcher(rows, "cpu", join="list", reduce=sum)


@pytest.mark.parametrize("make", [rows, lambda n: rows(n).numpy(), lambda n: {"x": rows(n)}])
@pytest.mark.parametrize("on_error", ["retry", "skip"])
def test_a_failed_chunk_of_a_function_that_changes_its_input_is_not_done_again(make: Any, on_error: Any) -> None:
    failed: list[int] = []

    def changing(batch: Any) -> Any:
        x = batch["x"] if isinstance(batch, dict) else batch
        first = int(x[0, 0]) // 3
        x *= 2
        if first == 20 and not failed:
            failed.append(first)
            raise ValueError("now and then")
        return x + 0

    expected = 2 * rows(40).numpy()
    with Dispatcher(changing, TWO, sizes=4, on_error=on_error, backup=False, cache=False) as dispatcher:
        outcome = dispatcher.attempt(make(40))
    (failure,) = outcome.failures
    assert "the function changes its input in place" in str(failure.error)
    assert isinstance(failure.error.__cause__, ValueError)
    assert (20, 24) in outcome.missing
    assert failed == [20]
    if on_error == "skip":  # all others are right
        assert outcome.missing == [(20, 24)]
        found = np.asarray(outcome.result)
        assert (np.delete(found, range(20, 24), 0) == np.delete(expected, range(20, 24), 0)).all()


class Grown:
    """An object that a function can change."""

    def __init__(self, value: float) -> None:
        self.value = value


def grow(item: Any) -> float:
    """Add 1 to an item in place, and tell what it is now."""
    if isinstance(item, Grown):
        item.value += 1
        return item.value
    key = "a" if isinstance(item, dict) else 0
    item[key] += 1
    return float(item[key])


def array_of(items: list[Any]) -> Any:
    found = np.empty(len(items), dtype=object)
    found[:] = items
    return found


ITEMS: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any]]] = {
    "lists": (lambda n: [[float(i)] for i in range(n)], list),
    "dictionaries": (lambda n: [{"a": float(i), "t": torch.tensor(1)} for i in range(n)], list),
    "objects": (lambda n: [Grown(float(i)) for i in range(n)], list),
    "an array of lists": (lambda n: array_of([[float(i)] for i in range(n)]), list),
    "a tree with an array of objects": (
        lambda n: {"a": array_of([Grown(float(i)) for i in range(n)])},
        lambda d: d["a"],
    ),
    "a frame with lists": (lambda n: pandas.DataFrame({"a": [[float(i)] for i in range(n)]}), lambda f: f["a"]),
    "an iterable of lists": (lambda n: iter([[[float(i)] for i in range(n)]]), list),
    "cells": (lambda n: Cells([[float(i)] for i in range(n)]), lambda c: c.names),  # type: ignore[misc]
}


@pytest.mark.parametrize("case", ITEMS)
def test_items_that_were_changed_in_place_are_not_changed_again(case: str) -> None:
    make, items = ITEMS[case]
    failed: list[float] = []

    def growing(batch: Any) -> Any:
        found = np.array([grow(item) for item in items(batch)])
        if 21 in found and not failed:
            failed.append(21)
            raise ValueError("now and then")
        return found

    with Dispatcher(growing, TWO, sizes=4, backup=False, cache=False) as dispatcher:
        outcome = dispatcher.attempt(make(40))
    (failure,) = outcome.failures
    assert "the function changes its input in place" in str(failure.error)


@pytest.mark.parametrize("case", ITEMS)
def test_items_that_were_not_changed_are_done_again(case: str) -> None:
    make, items = ITEMS[case]
    failed: list[int] = []

    def counted(batch: Any) -> Any:
        if isinstance(batch, list):
            batch.append(batch.pop())  # the chunk's own list, which nobody else has
        if not failed:
            failed.append(1)
            raise ValueError("now and then")
        return np.array([id(type(item)) for item in items(batch)])

    with Dispatcher(counted, TWO, sizes=4, backup=False, cache=False) as dispatcher:
        assert len(dispatcher.run(make(40))) == 40


def test_items_of_which_no_copy_can_be_made_are_not_done_again() -> None:
    def failing(batch: Any) -> Any:
        raise ValueError("always")

    with (
        Dispatcher(failing, TWO, sizes=4, backup=False, cache=False) as dispatcher,
        pytest.raises(InputError, match="no copy of them can be made to see it: cannot pickle"),
    ):
        dispatcher.run([threading.Lock() for _ in range(8)])


@pytest.mark.parametrize("make", [rows, lambda n: rows(n).numpy(), frame, columns, lambda n: Cells(["c"] * n)])
@pytest.mark.parametrize("error", [ValueError("now and then"), MemoryError("too much")])
def test_a_failed_chunk_of_one_that_does_not_is_done_again(make: Any, error: Exception) -> None:
    calls: list[int] = []

    def sometimes(x: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise error
        return x

    with Dispatcher(sometimes, TWO, sizes=4, cache=False) as dispatcher:
        assert same(dispatcher.run(make(40)), make(40))


def test_in_place_without_failures_is_as_the_plain_call() -> None:
    given, expected = rows(40), rows(40)
    with Dispatcher(lambda x: x.mul_(2), TWO, sizes=4, backup=False, cache=False) as dispatcher:
        assert torch.equal(dispatcher.run(given), expected.mul_(2))
    assert torch.equal(given, expected)


def test_dispatchers_that_nobody_has_any_more_end_their_threads() -> None:
    def use() -> None:
        dispatcher = Dispatcher(lambda x: x + 1, TWO, sizes=10, cache=False)
        assert len(dispatcher.run(torch.zeros(100))) == 100
        assert len(list(dispatcher.stream(torch.zeros(100)))) == 10
        assert len(dispatcher.submit(torch.zeros(100)).result()) == 100

    before = set(threading.enumerate())
    for _ in range(10):
        use()
    gc.collect()
    until(lambda: set(threading.enumerate()) <= before)  # whoever ends a pool may begin after this look


def test_a_type_that_another_thread_meets_meanwhile_is_known_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    class Met:
        pass

    class Looked(dict[Any, Any]):
        def clear(self) -> None:
            super().clear()
            kinds.kind_of(Met())  # as a thread that was waiting for this

    monkeypatch.setattr(kinds, "_FOUND", Looked())
    monkeypatch.setattr(kinds, "KINDS", dict(kinds.KINDS))
    register_batch_type(Met, rows=lambda _: 1, cut=lambda met, start, stop: met, join=lambda parts: parts[0])
    assert kinds.kind_of(Met()) is not None


SIZED: dict[str, tuple[Callable[[Any], Any], Callable[[int], Any]]] = {
    "rows": (lambda x: (2 * x, len(x)), lambda n: n),
    "sum": (lambda x: (2 * x, x.sum()), lambda n: 3.0 * n),
    "tensor": (lambda x: (2 * x, torch.tensor(x.shape[0])), lambda n: n),
    "text": (lambda x: (2 * x, f"{len(x)} rows"), lambda n: f"{n} rows"),
    "array": (lambda x: (2 * x, np.float64(x.sum())), lambda n: 3.0 * n),
    "beside a list with an entry per row": (lambda x: ([f"{row}" for row in x], len(x)), lambda n: n),
    "beside a text in an array": (lambda x: (np.array([f"{row}" for row in x]), f"{len(x)}"), lambda n: f"{n}"),
    "deep": (lambda x: (2 * x, {"all": {"n": str(len(x))}}), lambda n: {"all": {"n": str(n)}}),
}


@pytest.mark.parametrize("name", SIZED)
@pytest.mark.parametrize(("size", "rows"), [(64, 128), (10, 100), (1, 6), (7, 7)])
def test_what_depends_on_the_number_of_rows_is_never_passed_on(name: str, size: int, rows: int) -> None:
    """It is the same in all chunks of one size."""
    function, whole = SIZED[name]
    with Dispatcher(function, TWO, sizes=size, cache=False) as dispatcher:
        if size == rows:
            assert dispatcher.run(torch.ones(rows, 3))[1] == whole(rows)
            return
        with pytest.raises(ResultFormError, match=r"result\.1.* is the same in all chunks of .*join="):
            dispatcher.run(torch.ones(rows, 3))


@pytest.mark.parametrize("size", [1, 4, 8, 64])
@pytest.mark.parametrize(
    "constant",
    [None, 3, 3.5, "text", b"bytes", True, torch.tensor(2.5), np.arange(3), {"a": [1, "b"]}, ("x", (None, 2)), 10**30],
    ids=str,
)
def test_constants_are_passed_on_whatever_the_chunks(size: int, constant: Any) -> None:
    def function(x: Any) -> tuple[Any, Any]:
        return 2 * x, copy.deepcopy(constant)

    x = torch.rand(64, 3)
    with Dispatcher(function, TWO, sizes=size, cache=False) as dispatcher:
        doubled, found = dispatcher.run(x)
    assert torch.equal(doubled, 2 * x)
    assert type(found) is type(constant)
    assert np.array_equal(found, constant) if hasattr(constant, "shape") else found == constant


def test_join_gets_what_is_the_same_in_all_chunks_by_chance() -> None:
    with Dispatcher(lambda x: (2 * x, x.sum(), 0.5), TWO, sizes=64, join=lambda values, sizes: sum(values)) as joined:
        _, total, half = joined.run(torch.ones(128, 3))
    assert (float(total), half) == (384.0, 0.5)


def test_a_function_that_changes_its_input_does_so_once_where_another_number_of_rows_is_tried() -> None:
    def function(x: Any) -> tuple[Any, int]:
        return x.add_(1), 3

    x = torch.zeros(64, 3)
    with Dispatcher(function, TWO, sizes=16, backup=False, cache=False) as dispatcher:
        found, three = dispatcher.run(x)
    assert three == 3
    assert torch.equal(found, torch.ones(64, 3))
    assert torch.equal(x, torch.ones(64, 3))


def test_a_function_that_fails_with_fewer_rows_is_told() -> None:
    def picky(x: Any) -> tuple[Any, int]:
        if len(x) < 16:
            raise ValueError("too few")
        return 2 * x, 3

    with (
        Dispatcher(picky, TWO, sizes=16, cache=False) as dispatcher,
        pytest.raises(ResultFormError, match=r"result\.1, of type int, is the same in all chunks of 16 rows.*too few"),
    ):
        dispatcher.run(torch.ones(64, 3))


def test_where_workers_are_prepared_by_a_hook_the_function_is_not_called_elsewhere() -> None:
    ready = threading.local()

    def prepare(device: Any) -> None:
        ready.number = 3

    with Dispatcher(lambda x: (2 * x, int(ready.number)), TWO, sizes=16, init=prepare, cache=False) as dispatcher:
        _, number = dispatcher.run(torch.ones(64, 3))
    assert number == 3
