"""What passes between the service and its agents (MessagePack), and between an agent and a process (lines of JSON).

An agent dials the service and beats: it says what it runs. The service answers a beat with all leases of that node,
at the latest when the next beat is due, at once when something has changed. Seconds of a lease count from the moment
when the agent sent the beat that is answered: so a lease always ends at the agent before it ends at the service.

A process dials its agent's Unix socket, `$DOVETAIL_AGENT`; a request is one line, and so is its answer. Steps are
those of the job, from its first lease on: a process goes on counting at `done`, which the answer to `hello` tells. A
process that loses its agent dials again, as long as its lease lasts, and says `hello` anew. Unasked it is told but
one thing: where all ranks stop (`StopAt`).
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Lock
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

# --- service and agent ----------------------------------------------------------------------------


class TrainingCommand(Struct, frozen=True):
    """What a job runs, wherever it does: each rank is one process of it. `folder` is the job's own, which all nodes
    share; it holds at most `most_mib`. It runs on any type, or on those of `types`."""

    words: tuple[str, ...]
    folder: str
    model: str = ""
    cwd: str = ""
    env: dict[str, str] = {}
    checkpoint: Literal["iterator", "own", "pause"] = "iterator"
    total_steps: int | None = None
    most_mib: float | None = None
    types: tuple[str, ...] = ()


class NodeLease(Struct, frozen=True):
    """A job's lease, as far as it concerns one node: `ranks` run there, each on the accelerator at the same place of
    `places` (which of the node's) and `gpus` (which GPU of the machine, -1 is none).

    With `early` its processes start before `go`, and wait: who is known to ask. `seconds` is None as long as it has not
    begun. `last`: there will be no more time. `stop_steps` is where all ranks are to stop then. `end`: it is over now,
    whatever was granted: `stop` with a checkpoint, or `kill`. `counts`: the job has counted steps in an earlier lease,
    and is to go on with that.
    """

    job: int
    epoch: int
    ranks: tuple[int, ...]
    places: tuple[int, ...]
    gpus: tuple[int, ...]
    type: str
    world: int
    command: TrainingCommand
    master: str = "127.0.0.1"
    port: int = 0
    early: bool = False
    go: bool = False
    done: int = 0
    seconds: float | None = None
    last: bool = False
    stop_steps: int | None = None
    end: Literal["", "stop", "kill"] = ""
    beside: str = ""  # the model of the job that has the same accelerators
    after: tuple[tuple[int, int], ...] = ()  # leases whose processes must be gone from here before it begins
    resumes: int = 0  # the epoch of the lease whose processes, which are stopped, go on with this one
    counts: bool = False


class NodeLeases(Struct, frozen=True, tag="leases"):
    """The answer to beat `beat`: all that the node should run. Of `over` nothing needs to be told again."""

    beat: int
    leases: tuple[NodeLease, ...]
    over: tuple[tuple[int, int], ...] = ()
    grace_s: float = 0.0
    kill_after_s: float = 0.0
    beat_s: float = 1.0
    round_s: float = 1.0
    renew_at: float = 0.75


class LeaveNode(Struct, frozen=True, tag="leave"):
    """Let everything save and stop, and then end yourself."""


class LeaseState(Struct, frozen=True):
    """How far a lease is on one node. `steps` were reported, `saved` are in the current checkpoint as far as this node
    knows, both of the job in all; it trained for `seconds`. `why` tells how its processes ended, if not as they should.
    `left_s` is how much of the lease is left; `granted`: it begins by itself, if it has not yet. `kept`: a command that
    counts no steps has left something new. `absent`: its command or folder is not there."""

    job: int
    epoch: int
    state: Literal["starting", "waiting", "running", "paused", "gone"]
    steps: int = 0
    saved: int = 0
    seconds: float = 0.0
    complete: bool = False
    why: str = ""
    left_s: float | None = None
    granted: bool = False
    kept: bool = False
    absent: bool = False


class AgentBeat(Struct, frozen=True, tag="beat"):
    """A sign of life. `ports` are free on that node just now, for jobs of several ranks. `seen` is the last beat whose
    answer it knows of. `trouble`: why no process can be started there, whatever the job."""

    node: str
    number: int
    seen: int = -1
    states: tuple[LeaseState, ...] = ()
    ports: tuple[int, ...] = ()
    trouble: str = ""


class NodeTrouble(Struct, frozen=True):
    """Why no process can be started on a node; nothing: now one can again."""

    node: str
    why: str


class StopAsked(Struct, frozen=True, tag="stop_asked"):
    """Ranks on several nodes have to stop alike: this one expects to be at `steps` when its lease ends."""

    job: int
    epoch: int
    steps: int


class ProcessEvent(Struct, frozen=True, tag="event"):
    """Something that a process went through, or its agent with it (launch, hello, go, exit), by the clock on the wall:
    for the table of overheads."""

    job: int
    epoch: int
    rank: int
    name: str
    at: float


FromAgent = AgentBeat | StopAsked | ProcessEvent
ToAgent = NodeLeases | LeaveNode

_from_agent: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromAgent)
_to_agent: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ToAgent)


class AgentConnection:
    """One end of the connection between service and agent; any thread may send."""

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self._connection = connection
        self._sending = Lock()

    def send(self, message: FromAgent | ToAgent) -> None:
        frame = msgspec.msgpack.encode(message)
        with self._sending:
            self._connection.send_bytes(frame)

    def from_agent(self) -> FromAgent:
        """The next message. Raises EOFError or OSError when the other end is gone."""
        found: FromAgent = _from_agent.decode(self._connection.recv_bytes())
        return found

    def to_agent(self) -> ToAgent:
        found: ToAgent = _to_agent.decode(self._connection.recv_bytes())
        return found

    def wait_at_most(self, seconds: float) -> None:
        """For the next message; 0 is for ever."""
        with socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)

    def hang_up(self) -> None:
        """From any thread: whoever waits for a message is told that there will be none."""
        with suppress(OSError), socket.socket(fileno=os.dup(self._connection.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


# --- agent and process ----------------------------------------------------------------------------


Steps = Annotated[int, Meta(ge=0, le=2**53)]
Seconds = Annotated[float, Meta(ge=0)]


class ProcessRequest(Struct, frozen=True, tag_field="ask"):
    """A request of a process. Its first one is `hello`."""


class Hello(ProcessRequest, frozen=True, tag="hello"):
    """Answered by a `Lease` when its turn has come; until then it waits. Its checkpoint is to be read only then."""

    job: int
    epoch: int
    rank: int
    pid: int


class Renew(ProcessRequest, frozen=True, tag="renew"):
    """Asks for more time, at `steps` of the job, after `seconds` of training in this process; answered by a `Lease`.
    With `stop` it wants none (somebody told it to terminate), but to know where all ranks of the job stop."""

    steps: Steps
    seconds: Seconds
    stop: bool = False


class StepsDone(ProcessRequest, frozen=True, tag="progress"):
    steps: Steps
    seconds: Seconds


class Happened(ProcessRequest, frozen=True, tag="event"):
    """For the table of overheads: import, load_begin, load_end, save_begin, save_end, first_step, ...; `at` by the
    clock on the wall."""

    name: str
    at: float


class Commit(ProcessRequest, frozen=True, tag="commit"):
    """The checkpoint folder holds a whole checkpoint of these steps: make it the job's current one. Nothing may be
    written there until the answer has come. After the `last` one the process leaves, and its folder is taken as it
    is; otherwise it is copied."""

    steps: Steps
    last: bool = False


class JobComplete(ProcessRequest, frozen=True, tag="complete"):
    """All of the job's work is done."""

    steps: Steps


Request = Hello | Renew | StepsDone | Happened | Commit | JobComplete


class Lease(Struct, frozen=True, omit_defaults=True):
    """So many `seconds` from now on; at `steps` of the job it is to stop at the latest, if that is told: all ranks
    stop at the same step. `last`: asking again will bring no more. `done` are the steps of the checkpoint that it
    begins with, `total_steps` those after which the job is complete. No seconds: save, and leave. `beside` is the model
    of the job that has the same accelerators now, or nothing."""

    seconds: float
    steps: int | None = None
    total_steps: int | None = None
    last: bool = False
    done: int = 0
    beside: str | None = None


class StopAt(Struct, frozen=True):
    """Told to every rank as soon as it is known, and before it is known to who asked: so no rank passes that step."""

    stop: int


class Done(Struct, frozen=True, omit_defaults=True):
    """Whether it was done, and if not, why: a checkpoint of an older epoch, a full disk. Who tells of its progress is
    told who is `beside` it."""

    ok: bool = True
    why: str = ""
    beside: str | None = None


_request: msgspec.json.Decoder[Any] = msgspec.json.Decoder(Request)


def decode_request(line: bytes) -> Request:
    """
    >>> decode_request(encode_line(Commit(steps=40)))
    Commit(steps=40, last=False)
    """
    found: Request = _request.decode(line)
    return found


def encode_line(message: Request | Lease | StopAt | Done) -> bytes:
    r"""
    >>> encode_line(Hello(job=3, epoch=2, rank=0, pid=812))
    b'{"ask":"hello","job":3,"epoch":2,"rank":0,"pid":812}\n'
    >>> encode_line(Lease(seconds=4.5)), encode_line(Done())
    (b'{"seconds":4.5}\n', b'{}\n')
    """
    return msgspec.json.encode(message) + b"\n"
