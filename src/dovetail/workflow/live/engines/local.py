"""Workers as processes of this machine: one for each GPU, real or emulated."""

from __future__ import annotations

import ctypes
import heapq
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from dovetail.core.errors import InputError, MissingExtraError, exit_words
from dovetail.workflow.live.engines.line import WorkerLine
from dovetail.workflow.live.protocol import (
    BackEndError,
    GpuPlace,
    ModelCall,
    Reference,
    Report,
    ServedModel,
    WorkerLost,
    WorkerReady,
)
from dovetail.workflow.live.wire import CancelCall, Command, LoadModel, MakeCall, UnloadModel, WorkerReport
from dovetail.workflow.live.worker import serve_worker

# Not `-m`: nothing of the caller's own script may run again, and the module must not be imported twice.
_COMMAND = "from dovetail.workflow.live.engines.local import main; main()"
_ASK = """
import json, torch
found = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([(p.name, "localhost", f"cuda:{i}", p.total_memory >> 20) for i, p in enumerate(found)]))
"""
_SPAWN_AGAIN_S = 1.0  # where the system has no room for a process just now
_LOOKS = 8  # how often within the time limit of silence a worker is looked at
_START_LOOKS = 8 * _LOOKS  # the same until it was heard for the first time
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 30.0  # before a worker that died while it started is started anew
_PR_SET_PDEATHSIG = 1


def emulated_gpus(count: int, type: str = "gpu") -> list[GpuPlace]:
    """So many GPUs whose work the processor does."""
    return [GpuPlace(type, "localhost")] * count


def own_gpus() -> list[GpuPlace]:
    """The CUDA devices of this machine. A process of its own asks torch: here that would take memory of the first."""
    try:
        found = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, check=True)
    except subprocess.CalledProcessError as error:
        if "No module named 'torch'" in error.stderr:
            raise MissingExtraError("torch", "torch", "finding the GPUs of this machine") from None
        raise InputError(f"the GPUs of this machine cannot be found: {error.stderr.strip()[-500:]}") from None
    places = [GpuPlace(*fields) for fields in json.loads(found.stdout)]
    if not places:
        raise InputError("this machine has no CUDA device that torch can use")
    return places


class _Process:
    """A worker's process, if it has one."""

    def __init__(self) -> None:
        self.line: WorkerLine | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.pause_s = 0.0
        self.why = ""  # it is about to be ended by us
        self.ready = False
        self.starts = 0


class LocalGpuEngine:
    """Each worker is the first of a process group of its own and dies with this process, however that ends. One that
    has died is started anew: at once, and if it dies while it starts, after longer and longer pauses."""

    def __init__(self, places: Sequence[GpuPlace], silence_s: float = 20.0) -> None:
        self.places: Sequence[GpuPlace] = tuple(places)
        self._silence_s = silence_s
        self._changed = threading.Condition(threading.RLock())
        self._workers = [_Process() for _ in places]
        self._due = [(0.0, i) for i in range(len(places))]  # when which is to be started
        self._closing = False
        # Workers die with the thread that started them: so that is one which lasts.
        self._keeper = threading.Thread(target=self._keep, name="keeper of workers", daemon=True)

    def start(self, models: Mapping[str, ServedModel], report: Callable[[Report], None]) -> None:
        self._models, self._report = dict(models), report
        self._keeper.start()

    # --- commands ---------------------------------------------------------------------------------------

    def load(self, worker: int, model: str, window: tuple[int, ...]) -> None:
        self._send(worker, LoadModel(model, tuple(self.places[gpu].device for gpu in window)))

    def unload(self, worker: int, model: str, keep: bool) -> None:
        self._send(worker, UnloadModel(model, keep))

    def call(self, worker: int, call: ModelCall) -> None:
        self._send(worker, MakeCall(call))

    def cancel(self, worker: int, call: str) -> None:
        self._send(worker, CancelCall(call))

    def _send(self, worker: int, command: Command) -> None:
        """To a worker that is gone nothing is sent: its loss was reported, or is about to be."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._workers[worker].starts)  # the very first start
            line = self._workers[worker].line
        if line is not None:
            line.send(command)

    def restart(self, worker: int, why: str) -> None:
        with self._changed:
            self._end(self._workers[worker], why)

    def fetch(self, reference: Reference, then: Callable[[Any], None]) -> None:
        then(BackEndError(f"there is no object store here to bring {reference} from"))

    def drop(self, references: Sequence[Reference]) -> None:
        pass  # there are none

    def status(self) -> list[dict[str, Any]]:
        with self._changed:
            return [
                {
                    "worker": i,
                    "host": place.host,
                    "device": place.device,
                    "pid": worker.process.pid if worker.process is not None else None,
                    "state": "up" if worker.ready else "starting",
                    "starts": worker.starts,
                    "models": dict(worker.line.models) if worker.line is not None else {},
                }
                for i, (place, worker) in enumerate(zip(self.places, self._workers, strict=True))
            ]

    def close(self) -> None:
        with self._changed:
            self._closing = True
            for worker in self._workers:
                self._end(worker, "the engine was closed")
            self._changed.notify_all()
        if self._keeper.is_alive():
            self._keeper.join()
        for worker in self._workers:
            if worker.line is not None:
                worker.line.close()

    # --- the keeper's thread ------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Starts what is due, and ends what has fallen silent."""
        look_s, look_at_s = self._silence_s / _LOOKS, 0.0
        while True:
            with self._changed:
                now = time.monotonic()
                while self._due and self._due[0][0] <= now and not self._closing:
                    worker = heapq.heappop(self._due)[1]
                    try:
                        self._spawn(worker)
                    except OSError as error:  # too many processes or files just now
                        print(f"the worker of GPU {worker} cannot be started yet: {error}", file=sys.stderr, flush=True)
                        heapq.heappush(self._due, (now + _SPAWN_AGAIN_S, worker))
                if now >= look_at_s:
                    look_at_s = now + look_s
                    self._look()
                if self._closing:
                    return
                until_s = min([look_at_s, *(at_s for at_s, _ in self._due[:1])])
                self._changed.wait(max(until_s - time.monotonic(), 0.0))

    def _look(self) -> None:
        for worker in self._workers:
            if worker.process is not None and worker.line is not None:
                if worker.process.poll() is not None:  # while what it started holds on to the connection
                    worker.line.cut()
                limit = _LOOKS if worker.line.heard else _START_LOOKS
                if worker.line.silent() >= limit:
                    self._end(worker, f"it was silent for {limit / _LOOKS * self._silence_s:g} s")

    def _spawn(self, i: int) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND, str(theirs.fileno()), str(i), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a back end prints is no answer of ours
                start_new_session=True,
                env=self._environment(),
            )
        connection = Connection(ours.detach())
        with suppress(OSError):
            connection.send_bytes(msgspec.msgpack.encode(self._models))
        worker = self._workers[i]
        worker.process, worker.why = process, ""
        worker.starts += 1

        def lost(line: WorkerLine) -> None:
            self._gone(i, process, line)

        worker.line = WorkerLine(connection, lambda report: self._heard(i, report), lost, f"worker {i}")
        self._changed.notify_all()

    def _environment(self) -> dict[str, str]:
        """The processor's cores are shared by the workers whose work it does."""
        environment = dict(os.environ)
        emulated = sum(place.device == "cpu" for place in self.places)
        if emulated:
            threads = str(max(len(os.sched_getaffinity(0)) // emulated, 1))
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
                environment.setdefault(name, threads)
        return environment

    def _end(self, worker: _Process, why: str) -> None:
        """By force, and with all that it has started; its reader notices."""
        if worker.process is not None and not worker.why:
            worker.why = why
            _kill_group(worker.process.pid)

    # --- the readers' threads -----------------------------------------------------------------------------

    def _heard(self, i: int, report: WorkerReport) -> None:
        if isinstance(report, WorkerReady):
            self._workers[i].ready = True
        self._report(report)  # type: ignore[arg-type]

    def _gone(self, i: int, process: subprocess.Popen[bytes], line: WorkerLine) -> None:
        _kill_group(process.pid)
        returncode = process.wait()
        with self._changed:
            worker = self._workers[i]
            why = worker.why or exit_words(returncode)
            pause_s = 0.0 if worker.ready else min(max(2 * worker.pause_s, _FIRST_PAUSE_S), _LONGEST_PAUSE_S)
            worker.ready, worker.process, worker.pause_s = False, None, pause_s
            if self._closing:
                return
            worker.line = None
        line.close()
        self._report(WorkerLost(i, why))
        with self._changed:
            heapq.heappush(self._due, (time.monotonic() + pause_s, i))
            self._changed.notify_all()


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def main() -> None:
    """A worker's process. It ends with the service: with the connection, or if it cannot see that, by the kernel."""
    descriptor, number, service = map(int, sys.argv[1:])
    sys.argv[1:] = []
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != service:
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever presses Ctrl-C means the service
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    with suppress(EOFError, OSError):
        served = msgspec.msgpack.decode(connection.recv_bytes(), type=dict[str, ServedModel])
        serve_worker(connection, number, served)
    os.killpg(0, signal.SIGKILL)  # with all that back ends have started
