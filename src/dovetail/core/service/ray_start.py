"""Ray, joined or started for oneself: quiet, private, and refused at once where nobody listens."""

from __future__ import annotations

import logging
import socket
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError, MissingExtraError

# In the environment before Ray is imported, which reads some of them then.
QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}
# Every port of a cluster on 127.0.0.1, also on Linux: by default Ray listens on all interfaces. Who joins such a
# cluster needs it too.
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
PRIVATE = {**QUIET, **LOOPBACK, "RAY_AUTH_MODE": "disabled"}
# For who starts a head: a node that was killed is noticed within a second, not within fifteen.
WATCHFUL = {
    "RAY_health_check_initial_delay_ms": "500",
    "RAY_health_check_period_ms": "300",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
}
_REACH_S = 5.0


class RayNode(Struct, frozen=True):
    """A node that is alive. `name` is what Ray calls its machine."""

    id: str
    name: str
    address: str
    resources: dict[str, float] = {}

    def is_called(self, name: str | None) -> bool:
        """Whether this is its id, name or address, or a resource that it has."""
        return name is not None and name in {self.id, self.name, self.address, *self.resources}


def import_ray(what_for: str) -> Any:
    try:
        return import_module("ray")
    except ImportError:
        raise MissingExtraError("ray", "Ray", what_for) from None


def gcs_of(address: str) -> tuple[str, int] | None:
    """Where a cluster's head listens, unless the address is a word such as `auto`.

    >>> gcs_of("10.0.0.7:6379"), gcs_of("ray://head:10001"), gcs_of("auto")
    (('10.0.0.7', 6379), ('head', 10001), None)
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return (host, int(port)) if host and port.isdecimal() else None


def check_reachable(address: str | None) -> None:
    """Refuse an address where nobody listens: Ray itself goes on trying for minutes."""
    if (gcs := gcs_of(address or "")) is None:
        return
    try:
        socket.create_connection(gcs, timeout=_REACH_S).close()
    except (OSError, OverflowError) as error:
        raise InputError(f"--address {address}: no Ray cluster can be reached there: {error}") from None


def connect(ray: Any, address: str | None, **options: Any) -> None:
    """Join the cluster at an address, that of $RAY_ADDRESS, or one of this machine alone."""
    check_reachable(address)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray speaks of its coming changes
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False, **options)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        raise DovetailError(f"no Ray cluster at {address or 'this machine'}: {error}") from None


def alive_nodes(ray: Any) -> list[RayNode]:
    """In an order that does not change while they live."""
    found = [
        RayNode(
            str(node["NodeID"]),
            str(node.get("NodeName") or node["NodeManagerAddress"]),
            str(node["NodeManagerAddress"]),
            {str(name): float(amount) for name, amount in node["Resources"].items()},
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.address, node.id))


def node_called(nodes: Iterable[RayNode], name: str, whose: str = "") -> RayNode:
    """The node that has this address, name, id or resource."""
    nodes = list(nodes)
    for node in nodes:
        if node.is_called(name):
            return node
    known = ", ".join(sorted({node.address for node in nodes}))
    who = f"{whose}: " if whose else ""
    raise InputError(f"{who}no Ray node has the address, name, id or resource {name!r}; nodes: {known}")


def placed_on(node_id: str) -> Any:
    """Nowhere else than on this node."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def environment(address: str | None, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that is to join a cluster, or without an address to start a private one."""
    if address is None:
        return {**base, **PRIVATE, **WATCHFUL}
    return {**base, **QUIET, **(LOOPBACK if _is_on_loopback(address) else {})}


def _is_on_loopback(address: str) -> bool:
    """Whether a cluster can be reached at this machine's loopback address only."""
    gcs = gcs_of(address)
    if gcs is None or not (gcs[0] == "localhost" or gcs[0].startswith("127.")):
        return False
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outward:
        outward.connect(("8.8.8.8", 80))  # which sends nothing
        with suppress(OSError):
            socket.create_connection((outward.getsockname()[0], gcs[1]), timeout=_REACH_S).close()
            return False
    return True
