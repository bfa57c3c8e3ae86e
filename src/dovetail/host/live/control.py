"""The daemon's side of a resize: a folder for each program, with the target it is to reach and a socket for its agent.

The target file is the truth: it is replaced as a whole, and its number `gen` only grows, so whoever was restarted reads
it and knows. The socket tells at once what the file says, and brings back when the program has done it.
"""

from __future__ import annotations

import os
import selectors
import shutil
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

import msgspec
from msgspec import Struct

from dovetail.core.service import shim
from dovetail.host.agent import SOCKET_FILE, TARGET_FILE

_LONGEST_LINE = 1 << 16
_LONGEST_WAIT_S = 30.0
_MOST_SPARE = 32
CONTROL = "control"  # of a program's own folder, what it sees


class CoreTarget(Struct, frozen=True, omit_defaults=True):
    """What a program should use from now on; a shrinking one has until the deadline (seconds since 1970)."""

    gen: int
    cores: int
    cpus: tuple[int, ...]
    inter: int = 1
    intra: int = 0
    deadline: float | None = None


class Progress(Struct, frozen=True):
    """How far a program is; `rate` is in steps per second since it last said so, all on `cores` if that is known."""

    step: int = 0
    total: int | None = None
    rate: float | None = None
    metrics: dict[str, float] = {}
    cores: int | None = None


class AgentHello(Struct, frozen=True):
    program: str = ""
    pid: int = 0
    malleable: str = "live"
    max_threads: int | None = None


class AgentMessage(Struct, frozen=True):
    """A line of an agent."""

    hello: AgentHello | None = None
    ack: int | None = None
    threads: int | None = None
    step: int | None = None
    t: float | None = None
    progress: Progress | None = None


class AgentLine(Struct, eq=False):
    """What is known of one program's agent; `answered_s` is how long it last took to reach a target, `home` the
    program's own folder, `written` what the target file says, and `told` whether that is this program's target."""

    home: str
    listener: socket.socket
    gen: int = 0
    hello: AgentHello | None = None
    told_at: float = 0.0
    acknowledged: int = 0
    answered_s: float | None = None
    threads: int | None = None
    progress: Progress = Progress()
    connection: socket.socket | None = None
    pending: bytes = b""
    written: CoreTarget | None = None
    told: bool = False

    def says(self, cpus: Sequence[int]) -> bool:
        """Whether the file of a program that has ended says what another is to be told: nothing is to be written."""
        written = self.written
        return written is not None and not self.told and written.cpus == tuple(cpus) and written.deadline is None


_decode = msgspec.json.Decoder(AgentMessage).decode


class Control:
    """The control folders of all programs of a daemon; one thread listens to their agents."""

    def __init__(self) -> None:
        self._lines: dict[str, AgentLine] = {}
        self._spare: list[AgentLine] = []  # of programs that have ended
        self._rubbish: list[str] = []  # folders that nobody needs
        self._numbers = count()
        self._heard = threading.Condition()
        self._selector = selectors.EpollSelector()
        self._wake, wake = socket.socketpair()
        self._selector.register(wake, selectors.EVENT_READ, None)
        self._listener = threading.Thread(target=self._listen, args=(wake,), name="agents", daemon=True)
        self._listener.start()

    def open(self, run: str, home: str, cpus: Sequence[int] = ()) -> None:
        """Listen for the agent of a program, in a folder of its own; what that says already stays true. If there are
        folders to be used again, one whose last program had these processors is best."""
        with self._heard:
            if run in self._lines:
                return
            line = self._reused(home, cpus)
            if line is None:
                folder = f"{home}/{CONTROL}"
                os.makedirs(folder, exist_ok=True)
                line = AgentLine(home, _bind(folder))
                self._selector.register(line.listener, selectors.EVENT_READ, line)  # which epoll sees at once
                with suppress(FileNotFoundError, msgspec.DecodeError), open(f"{folder}/{TARGET_FILE}", "rb") as file:
                    line.gen = msgspec.json.decode(file.read(), type=CoreTarget).gen
            self._lines[run] = line

    def has_spare(self, cpus: Sequence[int]) -> bool:
        """Whether a program on these processors can have the folder of another as it is."""
        return any(line.says(cpus) for line in self._spare)

    def _reused(self, home: str, cpus: Sequence[int]) -> AgentLine | None:
        """The folder of a program that has ended, under another name: less work than making and removing one."""
        if not self._spare:
            return None
        best = next((i for i, line in enumerate(self._spare) if line.says(cpus)), -1)
        line = self._spare.pop(best)
        try:
            os.rename(line.home, home)
        except OSError:  # what is there already stays true
            self._spare.append(line)
            return None
        line.home = home
        line.hello, line.acknowledged, line.answered_s, line.threads, line.progress = None, 0, None, None, Progress()
        return line

    def tell(self, run: str, cpus: Sequence[int], within_s: float | None = None) -> int:
        """Set a new target; gives its number. A program that has just ended has none any more."""
        with self._heard:
            line = self._lines.get(run)
            if line is None:
                return 0
            if within_s is None and line.says(cpus):
                line.told, line.told_at = True, time.monotonic()
                return line.gen
            line.gen += 1
            deadline = None if within_s is None else time.time() + within_s
            target = CoreTarget(line.gen, len(cpus), tuple(cpus), intra=len(cpus), deadline=deadline)
            path = f"{line.home}/{CONTROL}/{TARGET_FILE}"
            with open(f"{path}.part", "wb", buffering=0) as file:
                file.write(msgspec.json.encode(target))  # of no use to anybody after the machine's end
            os.rename(f"{path}.part", path)
            line.written, line.told = target, True
            line.told_at = time.monotonic()
            if line.connection is not None:
                with suppress(OSError):
                    line.connection.send(b'{"look":%d}\n' % line.gen)
            return line.gen

    def wait(self, run: str, gen: int, limit_s: float) -> bool:
        """Wait until the agent says that it has reached a target; False without an agent, or at the limit."""
        with self._heard:
            line = self._lines.get(run)
            if line is None or line.hello is None:
                return False
            rate = line.progress.rate or 0.0
            limit_s = min(max(limit_s, 2 / rate), _LONGEST_WAIT_S) if rate else limit_s
            return self._heard.wait_for(lambda: line.acknowledged >= gen or line.connection is None, limit_s) and (
                line.acknowledged >= gen
            )

    def line(self, run: str) -> AgentLine | None:
        return self._lines.get(run)

    def close(self, run: str, reuse: bool = False, may_wait: bool = True) -> None:
        """Remove the folder of a program that has ended, or keep it for another. It gets a name that nobody knows
        first: who was asked to start the program before, and comes only now, finds nothing. Who may not wait for a disk
        leaves what is to be removed to `sweep`."""
        with self._heard:
            line = self._lines.pop(run, None)
            if line is None:
                return
            self._drop(line)
        place = f"{os.path.dirname(line.home)}/over-{next(self._numbers)}"
        with suppress(OSError):  # without the lock: a disk may take its time
            os.rename(line.home, place)
            line.home = place
            if reuse and len(self._spare) < _MOST_SPARE and _wiped(line):
                line.told = False
                self._spare.append(line)
                return
        with self._heard:
            self._selector.unregister(line.listener)
            line.listener.close()
        self._rubbish.append(line.home)
        if may_wait:
            self.sweep()

    def sweep(self) -> None:
        """Remove the folders that were left to be."""
        with suppress(IndexError):
            while True:
                shutil.rmtree(self._rubbish.pop(), ignore_errors=True)

    def close_all(self) -> None:
        """Stop listening; the folders stay, for the next daemon."""
        self._wake.send(b"x")
        self._listener.join()
        for line in (*self._lines.values(), *self._spare):
            self._drop(line)
            line.listener.close()
        self._rubbish += [line.home for line in self._spare]
        self.sweep()
        self._lines.clear()
        self._spare.clear()
        self._selector.close()
        self._wake.close()

    # --- the listening thread -----------------------------------------------------------------------

    def _listen(self, wake: socket.socket) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.data is None:
                    if wake.recv(4096).endswith(b"x"):
                        wake.close()
                        return
                    continue
                with self._heard:
                    line: AgentLine = key.data
                    if key.fileobj is line.listener:
                        self._accept(line)
                    elif key.fileobj is line.connection:
                        self._read(line)
                    self._heard.notify_all()

    def _accept(self, line: AgentLine) -> None:
        """The latest connection counts: a program that was restarted within its attempt has a new agent."""
        self._drop(line)
        with suppress(OSError):
            line.connection, _ = line.listener.accept()
            line.connection.setblocking(False)
            line.pending = b""
            self._selector.register(line.connection, selectors.EVENT_READ, line)

    def _read(self, line: AgentLine) -> None:
        assert line.connection is not None
        try:
            data = line.connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *whole, line.pending = (line.pending + data).split(b"\n")
        try:
            for text in whole:
                self._take(line, _decode(text))
        except msgspec.DecodeError:
            data = b""
        if not data or len(line.pending) > _LONGEST_LINE:
            self._drop(line)

    def _take(self, line: AgentLine, message: AgentMessage) -> None:
        line.hello = message.hello or line.hello
        line.progress = message.progress or line.progress
        if message.ack is not None:
            if message.hello is None and line.acknowledged < message.ack == line.gen:
                line.answered_s = time.monotonic() - line.told_at
            line.acknowledged = max(line.acknowledged, message.ack)
            line.threads = message.threads

    def _drop(self, line: AgentLine) -> None:
        if line.connection is not None:
            self._selector.unregister(line.connection)
            line.connection.close()
            line.connection = None


def _wiped(line: AgentLine) -> bool:
    """Whether a folder has nothing in it any more but what the next program needs too: what we last told, in a file
    that nobody has changed, and files for its parent process to fill."""
    home, control = line.home, f"{line.home}/{CONTROL}"
    if sorted(os.listdir(control)) != [SOCKET_FILE, TARGET_FILE]:
        return False
    with open(f"{control}/{TARGET_FILE}", "rb", buffering=0) as file:
        if line.written is None or file.read() != msgspec.json.encode(line.written):
            return False
    for name in os.listdir(home):
        if name in shim.KEPT:
            os.rename(f"{home}/{name}", f"{home}/{name}{shim.SPARE}")
        elif name != CONTROL and name.removesuffix(shim.SPARE) not in shim.KEPT:
            os.unlink(f"{home}/{name}")
    return True


def _bind(folder: str) -> socket.socket:
    """Listen in a folder, however long its name is: an address holds some 100 bytes only."""
    with suppress(FileNotFoundError):
        os.unlink(f"{folder}/{SOCKET_FILE}")
    listener = socket.socket(socket.AF_UNIX)
    directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{directory}/{SOCKET_FILE}")
    finally:
        os.close(directory)
    os.chmod(f"{folder}/{SOCKET_FILE}", 0o600)
    listener.listen(4)
    listener.setblocking(False)
    return listener
