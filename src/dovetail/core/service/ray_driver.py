"""The process that speaks with Ray for a service.

Ray ends a driver that has lost its head, without an exception; it writes to its standard output; and a restarted head
may make it abort. None of this may happen to a service, so it is done here: what dies with this process is started
anew, and the service goes on.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import traceback
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.service.ray_messages import (
    AbandonObjects,
    CellEnded,
    DropObjects,
    FetchObject,
    HeadBack,
    HeadGone,
    JoinRay,
    KillProcess,
    LaunchProcess,
    Messages,
    News,
    NodesChanged,
    ObjectFetched,
    Order,
    ProcessEnded,
    RayReady,
    RayRefused,
    RunCell,
)
from dovetail.core.service.ray_start import alive_nodes, connect, gcs_of, import_ray, placed_on
from dovetail.core.service.ray_store import ObjectKeeper, RayStore

_LOOK_S = 0.5  # how often nodes are counted and the head is knocked at
_KNOCK_S = 2.0
_GRACE_S = 10.0  # for Ray to leave
_RETRIES = 5  # of a cell whose process or node has died
_STORE_BYTES = 256 << 20  # of a Ray of our own


class _Process:
    """The actor that carries one process."""

    def run(self, entry: str, argument: bytes, store: Any, owner: str) -> None:
        module, _, name = entry.partition(":")
        getattr(import_module(module), name)(argument, RayStore(store, owner))


def _work(errand: bytes) -> bytes:
    from dovetail.core.service.ray_cells import work

    return work(errand)


class _Driver:
    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self._ray: Any = None
        self._actors: dict[str, Any] = {}
        self._task: Any = None
        self._over = threading.Event()

    def serve(self, asked: JoinRay) -> None:
        try:
            self._ray = ray = import_ray("the ray engine")
            self._connect(asked)
        except DovetailError as error:
            self._tell(RayRefused(str(error), isinstance(error, InputError)))
            return
        here = ray.get_runtime_context().get_node_id()
        keeper = ray.remote(ObjectKeeper).options(num_cpus=0, max_concurrency=8, scheduling_strategy=placed_on(here))
        self._keeper = keeper.remote()
        self._store = RayStore(self._keeper)
        self._gcs = ray.get_runtime_context().gcs_address
        self._nodes = tuple(alive_nodes(ray))
        self._tell(RayReady(ray.util.get_node_ip_address(), self._gcs, self._nodes))
        threading.Thread(target=self._watch_nodes, daemon=True).start()
        threading.Thread(target=self._watch_head, daemon=True).start()
        while True:
            self._obey(self._messages.order())

    def _connect(self, asked: JoinRay) -> None:
        if asked.address is not None:
            return connect(self._ray, asked.address)
        return connect(
            self._ray,
            "local",
            num_gpus=int(asked.resources.get("GPU", 0)),
            resources={name: amount for name, amount in asked.resources.items() if name != "GPU"},
            include_dashboard=False,
            configure_logging=False,
            object_store_memory=_STORE_BYTES,
            _temp_dir=asked.folder,
        )

    def _obey(self, order: Order) -> None:
        if isinstance(order, LaunchProcess):
            self._launch(order)
        elif isinstance(order, RunCell):
            self._run(order)
        elif isinstance(order, KillProcess):
            if (actor := self._actors.get(order.name)) is not None:
                with suppress(self._ray.exceptions.RayError):
                    self._ray.kill(actor)
        elif isinstance(order, FetchObject):
            threading.Thread(target=self._fetch, args=(order.key,), daemon=True).start()
        elif isinstance(order, DropObjects):
            self._keeper.drop.remote(order.keys)
        elif isinstance(order, AbandonObjects):
            self._keeper.abandon.remote(order.owner, order.known)

    def _launch(self, order: LaunchProcess) -> None:
        actor = (
            self._ray.remote(_Process)
            .options(
                num_cpus=0,
                num_gpus=order.gpus,
                resources=order.resources,
                max_restarts=0,  # whoever asked for it starts it again, and knows
                scheduling_strategy=placed_on(order.node),
                # A model may span GPUs of which Ray gave each to another process.
                runtime_env={"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}} if order.gpus else None,
            )
            .remote()
        )
        self._actors[order.name] = actor
        ended = actor.run.remote(order.entry, order.argument, self._keeper, order.name).future()
        ended.add_done_callback(lambda future: self._ended(order.name, actor, future.exception()))

    def _run(self, order: RunCell) -> None:
        def ended(future: Any) -> None:
            error = future.exception()
            why = "" if error is None else _detail(str(error)) or repr(error)
            self._tell(CellEnded(order.cell, b"" if why else future.result(), why))

        self._task = self._task or self._ray.remote(num_cpus=1, max_retries=_RETRIES)(_work)
        self._task.remote(order.errand).future().add_done_callback(ended)

    def _ended(self, name: str, actor: Any, error: BaseException | None) -> None:
        if self._actors.get(name) is actor:
            del self._actors[name]
        why = "its process ended"
        if isinstance(error, self._ray.exceptions.RayTaskError):
            why = f"its process failed: {error.cause}"
        elif error is not None:
            why = f"its actor died: {_detail(str(error))}"
        self._tell(ProcessEnded(name, why))

    def _fetch(self, key: str) -> None:
        try:
            self._tell(ObjectFetched(key, bytes(self._store.get(key))))
        except Exception as error:
            self._tell(ObjectFetched(key, why=" ".join(str(error).split())[:300] or repr(error)))

    def _watch_nodes(self) -> None:
        while not self._over.wait(_LOOK_S):
            try:
                nodes = tuple(alive_nodes(self._ray))  # without a head it waits, or ends this process
            except Exception:  # what Ray cannot say now it is asked again
                traceback.print_exc()
                continue
            if nodes != self._nodes:
                self._nodes = nodes
                self._tell(NodesChanged(nodes))

    def _watch_head(self) -> None:
        there, gcs = True, gcs_of(self._gcs)
        while gcs is not None and not self._over.wait(_LOOK_S):
            try:
                socket.create_connection(gcs, timeout=_KNOCK_S).close()
                if not there:
                    self._tell(HeadBack())
                there = True
            except OSError as error:
                if there:
                    self._tell(HeadGone(f"Ray's head at {self._gcs} does not answer: {error}"))
                there = False

    def _tell(self, news: News) -> None:
        with suppress(OSError):
            self._messages.send(news)

    def leave(self, folder: str) -> None:
        """And take a Ray of our own away, with its files: the service may be gone too."""
        self._over.set()
        late = threading.Timer(_GRACE_S, os._exit, (1,))
        late.daemon = True
        late.start()
        if self._ray is not None:
            self._ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _detail(said: str) -> str:
    """What matters of Ray's words.

    >>> _detail("It died.\\n\\tactor_id: 1\\nThe actor is dead because its worker process has died. Ask others.")
    'its worker process has died'
    """
    told = " ".join(said.split())
    for before in ("exit detail: ", "is dead because "):
        told = told.rpartition(before)[2]
    return told.split(". ")[0][:300].rstrip(".")


def main() -> None:
    """In a process with a connection as the file descriptor of its first argument; it ends with the other end."""
    messages = Messages(Connection(int(sys.argv[1])))
    driver = _Driver(messages)
    asked = messages.order()
    assert isinstance(asked, JoinRay)
    with suppress(EOFError, OSError):
        driver.serve(asked)
    driver.leave(asked.folder)
    os._exit(0)  # Ray's own threads may not
