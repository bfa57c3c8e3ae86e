"""Models that only take time, as much as their source says: for dry runs, benches and tests. Asked for by name, never a
fallback. They fail on request too: in any way that a real one can.
"""

from __future__ import annotations

import math
import os
import random
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from threading import Condition, Event
from typing import Any, Literal
from urllib.parse import quote

import msgspec

from dovetail.workflow.gpus.sharing import SharedWindow
from dovetail.workflow.inputs.sources import EmulatedSource
from dovetail.workflow.live.protocol import (
    Answer,
    BackEnd,
    BackEndError,
    Emit,
    Memory,
    ModelCall,
    OutOfMemoryError,
    ServedModel,
)

Verb = Literal["load", "unload", "call"]
_LOOK_S = 0.02  # how often a call that shares its speed looks whether it was stopped


def make(model: ServedModel) -> BackEnd:
    try:
        source = msgspec.convert(model.source["emulated"] or {}, EmulatedSource)
    except msgspec.ValidationError as error:
        raise BackEndError(f"{model.name}: emulated: {error}") from None
    return EmulatedModel(model, source)


class EmulatedModel:
    """Sleeps, or spins, as long as a real one would work."""

    def __init__(self, model: ServedModel, source: EmulatedSource) -> None:
        self._model, self._source = model, source
        self._kept = self._loaded = False
        self._why = ""  # it is not healthy
        self._speed = _Shared(source.shares) if source.shares else None

    def load(self, devices: Sequence[str]) -> None:
        source = self._source
        self._misbehave("load", Event())
        self._pass((source.load_s or 0.0) if not self._kept or source.reload_s is None else source.reload_s, Event())
        self._kept = self._loaded = True

    def unload(self, keep: bool) -> None:
        self._misbehave("unload", Event())
        self._pass(self._source.unload_s, Event())
        self._loaded, self._kept = False, keep

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        self._misbehave("call", stopped, str(call.inputs.get("fault", "")))
        read, written = self._tokens(call)
        read_s, write_s = self._seconds(call, read, written)
        self._pass(read_s, stopped)
        words = _words(call, self._source.answer, written)
        said = []
        for _ in range(max(written, 1)):
            if stopped.is_set():
                break
            if written:
                said.append(next(words, ""))
                emit(said[-1], 1)
            if not call.stream:  # nobody sees the others come
                said += words
                self._pass(write_s, stopped)
                break
            self._pass(write_s / max(written, 1), stopped)
        outputs = {"text": "".join(said)}
        if isinstance(self._source.answer, dict):
            outputs = self._source.answer
        reason = "length" if written and written == call.options.get("max_tokens") else "stop"
        return Answer(call.id, outputs, read or None, written or None, reason)

    def status(self) -> dict[str, Any]:
        return {"healthy": not self._why, **({"why": self._why} if self._why else {})}

    def memory(self) -> Memory:
        size = float(self._model.memory_mib)
        return Memory(size if self._loaded else 0.0, size if self._kept else 0.0)

    # --- time --------------------------------------------------------------------------------------------

    def _tokens(self, call: ModelCall) -> tuple[int, int]:
        given = [call.inputs.get(name) for name in ("prompt", "text", "input", "messages")]
        read = sum(len(str(value).split()) for value in given if value)
        most = call.options.get("max_tokens")
        written = round(self._source.token_mean or 0.0)
        return read, written if most is None else min(written, int(most))

    def _seconds(self, call: ModelCall, read: int, written: int) -> tuple[float, float]:
        """Until the first token, and from there on."""
        source, noise = self._source, 1.0
        if source.noise:
            sigma = math.sqrt(math.log1p(source.noise**2))
            noise = random.Random(call.id).lognormvariate(-(sigma**2) / 2, sigma)
        fixed = call.options.get("seconds", source.call_s)
        if fixed is not None:
            part = 1 / (written + 1)
            return fixed * noise * part, fixed * noise * (1 - part)
        read_s = read / source.prefill_tokens_per_second if source.prefill_tokens_per_second else 0.0
        write_s = written / source.tokens_per_second if source.tokens_per_second else 0.0
        return read_s * noise, write_s * noise

    def _pass(self, seconds: float, stopped: Event) -> None:
        if seconds <= 0:
            return
        if self._source.spin:
            until = time.monotonic() + seconds
            while time.monotonic() < until and not stopped.is_set():
                pass
        elif self._speed is not None:
            self._speed.work(seconds, stopped)
        else:
            stopped.wait(seconds)

    # --- faults ------------------------------------------------------------------------------------------

    def _misbehave(self, verb: Verb, stopped: Event, fault: str = "") -> None:
        fault = fault or self._taken(verb)
        if not fault:
            return
        where = f"{self._model.name} was told to"
        if fault == "fail":
            raise BackEndError(f"{where} fail")
        if fault == "blame":
            raise BackEndError(f"{where} refuse this call", blame="call")
        if fault == "oom":
            raise OutOfMemoryError(f"{where} run out of memory")
        if fault == "unhealthy":
            self._why = f"{where} be ill"
            Event().wait()
        if fault == "hang":
            stopped.wait()
            raise BackEndError(f"{where} hang until it is stopped")
        if fault == "stuck":
            Event().wait()
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise BackEndError(f"{where} do {fault!r}, which it cannot: fail, blame, oom, unhealthy, hang, stuck, die")

    def _taken(self, verb: Verb) -> str:
        """A fault that waits for this one. Whoever removes the file has it: no two do."""
        if not self._source.faults:
            return ""
        for path in sorted(Path(self._source.faults).iterdir()):
            model, _, rest = path.name.partition(f".{verb}.")
            if rest and model in ("any", quote(self._model.name, "")):
                try:
                    path.unlink()
                except FileNotFoundError:
                    continue
                return rest.partition(".")[0]
        return ""


class _Shared:
    """Calls at once that slow each other down, as the scheduler expects it of slots."""

    def __init__(self, shares: tuple[float, ...]) -> None:
        self._changed = Condition()
        padded = [*shares, *[shares[-1]] * 1024]  # more at once than that is nothing that a scheduler does
        self._window = SharedWindow(padded, time.monotonic())

    def work(self, seconds: float, stopped: Event) -> None:
        window = self._window
        with self._changed:
            done_s = window.join(time.monotonic()) + seconds
            self._changed.notify_all()
            while not stopped.is_set() and (left_s := window.when(done_s) - time.monotonic()) > 0:
                self._changed.wait(min(left_s, _LOOK_S))
            window.leave(time.monotonic())
            self._changed.notify_all()


def _words(call: ModelCall, answer: str | dict[str, Any] | None, written: int) -> Any:
    """So many words: the answer's, or made-up ones."""
    if isinstance(answer, str):
        parts = answer.split(" ")
        given = [word if i == 0 else f" {word}" for i, word in enumerate(parts)]
        return iter([*given[: written - 1], "".join(given[written - 1 :])] if written else given)
    return iter([f"w{i}" if i == 0 else f" w{i}" for i in range(written)])
