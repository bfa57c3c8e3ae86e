"""Sends recorded requests to a running service at their times, whether it keeps up or not, and tells what came back.

A trace tells how many tokens were read and written, not which: prompts are made up, of as many words. Blocks that a
trace says to be alike (prefixes) are made of the same words.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError, check_functions, did_you_mean, within
from dovetail.core.files.document import Document, as_path
from dovetail.core.files.output import refuse_overwrite
from dovetail.core.files.reading import check_rereadable, is_json_lines, open_bytes, skip_bom
from dovetail.core.metrics import Spread
from dovetail.core.service.client import ServiceError
from dovetail.core.service.interrupts import interrupts
from dovetail.workflow.choices import REQUEST_LINES, TraceFormat, check_choice, check_count
from dovetail.workflow.inputs.importers.calls import import_azure, import_burstgpt, import_mooncake
from dovetail.workflow.inputs.importers.opentelemetry import import_otel
from dovetail.workflow.inputs.request_entries import EntryFault, RequestEntry, time_us
from dovetail.workflow.live.client import WorkflowClient, connect
from dovetail.workflow.live.run_data import call_options
from dovetail.workflow.live.values import to_json

_IMPORTERS: dict[TraceFormat, Callable[..., Iterable[dict[str, Any]]]] = {
    "azure": import_azure,
    "mooncake": import_mooncake,
    "burstgpt": import_burstgpt,
    "otel": import_otel,
}
_SIGNS: tuple[tuple[bytes, TraceFormat], ...] = (
    (b"ContextTokens", "azure"),
    (b"Request tokens", "burstgpt"),
    (b'"input_length"', "mooncake"),
    (b"resourceSpans", "otel"),
    (b"request_id", "requests"),
)
_LOOK_S = 0.1
_BLOCK = 512  # tokens of a prefix's block, as Mooncake's traces have them
_TEXT = """
the of and to in is that it was for on are with as at be this have from or one had by word but not what all were we
when your can said there use an each which she do how their if will up other about out many then them these so some her
would make like him into time has look two more write go see number no way could people my than first water been call
who its now find long down day did get come made may part over new sound take only little work know place year live me
back give most very after thing our just name good sentence man think say great where help through much before line
"""
_WORDS = _TEXT.split()  # each of them a token, to most models


class TraceReply(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of one request. `due_s` is when it was to be sent, `late_s` how much later that was; other times are
    from its sending on. `state` is the run's, or `refused` (429), or `error`: nobody answered."""

    request_id: str
    workflow: str
    due_s: float
    late_s: float
    state: str = ""
    run: str = ""
    first_token_s: float | None = None
    response_s: float | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    error: str = ""
    retry_after_s: float | None = None
    answer: Any = None


_ERRORS = 5  # that are told, the commonest first


class TraceReplay:
    """What a service made of a trace: `metrics`, and each of the `replies` where no file was asked for."""

    def __init__(self, metrics: dict[str, Any], replies: list[TraceReply], interrupted: bool) -> None:
        self.metrics, self.replies, self.interrupted = metrics, replies, interrupted

    def __repr__(self) -> str:
        told = self.metrics
        return f"<TraceReplay {told['completed']} of {told['sent']} completed, {told['refused']} refused>"


def replay(
    trace: str | os.PathLike[str] | Sequence[Mapping[str, Any]],
    url: str | os.PathLike[str] | None = None,
    *,
    token_file: str | os.PathLike[str] | None = None,
    of: TraceFormat | None = None,
    workflow: str | Mapping[str, str] | None = None,
    speed: float = 1.0,
    requests: int | None = None,
    connections: int = 1000,
    results: str | os.PathLike[str] | None = None,
    answers: bool = False,
    progress: Callable[[int], None] | None = None,
) -> TraceReplay:
    """Send a trace to the service at a URL (or of a state folder), at its times, `speed` times as fast: each request
    when it is due, whatever became of those before it. What is refused (429) is counted, and not sent again.

    `trace` is a file of Azure's, Mooncake's, BurstGPT's or OpenTelemetry's, told by its content unless `of` says which,
    or requests (a file, or a list). `workflow` names what they are sent to, a model or workflow of the service, for all
    or by their own workflow's name. Only the first so many `requests` are sent, and so many `connections` are open at
    most: who waits for one is late, which is told. What came back goes to `results`, JSON lines, with the `answers` if
    they are wanted.
    """
    check_functions(progress=progress)
    within("--speed", speed, "a positive number", 1e-9, inf, optional=False)
    check_count("--connections", connections, 1)
    if requests is not None:
        check_count("--requests", requests, 1)
    rows = None if results is None else as_path(results, "results")
    if rows is not None and isinstance(trace, str | os.PathLike):
        refuse_overwrite([rows], [as_path(trace, "trace")], REQUEST_LINES)
    entries = _entries(trace, of)
    client = connect(url, token_file)
    known = set(client.models())
    wanted = [
        _Wanted.of(at_s, entry, _target(entry.workflow_id, workflow, known)) for at_s, entry in entries[:requests]
    ]
    sender = _Sender(client, speed, connections, answers, rows, progress)
    return sender.send(wanted)


def _target(name: str, workflow: str | Mapping[str, str] | None, known: set[str]) -> str:
    target = workflow if isinstance(workflow, str) else (workflow or {}).get(name, name)
    if target not in known:
        named = f"--workflow {target}" if target != name else f"the trace's {name!r}"
        hint = did_you_mean(target, known)
        raise InputError(f"{named}: no workflow or model of the service{hint}; --workflow says what to send it to")
    return target


# --- what is sent -------------------------------------------------------------------------------------------


def _entries(trace: Any, of: TraceFormat | None) -> list[tuple[float, RequestEntry]]:
    """The requests of a trace in order of time, with their seconds since the first."""
    found: list[tuple[int, RequestEntry]] = []
    for i, row in enumerate(_rows(trace, of)):
        place = f"{trace}: " if isinstance(trace, str | os.PathLike) else ""
        try:
            entry = msgspec.convert(row, RequestEntry)
            found.append((0 if entry.timestamp is None else time_us(entry.timestamp)[1], entry))
        except msgspec.ValidationError as error:
            raise InputError(f"{place}requests.{i}: {error}") from None
        except EntryFault as error:
            raise InputError(f"{place}requests.{i}: {error.key}: {error}") from None
    if not found:
        raise InputError("trace: expected at least one request, found none")
    found.sort(key=lambda one: one[0])
    first = found[0][0]
    return [((stamp - first) / 1e6, entry) for stamp, entry in found]


def _rows(trace: Any, of: TraceFormat | None) -> Iterator[Mapping[str, Any]]:
    if of is not None:
        check_choice("of", of, TraceFormat)
    if not isinstance(trace, str | os.PathLike):
        data = Document.of(trace, "trace").data
        yield from data["requests"] if isinstance(data, dict) and "requests" in data else data
        return
    path = as_path(trace, "trace")
    check_rereadable(path)
    kind = of or _format(path)
    if kind != "requests":
        yield from _IMPORTERS[kind]([path])
    elif is_json_lines(path) or path.suffix == ".jsonl":
        with path.open("rb") as file:
            skip_bom(file)
            yield from (msgspec.json.decode(line) for line in file if line.strip())
    else:
        doc = Document.read(path)
        if not isinstance(doc.data, dict) or not isinstance(doc.data.get("requests"), list):
            raise doc.error((), "expected requests: and a list of them")
        yield from doc.data["requests"]


def _format(path: Path) -> TraceFormat:
    with open_bytes(path) as file:
        head = file.read(1 << 16)
    for sign, kind in _SIGNS:
        if sign in head:
            return kind
    raise InputError(f"{path}: which trace is it? say --of azure, mooncake, burstgpt, otel or requests")


class _Wanted(Struct, frozen=True):
    """A request as it is sent."""

    at_s: float
    id: str
    workflow: str
    input: dict[str, Any]
    options: dict[str, Any]
    tenant: str = ""
    weight: float = 1.0
    due_s: float | None = None

    @classmethod
    def of(cls, at_s: float, entry: RequestEntry, workflow: str) -> _Wanted:
        given, options = entry.input_data, dict[str, Any]()
        if not isinstance(given, Mapping) or not given:
            first, blocks = next(iter(entry.node_tokens.items()), ("", None)), list[Any]()
            for prefix in entry.node_prefix.values():
                blocks = prefix if isinstance(prefix, list) else [prefix]
            given = {"prompt": prompt_of(entry.request_id, first[1].input if first[1] is not None else 1, blocks)}
        if workflow == entry.workflow_id:
            options = call_options(entry)
            configs: dict[str, Any] = {name: dict(own) for name, own in (entry.node_configs or {}).items()}
            for name, tokens in entry.node_tokens.items():
                configs.setdefault(name, {}).setdefault("max_tokens", max(tokens.output, 1))
            options |= {"node_configs": configs} if configs else {}
        elif entry.node_tokens:  # sent to something that has other nodes
            options = {"max_tokens": max(sum(tokens.output for tokens in entry.node_tokens.values()), 1)}
        about = (entry.tenant, entry.priority, entry.deadline_seconds)
        return cls(at_s, entry.request_id, workflow, dict(given), options, *about)


def prompt_of(request: str, tokens: int, blocks: Sequence[Any] = ()) -> str:
    """So many words, which make up about as many tokens; those of a block depend on its name alone.

    >>> prompt_of("r1", 600, [7, 8]).split()[:512] == prompt_of("r2", 600, [7, 9]).split()[:512]
    True
    >>> len(prompt_of("r1", 600).split())
    600
    """
    words: list[str] = []
    for i in range(0, max(tokens, 1), _BLOCK):
        block = blocks[i // _BLOCK] if i // _BLOCK < len(blocks) else f"{request}/{i}"
        words += random.Random(str(block)).choices(_WORDS, k=min(_BLOCK, max(tokens, 1) - i))
    return " ".join(words)


# --- sending ------------------------------------------------------------------------------------------------


class _Sender:
    """Sends each request when it is due, and follows it in a thread of its own."""

    def __init__(
        self,
        client: WorkflowClient,
        speed: float,
        connections: int,
        answers: bool,
        rows: Path | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._client, self._speed, self._answers, self._progress = client, speed, answers, progress
        self._places = threading.Semaphore(connections)
        self._lock = threading.Lock()
        self._replies: list[TraceReply] = []
        self._count, self._open = 0, dict[str, None]()
        self._rows = rows
        self._file = None if rows is None else rows.open("wb")
        self._stop, self._give_up = threading.Event(), threading.Event()

    def send(self, wanted: Sequence[_Wanted]) -> TraceReplay:
        threads: list[threading.Thread] = []
        began, sent = time.monotonic(), 0
        with interrupts(self._interrupted):
            for request in wanted:
                due = began + request.at_s / self._speed
                if self._stop.wait(max(due - time.monotonic(), 0.0)):
                    break
                while not self._places.acquire(timeout=_LOOK_S) and not self._stop.is_set():
                    pass
                if self._stop.is_set():
                    break
                threads = [thread for thread in threads if thread.is_alive()]
                threads.append(threading.Thread(target=self._follow, args=(request, began, due), daemon=True))
                threads[-1].start()
                sent += 1
            for thread in threads:
                while thread.is_alive() and not self._give_up.is_set():
                    thread.join(_LOOK_S)
            if self._give_up.is_set():
                self._cancel_all()
                for thread in threads:
                    thread.join()
        took_s = time.monotonic() - began
        if self._file is not None:
            self._file.close()
        metrics = _figures(self._replies, sent, len(wanted) - sent, took_s, self._speed)
        return TraceReplay(metrics, [] if self._rows is not None else self._replies, self._stop.is_set())

    def _interrupted(self) -> None:
        if self._stop.is_set():
            self._give_up.set()
        self._stop.set()

    def _cancel_all(self) -> None:
        with self._lock:
            runs = list(self._open)
        for run in runs:
            with suppress(DovetailError):
                self._client.cancel(run)

    def _follow(self, request: _Wanted, began: float, due: float) -> None:
        sent = time.monotonic()
        told: dict[str, Any] = {"due_s": request.at_s / self._speed, "late_s": sent - due}
        run = ""
        try:
            run = self._client.submit(
                request.workflow,
                request.input,
                options=request.options,
                tenant=request.tenant,
                weight=request.weight,
                due=request.due_s,
            )
            with self._lock:
                self._open[run] = None
            for event in self._client.events(run):
                if event.kind == "first token" and "first_token_s" not in told:
                    told["first_token_s"] = time.monotonic() - sent
                told["state"] = event.kind
            told["response_s"] = time.monotonic() - sent
            result = self._client.result(run)
            told |= {"state": result.state, "input_tokens": result.read, "output_tokens": result.written}
            told |= {"error": result.error, **({"answer": to_json(result.answer)} if self._answers else {})}
        except ServiceError as error:
            told |= {"state": "refused" if error.status == 429 else "error", "error": str(error)}
            told["retry_after_s"] = error.retry_after_s
        except DovetailError as error:
            told |= {"state": "error", "error": str(error)}
        except Exception as error:  # an answer that cannot be read: it is counted all the same
            told |= {"state": "error", "error": f"{type(error).__name__}: {error}"}
        finally:
            self._places.release()
        self._keep(TraceReply(request_id=request.id, workflow=request.workflow, run=run, **told))

    def _keep(self, reply: TraceReply) -> None:
        with self._lock:
            self._open.pop(reply.run, None)
            self._count += 1
            self._replies.append(reply if self._file is None else msgspec.structs.replace(reply, answer=None))
            if self._file is not None:
                self._file.write(msgspec.json.encode(reply) + b"\n")
                self._file.flush()
            if self._progress is not None:
                self._progress(self._count)


def _figures(replies: Sequence[TraceReply], sent: int, unsent: int, took_s: float, speed: float) -> dict[str, Any]:
    states = Counter(reply.state for reply in replies)
    done = [reply for reply in replies if reply.state == "completed"]
    figures: dict[str, Any] = {
        "speed": speed,
        "sent": sent,
        "not_sent": unsent,
        **{state: states[state] for state in ("completed", "failed", "cancelled", "refused", "error")},
        "took_s": took_s,
        "completed_per_s": len(done) / took_s if took_s else 0.0,
        "output_tokens": sum(reply.output_tokens or 0 for reply in done),
    }
    for name, given in (
        ("response_s", [reply.response_s for reply in done]),
        ("first_token_s", [reply.first_token_s for reply in done]),
        ("late_s", [reply.late_s for reply in replies]),
        ("retry_after_s", [reply.retry_after_s for reply in replies]),
    ):
        if values := [value for value in given if value is not None]:
            spread = Spread.of(values)
            figures |= {f"{name}_{which}": getattr(spread, which) for which in ("mean", "median", "p99", "max")}
    errors = Counter(reply.error for reply in replies if reply.error)
    return figures | ({"errors": dict(errors.most_common(_ERRORS))} if errors else {})
