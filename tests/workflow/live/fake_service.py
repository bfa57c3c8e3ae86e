"""A service of workflows that does what its models' names say, at once or when it is told: for tests of its faces."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, get_args

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.service.refusals import BusyError, ConflictError, DrainingError
from dovetail.workflow.live.runs import (
    ENDED,
    Blame,
    EventKind,
    NodeStatus,
    RunEvent,
    RunRequest,
    RunResult,
    RunState,
    RunStatus,
    UnknownRunError,
    UnknownWorkflowError,
    WorkflowInfo,
)

Callback = Callable[[RunEvent], None]
MODELS = {
    "echo": "answers with its prompt",
    "counter": "streams words",
    "embedder": "gives vectors",
    "slow": "runs until it is released",
    "silent": "is never started",
    "waits": "is never started, and ended for that",
    "picky": "refuses its input",
    "broken": "fails wherever it runs",
    "half": "is lost for good after two words",
    "again": "is lost once, and writes the same again",
    "other": "is lost once, and writes something else",
    "pixels": "has no text",
    "busy": "has a full queue",
}


class FakeRun:
    """A run, what happened to it, and who follows it."""

    def __init__(self, number: int, request: RunRequest) -> None:
        self.id = request.id or f"run-{number}"
        self.request = request
        self.state: RunState = "queued"
        self.events: list[RunEvent] = []
        self.followers: list[Callback] = []
        self.answer: dict[str, Any] = {}
        self.error = ""
        self.blame: Blame | None = None
        self.why_cancelled = ""

    def tell(self, kind: EventKind, node: str | None = None, text: str = "") -> None:
        event = RunEvent(n=len(self.events) + 1, t=time.time(), kind=kind, node=node, text=text, tokens=int(bool(text)))
        if kind in ENDED:
            self.state = kind  # type: ignore[assignment]
        elif kind == "started":
            self.state = "running"
        self.events.append(event)
        for follower in self.followers:
            follower(event)

    def say(self, *words: str) -> None:
        node = "answer" if self.request.workflow == "chain" else self.request.workflow
        if self.request.stream:
            for word in words:
                self.tell("piece", node, word)

    def complete(self, **answer: Any) -> None:
        self.answer = answer
        self.tell("completed")

    def fail(self, why: str, blame: Blame) -> None:
        self.error, self.blame = why, blame
        self.tell("failed")


class FakeService:
    """The runs, and a lock around them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.open: dict[str, FakeRun] = {}
        self._keys: dict[str, FakeRun] = {}
        self.draining = False
        self.trouble = ""
        self.followed = 0
        self.read: int | None = 3

    def output(self, run: str, node: str) -> dict[str, Any]:
        return {"text": f"{node} of {run}"}

    def submit(self, request: RunRequest) -> str:
        with self._lock:
            if self.draining:
                raise DrainingError("the service is about to end")
            if request.workflow not in (*MODELS, "chain"):
                hint = did_you_mean(request.workflow, [*MODELS, "chain"])
                raise UnknownWorkflowError(f"there is no workflow or model {request.workflow!r}{hint}")
            if request.workflow == "busy":
                raise BusyError("12 requests wait already", 1.5)
            if not request.weight > 0:
                raise InputError(f"weight {request.weight:g}: expected a positive number")
            key = request.idempotency_key
            if key is not None and key in self._keys:
                if self._keys[key].request.input != request.input:
                    raise ConflictError(f"the key {key!r} is of another request")
                return self._keys[key].id
            run = FakeRun(len(self.open) + 1, request)
            self.open[run.id] = run
            if key is not None:
                self._keys[key] = run
            run.tell("queued")
            self._carry(run)
            return run.id

    def _carry(self, run: FakeRun) -> None:
        model, prompt = run.request.workflow, str(run.request.input.get("prompt", ""))
        if model == "waits":
            run.fail("it waited for 600 s (max_wait_s)", "queue")
        if model in ("silent", "waits"):
            return
        run.tell("started", model)
        if model == "chain":
            run.tell("started", "draft")
            run.tell("piece", "draft", "not the answer")
            run.tell("node done", "draft")
            run.say("final: ", prompt)
            run.complete(text=f"final: {prompt}")
        elif model == "echo":
            run.complete(text=prompt, options=run.request.options)
        elif model == "embedder":
            texts = run.request.input.get("input", [])
            run.complete(embeddings=[[float(len(text)), 0.1, -2.0] for text in texts])
        elif model == "counter":
            run.say("one ", "two ", "three")
            run.complete(text="one two three")
        elif model == "picky":
            run.fail("prompt: longer than 4 tokens", "call")
        elif model == "broken":
            run.fail("the worker died 20 times", "place")
        elif model == "half":
            run.say("one ", "two ")
            run.fail("the worker died 20 times", "place")
        elif model in ("again", "other"):
            run.say("one ", "two ")
            run.tell("restarted", model)
            run.say("one tw", "o ", "three") if model == "again" else run.say("one ", "four")
            run.complete(text="one two three" if model == "again" else "one four")
        elif model == "pixels":
            run.complete(image=b"\x89PNG", size=[1, 1])
        elif model == "slow":
            run.say("one ")

    def release(self, run: str) -> None:
        with self._lock:
            self.open[run].say("two")
            self.open[run].complete(text="one two")

    def follow(self, run: str, callback: Callback, after: int = 0) -> Callable[[], None]:
        with self._lock:
            found = self._run(run)
            for event in found.events[after:]:
                callback(event)
            found.followers.append(callback)
            self.followed += 1

        def unfollow() -> None:
            with self._lock:
                found.followers.remove(callback)
                self.followed -= 1

        return unfollow

    def _run(self, run: str) -> FakeRun:
        if run not in self.open:
            raise UnknownRunError(f"there is no run {run!r}")
        return self.open[run]

    def status(self, run: str) -> RunStatus:
        with self._lock:
            found = self._run(run)
            return RunStatus(
                id=found.id,
                workflow=found.request.workflow,
                state=found.state,
                tenant=found.request.tenant,
                created=0.0,
                arrived_s=0.0,
                started_s=next((0.5 for event in found.events if event.kind == "started"), None),
                nodes={found.request.workflow: NodeStatus(model=found.request.workflow, gpus=(1,))},
                error=found.error,
                blame=found.blame,
                trace_id=found.request.trace_id or "",
            )

    def result(self, run: str) -> RunResult:
        with self._lock:
            found = self._run(run)
            return RunResult(
                id=found.id,
                state=found.state,
                outputs={found.request.workflow: found.answer},
                answer=found.answer,
                read=self.read,
                written=5,
                finish_reason="length" if found.request.options.get("max_tokens") == 5 else "stop",
                error=found.error,
                blame=found.blame,
            )

    def cancel(self, run: str, why: str = "") -> None:
        with self._lock:
            found = self._run(run)
            if found.state not in ENDED:
                found.why_cancelled = why
                found.tell("cancelled")

    def runs(self, state: RunState | None = None, after: str | None = None, limit: int = 50) -> Sequence[RunStatus]:
        assert state is None or state in get_args(RunState)
        with self._lock:
            newest = [self.status(run) for run in reversed(self.open)]
            ids = [status.id for status in newest]
            newest = newest[ids.index(after) + 1 :] if after in ids else newest
            return [status for status in newest if state in (None, status.state)][:limit]

    def workflows(self) -> Sequence[WorkflowInfo]:
        chain = WorkflowInfo(name="chain", nodes=("draft", "answer"), models=("echo", "counter"), answer="answer")
        return [chain, *(WorkflowInfo(name=m, nodes=(m,), models=(m,), answer=m, implicit=True) for m in MODELS)]

    def about(self) -> dict[str, Any]:
        gpus = [
            {"models": ["echo"], "running": []},
            {"models": ["counter", "slow"], "running": ["a/slow"], "type": "l4", "device": "cpu"},
        ]
        counts = {"queued": 0, "running": 1, "queue": {}, "wait_s": 2.5, "uptime_s": 10.0 * (1 + len(self.open))}
        return {"draining": self.draining, "policy": "dovetail", "trouble": self.trouble, "gpus": gpus, **counts}

    def explain(self, run: str) -> Any:
        return {"run": self._run(run).id, "because": "it was its turn"}

    def estimate(self, model: str, input: dict[str, Any], options: dict[str, Any]) -> float:
        return 0.5 + len(input["prompt"]) / 100

    def metrics(self) -> str:
        lines = [
            ("starts_total", 'model="echo"', 5 + len(self.open)),
            ("tokens_total", 'model="echo",direction="written"', 100 + 50 * len(self.open)),
            ("tokens_total", 'model="echo",direction="read"', 7),
            ("waiting_nodes", 'model="slow"', 3),
            ("ttft_seconds_bucket", 'workflow="echo",le="+Inf"', 4),
            ("ttft_seconds_sum", 'workflow="echo"', 2.0),
            ("ttft_seconds_count", 'workflow="echo"', 4),
        ]
        return "# TYPE x counter\n" + "".join(f"dovetail_workflow_{n}{{{labels}}} {v}\n" for n, labels, v in lines)
