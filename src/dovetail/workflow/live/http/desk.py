"""What the handlers of HTTP requests share: the service behind them, and threads for what may take it a moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from threading import Barrier
from typing import Any, ParamSpec, Protocol, TypeVar

from dovetail.core.errors import DovetailError
from dovetail.core.service.http import HttpError, told_as_http
from dovetail.core.service.streams import Mailbox
from dovetail.workflow.live.protocol import BackEndError
from dovetail.workflow.live.runs import (
    ENDED,
    RunEvent,
    RunRequest,
    RunResult,
    RunState,
    RunStatus,
    UnknownRunError,
    UnknownWorkflowError,
    WorkflowInfo,
)

P = ParamSpec("P")
T = TypeVar("T")
_THREADS = 16
_BUSY_RETRY_S = 1.0
_MOST_BEHIND = 1 << 20  # characters that wait here for a client; more stay with the run until he comes for them
_EVENT = 100  # what an event without text counts as


class RunService(Protocol):
    """What is asked of a service of workflows, from any thread."""

    def submit(self, request: RunRequest) -> str: ...

    def status(self, run: str) -> RunStatus: ...

    def result(self, run: str) -> RunResult: ...

    def cancel(self, run: str, why: str = "") -> object: ...

    def follow(self, run: str, callback: Callable[[RunEvent], None], after: int = 0) -> Callable[[], None]: ...

    def runs(self, state: RunState | None = None, after: str | None = None, limit: int = 50) -> Sequence[RunStatus]: ...

    def output(self, run: str, node: str) -> dict[str, Any]: ...

    def workflows(self) -> Sequence[WorkflowInfo]: ...

    def about(self) -> dict[str, Any]: ...

    def explain(self, run: str) -> Any: ...

    def estimate(self, model: str, input: dict[str, Any], options: dict[str, Any]) -> float: ...

    def metrics(self) -> str: ...


class Desk:
    """A service for coroutines: its errors are answers with the right status."""

    def __init__(self, service: RunService) -> None:
        self.service = service
        self._threads = ThreadPoolExecutor(_THREADS, "http request")

    def start(self) -> None:
        """Start all threads now, not while requests wait."""
        all_there = Barrier(_THREADS)
        for _ in range(_THREADS):
            self._threads.submit(all_there.wait)

    def close(self) -> None:
        self._threads.shutdown()

    async def do(self, work: Callable[P, T], *args: P.args, **more: P.kwargs) -> T:
        """Do something in a thread: the service may have to wait for a disk or a lock."""
        loop = asyncio.get_running_loop()
        with told_as_http(), run_errors():
            return await loop.run_in_executor(self._threads, partial(work, *args, **more))

    async def submit(self, request: RunRequest) -> Waiting:
        """A run for somebody who waits: whoever leaves before its end cancels it, unless a key lets him ask again."""
        waiting = Waiting(self)
        try:
            await self.do(waiting.begin, request)
        except asyncio.CancelledError:
            waiting.close()
            raise
        return waiting

    async def follow(self, run: str, after: int = 0) -> Waiting:
        """What happens to a run that goes on whether anybody looks or not."""
        waiting = Waiting(self)
        try:
            await self.do(waiting.look, run, after)
        except asyncio.CancelledError:
            waiting.close()
            raise
        return waiting

    def cancel_later(self, run: str) -> None:
        self._threads.submit(self._cancel, run)

    def _cancel(self, run: str) -> None:
        with suppress(DovetailError):  # it has ended meanwhile
            self.service.cancel(run, "the client has gone")

    async def info(self, name: str) -> WorkflowInfo | None:
        found: Sequence[WorkflowInfo] = await self.do(self.service.workflows)
        return next((each for each in found if each.name == name), None)


class Waiting(Mailbox[RunEvent]):
    """Somebody who waits for a run, and is told what happens to it; a context, or to be closed. To who is far behind
    nothing more is told until he has taken what there is; then he follows on from there, and pieces of a run that has
    ended meanwhile are left out."""

    def __init__(self, desk: Desk) -> None:
        super().__init__()
        self._desk = desk
        self._unfollow: Callable[[], None] | None = None
        self.run = ""
        self.cancels = False  # when it is closed before the end
        self._closed = False
        self._told_chars = self._taken_chars = 0
        self._missed = False  # something was not told
        self._last = 0  # the number of the last event that was taken

    def begin(self, request: RunRequest) -> None:
        """In a thread, and to its end also if nobody waits for that any more."""
        run = self._desk.service.submit(request)
        self.cancels = request.idempotency_key is None
        self.look(run)

    def look(self, run: str, after: int = 0) -> None:
        self.run = run
        self._unfollow = self._desk.service.follow(run, self.tell, after)
        if self._closed:
            self.close()

    def tell(self, event: RunEvent) -> None:
        if self._missed or self._told_chars - self._taken_chars > _MOST_BEHIND:
            self._missed = True
            return
        self._told_chars += _EVENT + len(event.text)
        super().tell(event)

    def _look_on(self) -> None:
        if self._unfollow is not None:
            self._unfollow()
        self._missed = False
        self.look(self.run, self._last)

    async def next(self, within_s: float | None = None) -> RunEvent | None:
        while True:
            if self._missed and self.empty:
                await self._desk.do(self._look_on)
            event = await super().next(within_s)
            if event is None:
                return None
            self._taken_chars += _EVENT + len(event.text)
            if event.kind in ENDED:
                self.cancels = False
            if event.n > self._last or event.kind in ENDED:  # else it was told twice, as it had missed something
                self._last = event.n
                return event

    def put_back(self, event: RunEvent) -> None:
        self._last = event.n - 1
        self._taken_chars -= _EVENT + len(event.text)
        super().put_back(event)

    async def result(self) -> RunResult:
        """Wait for the end; gives what came of the run."""
        while (event := await self.next()) is None or event.kind not in ENDED:
            pass
        return await self._desk.do(self._desk.service.result, self.run)

    async def completed(self) -> RunResult:
        """The same, for who is told by an error that it was not completed."""
        return completed(await self.result())

    def close(self) -> None:
        self._closed = True
        if self._unfollow is not None:
            self._unfollow()
            self._unfollow = None
        if self.cancels and self.run:
            self.cancels = False
            self._desk.cancel_later(self.run)

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextmanager
def run_errors() -> Iterator[None]:
    """The same for what is said of workflows and runs."""
    try:
        yield
    except UnknownWorkflowError as error:
        raise HttpError(404, str(error), param="model", code="model_not_found") from error
    except UnknownRunError as error:
        raise HttpError(404, str(error), code="run_not_found") from error
    except BackEndError as error:  # a large value that was kept elsewhere, and is there no more
        raise HttpError(410, str(error), code="value_lost", final=True) from error


def completed(result: RunResult) -> RunResult:
    if result.state != "completed":
        raise failure(result)
    return result


def failure(result: RunResult) -> HttpError:
    """What to tell a client that waits for a run which did not complete: whose fault it is decides the status."""
    if result.state == "cancelled":
        return HttpError(409, result.error or "the run was cancelled", code="cancelled", final=True)
    if result.blame == "call":
        return HttpError(422, result.error, code="run_failed", final=True)
    if result.blame == "queue":  # it waited for longer than anybody may
        return HttpError(503, result.error, code="busy", retry_after_s=_BUSY_RETRY_S)
    return HttpError(500, result.error or "the run failed", code="run_failed", final=True)
