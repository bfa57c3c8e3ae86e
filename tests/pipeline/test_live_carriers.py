"""Who carries a host of a plan: what is there, what the user names, or what is called an emulation; else nobody."""

from __future__ import annotations

import pytest

from dovetail.core.errors import InputError
from dovetail.pipeline.hardware import Carrier
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.live.carriers import carriers
from dovetail.pipeline.live.hosts import HostSettings
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.planner import plan

MACHINE = {"cpu": "AMD EPYC 7B13", "cuda:0": "NVIDIA T4", "cuda:1": "NVIDIA T4"}


def made(measured_on: str = "", **hosts: list[str]) -> Plan:
    """A plan that uses every host of the types."""
    classes = [
        DeviceClass(kind, kind, names, 1e9, 100.0, [1.0] * 6, measured_on=measured_on) for kind, names in hosts.items()
    ]
    problem = Pipeline(
        model="m",
        layers=6,
        mem_mib=[1.0] * 6,
        cut_bytes=[0] * 7,
        classes=classes,
        batch_size=1,
        dtype="torch.float32",
        buffers_in=0,
        buffers_out=0,
    )
    found = plan(problem)
    assert isinstance(found, Plan)
    assert len(found.hosts) == sum(map(len, hosts.values()))
    return found


def found(
    given: Plan,
    on: dict[str, str] | None = None,
    emulate: bool = False,
    settings: dict[str, HostSettings] | None = None,
    here: dict[str, str] = MACHINE,
    nodes: dict[str, str] | None = None,
) -> dict[str, str]:
    made = carriers(given, settings or {}, on or {}, emulate, here, nodes or {})
    return {host: f"{carrier.how} {carrier.device}" for host, carrier in made.items()}


def test_each_device_is_one_host() -> None:
    assert found(made(t4=["a", "b"])) == {"a": "matched cuda:0", "b": "matched cuda:1"}
    with pytest.raises(
        InputError, match=r"nothing here is c \(t4\), for which the plan was made; found cpu \(AMD EPYC"
    ):
        found(made(t4=["a", "b", "c"]))


def test_a_machine_without_the_planned_devices_is_refused() -> None:
    with pytest.raises(InputError, match=r"--on gpu-\d=cpu, or --on all=cpu.*--emulate") as refused:
        found(made(t4=["gpu-0"], l4=["gpu-1"]), here={"cpu": "AMD EPYC 7B13"})
    assert all(host in str(refused.value) for host in ("gpu-0 (t4)", "gpu-1 (l4)"))
    assert refused.value.exit_code == 2


def test_users_say_what_carries_a_host() -> None:
    given = made(t4=["a"], l4=["b", "c"])
    assert found(given, {"all": "cpu"}) == dict.fromkeys("abc", "mapped cpu")
    assert found(given, {"b": "cpu", "l4": "cuda:1"}) == {
        "a": "matched cuda:0",
        "b": "mapped cpu",
        "c": "mapped cuda:1",
    }
    assert found(given, {"all": "cpu"}, settings={"a": HostSettings(device="cuda:1")})["a"] == "matched cuda:1"
    assert found(given, emulate=True) == {"a": "matched cuda:0", "b": "emulated cpu", "c": "emulated cpu"}


def test_times_measured_on_this_machine_are_its_own() -> None:
    """Several shares of one processor may have been measured: all of them are what they were."""
    assert found(made(measured_on="AMD EPYC 7B13", slow=["a", "b"])) == dict.fromkeys("ab", "matched cpu")
    with pytest.raises(InputError, match="nothing here is a"):
        found(made(measured_on="Intel Xeon", slow=["a", "b"]))


def test_a_host_with_a_node_of_its_own_is_there() -> None:
    assert found(made(t4=["a", "b"]), here={}, nodes={"a": "of node 10.0.0.7"}, emulate=True) == {
        "a": "mapped cpu",
        "b": "emulated cpu",
    }


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ({"gpu-9": "cpu"}, "--on gpu-9=cpu: 'gpu-9' is no host or type of the plan; did you mean 'gpu-0'"),
        ({"gpu-0": "tpu"}, "--on gpu-0=tpu: expected cpu, cuda or cuda:N"),
    ],
)
def test_mistakes_are_named(on: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        found(made(t4=["gpu-0"]), on)


def test_a_journal_calls_a_device_what_it_is() -> None:
    types = [Carrier("t4", "cpu", "AMD", how).type for how in ("matched", "mapped", "emulated")]
    assert types == ["t4", "cpu, planned as t4", "t4, emulated on cpu"]


def test_a_device_that_is_not_here_is_refused_before_anything_starts() -> None:
    given = made(t4=["a"], cpu=["b"])
    with pytest.raises(InputError, match=r"a: this machine has no device cuda:9 that torch can use; found cpu \(AMD"):
        found(given, {"t4": "cuda:9", "cpu": "cpu"})
    assert found(given, {"t4": "cuda:9", "cpu": "cpu"}, here={}) == {
        "a": "mapped cuda:9",
        "b": "mapped cpu",
    }  # not known
