"""What passes between a service of workflows and whoever uses it: requests, their state, what happens to them."""

from __future__ import annotations

from typing import Any, Literal, Protocol

from msgspec import Struct
from msgspec.structs import asdict

from dovetail.core.errors import InputError
from dovetail.core.events import Grew
from dovetail.workflow.live.protocol import Answer, AnswerPiece, ModelCall
from dovetail.workflow.live.references import NOTHING, Brought
from dovetail.workflow.live.values import to_json

RunState = Literal["queued", "running", "completed", "failed", "cancelled"]
NodeState = Literal["waiting", "running", "completed", "failed", "cancelled"]
EventKind = Literal[
    "queued", "started", "first token", "piece", "restarted", "node done", "completed", "failed", "cancelled"
]
Blame = Literal["call", "place", "queue"]
ENDED = frozenset({"completed", "failed", "cancelled"})


class RunRequest(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request for a workflow, or for a model, which is a workflow of one node.

    `due_s` is how long after its arrival it should be complete. The same `idempotency_key` with the same content is the
    same run, however often it is sent; `options` are those of the calls (`max_tokens`, ...), `trace_id` has 32
    hexadecimal digits and is made up where none is given.
    """

    workflow: str
    input: dict[str, Any] = {}
    id: str | None = None
    tenant: str = ""
    weight: float = 1.0
    due_s: float | None = None
    idempotency_key: str | None = None
    stream: bool = False
    options: dict[str, Any] = {}
    trace_id: str | None = None


class NodeStatus(Struct, kw_only=True, omit_defaults=True):
    """A node of a run: its model, the GPUs that it last had, how often it was tried, and why it is where it is. Times
    are in seconds since the service first began."""

    model: str
    state: NodeState = "waiting"
    gpus: tuple[int, ...] = ()
    attempts: int = 0
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    why: str = ""


class RunStatus(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A run. `created` is when it was accepted, by the system's clock; other times are in seconds since the service
    first began. `blame` says whether the request (`call`) or the service (`place`) is at fault where it failed, or
    whether it waited for too long (`queue`): then it may be sent again."""

    id: str
    workflow: str
    state: RunState
    tenant: str = ""
    created: float
    arrived_s: float
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    nodes: dict[str, NodeStatus] = {}
    error: str = ""
    blame: Blame | None = None
    trace_id: str = ""
    notes: tuple[str, ...] = ()


class RunResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of a run: the outputs of each node that completed, those of the node that answers and its name, and the
    tokens of all calls that counted them."""

    id: str
    state: RunState
    outputs: dict[str, dict[str, Any]] = {}
    answer: dict[str, Any] = {}
    answered_by: str = ""
    read: int | None = None
    written: int | None = None
    finish_reason: str = ""
    error: str = ""
    blame: Blame | None = None

    def plain(self, once: bool = False) -> dict[str, Any]:
        """As JSON can hold it: bytes in base64, tensors with shape and dtype. With `once` the values of the answer are
        not among the outputs too: of its node nothing is told there."""
        hidden: dict[str, Any] = {self.answered_by: {}} if once and self.answered_by in self.outputs else {}
        told: dict[str, Any] = to_json(asdict(self) | {"outputs": self.outputs | hidden})
        return told


class RunEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened to a run, numbered upwards, beyond all earlier ones after a restart of the service too.
    After `restarted` the pieces of that node so far are void: it is called anew. Without a node, all that was told of
    the run is void: it is told anew."""

    n: int
    t: float
    kind: EventKind
    node: str | None = None
    text: str = ""
    tokens: int = 0
    data: dict[str, Any] = {}


class WorkflowInfo(Struct, frozen=True, kw_only=True):
    """A workflow that can be asked for; `answer` is the node whose outputs are its answer, unless it `grows`: then
    what it adds answers. `implicit`: a model."""

    name: str
    nodes: tuple[str, ...]
    models: tuple[str, ...]
    answer: str
    implicit: bool = False
    grows: bool = False


class UnknownWorkflowError(InputError):
    """There is no such workflow or model."""


class UnknownRunError(InputError):
    """There is no such run, or it ended so long ago that it was forgotten."""


class Runs(Protocol):
    """What an executor asks of whoever keeps the runs. Any thread may ask; nothing here takes long: where a value is
    needed that stays elsewhere, `ElsewhereError` says so, and what was `brought` is given with the next attempt."""

    def call(self, job: str, task: str, model: str, id: str, brought: Brought = NOTHING) -> ModelCall:
        """What a node is called with. Raises `BackEndError` with blame on the call where that cannot be had."""
        ...

    def piece(self, job: str, task: str, piece: AnswerPiece) -> None:
        """A part of an answer has come."""
        ...

    def answered(self, job: str, task: str, answer: Answer, brought: Brought = NOTHING) -> Grew | None:
        """A node's call has ended: its outputs are noted, and kept with the step that holds its `Finished`. What they
        decide to add goes before that. Raises `BackEndError` with blame on the call if they are not what they must."""
        ...
