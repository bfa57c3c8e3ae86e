"""What really carries each host of a plan: a device that is what the plan says, one that the user named, or neither."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.resources import is_type
from dovetail.pipeline.hardware import Carrier
from dovetail.pipeline.inputs.problem import DeviceClass
from dovetail.pipeline.live.hosts import DEVICE, HostSettings
from dovetail.pipeline.plan import Plan

EVERYBODY = "all"


def carriers(
    plan: Plan,
    settings: Mapping[str, HostSettings],
    on: Mapping[str, str],
    emulate: bool,
    here: Mapping[str, str],
    nodes: Mapping[str, str],
) -> dict[str, Carrier]:
    """The carriers of the hosts that have one; an error if a host of the plan has none.

    `on` names devices by host, by type or for `all`. `here` are this machine's devices and what they are called;
    `nodes` are the hosts that have a machine of their own, and how it is called.
    """
    classes = {host: c for c in plan.problem.classes for host in c.hosts} if plan.problem else {}
    types = {host: stage.type for stage in plan.stages for host in stage.hosts}
    types |= {host: c.type for host, c in classes.items()}
    _check(on, types)
    found: dict[str, Carrier] = {}
    free = dict(here)
    for host in dict.fromkeys([*plan.hosts, *types]):
        asked = settings.get(host, HostSettings()).device
        device = asked or on.get(host) or on.get(types[host]) or on.get(EVERYBODY)
        carrier = _carrier(host, types[host], classes.get(host), device, free, here, nodes)
        if carrier is None and emulate:
            carrier = Carrier(types[host], "cpu", nodes.get(host) or here.get("cpu", ""), "emulated")
        if carrier is not None:
            found[host] = carrier
    if lacking := [f"{host} ({types[host]})" for host in plan.hosts if host not in found]:
        there = ", ".join(f"{device} ({name})" for device, name in here.items()) or "no device of theirs"
        one = plan.hosts[[host in found for host in plan.hosts].index(False)]
        raise InputError(
            f"nothing here is {', '.join(lacking)}, for which the plan was made; found {there}. Say what is to carry "
            f"them (--on {one}=cpu, or --on all=cpu), or call the run an emulation (--emulate)"
        )
    return found


def _check(on: Mapping[str, str], types: Mapping[str, str]) -> None:
    known = list(dict.fromkeys([*types, *types.values(), EVERYBODY]))
    for name, device in on.items():
        if name not in known:
            raise InputError(
                f"--on {name}={device}: {name!r} is no host or type of the plan{did_you_mean(name, known)}"
            )
        if not DEVICE.fullmatch(device):
            raise InputError(f"--on {name}={device}: expected cpu, cuda or cuda:N")


def _carrier(
    host: str,
    planned: str,
    of: DeviceClass | None,
    device: str | None,
    free: dict[str, str],
    here: Mapping[str, str],
    nodes: Mapping[str, str],
) -> Carrier | None:
    if host in nodes:
        return Carrier(planned, device or "cpu", nodes[host], "mapped")
    measured_on = of.measured_on if of is not None else ""
    if device is not None:
        device = "cuda:0" if device == "cuda" else device
        name = here.get(device, "")
        if here and not name:
            there = ", ".join(f"{known} ({called})" for known, called in here.items())
            raise InputError(f"{host}: this machine has no device {device} that torch can use; found {there}")
        fits = name and (name == measured_on or is_type(name, planned))
        return Carrier(planned, device, name, "matched" if fits else "mapped")
    for known, name in here.items():
        if measured_on == name and known == "cpu":  # it was measured as one of several on this machine
            return Carrier(planned, known, name, "matched")
        if known in free and (measured_on == name or is_type(name, planned)):
            del free[known]
            return Carrier(planned, known, name, "matched")
    return None
