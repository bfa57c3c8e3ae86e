"""Any server of OpenAI's API, or of KServe's version 2, as a back end: at a URL, or started by us.

Whose is it? A server that we start (`command`) belongs to the worker that starts it, is shared by those of its models
whose command is the same, and ends when the last of them leaves. A server that runs already belongs to nobody here: we
load by name, and whoever of this machine's workers leaves a model last unloads it there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from threading import Event, Lock
from typing import IO, Any, Literal

from msgspec import Struct, ValidationError, convert

from dovetail.workflow.live.backends import tensors
from dovetail.workflow.live.backends.answers import REFUSED, StreamedAnswer
from dovetail.workflow.live.backends.events import data_of
from dovetail.workflow.live.backends.http_client import (
    CallStoppedError,
    Reply,
    ServerBusyError,
    ServerClient,
    patiently,
)
from dovetail.workflow.live.backends.started import StartedServer
from dovetail.workflow.live.backends.swapping import SWAPS, ready
from dovetail.workflow.live.protocol import Answer, BackEndError, Emit, Memory, ModelCall, ServedModel

Api = Literal["chat", "completions", "embeddings", "infer"]
_PORTS = 3  # tried: somebody else may take one between the look for it and the server's own
_TAKEN = ("address already in use", "another server listens there")


class ServerSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a model's server is, and how it is spoken to: the key `source` of a model (inputs/sources.py)."""

    url: str
    model: str
    swap: Literal["none", "vllm", "llama-swap", "ollama", "triton", "transformers"] = "none"
    command: list[str] = []
    api_key_env: str = ""
    ready_s: float = 120.0
    api: Literal["", "chat", "completions", "embeddings", "infer"] = ""
    timeout_s: float = 600.0
    stop_s: float = 10.0
    log: str = ""


def make(model: ServedModel) -> ServerBackEnd:
    try:
        return ServerBackEnd(model, convert(model.source, ServerSource))
    except ValidationError as error:
        raise BackEndError(f"{model.name}: source: {error}") from None


class ServerBackEnd:
    """One model of a server."""

    def __init__(self, model: ServedModel, source: ServerSource) -> None:
        self.model, self.source = model, source
        self._verbs = SWAPS[source.swap]
        self._api: Api = source.api or ("infer" if source.swap == "triton" else _api_of(model.type))
        self._server: SharedServer | None = None
        self._start = 0  # of the server, at which this model was loaded
        self._hold: IO[bytes] | None = None  # while it is loaded
        self._kept = False
        self._counts_usage = True
        self._metadata: dict[str, Any] = {}

    # --- load and unload ----------------------------------------------------------------------------

    def load(self, devices: Sequence[str]) -> None:
        self._let_go()
        server = self._server = self._server or _server(self.source, devices)
        try:
            start = server.enter(self.model.name, self.source)
            kept = self._kept and start == self._start and server.process is not None
            self._start = start
            self._hold = _hold(self._held(server.client.url))
            self._verbs.load(server.client, self.source.model, self._api, kept)
            if self._api == "infer":
                self._metadata = tensors.metadata(server.client, self.source.model)
        except BaseException:
            self._leave()
            raise
        self._kept = False

    def unload(self, keep: bool) -> None:
        """With `keep`, a server that can keep weights does so. A server of ours ends with its last model."""
        server = self._server
        if server is None:
            return
        keep = keep and self._verbs.keeps and server.runs
        ends = not keep and server.process is not None and server.is_only(self.model.name)
        try:
            if self._hold is not None and not ends and server.runs and _is_last(self._hold):
                self._verbs.unload(server.client, self.source.model, keep)
        finally:
            self._let_go()
            self._kept = keep
            if not keep:
                self._leave()

    def _held(self, url: str) -> str:
        return url if self._verbs.whole else f"{url} {self.source.model}"

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.close()
            self._hold = None

    def _leave(self) -> None:
        self._let_go()
        server, self._server, self._kept = self._server, None, False
        if server is not None:
            server.leave(self.model.name)

    @property
    def _client(self) -> ServerClient:
        if self._server is None or self._hold is None:
            raise BackEndError(f"{self.model.name} is not loaded")
        if self._server.starts != self._start:
            raise BackEndError(f"{self._server.client.url} was started anew, without {self.model.name}")
        return self._server.client

    # --- calls --------------------------------------------------------------------------------------

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        api, client = self._api_for(call), self._client
        if api == "infer":
            return self._infer(client, call, stopped)
        if wrong := sorted(REFUSED & call.options.keys()):
            raise BackEndError(f"option {wrong[0]!r} is not for calls of {self.model.name}", "call")
        body = {"model": self.source.model, **self.model.options, **call.options, **_asked(api, call)}
        answer = StreamedAnswer(call, self.source.model, emit)
        with contextlib.suppress(CallStoppedError):
            patiently(lambda: self._ask(client, api, body, answer, stopped), stopped.wait)
        return answer.end(stopped.is_set())

    def _ask(
        self, client: ServerClient, api: Api, body: dict[str, Any], answer: StreamedAnswer, stopped: Event
    ) -> None:
        if api == "embeddings":
            with _asking(client, "/v1/embeddings", {**body, "encoding_format": "float"}, stopped) as reply:
                return answer.take_embeddings(reply.json(), body["input"])
        path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
        usage = {"stream_options": {"include_usage": True}} if self._counts_usage else {}
        try:
            with _asking(client, path, {**body, "stream": True, **usage}, stopped) as reply:
                if not reply.streams:
                    return answer.take_whole(reply.json())
                if answer.take_stream(_until(stopped, data_of(reply.pieces()))):
                    return None
            with _asking(client, path, body, stopped) as reply:  # it failed without a word: now it has to say why
                return answer.take_whole(reply.json())
        except BackEndError as error:
            if not usage or "stream_options" not in str(error) or error.blame != "call":
                raise
            self._counts_usage = False  # an older server, which refuses what it does not know
            return self._ask(client, api, body, answer, stopped)

    def _infer(self, client: ServerClient, call: ModelCall, stopped: Event) -> Answer:
        body, headers = tensors.request(self._metadata, call.inputs)
        path = f"/v2/models/{self.source.model}/infer"

        def ask() -> dict[str, Any]:
            with _asking(client, path, body, stopped, **headers) as reply:
                return tensors.outputs(reply.whole(), reply.header(tensors.HEADER))

        try:
            return Answer(call.id, patiently(ask, stopped.wait))
        except CallStoppedError:
            return Answer(call.id, {}, finish_reason="cancelled")

    def _api_for(self, call: ModelCall) -> Api:
        if self.source.api or self._api == "infer":
            return self._api
        return "chat" if "messages" in call.inputs else "embeddings" if "input" in call.inputs else self._api

    # --- what there is ------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        server = self._server
        if server is None:
            return {"healthy": True, "loaded": False}
        process, url = server.process, server.client.url
        healthy = server.starts == self._start and (process.runs if process else server.client.reachable())
        why = {} if healthy else {"why": f"{url} has gone{process.last_words() if process else ''}"}
        own = {"pid": process.pid} if process else {}
        return {"healthy": healthy, "loaded": self._hold is not None, "url": url, **own, **why}

    def memory(self) -> Memory:
        """What the server tells, else what the model was said to need."""
        if self._hold is None:
            return Memory(host_mib=self.model.memory_mib if self._kept else 0)
        told = self._verbs.look(self._client, self.source.model)
        return Memory(device_mib=told.get("device_mib", self.model.memory_mib))


@contextlib.contextmanager
def _asking(client: ServerClient, path: str, body: object, stopped: Event, **headers: str) -> Iterator[Reply]:
    with client.asking(path, body, stopped, headers=headers) as reply:
        if reply.status == 429:
            raise ServerBusyError(f"{reply.url}: 429", reply.retry_after_s(default=0.5))
        if not reply.ok:
            reply.fail()
        yield reply


def _until(stopped: Event, events: Iterator[str]) -> Iterator[str]:
    """A call that is stopped takes no more, even if all the rest is here already."""
    for event in events:
        if stopped.is_set():
            raise CallStoppedError
        yield event


def _api_of(kind: str) -> Api:
    return "embeddings" if "embedding" in kind else "completions"


def _asked(api: Api, call: ModelCall) -> dict[str, Any]:
    """What is asked, in the words of OpenAI's API."""
    inputs = call.inputs
    if api == "chat" and "messages" in inputs:
        if not inputs["messages"]:
            raise BackEndError("messages is empty", "call")
        return {"messages": inputs["messages"]}
    if api == "embeddings" and "input" in inputs:
        return {"input": inputs["input"] if isinstance(inputs["input"], list) else [inputs["input"]]}
    texts = {name: value for name, value in inputs.items() if isinstance(value, str)}
    text = inputs.get("prompt", inputs.get("text", next(iter(texts.values())) if len(texts) == 1 else None))
    if not isinstance(text, str):
        found = ", ".join(sorted(inputs)) or "nothing"
        raise BackEndError(f"expected an input 'messages', 'prompt' or 'text' (a text), found {found}", "call")
    if api == "chat":
        return {"messages": [{"role": "user", "content": text}]}
    return {"input": [text]} if api == "embeddings" else {"prompt": text}


# --- servers that models share ----------------------------------------------------------------------


class SharedServer:
    """A server, and the models of this worker that are on it."""

    def __init__(self, source: ServerSource, devices: Sequence[str]) -> None:
        self.source, self.devices = source, devices
        self.starts = 0
        self.process: StartedServer | None = None
        self.client = self._client_of(source.url.replace("{port}", "0"))  # of ours: until it is started
        self._users: set[str] = set()
        self._lock = Lock()

    def enter(self, user: str, source: ServerSource) -> int:
        """Be one of its users, and start it if that is needed, with one's own log and limits. Which start it was: later
        ones know nothing of what was loaded before."""
        with self._lock:
            if not self.source.command:
                if not self._ready():
                    raise BackEndError(f"{self.source.url}: no server answers there")
            elif not self.runs:
                self.source = source
                self._start(source.command)
            self._users.add(user)
            return self.starts

    def _start(self, command: list[str]) -> None:
        source = self.source
        for left in reversed(range(_PORTS if "{port}" in source.url else 1)):
            self._stop()
            self.process = StartedServer(command, source.url, source.model, self.devices, source.log)
            self.client = self._client_of(self.process.url)
            self.starts += 1
            try:
                return self.process.start(source.stop_s, source.ready_s, self._ready)
            except BaseException as error:
                self._stop()
                if not left or not any(words in str(error).lower() for words in _TAKEN):
                    raise
        return None

    @property
    def runs(self) -> bool:
        return self.process.runs if self.process is not None else not self.source.command

    def is_only(self, user: str) -> bool:
        return self._users == {user}

    def leave(self, user: str) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self._stop()

    def _stop(self) -> None:
        self.client.close()
        if self.process is not None:
            self.process.stop()
        self.process = None

    def _ready(self) -> bool:
        return ready(self.client, SWAPS[self.source.swap].ready)

    def _client_of(self, url: str) -> ServerClient:
        key = self.source.api_key_env
        if key and not os.environ.get(key):
            raise BackEndError(f"the environment has no {key}, which holds the key for {url}")
        return ServerClient(url, self.source.timeout_s, {"Authorization": f"Bearer {os.environ[key]}"} if key else {})


_servers: dict[tuple[Any, ...], SharedServer] = {}
_lock = Lock()


def _server(source: ServerSource, devices: Sequence[str]) -> SharedServer:
    """The server that this source speaks of: models with the same URL, command and devices are on the same one."""
    command = tuple(word.replace("{model}", source.model) for word in source.command)
    key = (source.url, command, tuple(devices) if command else (), source.api_key_env, source.timeout_s)
    with _lock:
        if key not in _servers:
            _servers[key] = SharedServer(source, devices)
        return _servers[key]


# --- who of this machine's workers uses what --------------------------------------------------------


def _hold(what: str) -> IO[bytes]:
    """Be known to use it: a lock that all users share, and that ends with this process in any case."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "dovetail" / "servers"
    folder.mkdir(parents=True, exist_ok=True)
    file = open(folder / sha256(what.encode()).hexdigest()[:32], "ab")  # noqa: SIM115
    fcntl.flock(file, fcntl.LOCK_SH)
    return file


def _is_last(hold: IO[bytes]) -> bool:
    """Whether nobody else uses it; if so, whoever comes now waits until the file is closed."""
    try:
        fcntl.flock(hold, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
