"""Processes on the nodes of a Ray cluster, for a service that outlives whatever happens to Ray."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path

from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError, MissingExtraError
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
    ProcessEnded,
    RayReady,
    RayRefused,
    RunCell,
)
from dovetail.core.service.ray_start import RayNode, environment

# Not `-m`: nothing of the caller's own script may run again, and the module must not be imported twice.
_COMMAND = "from dovetail.core.service.ray_driver import main; main()"
_AGAIN_S = 1.0  # between attempts to reach a cluster that is away
_GRACE_S = 15.0  # for the driver to leave
_LONGEST_FOLDER = 40  # Ray's sockets are below it, and their paths may have 107 characters


class RayDown(Struct, frozen=True):
    """Ray is gone with everything that it carried; `RayUp` follows when it is there again."""

    why: str


class RayUp(Struct, frozen=True):
    nodes: tuple[RayNode, ...]


RayChange = RayDown | RayUp | NodesChanged | ProcessEnded | CellEnded | HeadGone | HeadBack


class RayProcesses:
    """Starts and ends processes on the nodes of a cluster, and tells what becomes of them and of the nodes.

    Without an address a Ray of its own is started on this machine's loopback interface, with the given `resources`, of
    which `GPU` are real ones. `tell` is called from one thread. A cluster that goes away is joined again as soon as it
    can be reached; so is one that is away now, for who is `patient`, and has no `nodes` until then.
    """

    def __init__(
        self,
        address: str | None,
        tell: Callable[[RayChange], None],
        resources: Mapping[str, float] | None = None,
        patient: bool = False,
    ) -> None:
        if find_spec("ray") is None:
            raise MissingExtraError("ray", "Ray", "the ray engine")
        self._address = address
        self._tell = tell
        self._resources = dict(resources or {})
        self._folder = Path(tempfile.mkdtemp(prefix="dt-", dir=_short_folder()))
        self._closing = threading.Event()
        self._fetching: dict[str, list[Callable[[ObjectFetched], None]]] = {}
        self._lock = threading.Lock()
        self._down = ""  # why nobody can be asked
        self.head_trouble: str | None = None  # why nothing can be started now
        self.bind = self.gcs = ""
        self.nodes: tuple[RayNode, ...] = ()
        try:
            self._joined(self._begin())
        except BaseException as error:
            if not patient or not isinstance(error, DovetailError):
                shutil.rmtree(self._folder, ignore_errors=True)
                raise
            self._down = self.head_trouble = str(error)
        self._thread = threading.Thread(target=self._follow, name="ray", daemon=True)
        self._thread.start()

    # --- what a service asks; nothing here waits for Ray ---

    def launch(self, order: LaunchProcess) -> None:
        self._send(order)

    def run(self, order: RunCell) -> None:
        self._send(order)

    def kill(self, name: str) -> None:
        self._send(KillProcess(name))

    def fetch(self, key: str, then: Callable[[ObjectFetched], None]) -> None:
        """Bring an object of the store here; `then` is called from the thread that tells, or at once."""
        with self._lock:
            down = self._down
            if not down:
                self._fetching.setdefault(key, []).append(then)
        if down:
            then(ObjectFetched(key, why=down))
        else:
            self._send(FetchObject(key))

    def drop(self, keys: tuple[str, ...]) -> None:
        self._send(DropObjects(keys))

    def abandon(self, owner: str, known: tuple[str, ...]) -> None:
        """Drop what a process kept that is gone, but for what is known of it."""
        self._send(AbandonObjects(owner, known))

    def close(self) -> None:
        self._closing.set()
        self._hang_up()
        self._thread.join()
        self._end_driver()
        self._lose("the service has closed it")
        shutil.rmtree(self._folder, ignore_errors=True)

    # --- the process that speaks with Ray ---

    def _begin(self) -> RayReady:
        """Start it; returns when Ray is there. Raises what Ray has against it."""
        self._folder.mkdir(mode=0o700, exist_ok=True)  # temporary files are cleaned away in the end
        near, far = socket.socketpair()
        with near, far, (self._folder / "driver.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, str(far.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,  # Ray tells of dead workers there
                stderr=log,
                pass_fds=(far.fileno(),),
                env=environment(self._address, os.environ),
                start_new_session=True,  # Ctrl-C is the service's to hear
            )
            self._socket = near.dup()
            self._messages = Messages(Connection(near.detach()))
        self._send(JoinRay(self._address, self._resources, str(self._folder / "ray")))
        try:
            news = self._messages.news()
        except (EOFError, OSError):
            why = self._last_words()
            self._end_driver()
            raise DovetailError(f"Ray did not start: {why}") from None
        if isinstance(news, RayRefused):
            self._end_driver()
            raise (InputError if news.user else DovetailError)(news.why)
        assert isinstance(news, RayReady)
        return news

    def _last_words(self) -> str:
        code = self._process.wait()
        lines: list[str] = []
        with suppress(OSError):
            lines = (self._folder / "driver.log").read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"its driver ended with exit code {code}"

    def _hang_up(self) -> None:
        """Which the driver takes as the order to leave."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def _end_driver(self) -> None:
        self._hang_up()
        try:
            self._process.wait(timeout=_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._messages.close()
        self._socket.close()

    def _send(self, message: Struct) -> None:
        with suppress(OSError):  # the thread that follows finds it out
            self._messages.send(message)

    def _follow(self) -> None:
        if self._down:
            self._rejoin()
        while not self._closing.is_set():
            try:
                self._take(self._messages.news())
            except (EOFError, OSError):
                if not self._closing.is_set():
                    self._restart()

    def _take(self, news: News) -> None:
        if isinstance(news, ObjectFetched):
            with self._lock:
                waiting = self._fetching.pop(news.key, [])
            for then in waiting:
                then(news)
            return
        if isinstance(news, HeadGone | HeadBack):
            self.head_trouble = news.why if isinstance(news, HeadGone) else None
        elif isinstance(news, NodesChanged):
            self.nodes = news.nodes
        assert not isinstance(news, RayReady | RayRefused)
        self._tell(news)

    def _restart(self) -> None:
        """Ray has ended its driver, and with it whatever that had started."""
        why = self.head_trouble or f"Ray ended its driver: {self._last_words()}"
        self._end_driver()
        self.head_trouble, self.nodes = why, ()
        self._tell(RayDown(why))
        self._lose(why)
        self._rejoin()

    def _rejoin(self) -> None:
        while not self._closing.is_set():
            try:
                up = self._begin()
            except (DovetailError, OSError) as error:  # of the system too: no room for a process just now
                self.head_trouble = str(error)
                self._closing.wait(_AGAIN_S)
                continue
            self._joined(up)
            self._tell(RayUp(up.nodes))
            return

    def _joined(self, up: RayReady) -> None:
        self.bind, self.gcs, self.nodes, self.head_trouble = up.bind, up.gcs, up.nodes, None
        with self._lock:
            self._down = ""

    def _lose(self, why: str) -> None:
        """Who waits for an object, or comes to ask for one, is told that it cannot be had."""
        with self._lock:
            self._down, lost, self._fetching = why, self._fetching, {}
        for key, waiting in lost.items():
            for then in waiting:
                then(ObjectFetched(key, why=why))


def _short_folder() -> str:
    folder = tempfile.gettempdir()
    return folder if len(folder) + len("/dt-12345678/ray") <= _LONGEST_FOLDER else "/tmp"
