"""Stages as actors on the nodes of a Ray cluster: Ray places the processes, values do not pass through it."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

import msgspec

from dovetail.core.cgroups import CpuShare
from dovetail.core.service.ray_start import alive_nodes, check_reachable, connect, import_ray, node_called, placed_on
from dovetail.pipeline.live.local import stirs
from dovetail.pipeline.live.stage import StageSettings, StageWorker

_GRACE_S = 2.0


class _Stage:
    """The actor of one host."""

    def serve(self, settings: bytes, share: float | None) -> None:
        ray: Any = import_module("ray")
        given = msgspec.json.decode(settings, type=StageSettings)
        here = msgspec.structs.replace(given, bind=ray.util.get_node_ip_address())
        limit = CpuShare(os.getpid(), share) if share is not None else None
        try:
            StageWorker(here).serve()
        finally:
            if limit is not None:
                limit.release()

    def where(self) -> tuple[str, int]:
        """The id of its node, and its process."""
        return import_module("ray").get_runtime_context().get_node_id(), os.getpid()


class _NodeWatch:
    """An actor for each node with stages: a stage that is stopped by a signal can tell and do nothing itself."""

    def stirring(self, pids: Mapping[str, int]) -> list[str]:
        return [host for host, pid in pids.items() if stirs(pid)]

    def kill(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class RayEngine:
    """One actor per host of the plan, on the node that its settings name, else spread over all nodes."""

    def devices(self) -> dict[str, str]:
        return {}  # what a node has is known when a process has joined from there

    def nodes(self, hosts: Mapping[str, str | None]) -> dict[str, str]:
        found = {host: self._node(host, wanted) for host, wanted in hosts.items()}
        addresses = {node.id: node.address for node in self._nodes}
        return {host: f"of node {addresses[node_id]}" for host, node_id in found.items() if node_id is not None}

    def __init__(self, address: str | None = None) -> None:
        self._ray = ray = import_ray("the ray engine")
        self._ours = not ray.is_initialized()
        if self._ours:
            connect(ray, address)
        else:
            check_reachable(address)
        self.bind: str = ray.util.get_node_ip_address()
        self._nodes = alive_nodes(ray)
        self._loads: dict[str, int] = dict.fromkeys((node.id for node in self._nodes), 0)
        self._placed: dict[str, str] = {}
        self.actors: dict[str, Any] = {}
        self._ends: dict[str, Any] = {}
        self._pids: dict[str, Any] = {}  # an answer that is awaited, then what it says
        self._watches: dict[str, Any] = {}  # by node
        self._answers: dict[str, Any] = {}  # the last question of each that is not answered

    def place(self, hosts: Mapping[str, str | None]) -> None:
        """Hosts with a node of their own first, so that the others go elsewhere."""
        found = {host: self._node(host, wanted) for host, wanted in hosts.items()}
        for host, node_id in sorted(found.items(), key=lambda pair: pair[1] is None):
            here = node_id or min(self._loads, key=lambda each: self._loads[each])
            self._loads[here] += 1
            self._placed[host] = here

    def start(self, settings: StageSettings, share: float | None) -> None:
        # Ray hides all GPUs from an actor that asks for none, and numbers those it gives from 0.
        gpus = 1 if settings.device.startswith("cuda") else 0
        if gpus:
            settings = msgspec.structs.replace(settings, device="cuda:0")
        node = placed_on(self._placed[settings.host])
        actor = self._ray.remote(_Stage).options(
            num_cpus=0,
            num_gpus=gpus,
            max_concurrency=2,  # one of them serves
            max_restarts=0,
            scheduling_strategy=node,
        )
        if self._placed[settings.host] not in self._watches:
            watch = self._ray.remote(_NodeWatch).options(num_cpus=0, scheduling_strategy=node).remote()
            self._watches[self._placed[settings.host]] = watch
        self.actors[settings.host] = actor.remote()
        self._pids[settings.host] = self.actors[settings.host].where.remote()
        self._ends[settings.host] = self.actors[settings.host].serve.remote(msgspec.json.encode(settings), share)

    def _node(self, host: str, wanted: str | None) -> str | None:
        """The id of a host's own node: the one that was asked for, or that has the host's name; None if any will do."""
        if wanted is not None:
            return node_called(self._nodes, wanted, host).id
        return next((node.id for node in self._nodes if node.is_called(host)), None)

    def kill(self, host: str) -> None:
        with suppress(self._ray.exceptions.RayError):
            self._ray.kill(self.actors[host])
        if isinstance(pid := self._pids[host], int) and host not in self.ended():  # stopped: it does not hear of it
            done = self._watches[self._placed[host]].kill.remote(pid)
            self._ray.wait([done], timeout=_GRACE_S)

    def ended(self) -> dict[str, str]:
        refs = {ref: host for host, ref in self._ends.items()}
        done, _ = self._ray.wait(list(refs), num_returns=len(refs), timeout=0) if refs else ([], [])
        return {refs[ref]: self._reason(ref) for ref in done}

    def stirring(self) -> list[str]:
        for host, asked in self._pids.items():
            if not isinstance(asked, int) and (answer := self._answer(asked)):
                self._pids[host] = answer[1]
        found: list[str] = []
        for node, watch in self._watches.items():
            if node in self._answers and (answer := self._answer(self._answers[node])) is None:
                continue  # it is still being asked
            found += answer if node in self._answers else []
            pids = {host: pid for host, pid in self._pids.items() if self._placed[host] == node}
            self._answers[node] = watch.stirring.remote({h: pid for h, pid in pids.items() if isinstance(pid, int)})
        return found

    def _answer(self, ref: Any) -> Any:
        """What a question has been answered with; None if it has not."""
        with suppress(self._ray.exceptions.RayError):
            done, _ = self._ray.wait([ref], timeout=0)
            return self._ray.get(ref) if done else None
        return ()

    def used_s(self) -> float | None:
        return None

    def why(self, host: str) -> str:
        done, _ = self._ray.wait([self._ends[host]], timeout=1.0)
        return self._reason(done[0]) if done else "its connection was closed"

    def _reason(self, ref: Any) -> str:
        try:
            self._ray.get(ref)
        except self._ray.exceptions.RayTaskError as error:
            return f"its process failed: {error.cause}"
        except self._ray.exceptions.RayError as error:
            return f"its actor died: {str(error).splitlines()[0]}"
        return "its process ended"

    def close(self) -> None:
        if self._ends:
            self._ray.wait(list(self._ends.values()), num_returns=len(self._ends), timeout=_GRACE_S)
        for host in self.actors:
            self.kill(host)
        for watch in self._watches.values():
            self._ray.kill(watch)
        if self._ours:
            self._ray.shutdown()
