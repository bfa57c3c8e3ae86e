"""Derivatives in chunks are those of the whole batch at once: products, Jacobians, parameters with and without rows."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from dovetail.core.errors import InputError

torch: Any = pytest.importorskip("torch")
from torch.func import functional_call, jacrev, vmap  # noqa: E402
from torch.utils import _pytree as pytree  # noqa: E402

from dovetail.dispatch import Device  # noqa: E402
from dovetail.dispatch.derivatives import torch_func  # noqa: E402
from dovetail.dispatch.derivatives.batched import Derivatives  # noqa: E402

ROWS = 10
SIZES = [3, 4, 10, 0, 1]


class Hardening(torch.nn.Module):  # type: ignore[misc]
    """A stress update whose iteration ends when all rows have converged; `offset` has no rows at all."""

    def __init__(self) -> None:
        super().__init__()
        self.modulus = torch.nn.Parameter(torch.tensor(1.3, dtype=torch.float64))
        self.matrix = torch.nn.Parameter(torch.rand(2, 3, dtype=torch.float64))
        self.register_buffer("shift", torch.tensor(0.1, dtype=torch.float64))

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        strain, temperature = state["strain"], state["temperature"]
        modulus = self.modulus.reshape(-1, 1)
        stress = strain.clone()
        for _ in range(100):
            residual = stress**3 + modulus * stress - strain * temperature - self.shift
            if residual.abs().max() < 1e-13:
                break
            stress = stress - residual / (3 * stress**2 + modulus)
        return {"stress": stress, "nested": (stress @ self.matrix.T, strain.sum(-1)), "offset": 2 * temperature.sum()}


def batch(rows: int = ROWS) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    return {
        "strain": 0.5 + torch.rand(rows, 3, dtype=torch.float64, generator=generator),
        "temperature": torch.tensor([1.7], dtype=torch.float64),
    }


@pytest.fixture(params=SIZES)
def hardening(request: pytest.FixtureRequest) -> Iterator[Derivatives]:
    torch.manual_seed(1)
    with Derivatives(Hardening(), ["cpu"], sizes=[request.param], cache=False) as derivatives:
        yield derivatives


def close(found: Any, expected: Any) -> bool:
    ours, theirs = pytree.tree_flatten(found), pytree.tree_flatten(expected)
    assert ours[1] == theirs[1]
    return all(x.shape == y.shape and torch.allclose(x, y, atol=1e-10) for x, y in zip(ours[0], theirs[0], strict=True))


def one_row(model: Any) -> Any:
    """The same model for one row at a time, with a fixed number of iterations: what torch.func itself can divide."""

    def row(strain: Any, temperature: Any, named: Any) -> Any:
        modulus = named["modulus"]
        stress = strain
        for _ in range(60):
            residual = stress**3 + modulus * stress - strain * temperature - model.shift
            stress = stress - residual / (3 * stress**2 + modulus)
        return {"stress": stress, "nested": (named["matrix"] @ stress, strain.sum(-1))}

    return row


def per_row(model: Any, argument: int, named: dict[str, Any], batched: bool = False, rows: int = ROWS) -> Any:
    """Jacobians row by row, by torch's own means."""
    in_dims = (0, None, {name: 0 if batched and name == "modulus" else None for name in named})
    state = batch(rows)
    return vmap(jacrev(one_row(model), argument), in_dims)(state["strain"], state["temperature"][0], named)


def test_value(hardening: Derivatives) -> None:
    assert close(hardening.value(batch()), hardening._function(batch()))


def test_jacobian_is_that_of_each_row(hardening: Derivatives) -> None:
    named = dict(hardening.named_parameters())
    strain, temperature = per_row(hardening._function, 0, named), per_row(hardening._function, 1, named)
    found = hardening.jacobian(batch())
    for ours, by_strain, by_temperature in (
        (found["stress"], strain["stress"], temperature["stress"]),
        (found["nested"][0], strain["nested"][0], temperature["nested"][0]),
        (found["nested"][1], strain["nested"][1], temperature["nested"][1]),
    ):
        assert close(ours, {"strain": by_strain, "temperature": by_temperature})
    assert close(found["offset"]["temperature"], torch.tensor(2.0, dtype=torch.float64))  # passed through, no rows
    assert close(found["offset"]["strain"], torch.zeros(3, dtype=torch.float64))


def test_parameter_jacobian(hardening: Derivatives) -> None:
    named = dict(hardening.named_parameters())
    expected = per_row(hardening._function, 2, named)
    found = hardening.parameter_jacobian(batch())
    assert close({"stress": found["stress"], "nested": found["nested"]}, expected)
    assert found["stress"]["matrix"].shape == (ROWS, 3, 2, 3)
    assert close(found["offset"]["modulus"], torch.zeros((), dtype=torch.float64))


def cotangents(model: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    return pytree.tree_map(lambda y: torch.rand(y.shape, dtype=torch.float64, generator=generator), model(batch()))


def test_vector_products(hardening: Derivatives) -> None:
    model, state = hardening._function, batch()
    tangents = pytree.tree_map(torch.cos, state)
    values, pushed = hardening.jvp(state, tangents)
    assert close((values, pushed), torch.func.jvp(model, (state,), (tangents,)))
    vectors = cotangents(model)
    values, pulled = hardening.vjp(state, vectors)
    expected, pull = torch.func.vjp(model, state)
    assert close((values, pulled), (expected, pull(vectors)[0]))  # the temperature's is a sum over all chunks


def test_parameter_vjp_sums_over_the_chunks(hardening: Derivatives) -> None:
    model = hardening._function
    named = dict(model.named_parameters())
    expected, pull = torch.func.vjp(lambda p: functional_call(model, p, (batch(),)), named)
    vectors = cotangents(model)
    assert close(hardening.parameter_vjp(batch(), vectors), (expected, pull(vectors)[0]))


@pytest.mark.parametrize("size", SIZES)
def test_batched_parameter_is_cut_with_the_rows(size: int) -> None:
    torch.manual_seed(1)
    model = Hardening()
    modulus = torch.linspace(0.8, 1.2, ROWS, dtype=torch.float64)
    given = {"modulus": modulus}
    with Derivatives(model, ["cpu"], parameters=given, batched=["modulus"], sizes=[size], cache=False) as derivatives:
        whole = {**dict(model.named_parameters()), "modulus": modulus}
        assert close(derivatives.value(batch()), functional_call(model, whole, (batch(),)))
        found = derivatives.parameter_jacobian(batch())
        expected = per_row(model, 2, whole, batched=True)
        assert close({"stress": found["stress"], "nested": found["nested"]}, expected)
        vectors = cotangents(model)
        values, pull = torch.func.vjp(lambda p: functional_call(model, p, (batch(),)), whole)
        assert close(derivatives.parameter_vjp(batch(), vectors), (values, pull(vectors)[0]))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_two_devices() -> None:
    torch.manual_seed(1)
    model, state = Hardening(), batch()
    vectors = cotangents(model)
    with Derivatives(model, ["cuda:0", "cpu"], sizes=[3, 4], cache=False) as derivatives:
        for _ in range(2):
            named = dict(model.named_parameters())
            expected, pull = torch.func.vjp(lambda p: functional_call(model, p, (state,)), named)
            assert close(derivatives.parameter_vjp(state, vectors), (expected, pull(vectors)[0]))
            assert close(derivatives.jacobian(state)["stress"]["strain"], per_row(model, 0, named)["stress"])
            with torch.no_grad():
                model.modulus.mul_(2)  # has to reach the other device


class Meeting(Hardening):
    """The first calls on two threads are certainly at the same time."""

    met: ClassVar[set[int]] = {threading.get_ident()}
    barrier: ClassVar[threading.Barrier] = threading.Barrier(2)

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        if threading.get_ident() not in self.met:
            self.met.add(threading.get_ident())
            self.barrier.wait(timeout=900)
        return super().forward(state)


def test_devices_do_not_disturb_each_other() -> None:
    """Each calls its own copy of the module with its own rows of a parameter."""
    torch.manual_seed(1)
    model, rows = Meeting(), 20
    modulus = torch.linspace(0.8, 1.2, rows, dtype=torch.float64)
    both = [Device(name, where="cpu") for name in "ab"]
    with Derivatives(
        model, both, parameters={"modulus": modulus}, batched=["modulus"], sizes=[1, 2], cache=False
    ) as derivatives:
        whole = {**dict(model.named_parameters()), "modulus": modulus}
        values, pull = torch.func.vjp(lambda p: functional_call(model, p, (batch(rows),)), whole)
        vectors = pytree.tree_map(torch.cos, values)
        assert close(derivatives.parameter_vjp(batch(rows), vectors), (values, pull(vectors)[0]))
    assert len(Meeting.met) == 3
    assert torch.equal(model.modulus, torch.tensor(1.3, dtype=torch.float64))


class Overlapping(Hardening):
    """From the second call on, two threads are always inside at the same time."""

    barrier: ClassVar[threading.Barrier] = threading.Barrier(2)

    def forward(self, state: dict[str, Any]) -> dict[str, Any]:
        if threading.current_thread().name.startswith("dovetail"):
            self.barrier.wait(timeout=900)
        found = super().forward(state)
        if threading.current_thread().name.startswith("dovetail"):
            self.barrier.wait(timeout=900)
        return found


def test_forward_mode_on_two_threads_at_once() -> None:
    """torch keeps one level of tangents for all threads, and drops them all when any thread leaves it."""
    both = [Device(name, where="cpu") for name in "ab"]
    state = batch(2)
    tangents = pytree.tree_map(torch.cos, state)
    model, plain = Overlapping(), Hardening()
    plain.load_state_dict(model.state_dict())
    with Derivatives(model, both, sizes=[1, 1], cache=False, backup=False) as derivatives:
        expected = torch.func.jvp(plain, (state,), (tangents,))
        assert close(derivatives.jvp(state, tangents), expected)
        named = dict(plain.named_parameters())
        assert close(derivatives.jacobian(state)["stress"]["strain"], per_row(plain, 0, named, rows=2)["stress"])


def test_parameters_are_followed() -> None:
    model = Hardening()
    with Derivatives(model, ["cpu"], sizes=[3], cache=False) as derivatives:
        before = derivatives.jacobian(batch())["stress"]["strain"]
        with torch.no_grad():
            model.modulus.mul_(2)
        after = derivatives.jacobian(batch())["stress"]["strain"]
        assert not torch.allclose(before, after)
        assert close(after, per_row(model, 0, dict(model.named_parameters()))["stress"])


@pytest.mark.parametrize("dim", [1, -1])
def test_plain_function_with_several_arguments_and_another_dimension(dim: int) -> None:
    """`table` has as many entries as there are rows, but is not batched: it must not be cut."""

    def columns(x: Any, y: Any, parameters: dict[str, Any]) -> Any:
        return (parameters["scale"].unsqueeze(-1) * x * y, parameters["table"].sum() * y)

    x, y = torch.rand(2, 5, dtype=torch.float64), torch.rand(1, 5, dtype=torch.float64)
    given = {"scale": torch.rand(2, dtype=torch.float64), "table": torch.rand(5, dtype=torch.float64)}
    with Derivatives(columns, ["cpu"], parameters=given, dim=dim, sizes=[2], cache=False) as derivatives:
        assert close(derivatives.value((x, y)), columns(x, y, parameters=given))
        (by_x, by_y), (_, last) = derivatives.jacobian((x, y))
        full = jacrev(lambda x, y: columns(x, y, parameters=given)[0], (0, 1))(x, y)
        for r in range(5):
            assert torch.allclose(by_x[:, r], full[0][:, r, :, r])
            assert torch.allclose(by_y[:, r], full[1][:, r, :, r])
        assert torch.allclose(last, given["table"].sum().expand(1, 5, 1))
        vectors = torch.rand(2, 5, dtype=torch.float64), torch.rand(1, 5, dtype=torch.float64)
        values, pull = torch.func.vjp(lambda p: columns(x, y, parameters=p), given)
        assert close(derivatives.parameter_vjp((x, y), vectors), (values, pull(vectors)[0]))


@pytest.mark.parametrize("elements", [1, 2, 3])
def test_output_without_rows_that_looks_like_one_with_rows(elements: int) -> None:
    """Its elements are no rows, though a chunk has as many: its cotangent counts once, not once per chunk."""

    def function(x: Any, scale: Any) -> Any:
        return x * scale[0].sum(), scale[0] ** 2

    x, scale = torch.rand(9, dtype=torch.float64), torch.rand(1, elements, dtype=torch.float64)
    vectors = torch.rand(9, dtype=torch.float64), torch.rand(elements, dtype=torch.float64)
    with Derivatives(function, ["cpu"], sizes=[elements], cache=False) as derivatives:
        values, pull = torch.func.vjp(function, x, scale)
        assert close(derivatives.vjp((x, scale), vectors), (values, pull(vectors)))
        assert derivatives.jacobian((x, scale))[1][1].shape == (elements, elements)


@pytest.mark.parametrize("rows", [0, 1])
def test_few_rows(rows: int) -> None:
    def function(x: Any, scale: Any) -> Any:
        return torch.stack([x, x**2], -1) * scale

    x, scale = torch.full((rows,), 3.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64)
    with Derivatives(function, ["cpu"], sizes=[3], cache=False) as derivatives:
        by_x, by_scale = derivatives.jacobian((x, scale))
        assert close(by_x, torch.tensor([[2.0, 12.0]] * rows, dtype=torch.float64).reshape(rows, 2))
        assert close(by_scale, torch.tensor([[3.0, 9.0]] * rows, dtype=torch.float64).reshape(rows, 2))
        _, (pulled, summed) = derivatives.vjp((x, scale), torch.ones(rows, 2, dtype=torch.float64))
        assert (pulled.tolist(), summed.item()) == ([14.0] * rows, 12.0 * rows)


def test_what_cannot_be_differentiated_by_is_held() -> None:
    def function(x: Any, which: Any) -> Any:
        return x.gather(1, which)

    x, which = torch.rand(7, 3, dtype=torch.float64), torch.randint(3, (7, 1))
    with Derivatives(function, ["cpu"], sizes=[2], cache=False) as derivatives:
        by_x, by_which = derivatives.jacobian((x, which))
        assert by_which is None
        assert torch.equal(by_x[:, 0].argmax(-1), which[:, 0])


@pytest.mark.parametrize("by", ["_by_columns", "_by_rows"])
def test_both_ways_give_the_same_blocks(by: str) -> None:
    def function(x: Any, a: Any, c: Any) -> tuple[Any, ...]:
        return (torch.einsum("bij,bk->bijk", x, torch.sin(x[:, 0])) * a, c * a.sum(), x.sum((1, 2)) * c.sum())

    x, a, c = (torch.rand(*shape, dtype=torch.float64) for shape in ((4, 2, 3), (3,), (2, 2)))
    axes, out_axes = (0, None, None), (0, None, 0)
    if by == "_by_columns":
        found = torch_func._by_columns(function, (x, a, c), axes, function(x, a, c))
    else:
        found = torch_func._by_rows(function, (x, a, c), axes, out_axes, 4)
    for r in range(4):
        whole = jacrev(lambda *v: tuple(y[0] if o != 1 else y for o, y in enumerate(function(*v))), (0, 1, 2))(
            x[r : r + 1], a, c
        )
        for o, i in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 0), (2, 1), (2, 2)]:
            expected = whole[o][i].squeeze(-3) if i == 0 else whole[o][i]
            assert torch.allclose(found[o][i] if o == 1 else found[o][i][r], expected)


def test_operation_without_forward_derivative() -> None:
    class Square(torch.autograd.Function):  # type: ignore[misc]
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Any) -> Any:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return 2 * ctx.saved_tensors[0] * grad

    x = torch.rand(5, 1, dtype=torch.float64)
    with Derivatives(lambda x: Square.apply(x).expand(-1, 3), ["cpu"], sizes=[2], cache=False) as derivatives:
        assert torch.allclose(derivatives.jacobian(x), (2 * x)[:, :, None].expand(-1, 3, 1))


def test_complaints() -> None:
    with pytest.raises(InputError, match="no parameter is called 'modulos'; did you mean 'modulus'"):
        Derivatives(Hardening(), batched=["modulos"])
    with Derivatives(Hardening(), ["cpu"], cache=False) as derivatives:
        with pytest.raises(InputError, match="tangents: found the structure"):
            derivatives.jvp(batch(), torch.ones(3))
        with pytest.raises(InputError, match=r"leaf 0: found shape \(3,\), expected that of the input, \(10, 3\)"):
            derivatives.jvp(batch(), {**batch(), "strain": torch.ones(3)})
        with pytest.raises(InputError, match="no input has a dimension 0"):
            derivatives.jacobian(torch.tensor(1.0))
    with Derivatives(torch.sin) as derivatives, pytest.raises(InputError, match="has no parameters"):
        derivatives.parameter_jacobian(torch.ones(3))
    total = Derivatives(lambda x: (x, x.sum()), ["cpu"], cache=False)
    with total as derivatives, pytest.raises(InputError, match="without batch dimension depends on the rows"):
        derivatives.jacobian(torch.ones(4))
    few = Derivatives(Hardening(), parameters={"modulus": torch.ones(3)}, batched=["modulus"])
    with few as derivatives, pytest.raises(InputError, match=r"modulus: found shape \(3,\), expected 10 rows"):
        derivatives.value(batch())
