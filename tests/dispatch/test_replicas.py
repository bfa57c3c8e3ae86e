"""Copies of a module follow the master, whatever changes in it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dovetail.dispatch import Device, Dispatcher  # noqa: E402
from dovetail.dispatch.live.replicas import Mirror, Replicas  # noqa: E402

# torch takes it for another device than "cpu": tensors have to be copied there, as to a GPU.
ELSEWHERE = "cpu:0"


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.second = torch.nn.Linear(3, 3)
        self.second.weight = self.first.weight  # shared
        self.norm = torch.nn.BatchNorm1d(3)
        self.register_buffer("nothing", None)

    def forward(self, x: Any) -> Any:
        return self.norm(self.second(self.first(x)))


def in_place(net: Net) -> None:
    with torch.no_grad():
        net.first.weight.mul_(2)


def by_optimiser(net: Net) -> None:
    """A fused one changes parameters without counting versions."""
    optimiser = torch.optim.Adam(net.eval().parameters(), lr=0.5, fused=True)
    versions = [parameter._version for parameter in net.parameters()]
    net(torch.rand(4, 3)).sum().backward()
    optimiser.step()
    optimiser.zero_grad()
    assert versions == [parameter._version for parameter in net.parameters()]


def new_parameter(net: Net) -> None:
    net.first.bias = torch.nn.Parameter(torch.full((3,), 7.0))


def new_data(net: Net) -> None:
    net.first.bias.data = torch.full((3,), 8.0)


def loaded(net: Net) -> None:
    net.load_state_dict(Net().state_dict())


def buffer(net: Net) -> None:
    net.norm.running_mean.add_(3)


def statistics(net: Net) -> None:
    """A norm that trains changes its buffers without counting versions."""
    net.norm(torch.rand(4, 3))


def unseen(net: Net) -> None:
    net.first.bias.data.add_(1)


def mode(net: Net) -> None:
    net.norm.eval()


def dtype(net: Net) -> None:
    net.double()


def part(net: Net) -> None:
    net.first = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh())


def same(net: Any, other: Any) -> bool:
    """All tensors, whether it trains, and what comes out."""
    one, two = net.state_dict(), other.state_dict()
    if one.keys() != two.keys() or [m.training for m in net.modules()] != [m.training for m in other.modules()]:
        return False
    if not all(one[key].dtype == two[key].dtype and torch.equal(one[key], two[key]) for key in one):
        return False
    x = torch.rand(5, 3, dtype=net.second.bias.dtype)
    return bool(
        torch.equal(copy.deepcopy(net)(x), copy.deepcopy(other)(x))
    )  # a norm that trains changes when it is called


@pytest.mark.parametrize(
    "change",
    [in_place, by_optimiser, new_parameter, new_data, loaded, buffer, statistics, mode, dtype, part],
    ids=lambda f: f.__name__,
)
@pytest.mark.parametrize("where", ["cpu", ELSEWHERE])
def test_copies_follow(change: Callable[[Net], None], where: str) -> None:
    net = Net()
    replicas = Replicas(net)
    assert same(replicas.copy_on(where), net)
    before = copy.deepcopy(replicas.copy_on(where))
    state = replicas.state()
    change(net)
    assert not same(before, net)  # the change matters
    assert same(replicas.copy_on(where), net)
    assert replicas.state() != state


def test_what_nobody_counts_can_be_told() -> None:
    net = Net()
    replicas = Replicas(net)
    replicas.copy_on(ELSEWHERE)
    unseen(net)
    assert not same(replicas.copy_on(ELSEWHERE), net)
    state = replicas.state()
    replicas.changed()
    assert same(replicas.copy_on(ELSEWHERE), net)
    assert replicas.state() != state


def test_nothing_is_copied_without_need() -> None:
    net = Net().eval()
    replicas = Replicas(net)
    assert replicas.state() == replicas.state()
    assert replicas.on("cpu") is net
    assert replicas.on(Device("cpu")) is net
    assert replicas.copy_on("cpu") is not net
    assert replicas.copy_on("cpu").first.weight is net.first.weight  # no memory of its own
    far = replicas.on(ELSEWHERE)
    assert far is not net
    assert far.first.weight is not net.first.weight
    assert far.first.weight is far.second.weight  # still shared
    held, version = far.first.weight, far.first.weight._version
    assert replicas.on(ELSEWHERE).first.weight is held
    assert held._version == version  # not even written again
    in_place(net)
    assert replicas.on(ELSEWHERE).first.weight is held  # written in place: what was compiled for it stays valid
    assert torch.equal(held, net.first.weight)


def test_devices_have_copies_of_their_own() -> None:
    replicas = Replicas(Net())
    a, b = (replicas.copy_on(Device(name, where="cpu")) for name in "ab")
    assert a is not b
    assert replicas.copy_on(Device("a", where="cpu")) is a


def test_gradients_can_be_asked_for_and_not() -> None:
    net = Net()
    replicas = Replicas(net)
    assert replicas.copy_on(ELSEWHERE).first.weight.requires_grad
    net.requires_grad_(False)
    assert not replicas.copy_on(ELSEWHERE).first.weight.requires_grad


def test_replicas_travel() -> None:
    net = Net().eval()
    replicas = Replicas(net)
    replicas.copy_on(ELSEWHERE)
    x = torch.rand(2, 3)
    assert torch.equal(pickle.loads(pickle.dumps(replicas)).on("cpu")(x), net(x))


def test_forgotten_tensors_are_let_go() -> None:
    mirror = Mirror(ELSEWHERE)
    mirror.here(torch.rand(3))
    mirror.begin()
    mirror.here(torch.rand(3))
    mirror.begin()
    assert not mirror._now
    assert len(mirror._before) == 1


def test_dispatcher_uses_the_parameters_of_now() -> None:
    net = Net().eval()
    x = torch.rand(20, 3)
    two = [Device("a", where="cpu"), Device("b", where="cpu")]

    def by_hand() -> Any:  # in the same chunks: more rows at once may round otherwise
        return torch.cat([net(rows) for rows in x.split(3)])

    with Dispatcher(net, two, sizes=3, cache=False) as dispatcher, torch.no_grad():
        assert torch.equal(dispatcher.run(x), by_hand())
        net.first.weight.mul_(2)
        assert torch.equal(dispatcher.run(x), by_hand())
