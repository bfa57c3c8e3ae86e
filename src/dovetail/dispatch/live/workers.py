"""The workers of a pool and the user's hooks around them: started, given the function of a run, and stopped."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from threading import Event

from dovetail.dispatch.inputs.devices import NodeDevice
from dovetail.dispatch.live.batch_run import BatchRun
from dovetail.dispatch.live.errors import DeviceLostError
from dovetail.dispatch.live.worker import Worker, backend

DeviceHook = Callable[[NodeDevice], None]


class WorkerSet:
    """One worker per device. Each method is called on the thread that drives the worker `i`."""

    def __init__(
        self, devices: list[NodeDevice], backend_name: str, init: DeviceHook | None, teardown: DeviceHook | None
    ) -> None:
        self.devices = devices
        make = backend(backend_name)
        self.workers: list[Worker] = [make(device, devices) for device in devices]
        self.lost: list[BaseException | None] = [None] * len(devices)  # why a device is out of service
        self.wrong: list[Exception] = []  # what failed at the end
        self._init, self._teardown = init, teardown
        self._initialised = [False] * len(devices)
        self.begun: list[Event | None] = [None] * len(devices)  # whose function each has: a run's event, not its batch

    def start(self, i: int) -> None:
        """Start a worker; one that cannot start is lost."""
        try:
            self.workers[i].start()
            self._initialise(i)
        except Exception as error:
            self.lost[i] = error

    def _initialise(self, i: int) -> None:
        self._initialised[i] = False
        self._call(self._init, i)
        self._initialised[i] = True

    def _call(self, hook: DeviceHook | None, i: int) -> None:
        """Hooks run where the function runs, which may be another process."""
        if hook is not None:
            there = getattr(self.workers[i], "hook", None)
            there(hook, self.devices[i]) if there is not None else hook(self.devices[i])

    def begin(self, i: int, run: BatchRun, modes: ExitStack) -> None:
        """Give a worker the function of a run; its thread takes the modes of the thread that began the run."""
        worker = self.workers[i]
        self.begun[i] = None  # if the beginning fails, the worker still has the function of another run
        if run.modes is not None:
            run.modes.enter(modes)
        if (revived := getattr(worker, "revived", None)) is not None and (revived() or not self._initialised[i]):
            try:
                self._initialise(i)
            except Exception as error:
                raise DeviceLostError(f"{self.devices[i].name}: {type(error).__name__}: {error}") from error
        worker.begin(run)
        self.begun[i] = run.ended

    def gone(self, i: int, error: BaseException) -> DeviceLostError:
        """The error that stands for a worker which failed as no chunk can make it fail."""
        self.begun[i] = None
        gone = DeviceLostError(f"{self.devices[i].name}: {type(error).__name__}: {error}")
        gone.__cause__ = error
        return gone

    def revive(self) -> None:
        """Let devices that can come back, such as a process that died, be tried again."""
        for i, worker in enumerate(self.workers):
            if self.lost[i] is not None and hasattr(worker, "revived"):
                self.lost[i] = None

    def stop(self, i: int) -> None:
        """Tear down and stop a worker; what fails is kept, for the others must be stopped too."""
        try:
            if self.lost[i] is None:
                self._call(self._teardown, i)
        except Exception as error:
            self.wrong.append(error)
        try:
            self.workers[i].stop()
        except Exception as error:
            self.wrong.append(error)
