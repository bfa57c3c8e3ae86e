"""The data host: carries out what the supervisor decides. It starts processes, gives jobs, feeds and collects."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from queue import Empty, SimpleQueue

from msgspec import Struct

from dovetail.core.errors import DovetailError
from dovetail.pipeline.hardware import Carrier, OtherPrograms
from dovetail.pipeline.live.flow import Flow
from dovetail.pipeline.live.hosts import HostSettings
from dovetail.pipeline.live.jobs import FedWork, RunOptions, first_hops, make_jobs
from dovetail.pipeline.live.journal import RunJournal
from dovetail.pipeline.live.links import Inlet, Outlet
from dovetail.pipeline.live.local import StageEngine, default_threads
from dovetail.pipeline.live.quantise import RAW
from dovetail.pipeline.live.replan import replanner
from dovetail.pipeline.live.stage import StageSettings
from dovetail.pipeline.live.supervisor import (
    Action,
    Assign,
    Broke,
    Delivered,
    Erred,
    Event,
    Feed,
    FinishRun,
    Halt,
    Joined,
    Kill,
    LaunchHosts,
    Lived,
    Lost,
    Prepared,
    Stirred,
    Supervisor,
)
from dovetail.pipeline.live.wire import (
    Address,
    Beat,
    Connection,
    Greeting,
    Leave,
    Listener,
    Ready,
    Trouble,
    measure_offset,
)
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.route import DATA_HOST

_CONNECT_S = 10.0
_LAST_WORDS_S = 2.0


class PipelineStoppedError(DovetailError):
    """A run that could not go on."""


class _StageProcess(Struct):
    """A process that has joined."""

    control: Connection
    data: Address
    thread: threading.Thread


class Coordinator:
    def __init__(
        self,
        plan: Plan,
        work: FedWork,
        engine: StageEngine,
        hosts: Mapping[str, HostSettings],
        carried: Mapping[str, Carrier],
        options: RunOptions,
        journal: RunJournal,
    ) -> None:
        self.plans: dict[int, Plan] = {1: plan}
        self.delivered = 0
        self.busy = 0.0  # of all cores' time since the first microbatch was fed, what other programs took
        self._journal, self._carriers = journal, carried
        self._work, self._engine, self._hosts, self._options = work, engine, hosts, options
        self._token = secrets.token_hex(16)
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._processes: dict[str, _StageProcess] = {}
        self._incoming: dict[tuple[int, int], Connection] = {}
        self._changed = threading.Condition()
        self._outlets: list[Outlet] = []
        self._flow: Flow | None = None
        self._plan = plan
        self._why = ""  # the last layout was halted
        self._generation = 0  # of the layout that is or was fed last
        self._others: OtherPrograms | None = None
        self._lost: list[str] = []  # hosts that took their last notes with them
        absent = {host for c in plan.problem.classes for host in c.hosts} - carried.keys() if plan.problem else set()
        self._supervisor = Supervisor(plan, work.total, replanner(plan, frozenset(absent)), options.patience)

    def run(self, watch: Callable[[int], None], notice: Callable[[str], None]) -> None:
        """Run to the end; an error if it cannot be reached. What came out until then has been delivered."""
        self._notice = notice
        if not ip_address(self._engine.bind).is_loopback:
            notice(
                f"token and values go in clear between {self._engine.bind} and the nodes: "
                "whoever can listen there reads them, and could join in"
            )
        self._listener = Listener(self._engine.bind, self._token, self._take)
        try:
            why = self._loop(watch)
            if self._others is not None and (used_s := self._engine.used_s()) is not None:
                self.busy = self._others.share(used_s)
        except BaseException:
            self._shut_down()
            raise
        self._shut_down()
        self._journal.over(self._generation, why, self._lost)
        self._journal.end()
        if why:
            of = "" if self._work.total is None else f" of {self._work.total}"
            raise PipelineStoppedError(f"{why}; {self.delivered}{of} microbatches were completed")

    def _loop(self, watch: Callable[[int], None]) -> str:
        events: list[Event] = []
        while True:
            now = time.monotonic()
            actions = self._supervisor.handle(events, now)
            self._journal.turn(now, events, actions)
            for action in actions:
                if isinstance(action, FinishRun):
                    return action.why
                self._do(action)
            events = self._gather()
            watch(self._flow.delivered if self._flow else self.delivered)

    def _gather(self) -> list[Event]:
        events: list[Event] = []
        with suppress(Empty):
            events.append(self._events.get(timeout=self._options.heartbeat_s))
            while True:
                events.append(self._events.get_nowait())
        ended = self._engine.ended()
        events += [Lost(host, why) for host, why in ended.items() if host not in self._processes]
        if self._flow is None:  # whoever loads may be too busy for a heartbeat
            events += [Stirred(host) for host in self._engine.stirring()]
        last = max((i for i, event in enumerate(events) if isinstance(event, Delivered)), default=None)
        return [event for i, event in enumerate(events) if i == last or not isinstance(event, Delivered)]

    def _do(self, action: Action) -> None:
        if isinstance(action, LaunchHosts):
            given = {host: self._hosts.get(host, HostSettings()) for host in action.hosts}
            self._engine.place({host: settings.node for host, settings in given.items()})
            for host, settings in given.items():
                self._launch(host, settings)
        elif isinstance(action, Halt):
            self._notice(action.why)
            self._why = action.why
            self._halt()
        elif isinstance(action, Assign):
            self._assign(action)
        elif isinstance(action, Feed):
            self._feed(action.generation)
        elif isinstance(action, Kill):
            self._lost.append(action.host)
            self._engine.kill(action.host)
            if process := self._processes.get(action.host):
                process.control.close()

    # --- processes --------------------------------------------------------------------------------

    def _launch(self, host: str, given: HostSettings) -> None:
        settings = StageSettings(
            host=host,
            token=self._token,
            control=self._listener.address,
            bind=self._engine.bind,
            device=self._carriers[host].device,
            cores=given.cores,
            threads=given.threads or default_threads(given.cores, len(self._plan.hosts)),
            heartbeat_s=self._options.heartbeat_s,
            path=tuple(entry or "." for entry in sys.path),
        )
        self._engine.start(settings, given.share)

    def _take(self, connection: Connection, hello: Greeting) -> None:
        """A process that joins, or the last stage's connection for its results."""
        if hello.pid:
            self._listen(connection, hello)
            return
        with self._changed:
            self._incoming[hello.generation, int(hello.who)] = connection
            self._changed.notify_all()

    def _listen(self, connection: Connection, hello: Greeting) -> None:
        host, post = hello.who, self._events.put
        try:
            self._journal.joined(host, measure_offset(connection, hello.clock), hello.device)
            self._processes[host] = _StageProcess(connection, hello.data, threading.current_thread())
            post(Joined(host))
            while True:
                message, _ = connection.receive()
                if isinstance(message, Beat):
                    for trace in message.traces:
                        self._journal.passed(trace.generation, trace.number, trace.visits)
                    now = [t.visits[-1] for t in message.traces if t.generation == message.generation]
                    post(Lived(host, message.generation, tuple(visit.end_s - visit.start_s for visit in now)))
                elif isinstance(message, Ready):
                    post(Prepared(host, message.generation))
                elif isinstance(message, Trouble):
                    why = message.why
                    post(Erred(host, why) if message.fatal else Broke(host, message.generation, why))
        except OSError:
            post(Lost(host, self._engine.why(host)))

    # --- layouts ----------------------------------------------------------------------------------

    def _assign(self, action: Assign) -> None:
        self._plan = self.plans[action.generation] = action.plan
        addresses = {host: process.data for host, process in self._processes.items()}
        addresses[DATA_HOST] = self._listener.address
        jobs = make_jobs(action.plan, action.generation, self.delivered, self._work, addresses, self._options)
        for host, job in jobs.items():
            with suppress(OSError):  # that it is gone will be told by its connection
                self._processes[host].control.send(job)
        hello = Greeting(self._token, "0", action.generation)
        try:
            for hop in first_hops(action.plan, addresses, self._options):
                connection = Connection.open(hop.address, hello)
                self._outlets.append(Outlet(connection, hop, self._options.buffers, RAW))
        except OSError as error:
            self._events.put(Broke(DATA_HOST, action.generation, str(error)))

    def _feed(self, generation: int) -> None:
        last = self._plan.stages[-1]
        wanted = [(generation, place) for place in range(1 + len(last.replicas))]
        with self._changed:
            if not self._changed.wait_for(lambda: all(key in self._incoming for key in wanted), _CONNECT_S):
                self._events.put(Broke(DATA_HOST, generation, "the last stage did not connect"))
                return
            inlets = [Inlet(self._incoming.pop(key)) for key in wanted]
        self._journal.open()
        if self._others is None and (used_s := self._engine.used_s()) is not None:
            self._others = OtherPrograms(used_s)
        self._notice(f"plan {generation} runs on {', '.join(self._plan.hosts)}")
        if self._generation:  # all hosts of this plan have left the last one, so nothing more comes of it
            self._journal.over(self._generation, self._why, self._lost)
        self._generation, self._lost = generation, []
        self._work.restart(generation)
        self._flow = Flow(generation, self.delivered, self._work, self._outlets, inlets, self._journal, self._events)

    def _halt(self) -> None:
        for outlet in self._outlets:
            outlet.close()
        self._outlets = []
        if self._flow is not None:
            self._flow.stop()
            self.delivered = self._flow.delivered
            self._flow = None
        with self._changed:
            while self._incoming:
                self._incoming.popitem()[1].close()

    def _shut_down(self) -> None:
        self._halt()
        for process in self._processes.values():
            with suppress(OSError):
                process.control.send(Leave())
        deadline_s = time.monotonic() + _LAST_WORDS_S
        for process in self._processes.values():
            process.thread.join(timeout=max(deadline_s - time.monotonic(), 0.0))
        self._listener.close()
        self._engine.close()
        for process in self._processes.values():
            process.control.close()
