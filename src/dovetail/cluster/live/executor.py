"""Carries out what the rounds decide: leases go out to the agents of nodes, and what these say comes back as rows."""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from typing import Any

from dovetail.cluster.live.agent_link import AgentErrand
from dovetail.cluster.live.checkpoints import JobFolder
from dovetail.cluster.live.launch import agent_folder, last_words, launch_here
from dovetail.cluster.live.lease_book import LeaseBook
from dovetail.cluster.live.live_leases import LiveNode
from dovetail.cluster.live.nodes import ClusterNode
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.live.wire import (
    AgentBeat,
    AgentConnection,
    LeaseState,
    LeaveNode,
    NodeLeases,
    NodeTrouble,
    ProcessEvent,
    StopAsked,
    TrainingCommand,
)
from dovetail.core.errors import DovetailError
from dovetail.core.events import Rows

Watch = Callable[[LeaseState | NodeTrouble | ProcessEvent, float], None]
Launch = Callable[[ClusterNode, AgentErrand], None]

_COPIES = 4  # of checkpoints at once
_AGAIN_S = 0.1
_PROOF_S = 10.0  # for an agent to prove who it is
_LAUNCH_S, _MOST_LAUNCH_S = 1.0, 16.0  # between attempts to start an agent, each time longer
_TRIES = 2  # after which it is told that none comes
_LEAVE_S = 15.0  # beside grace and kill, for agents to leave
_FIRST_WORD_S = 10.0  # for an agent that was just started, before it is told to leave
_SLEPT = 3.0  # beats: who comes back so late was stopped itself, and nobody else is to blame


def _nobody(message: LeaseState | NodeTrouble | ProcessEvent, now: float) -> None:
    pass


class _AgentLine(AgentConnection):
    """To an agent that may be stopped: what it is told is sent by a thread, and the newest is enough."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        super().__init__(connection)
        self._changed = threading.Condition()
        self._next: NodeLeases | LeaveNode | None = None
        self._over = False
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    def say(self, message: NodeLeases | LeaveNode) -> None:
        with self._changed:
            if not isinstance(self._next, LeaveNode):
                self._next = message
            self._changed.notify()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._next is not None)
                if self._over or self._next is None:
                    return
                message, self._next = self._next, None
            try:
                self.send(message)
            except (OSError, ValueError):
                return  # the reader finds it out

    def close(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify()
        self.hang_up()
        self._writer.join()
        super().close()


class AgentExecutor:
    """Brings agents to run what is decided. `report` takes rows, from any thread: `progress`, `completed`, `exited`,
    and `failed` or `mended` when an agent falls silent or comes back. `commands` says what a job runs. `watch` is told
    what agents say, with the seconds of the run's clock. `launch` starts the agent of a node.

    Agents dial `host` and `port` and prove that they know the `secret`; all three must be the same after a restart, or
    agents that run are never heard of again. `longest_s` is the longest round that a service before this one had.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        round_s: float,
        commands: Callable[[int], TrainingCommand],
        report: Callable[[Rows], None],
        *,
        secret: bytes,
        host: str = "127.0.0.1",
        port: int = 0,
        launch: Launch | None = None,
        watch: Watch = _nobody,
        trouble: Callable[[str, str], None] = lambda node, why: None,
        longest_s: float = 0.0,
    ) -> None:
        self._commands = commands
        self._secret = secret
        self._longest_s = max(longest_s, round_s)
        self._close_s = (settings.grace + settings.kill_after) * round_s + _LEAVE_S
        self._watch = watch
        self._trouble = trouble
        self._told: dict[str, str] = {}  # why an agent does not come, by node
        self._launch = launch or (lambda node, errand: launch_here(errand))
        self._launched: dict[str, tuple[float, int]] = {}  # when, and how often since it was last heard of
        self._lines: dict[str, _AgentLine] = {}
        self._clock = 0.0  # what the monotonic clock shows at second 0 of the run
        self._changed = threading.Condition(threading.RLock())
        self._ready = self._closing = self._leaving = self._dismisses = False
        self._launching = threading.Lock()
        self._copies = ThreadPoolExecutor(_COPIES, "checkpoints")
        self._book = LeaseBook(settings, round_s, commands, report, self._prepare)
        self._listener = Listener((host, port), backlog=128)
        self.host, self.port = self._listener.address[0], int(self._listener.address[1])
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._accept, self._work)]
        for thread in self._threads:
            thread.start()

    # --- what a service asks ----------------------------------------------------------------------------

    def add_node(self, node: ClusterNode, numbers: range) -> None:
        """A node with accelerators of these numbers; its agent is started, unless one dials in first."""
        with self._changed:
            self._book.add_node(node, numbers, time.monotonic())
            self._changed.notify_all()

    def lose_node(self, name: str) -> None:
        """A node is gone, as Ray says. Once its agent is silent, what ran there may begin elsewhere after its lease."""
        with self._changed:
            self._book.lose_node(name)
            self._changed.notify_all()

    def carry(self, rows: Sequence[Rows], now: float, ends_s: float) -> None:
        """Carry out one step; leases that are not told to end last until `ends_s` of the run's clock."""
        with self._changed:
            here = time.monotonic()
            self._clock, self._ready = here - now, True
            self._book.carry(rows, here, self._clock + ends_s)
            self._changed.notify_all()

    def restore(self, leases: Mapping[int, Any], now: float, ends_s: float, drained: Iterable[int] = ()) -> None:
        """After a restart: what ought to run. What does is left alone."""
        with self._changed:
            here = time.monotonic()
            self._clock, self._ready = here - now, True
            self._book.restore(leases, here, self._clock + ends_s, self._longest_s, drained)
            self._changed.notify_all()

    def close(self, leave: bool = False) -> None:
        """Agents and what they run go on, unless they are to `leave`; then all of it has ended when this returns."""
        with self._launching:
            self._leaving = True  # nobody is started any more
        if leave:
            with self._changed:
                self._changed.wait_for(lambda: not self._awaited(), _FIRST_WORD_S)
                self._dismisses = True  # whoever dials in now, too
                lines = list(self._lines.values())
            for line in lines:
                line.say(LeaveNode())
            with self._changed:
                self._changed.wait_for(lambda: not self._lines, self._close_s)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            for line in self._lines.values():
                line.hang_up()
        with suppress(OSError):
            socket.create_connection((self.host, self.port)).close()  # which wakes who waits for one
        for thread in self._threads:
            thread.join()
        with self._changed:
            self._changed.wait_for(lambda: not self._lines)
        self._listener.close()
        self._copies.shutdown()

    def _awaited(self) -> list[str]:
        """Agents that were started, and have not been heard of yet."""
        nodes = self._book.nodes
        return [name for name in self._launched if name not in self._lines and name in nodes and not nodes[name].down]

    # --- agents -----------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except OSError:
                time.sleep(_AGAIN_S)  # no room for another, perhaps
                continue
            if self._closing:
                connection.close()
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: Connection[Any, Any]) -> None:
        """Listen to one agent, from its first beat to its end."""
        line, name = _AgentLine(connection), ""
        try:
            line.wait_at_most(_PROOF_S)
            deliver_challenge(connection, self._secret)
            answer_challenge(connection, self._secret)
            line.wait_at_most(0.0)
            while not self._closing:
                message = line.from_agent()
                with self._changed:  # as long as it is not known what ought to run, nobody is told to stop
                    self._changed.wait_for(lambda: self._ready or self._closing)
                    if isinstance(message, AgentBeat) and not name:
                        name = self._meet(message, line)
                        if not name:
                            return
                    said = self._hear(message)
                    self._changed.notify_all()
                    now = time.monotonic() - self._clock
                for each in said:  # without the lock: whoever watches may have one, and ask us something
                    self._watch(each, now)
        except (OSError, EOFError, AuthenticationError):
            pass
        finally:
            with self._changed:
                if self._lines.get(name) is line:
                    del self._lines[name]
                    self._book.linked(name)
                self._changed.notify_all()
            line.close()

    def _meet(self, beat: AgentBeat, line: _AgentLine) -> str:
        if beat.node not in self._book.nodes or self._closing:
            return ""
        if (old := self._lines.get(beat.node)) is not None:
            old.hang_up()
        self._lines[beat.node] = line
        self._launched[beat.node] = (time.monotonic(), -1)
        self._told.pop(beat.node, None)
        self._book.linked(beat.node)
        return beat.node

    def _hear(self, message: AgentBeat | StopAsked | ProcessEvent) -> Sequence[LeaseState | NodeTrouble | ProcessEvent]:
        """Gives what there is to be told of it."""
        if isinstance(message, AgentBeat):
            return self._book.heard(message, time.monotonic())
        if isinstance(message, StopAsked):
            self._book.stop_asked(message)
            return ()
        if message.name == "hello":
            self._book.greeted(message)
        return (message,)

    # --- what is due ------------------------------------------------------------------------------------

    def _work(self) -> None:
        before = time.monotonic()
        while not self._closing:
            try:
                before = self._turn(before)
            except Exception:  # one lease's trouble may not be the end of all others'
                traceback.print_exc()
                time.sleep(self._book.beat_s)

    def _turn(self, before: float) -> float:
        """Wait for something to do, and do it."""
        with self._changed:
            self._changed.wait(self._book.beat_s / 2)
            now = time.monotonic()
            if self._closing:
                return now
            lost = self._book.tick(now, slept=now - before > _SLEPT * self._book.beat_s)
            for name, line in self._lines.items():
                if (answer := self._book.answer(self._book.nodes[name], now)) is not None:
                    line.say(LeaveNode() if self._dismisses else answer)
            missing = [node for node in lost if node.node.name not in self._lines and self._is_due(node, now)]
        for node in missing:
            self._start_agent(node.node)
        return now

    def _is_due(self, node: LiveNode, now: float) -> bool:
        at, tries = self._launched.get(node.node.name, (-_MOST_LAUNCH_S, 0))
        return now - at >= min(_LAUNCH_S * 2.0 ** min(tries, 9), _MOST_LAUNCH_S)

    def _start_agent(self, node: ClusterNode) -> None:
        """It is tried again and again; from the third time on somebody learns why, whenever that is another reason."""
        folder, why = agent_folder(node.name, self._secret), ""
        with self._launching:
            if self._leaving:
                return
            tries = self._launched.get(node.name, (0.0, -1))[1] + 1
            self._launched[node.name] = (time.monotonic(), tries)
            try:
                self._launch(node, AgentErrand(node.name, self.host, self.port, self._secret, folder))
            except (OSError, DovetailError) as error:
                why = str(error)
        why = why or last_words(folder) or "it was started, and has not been heard of"
        if tries >= _TRIES and self._told.get(node.name) != why:
            self._told[node.name] = why
            self._trouble(node.name, why)

    # --- folders ----------------------------------------------------------------------------------------

    def _prepare(self, job: int, epoch: int, copy: bool) -> None:
        command = self._commands(job)
        folder, plain = JobFolder(command.folder), command.checkpoint != "iterator"

        def prepare() -> None:
            done, trouble = 0, ""
            try:
                if copy:
                    done = folder.begin(epoch, plain, command.most_mib)
                else:
                    folder.raise_fence(epoch)
                    done = folder.saved
            except Exception as error:
                trouble = f"its folder cannot be made ready: {error or repr(error)}"
            with self._changed:
                self._book.prepared(job, epoch, done, trouble, time.monotonic())
                self._changed.notify_all()

        if not self._closing:
            self._copies.submit(prepare)


def new_secret() -> bytes:
    return os.urandom(32)
