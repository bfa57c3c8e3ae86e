"""Workers as actors on the nodes of a Ray cluster: one for each GPU, real or emulated.

Ray says which nodes there are, places the processes and ends them. Each worker calls the service over a connection of
its own, on which everything else goes: commands, pieces of text as they come, answers, and signs of life. So what runs
goes on while Ray's head is away, and a death is known as soon as the connection breaks.
"""

from __future__ import annotations

import heapq
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any

import msgspec

from dovetail.core.errors import InputError
from dovetail.core.service.ray_messages import LaunchProcess, NodesChanged, ObjectFetched, ProcessEnded
from dovetail.core.service.ray_processes import RayChange, RayDown, RayProcesses, RayUp
from dovetail.core.service.ray_start import RayNode
from dovetail.workflow.live.engines.line import WorkerLine
from dovetail.workflow.live.engines.ray_gpus import NodeGpu, emulated_gpu, gpus_of
from dovetail.workflow.live.engines.ray_worker import ActorErrand, ActorGreeting, no_delay
from dovetail.workflow.live.protocol import (
    Answer,
    BackEndError,
    GpuPlace,
    ModelCall,
    Reference,
    Report,
    ServedModel,
    WorkerLost,
    WorkerReady,
    WorkersJoined,
)
from dovetail.workflow.live.references import references_in
from dovetail.workflow.live.wire import (
    CancelCall,
    Command,
    LoadModel,
    MakeCall,
    UnloadModel,
    WorkerReport,
    encode,
    unpack,
)

_ENTRY = "dovetail.workflow.live.engines.ray_worker:main"
_LOOKS = 8  # how often within the time limit of silence a worker is looked at
_START_S = 120.0  # for an actor to call
_GREETING_S = 10.0
_REASON_S = 0.3  # Ray, if it knows why a process has died, says so within milliseconds
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0  # before a worker that died again and again is started anew
_STEADY_S = 60.0  # one that lived so long is started at once


class _Host:
    """A node and the workers of its GPUs; without an id it is away."""

    def __init__(self, label: str, node: RayNode, gpus: Sequence[NodeGpu], first: int) -> None:
        self.label, self.name, self.gpus = label, node.name, tuple(gpus)
        self.node: str | None = node.id
        self.workers = range(first, first + len(gpus))

    def places(self) -> list[GpuPlace]:
        return [gpu.place(self.label, number) for number, gpu in enumerate(self.gpus)]


class _Actor:
    """A worker's process, if it has one."""

    def __init__(self, host: _Host, gpu: NodeGpu, device: str) -> None:
        self.host, self.gpu, self.device = host, gpu, device
        self.name: str | None = None  # of the process, from its launch to its end
        self.line: WorkerLine | None = None
        self.waiting: list[Command] | None = []  # for its first start; None: its loss was told, or it has started
        self.pid: int | None = None
        self.ready = False
        self.since_s, self.pause_s = 0.0, 0.0
        self.starts = 0
        self.why = ""  # it is about to be ended, or could not be started


class RayWorkers:
    """Without an address a private Ray is started on this machine, with GPUs of these types (`gpus`) that the processor
    works for, or without `emulate` with CUDA's. With one, the GPUs are those of the cluster's nodes, also of nodes that
    join later.

    A worker that has died is started anew where it was. A node that has gone is taken for the same when a node of the
    same name and GPUs joins; any other node that joins has new GPUs.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        gpus: Sequence[str] = (),
        types: Collection[str] = (),
        emulate: bool = True,
        silence_s: float = 20.0,
        reference_bytes: int = 1 << 20,
    ) -> None:
        self._types = types
        self._silence_s = silence_s
        self._reference_bytes = reference_bytes
        self._changed = threading.Condition(threading.RLock())
        self._hosts: list[_Host] = []
        self._workers: list[_Actor] = []
        self._due: list[tuple[float, int]] = []
        self._untold: list[Report] = []
        self._kept_by: dict[str, set[str]] = {}  # by process: keys of values that it told of
        self.refused = ""  # a node that joined, and why it is not used
        self._report: Callable[[Report], None] | None = None
        self._served: dict[str, ServedModel] = {}
        self._closing = False
        self._secret = secrets.token_bytes(32)
        self._numbers = count()
        emulated = {emulated_gpu(type): float(gpus.count(type)) for type in {*gpus}}
        self._ray = RayProcesses(address, self._take, emulated if emulate else {"GPU": float(len(gpus))})
        try:
            for node in self._ray.nodes:
                self._add(node, gpus_of(node, types))
            if not self._workers:
                raise InputError(
                    f"no node of the Ray cluster at {self._ray.gcs} has a GPU, nor the resource dovetail_gpu (an "
                    "emulated one: ray start --resources '{\"dovetail_gpu\": 1}')"
                )
            self._listener = socket.create_server((self._ray.bind, 0))
        except BaseException:
            self._ray.close()
            raise
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (("keeper of actors", self._keep), ("calls of actors", self._accept))
        ]

    @property
    def places(self) -> Sequence[GpuPlace]:
        return tuple(place for host in self._hosts for place in host.places())

    def start(self, models: Mapping[str, ServedModel], report: Callable[[Report], None]) -> None:
        with self._changed:
            self._served, self._report = dict(models), report
            self._due = [(0.0, i) for i in range(len(self._workers))]
        for thread in self._threads:
            thread.start()
        self._take(NodesChanged(self._ray.nodes))  # which may have changed since the places were counted

    # --- commands ---------------------------------------------------------------------------------------

    def load(self, worker: int, model: str, window: tuple[int, ...]) -> None:
        self._send(worker, LoadModel(model, tuple(self._workers[gpu].device for gpu in window)))

    def unload(self, worker: int, model: str, keep: bool) -> None:
        self._send(worker, UnloadModel(model, keep))

    def call(self, worker: int, call: ModelCall) -> None:
        self._send(worker, MakeCall(call))

    def cancel(self, worker: int, call: str) -> None:
        self._send(worker, CancelCall(call))

    def _send(self, worker: int, command: Command) -> None:
        """To a worker that is gone nothing is sent: its loss was reported, or is about to be."""
        with self._changed:
            line, waiting = self._workers[worker].line, self._workers[worker].waiting
            if waiting is not None:
                encode(command)  # whoever gave what cannot be sent is told now
                waiting.append(command)
                return
        if line is not None:
            line.send(command)

    def restart(self, worker: int, why: str) -> None:
        with self._changed:
            self._end(self._workers[worker], why)
        self._tell()

    def fetch(self, reference: Reference, then: Callable[[Any], None]) -> None:
        def found(answer: ObjectFetched) -> None:
            then(BackEndError(f"it was lost: {answer.why}") if answer.why else unpack(answer.value))

        self._ray.fetch(reference.handle, found)

    def drop(self, references: Sequence[Reference]) -> None:
        keys = tuple(reference.handle for reference in references)
        with self._changed:
            for told in self._kept_by.values():
                told.difference_update(keys)
        self._ray.drop(keys)

    def status(self) -> list[dict[str, Any]]:
        with self._changed:
            return [self._said(i, worker) for i, worker in enumerate(self._workers)]

    def _said(self, i: int, worker: _Actor) -> dict[str, Any]:
        state = "up" if worker.ready else "starting" if worker.host.node else "gone"
        said = {
            "worker": i,
            "host": worker.host.label,
            "device": worker.device,
            "pid": worker.pid,
            "state": state,
            "starts": worker.starts,
            "models": dict(worker.line.models) if worker.line is not None else {},
        }
        trouble = self._ray.head_trouble or (worker.why if state != "up" else "") or self.refused
        return {**said, "trouble": trouble} if trouble else said

    def close(self) -> None:
        with self._changed:
            self._closing = True
            for worker in self._workers:
                if worker.line is not None:
                    worker.line.cut()  # a worker ends with its connection
            self._changed.notify_all()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._listener.close()
        self._ray.close()
        for worker in self._workers:
            if worker.line is not None:
                worker.line.close()

    # --- nodes: what Ray tells --------------------------------------------------------------------------

    def _add(self, node: RayNode, gpus: Sequence[NodeGpu]) -> _Host:
        names = [host.label for host in self._hosts]
        label = node.name if node.name not in names else f"{node.name}#{node.id[:6]}"
        host = _Host(label, node, gpus, len(self._workers))
        if gpus:
            self._hosts.append(host)
            places = host.places()
            self._workers += [_Actor(host, gpu, place.device) for gpu, place in zip(gpus, places, strict=True)]
        return host

    def _take(self, change: RayChange) -> None:
        with self._changed:
            if self._closing or self._report is None:
                return
            if isinstance(change, NodesChanged | RayUp):
                self._compare(change.nodes)
            elif isinstance(change, RayDown):
                self._compare((), change.why)
            elif isinstance(change, ProcessEnded):
                self._ended(change)
        self._tell()

    def _tell(self) -> None:
        """Report what was found while the lock was held: who is told may have one of its own."""
        with self._changed:
            untold, self._untold = self._untold, []
        for report in untold:
            assert self._report is not None
            self._report(report)

    def _compare(self, nodes: Sequence[RayNode], why: str = "its node has gone") -> None:
        """With the nodes that were there before."""
        alive = {node.id for node in nodes}
        for host in self._hosts:
            if host.node is not None and host.node not in alive:
                host.node = None
                for i in host.workers:
                    self._end(self._workers[i], why)
        known = {host.node for host in self._hosts}
        joined: list[GpuPlace] = []
        for node in nodes:
            if node.id in known:
                continue
            try:
                gpus = gpus_of(node, self._types)
            except InputError as error:
                self.refused = str(error)  # the others go on
                continue
            returned = self._away(node, gpus)
            host = returned or self._add(node, gpus)
            joined += [] if returned else host.places()
            host.node = node.id
            for i in host.workers:
                self._workers[i].pause_s = 0.0
                heapq.heappush(self._due, (0.0, i))
        if joined:
            self._untold.append(WorkersJoined(tuple(joined)))
        self._changed.notify_all()

    def _away(self, node: RayNode, gpus: Sequence[NodeGpu]) -> _Host | None:
        """The host that has gone and comes back as this node."""
        alike = [h for h in self._hosts if h.node is None and (h.name, h.gpus) == (node.name, tuple(gpus))]
        return alike[0] if alike else None

    def _ended(self, change: ProcessEnded) -> None:
        for i, worker in enumerate(self._workers):
            if worker.name == change.name:
                worker.why = worker.why or self._blamed(change.why)
                self._changed.notify_all()
                if worker.line is None:
                    self._later(i, worker)
                else:
                    worker.line.cut()

    def _blamed(self, why: str) -> str:
        """A node that has lost its head ends itself, before or after Ray's driver here: then the head is the reason."""
        head = self._ray.head_trouble
        return f"{why}; {head}" if head else why

    # --- the keeper's thread ------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Starts what is due, and ends what has fallen silent."""
        look_s, look_at_s = self._silence_s / _LOOKS, 0.0
        while True:
            with self._changed:
                now = time.monotonic()
                while self._due and self._due[0][0] <= now and not self._closing:
                    self._launch(heapq.heappop(self._due)[1])
                if now >= look_at_s:
                    look_at_s = now + look_s
                    self._look(now)
                if self._closing:
                    return
                if not self._untold:
                    until_s = min([look_at_s, *[at_s for at_s, _ in self._due[:1]]])
                    self._changed.wait(max(until_s - time.monotonic(), 0.0))
            self._tell()

    def _look(self, now: float) -> None:
        for worker in self._workers:
            if worker.line is not None:
                if worker.line.silent() >= _LOOKS:
                    self._end(worker, f"it was silent for {self._silence_s:g} s")
            elif worker.name is not None and now - worker.since_s > _START_S:
                self._end(worker, f"it did not start within {_START_S:g} s")

    def _launch(self, i: int) -> None:
        worker = self._workers[i]
        if worker.host.node is None or worker.name is not None:
            return
        worker.name, worker.since_s, worker.why = f"{i}.{next(self._numbers)}", time.monotonic(), ""
        worker.starts += 1
        port = self._listener.getsockname()[1]
        errand = ActorErrand(worker.name, i, self._ray.bind, port, self._secret, self._served, self._reference_bytes)
        self._ray.launch(
            LaunchProcess(
                worker.name,
                worker.host.node,
                _ENTRY,
                msgspec.msgpack.encode(errand),
                gpus=0.0 if worker.gpu.emulated else 1.0,
                resources=worker.gpu.resources,
            )
        )

    def _end(self, worker: _Actor, why: str) -> None:
        """By force; its reader notices."""
        worker.why = worker.why or why
        if worker.name is not None:
            self._ray.kill(worker.name)
        if worker.line is None:
            self._later(self._workers.index(worker), worker)
        else:
            worker.line.cut()

    def _later(self, i: int, worker: _Actor) -> None:
        """Its process is gone: it is started anew, at once if it lived long."""
        pause_s = 0.0 if time.monotonic() - worker.since_s > _STEADY_S else worker.pause_s
        worker.pause_s = min(max(2 * pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
        worker.name = worker.pid = None
        if worker.waiting is not None:
            worker.waiting = None
            self._untold.append(WorkerLost(i, worker.why))
        heapq.heappush(self._due, (time.monotonic() + pause_s, i))
        self._changed.notify_all()

    # --- calls of actors ----------------------------------------------------------------------------------

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                threading.Thread(target=self._greet, args=(caller,), name="greeting", daemon=True).start()

    def _greet(self, caller: socket.socket) -> None:
        """Only who knows the secret is let in, and nobody is waited for long."""
        limit = struct.pack("ll", int(_GREETING_S), 0)
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        connection: Connection[Any, Any] = Connection(caller.detach())
        try:
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            greeting = msgspec.msgpack.decode(connection.recv_bytes(1 << 16), type=ActorGreeting)
        except (OSError, EOFError, AuthenticationError, msgspec.MsgspecError):
            connection.close()
            return
        no_delay(connection)
        with self._changed:
            i, _, _ = greeting.name.partition(".")
            worker = self._workers[int(i)] if i.isdecimal() and int(i) < len(self._workers) else None
            if worker is None or worker.name != greeting.name or worker.line is not None or self._closing:
                connection.close()
                return
            worker.pid = greeting.pid
            if not worker.gpu.emulated and greeting.gpus:
                worker.device = f"cuda:{greeting.gpus[0]}"
            heard, gone = partial(self._heard, int(i)), partial(self._gone, int(i))
            worker.line = WorkerLine(connection, heard, gone, f"worker {i}")
            for command in worker.waiting or ():
                worker.line.send(command)
            worker.waiting = None

    def _heard(self, i: int, report: WorkerReport) -> None:
        worker = self._workers[i]
        if isinstance(report, WorkerReady):
            worker.ready = True
        elif isinstance(report, Answer) and (kept := [each.handle for each in references_in(report.outputs)]):
            with self._changed:
                assert worker.name is not None
                self._kept_by.setdefault(worker.name, set()).update(kept)
        assert self._report is not None
        self._report(report)  # type: ignore[arg-type]

    def _gone(self, i: int, line: WorkerLine) -> None:
        worker = self._workers[i]
        with self._changed:
            worker.ready = False
            if self._closing:
                return
            self._changed.wait_for(lambda: worker.why or self._closing, _REASON_S)
            assert worker.name is not None
            self._ray.kill(worker.name)  # it may only be unreachable
            self._ray.abandon(worker.name, tuple(self._kept_by.pop(worker.name, ())))
            why = worker.why or self._blamed("its connection was closed")
        assert self._report is not None
        self._report(WorkerLost(i, why))
        with self._changed:  # until now the line was there, and nobody else started it anew
            worker.line = None
            self._later(i, worker)
        line.close()
