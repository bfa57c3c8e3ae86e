"""What live runs are made of, and what passes between the parts.

A **back end** serves one model on the devices of one worker; it may block. A **worker** is a process of its own for one
GPU, real or emulated: it holds back ends and makes their calls. An **engine** carries workers (processes here, actors
on the nodes of a Ray cluster): its commands never block, and what comes of them is reported. The executor alone knows
the scheduler's orders; an engine knows workers, models and calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from threading import Event
from typing import Any, Literal, Protocol

from msgspec import Struct

# What a call of a language model may ask for.
_PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
CALL_OPTIONS = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "ignore_eos", *_PENALTIES)
Emit = Callable[[str, int], None]  # a piece of text, and how many tokens it has


class Reference:
    """A value that stays where it is large: in the engine's object store. Workers are given the value, others the
    handle; it is no struct, which would be taken for a plain mapping where values are sent or kept."""

    __slots__ = ("bytes", "handle")

    def __init__(self, handle: str, bytes: int) -> None:
        self.handle = handle
        self.bytes = bytes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Reference) and self.handle == other.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def __repr__(self) -> str:
        return f"Reference({self.handle!r}, {self.bytes})"


class ServedModel(Struct, frozen=True, kw_only=True):
    """A model as workers see it. `source` says where it comes from; nothing else is ever served in its place."""

    name: str
    source: dict[str, Any]
    type: str = "llm"
    memory_mib: int = 0
    width: int = 1
    slots: int = 1
    options: dict[str, Any] = {}


class ModelCall(Struct, frozen=True, kw_only=True):
    """One call of a model. `inputs` are values by name; `id` is of this attempt alone."""

    id: str
    model: str
    inputs: dict[str, Any]
    options: dict[str, Any] = {}
    stream: bool = False


class Memory(Struct, frozen=True):
    """What a loaded or offloaded model holds."""

    device_mib: float = 0.0
    host_mib: float = 0.0


class BackEnd(Protocol):
    """One model on one worker. Every method may block, and is called from the worker's threads; calls run at once, up
    to the model's slots, and never beside `load` or `unload`."""

    def load(self, devices: Sequence[str]) -> None:
        """Make it ready to be called, from host memory if it was kept there, else from its source: when this returns,
        the weights are where they are used. `devices` are those of its window: `cuda:0`, or `cpu` for an emulated GPU.
        Raises `OutOfMemoryError` or another `BackEndError`."""
        ...

    def unload(self, keep: bool) -> None:
        """Leave the devices; with `keep` the weights stay in host memory, where the back end can do that."""
        ...

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        """Answer a call. Pieces of text are emitted as they come if it is to be streamed; the first token in any case
        (an empty piece will do). Ends soon after `stopped` is set, with whatever there is."""
        ...

    def status(self) -> dict[str, Any]:
        """What an operator wants to know; `healthy: False` if it can no longer be called."""
        ...

    def memory(self) -> Memory: ...


def unloadable(model: str) -> str:
    """How it is said that a model could not be loaded; why follows."""
    return f"{model} could not be loaded"


class BackEndError(Exception):
    """A back end cannot do it, and why. `blame`: whether the call itself is to blame (it will fail anywhere), or the
    place where it ran (it is tried elsewhere)."""

    def __init__(self, why: str, blame: Literal["call", "place"] = "place") -> None:
        super().__init__(why)
        self.blame = blame


class OutOfMemoryError(BackEndError):
    """The devices, or the host, have no room for the model."""


# --- what an engine reports -------------------------------------------------------------------------


class WorkerReady(Struct, frozen=True, tag=True):
    """A worker has started, and nothing is loaded there."""

    worker: int


class Loaded(Struct, frozen=True, tag=True):
    worker: int
    model: str
    memory: Memory = Memory()


class Unloaded(Struct, frozen=True, tag=True):
    worker: int
    model: str


class LoadFailed(Struct, frozen=True, tag=True):
    worker: int
    model: str
    why: str
    out_of_memory: bool = False


class Unhealthy(Struct, frozen=True, tag=True):
    """A loaded model can no longer be called, says its back end."""

    worker: int
    model: str
    why: str


class AnswerPiece(Struct, frozen=True, tag=True):
    """A part of an answer, of so many tokens; the first tells that the first token has come."""

    call: str
    text: str
    tokens: int = 1


class Answer(Struct, frozen=True, tag=True):
    """The end of a call. `read` and `written` are its tokens, where the back end counts them."""

    call: str
    outputs: dict[str, Any]
    read: int | None = None
    written: int | None = None
    finish_reason: str = "stop"


class CallFailed(Struct, frozen=True, tag=True):
    call: str
    why: str
    blame: Literal["call", "place"] = "place"


class WorkerLost(Struct, frozen=True, tag=True):
    """A worker has died or was ended, with all that was loaded and called there. The engine starts it anew and says
    `WorkerReady` when it is back; one that does not come back within the engine's patience stays away."""

    worker: int
    why: str


class WorkersJoined(Struct, frozen=True, tag=True):
    """GPUs that are new to the engine: their workers are numbered on from those that are there."""

    places: tuple[GpuPlace, ...]


class GpuPlace(Struct, frozen=True):
    """A GPU: its type's name, its memory if that is known, the host that it is in, and what torch calls it there."""

    type: str
    host: str
    device: str = "cpu"
    memory_mib: int | None = None


Report = (
    WorkerReady
    | Loaded
    | Unloaded
    | LoadFailed
    | Unhealthy
    | AnswerPiece
    | Answer
    | CallFailed
    | WorkerLost
    | WorkersJoined
)


class Engine(Protocol):
    """Carries workers, numbered as the GPUs of the pool. A model that spans several GPUs lives with the worker of the
    first one of its window. No method blocks for long; reports come from any thread, those of one worker in order."""

    @property
    def places(self) -> Sequence[GpuPlace]: ...

    def start(self, models: Mapping[str, ServedModel], report: Callable[[Report], None]) -> None:
        """Start all workers; each says `WorkerReady`."""
        ...

    def load(self, worker: int, model: str, window: tuple[int, ...]) -> None: ...

    def unload(self, worker: int, model: str, keep: bool) -> None: ...

    def call(self, worker: int, call: ModelCall) -> None: ...

    def cancel(self, worker: int, call: str) -> None:
        """Ask a call to end; it is reported all the same, as an answer or a failure."""
        ...

    def restart(self, worker: int, why: str) -> None:
        """End a worker that does not answer, by force; `WorkerLost` and then `WorkerReady` follow."""
        ...

    def fetch(self, reference: Reference, then: Callable[[Any], None]) -> None:
        """Bring a value here; `then` is given it, or a `BackEndError`, from any thread."""
        ...

    def drop(self, references: Sequence[Reference]) -> None:
        """Nobody needs these values any more."""
        ...

    def status(self) -> list[dict[str, Any]]:
        """What is known of each worker: process, host, models, memory; from what was reported, at once."""
        ...

    def close(self) -> None:
        """End all workers and whatever they have started."""
        ...
