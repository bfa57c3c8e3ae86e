"""What happens inside a worker: it holds back ends, loads and unloads them in order, and makes their calls at once.

How commands come in and reports go out is somebody else's: a socket here, an actor's connection elsewhere.
"""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Literal

import msgspec

from dovetail.core.errors import is_out_of_memory
from dovetail.workflow.live.backends import back_end_for, prepare
from dovetail.workflow.live.protocol import (
    Answer,
    AnswerPiece,
    BackEnd,
    BackEndError,
    CallFailed,
    Loaded,
    LoadFailed,
    Memory,
    ModelCall,
    OutOfMemoryError,
    ServedModel,
    Unhealthy,
    Unloaded,
    WorkerReady,
)
from dovetail.workflow.live.values import size_of
from dovetail.workflow.live.wire import (
    CancelCall,
    Command,
    LoadModel,
    MakeCall,
    UnloadModel,
    WorkerBeat,
    WorkerReport,
    decode_command,
    encode,
)

BEAT_S = 0.5
_HEALTH_S = 1.0
_MOST_CALLS = 1024  # at once; the scheduler starts fewer


class _Held:
    """A back end, and the calls that it has."""

    def __init__(self, back_end: BackEnd) -> None:
        self.back_end = back_end
        self.loaded = False
        self.calls = 0

    def memory(self) -> Memory:
        """A model that cannot say what it holds can be called all the same."""
        with suppress(Exception):
            found = self.back_end.memory()
            return msgspec.convert(msgspec.to_builtins(found), Memory)
        return Memory()


class ModelWorker:
    """Takes commands from one thread and reports from any. `load` and `unload` run one after the other in the order of
    their commands, always in the same thread, and an `unload` waits for the calls of its model to end."""

    def __init__(
        self,
        number: int,
        served: Mapping[str, ServedModel],
        report: Callable[[WorkerReport], None],
        make: Callable[[ServedModel], BackEnd] = back_end_for,
    ) -> None:
        self._number, self._served, self._report, self._make = number, served, report, make
        self._changed = threading.Condition()
        self._held: dict[str, _Held] = {}
        self._stops: dict[str, threading.Event] = {}  # of the calls under way
        self._said: dict[str, dict[str, Any]] = {}  # by the back ends, of themselves
        self._commands: SimpleQueue[LoadModel | UnloadModel] = SimpleQueue()
        self._pool = ThreadPoolExecutor(_MOST_CALLS, thread_name_prefix="call")

    def start(self) -> None:
        """It works until its process ends."""
        prepare(self._served.values())
        self._report(WorkerReady(self._number))
        for work in (self._change, self._beat, self._ask_health):
            threading.Thread(target=work, daemon=True).start()

    def do(self, command: Command) -> None:
        """Never blocks: what comes of it is reported."""
        if isinstance(command, MakeCall):
            self._begin(command.call)
        elif isinstance(command, CancelCall):
            if (stop := self._stops.get(command.call)) is not None:
                stop.set()
        else:
            self._commands.put(command)

    # --- loads ------------------------------------------------------------------------------------------

    def _change(self) -> None:
        while True:
            command = self._commands.get()
            if isinstance(command, LoadModel):
                self._load(command)
            else:
                self._unload(command)

    def _load(self, command: LoadModel) -> None:
        model = command.model
        try:
            held = self._held.get(model)
            if held is None:
                held = self._held[model] = _Held(self._make(self._served[model]))
            held.back_end.load(command.devices)
            memory = held.memory()
        except BaseException as error:
            self._tell(error)
            if (held := self._held.pop(model, None)) is not None:
                with suppress(BaseException):  # it is gone in any case
                    held.back_end.unload(keep=False)
            self._report(LoadFailed(self._number, model, said(error), _has_no_room(error)))
            return
        held.loaded = True
        self._report(Loaded(self._number, model, memory))

    def _unload(self, command: UnloadModel) -> None:
        held = self._held.get(command.model)
        if held is not None:
            held.loaded = False
            with self._changed:
                self._changed.wait_for(lambda: not held.calls)
            try:
                held.back_end.unload(command.keep)
            except BaseException as error:
                self._tell(error)
                self._report(Unhealthy(self._number, command.model, f"it could not be unloaded: {said(error)}"))
                return
            if not command.keep:
                del self._held[command.model]
                self._said.pop(command.model, None)
        self._report(Unloaded(self._number, command.model))

    # --- calls ------------------------------------------------------------------------------------------

    def _begin(self, call: ModelCall) -> None:
        held = self._held.get(call.model)
        if held is None or not held.loaded:
            self._report(CallFailed(call.id, f"{call.model} is not loaded here"))
            return
        with self._changed:
            held.calls += 1
        stop = self._stops[call.id] = threading.Event()
        self._pool.submit(self._call, held, call, stop)

    def _call(self, held: _Held, call: ModelCall, stop: threading.Event) -> None:
        end: Answer | CallFailed
        try:
            end = _sound(call, held.back_end.call(call, _Emitter(call, self._report), stop))
        except BackEndError as error:
            end = CallFailed(call.id, said(error), error.blame)
            if error.blame == "place":
                self._ask_health_of(call.model, held)  # before whoever hears of it tries here again
        except BaseException as error:  # sys.exit in a model's code too ends the call, not its thread
            self._tell(error)
            end = CallFailed(call.id, said(error), "place" if _has_no_room(error) else "call")
        del self._stops[call.id]
        try:
            self._report(end)
        except BackEndError as error:
            self._report(CallFailed(call.id, f"its outputs cannot be sent: {error}", error.blame))
        finally:
            with self._changed:
                held.calls -= 1
                self._changed.notify_all()

    # --- signs of life ------------------------------------------------------------------------------------

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            self._report(WorkerBeat(self._number, dict(self._said)))

    def _ask_health(self) -> None:
        """In a thread of its own: a back end may take its time to answer, and a beat may not."""
        while True:
            time.sleep(_HEALTH_S)
            for model, held in list(self._held.items()):
                if held.loaded:
                    self._ask_health_of(model, held)

    def _ask_health_of(self, model: str, held: _Held) -> None:
        try:
            status = held.back_end.status()
            if not isinstance(status, dict):
                raise BackEndError(f"its status is {type(status).__name__}; expected a mapping")
            told = status | {"memory": msgspec.to_builtins(held.memory()), "calls": held.calls}
            size_of(told)
            encode(WorkerBeat(self._number, {model: told}))
        except BaseException as error:
            status = told = {"healthy": False, "why": said(error)}
        if not held.loaded or self._held.get(model) is not held:  # meanwhile
            return
        self._said[model] = told
        if not status.get("healthy", True):
            held.loaded = False
            why = status.get("why", "its back end says that it is not healthy")
            self._report(Unhealthy(self._number, model, str(why)))

    def _tell(self, error: BaseException) -> None:
        """An operator wants to know where an error comes from that no back end expected."""
        if not isinstance(error, BackEndError):
            with suppress(OSError):
                traceback.print_exception(error, file=sys.stderr)


class _Emitter:
    """Reports pieces as they come if that was asked for, and in any case that the first token has come."""

    def __init__(self, call: ModelCall, report: Callable[[WorkerReport], None]) -> None:
        self._call, self._report, self._begun = call, report, False

    def __call__(self, text: str, tokens: int = 1) -> None:
        if not isinstance(text, str) or not _is_count(tokens):
            raise BackEndError(f"its back end emitted {text!r:.80} of {tokens!r:.20} tokens; expected text", "call")
        if self._call.stream:
            self._report(AnswerPiece(self._call.id, text, tokens))
        elif not self._begun:
            self._report(AnswerPiece(self._call.id, "", 0))
        self._begun = True


def _sound(call: ModelCall, given: Any) -> Answer:
    """What a back end gave, if it is an answer to the call that can be sent and read."""
    if not isinstance(given, Answer) or given.call != call.id or not isinstance(given.finish_reason, str):
        raise BackEndError(f"its back end gave {given!r:.80}; expected an Answer to {call.id}", "call")
    for name, count in (("read", given.read), ("written", given.written)):
        if count is not None and not _is_count(count):
            raise BackEndError(f"its back end {name} {count!r:.20} tokens; expected a count", "call")
    if not isinstance(given.outputs, dict):
        raise BackEndError(f"its outputs are {type(given.outputs).__name__}; expected values by name", "call")
    try:
        size_of(given.outputs)
    except BackEndError as error:
        raise BackEndError(f"its outputs cannot be sent: {error}", "call") from None
    return given


def _is_count(number: Any) -> bool:
    return type(number) is int and 0 <= number < 1 << 53


def said(error: BaseException) -> str:
    """An error in words."""
    if isinstance(error, BackEndError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _has_no_room(error: BaseException) -> bool:
    return isinstance(error, OutOfMemoryError) or is_out_of_memory(error)


def serve_worker(
    connection: Connection,
    number: int,
    served: Mapping[str, ServedModel],
    make: Callable[[ServedModel], BackEnd] = back_end_for,
) -> Literal["closed"]:
    """Be a worker, at the far end of a connection, until that is closed. To be called in the main thread."""
    lock = threading.Lock()

    def report(message: WorkerReport) -> None:
        data = encode(message)
        with lock, suppress(OSError):  # nobody listens any more: the end of the connection is seen below
            connection.send_bytes(data)

    worker = ModelWorker(number, served, report, make)
    worker.start()
    while True:
        try:
            data = connection.recv_bytes()
        except (EOFError, OSError):
            return "closed"
        worker.do(decode_command(data))
