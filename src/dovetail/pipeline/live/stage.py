"""A stage's process: takes jobs from the coordinator, and runs its layers between the stages before and after it."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from dovetail.pipeline.hardware import device_name
from dovetail.pipeline.live.decoding import StageDecoder
from dovetail.pipeline.live.layout import Layout, Reports
from dovetail.pipeline.live.links import Inlet, Outlet
from dovetail.pipeline.live.wire import (
    Address,
    ClockReading,
    Connection,
    Greeting,
    Leave,
    Listener,
    Ready,
    StageJob,
    Trouble,
    own_clock,
)
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import Chain, one_line

if TYPE_CHECKING:
    from dovetail.pipeline.live.decoding import DecodeStep
    from dovetail.pipeline.models.spec import ModelSpec, Value


class StageSettings(Struct, frozen=True, kw_only=True):
    """What a process is told when it starts."""

    host: str
    token: str
    control: Address  # of the coordinator
    bind: str  # the address on which it takes values
    device: str = "cpu"
    cores: tuple[int, ...] = ()
    threads: int | None = None
    heartbeat_s: float = 0.25
    path: tuple[str, ...] = ()  # where modules are looked for


class StageWorker:
    """Serves one coordinator until it says stop or is gone."""

    def __init__(self, settings: StageSettings) -> None:
        self._settings = settings
        self._incoming: dict[tuple[int, int], Connection] = {}
        self._job: StageJob | None = None  # the newest
        self._stopping = False
        self._changed = threading.Condition()
        self._layout: Layout | None = None
        self._loaded: tuple[ModelSpec, Chain] | None = None

    def serve(self) -> None:
        settings = self._settings
        sys.path.extend(entry for entry in settings.path if entry not in sys.path)
        if settings.cores:
            os.sched_setaffinity(0, settings.cores)
        listener = Listener(settings.bind, settings.token, self._take)
        hello = Greeting(
            settings.token,
            settings.host,
            pid=os.getpid(),
            data=listener.address,
            clock=own_clock(),
            device=device_name(settings.device),
        )
        self._control = Connection.open(settings.control, hello)
        self._reports = Reports(self._control)
        threading.Thread(target=self._beat, daemon=True, name="beat").start()
        threading.Thread(target=self._do_jobs, daemon=True, name="jobs").start()
        try:
            self._obey()
        finally:
            with self._changed:
                self._stopping = True
                self._changed.notify_all()
            listener.close()
            self._control.close()

    def _obey(self) -> None:
        while True:
            try:
                message, _ = self._control.receive()
            except OSError:
                return  # without a coordinator there is nothing to do
            if isinstance(message, ClockReading):
                self._reports.tell(ClockReading(message.ours_s, time.monotonic()))
            elif isinstance(message, StageJob):
                with self._changed:
                    self._job = message
                    self._changed.notify_all()
            elif isinstance(message, Leave):
                self._reports.beat(self._layout)
                return

    def _take(self, connection: Connection, hello: Greeting) -> None:
        with self._changed:
            self._incoming[hello.generation, int(hello.who)] = connection
            self._changed.notify_all()

    def _beat(self) -> None:
        while not self._stopping:
            time.sleep(self._settings.heartbeat_s)
            self._reports.beat(self._layout)

    def _do_jobs(self) -> None:
        job: StageJob | None = None
        while (job := self._next_job(job)) is not None:
            if self._layout is not None:
                self._layout.stop()
                self._layout = None
            try:
                self._set_up(job)
            except OSError as error:
                self._reports.tell(Trouble(job.generation, f"cannot connect: {error}"))
            except Exception as error:
                self._reports.tell(Trouble(job.generation, one_line(error), fatal=True))

    def _next_job(self, done: StageJob | None) -> StageJob | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or self._job is not done)
            return None if self._stopping else self._job

    def _set_up(self, job: StageJob) -> None:
        outlets: list[Outlet] = []
        try:
            hello = Greeting(self._settings.token, str(job.place), job.generation)
            for hop in job.hops:
                outlets.append(Outlet(Connection.open(hop.address, hello), hop, job.buffers, job.bits))  # noqa: PERF401
            run = self._layers(job)
            inlets = self._inlets(job)
        except BaseException:
            for outlet in outlets:
                outlet.close()
            raise
        if inlets is None:  # a newer job has come
            for outlet in outlets:
                outlet.close()
            return
        self._layout = Layout(job, run, inlets, outlets, self._settings.device, self._reports)
        self._reports.tell(Ready(job.generation))

    def _layers(self, job: StageJob) -> Callable[[Value, DecodeStep | None], Value]:
        """The function of this job's layers. The model stays loaded, so that another job of it starts at once."""
        if self._loaded is None or self._loaded[0] != job.model:
            import torch

            if self._settings.threads:
                torch.set_num_threads(self._settings.threads)
            self._loaded = (job.model, load(job.model))
        chain, device = self._loaded[1], self._settings.device
        gc.unfreeze()
        gc.collect()  # the layers of a job before this one go, before there are others
        if job.decodes:
            decoder = StageDecoder(chain.decoder(*job.layers, device, job.dtype), device, job.sampling)
            if device.startswith("cuda"):
                decoder.warm_up()
                gc.freeze()  # what is loaded stays: to look through it again, as before a recording, takes long
            return decoder.run
        run = chain.part(*job.layers, device, job.dtype)
        return lambda value, _: run(value)

    def _inlets(self, job: StageJob) -> list[Inlet] | None:
        """The connections from the stage before, once all have come; None if a newer job came first."""
        wanted = [(job.generation, place) for place in range(job.senders)]

        def settled() -> bool:
            return self._stopping or self._job is not job or all(key in self._incoming for key in wanted)

        with self._changed:
            self._changed.wait_for(settled)
            for key in [key for key in self._incoming if key[0] < job.generation]:
                self._incoming.pop(key).close()
            if self._stopping or self._job is not job:
                return None
            return [Inlet(self._incoming.pop(key)) for key in wanted]


def main() -> None:
    """The process of a stage on this machine: its settings come on standard input."""
    # The coordinator decides when to end; a Ctrl-C in the terminal reaches it too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    line = sys.stdin.buffer.readline()
    if not line:
        os._exit(1)  # the coordinator is gone before it could say anything
    settings = msgspec.json.decode(line, type=StageSettings)
    try:
        StageWorker(settings).serve()
    except ConnectionRefusedError:
        os._exit(1)  # likewise; on this machine nothing else refuses a connection
    except OSError as error:
        print(f"{settings.host}: {error}", file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)  # threads may still compute; nothing that they do counts any more


if __name__ == "__main__":
    main()
