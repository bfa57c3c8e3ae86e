"""Small servers with the documented behaviour of model servers, and with every bad habit that a test asks for.

`python fake_servers.py PORT KIND MODEL...` serves until it is ended; standard library only.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


@dataclass
class Say:
    """An answer: a status and a value, or pieces of a stream. `cut` hangs up without the end of the stream; `hang`
    holds the connection instead, until the client goes. The end of a `plain` one is where its connection ends, as in
    HTTP/1.0."""

    value: Any = None
    status: int = 200
    pieces: list[bytes] | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False
    hang: bool = False
    plain: bool = False


Answering = Callable[[str, str, dict[str, Any]], Say]  # method, path, body


class FakeServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, answer: Answering, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.answer = answer
        self.seen: list[tuple[str, str, dict[str, Any]]] = []
        self.headers_seen: list[dict[str, str]] = []
        self.connections = 0
        self.gone = Event()  # a client that was being answered hung up
        self.begun = Event()  # an answer that hangs has begun

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def process_request(self, request: Any, client_address: Any) -> None:
        self.connections += 1
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # a client that hangs up is no news


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _serve(self) -> None:
        size = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(size)
        try:
            body = json.loads(raw) if raw else {}
        except ValueError:
            body = {"raw": raw, "head": int(self.headers["Inference-Header-Content-Length"])}
        self.server.seen.append((self.command, self.path, body))
        self.server.headers_seen.append(dict(self.headers))
        self._say(self.server.answer(self.command, self.path, body))

    do_GET = do_POST = _serve  # noqa: N815

    def _say(self, say: Say) -> None:
        self.send_response(say.status)
        for name, value in say.headers.items():
            self.send_header(name, value)
        if say.pieces is None:
            data = say.value if isinstance(say.value, bytes) else json.dumps(say.value).encode()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        self.send_header("Content-Type", "text/event-stream")
        self.send_header(*(("Connection", "close") if say.plain else ("Transfer-Encoding", "chunked")))
        self.end_headers()
        for piece in say.pieces:
            self.wfile.write(piece if say.plain else b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.flush()
        if say.hang:
            self.server.begun.set()
            self.rfile.read(1)  # ends when the client hangs up
            self.server.gone.set()
        if say.cut or say.hang or say.plain:
            self.close_connection = True
            return
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def serving(answer: Answering, port: int = 0) -> Iterator[FakeServer]:
    server = FakeServer(answer, port)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


def chunks(model: str, words: list[str], finish: str | None = "stop", chat: bool = True) -> list[bytes]:
    """A stream as vLLM and OpenAI send it, but for usage and `[DONE]`."""
    said: list[dict[str, Any]] = [{"delta": {"content": word}} if chat else {"text": word} for word in words]
    first: list[dict[str, Any]] = [{"delta": {"role": "assistant", "content": ""}}] if chat else []
    last: list[dict[str, Any]] = [{"delta": {}} if chat else {"text": ""}] if finish else []
    ends = [None] * len(first + said) + [finish] * len(last)
    choices = [{**choice, "finish_reason": end} for choice, end in zip(first + said + last, ends, strict=True)]
    return [event({"model": model, "choices": [{"index": 0, **choice}]}) for choice in choices]


def openai(*models: str) -> Answering:
    """A good server: it says its own name and the last word of the question back, and lists its models."""

    def answer(method: str, path: str, body: dict[str, Any]) -> Say:
        if path == "/v1/models":
            return Say({"object": "list", "data": [{"id": model} for model in models]})
        if path == "/health":
            return Say({})
        model = body.get("model")
        if model not in models:
            return Say({"error": {"message": f"no model {model}", "type": "invalid_request_error"}}, 404)
        if path == "/v1/embeddings":
            data = [{"index": i, "embedding": [float(len(text)), 1.0]} for i, text in enumerate(body["input"])]
            return Say({"model": model, "data": data[::-1], "usage": {"prompt_tokens": 7}})
        chat = path == "/v1/chat/completions"
        asked = body["messages"][-1]["content"] if chat else body["prompt"]
        words = [f"{model}:", *(f" {word}" for word in asked.split())][: body.get("max_tokens")]
        usage = {"model": model, "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": len(words)}}
        told = [event(usage)] if body.get("stream_options", {}).get("include_usage") else []
        return Say(pieces=[*chunks(model, words, chat=chat), *told, event(b"[DONE]")])

    return answer


# --- servers that swap, after their documentation ---------------------------------------------------


class Vllm:
    """vLLM in development mode: one model; asleep it lets calls wait; level 2 forgets the weights."""

    def __init__(self, model: str) -> None:
        self.model, self.asleep, self.weights, self.cache = model, False, True, True
        self._serve = openai(model)

    def __call__(self, method: str, path: str, body: dict[str, Any]) -> Say:
        verb, query = urlsplit(path).path, parse_qs(urlsplit(path).query)
        match method, verb:
            case "GET", "/is_sleeping":
                return Say({"is_sleeping": self.asleep})
            case "POST", "/sleep":
                self.asleep, self.cache, self.weights = True, False, query["level"] == ["1"]
                return Say(b"")
            case "POST", "/collective_rpc":
                assert body == {"method": "reload_weights"}
                self.weights = True
                return Say({"results": [None]})
            case "POST", "/wake_up":
                self.cache = self.cache or query.get("tags", ["kv_cache"]) == ["kv_cache"]
                self.asleep = not self.cache
                return Say(b"")
        if "model" in body and self.asleep:
            return Say(pieces=[], hang=True)
        if "model" in body and not self.weights:
            return Say(pieces=chunks(self.model, ["nonsense"], chat="messages" in body))
        return self._serve(method, path, body)


class LlamaSwap:
    """llama-swap: one model runs; a path below /upstream/NAME starts it and goes to its server."""

    def __init__(self, *models: str) -> None:
        self.models, self.running = models, ""
        self._serve = openai(*models)

    def __call__(self, method: str, path: str, body: dict[str, Any]) -> Say:
        if path == "/running":
            return Say({"running": [{"model": self.running, "state": "ready"}] if self.running else []})
        if method == "POST" and path.startswith("/api/models/unload/"):
            name = unquote(path.removeprefix("/api/models/unload/"))
            if name not in self.models:
                return Say({"src": "llama-swap", "error": {"message": "model not found"}}, 404)
            self.running = "" if self.running == name else self.running
            return Say(b"OK")
        if path.startswith("/upstream/"):
            name = unquote(path.removeprefix("/upstream/").removesuffix("/health"))
            if name not in self.models:
                return Say({"src": "llama-swap", "error": {"message": "model not found"}}, 404)
            self.running = name
            return Say({"detail": "Not Found"}, 404)
        if body.get("model") in self.models:
            self.running = body["model"]
        return self._serve(method, path, body)


class Ollama:
    """Ollama: an empty generate loads, with keep_alive 0 it unloads; names get `:latest`."""

    def __init__(self, *models: str) -> None:
        self.models, self.loaded = models, set[str]()
        self._serve = openai(*models)

    def __call__(self, method: str, path: str, body: dict[str, Any]) -> Say:
        if path == "/api/version":
            return Say({"version": "0.12.0"})
        if path == "/api/ps":
            return Say({"models": [{"name": f"{m}:latest", "size_vram": 3 << 20} for m in sorted(self.loaded)] or None})
        if path in ("/api/generate", "/api/embed"):
            name = body["model"]
            if name not in self.models:
                return Say({"error": f"model '{name}' not found"}, 404)
            if body["keep_alive"] == 0:
                self.loaded.discard(name)
                return Say({"model": name, "response": "", "done": True, "done_reason": "unload"})
            self.loaded.add(name)
            return Say({"model": name, "response": "", "done": True, "done_reason": "load"})
        return self._serve(method, path, body)


class Triton:
    """Triton in explicit mode, with one model `add` of KServe's version 2; tensors as JSON."""

    def __init__(self) -> None:
        self.loaded = False

    def __call__(self, method: str, path: str, body: dict[str, Any]) -> Say:
        if path.startswith("/v2/repository/models/") and "/add/" not in path:
            return Say({"error": "failed to load 'x', failed to poll from model repository"}, 400)
        match path:
            case "/v2/health/ready":
                return Say(b"")
            case "/v2":
                return Say({"name": "triton", "extensions": ["model_repository"]})
            case "/v2/repository/models/add/load":
                self.loaded = True
                return Say(b"")
            case "/v2/repository/models/add/unload":
                self.loaded = False
                return Say(b"")
            case "/v2/models/add/ready":
                return Say(b"", 200 if self.loaded else 400)
            case "/v2/models/add":
                inputs = [{"name": n, "datatype": "FP32", "shape": [-1]} for n in ("a", "b")]
                return Say({"name": "add", "inputs": inputs})
            case "/v2/models/add/infer":
                a, b = (entry["data"] for entry in body["inputs"])
                total = [x + y for x, y in zip(a, b, strict=True)]
                words = {"name": "said", "datatype": "BYTES", "shape": [1], "data": ["done"]}
                tensor = {"name": "sum", "datatype": "FP32", "shape": [len(total)], "data": total}
                return Say({"model_name": "add", "outputs": [tensor, words]})
        return Say({"error": f"no {path}"}, 404)


class Transformers:
    """`transformers serve` without a model of its own: loads by name, unloads all at once, has no `[DONE]`."""

    def __init__(self, *models: str) -> None:
        self.models, self.loaded = models, set[str]()

    def __call__(self, method: str, path: str, body: dict[str, Any]) -> Say:
        if path == "/health":
            return Say({"status": "ok"})
        if path == "/reset":
            self.loaded.clear()
            return Say({"status": "ok"})
        if path == "/load_model":
            name = body["model"]
            if name not in self.models:
                return Say(pieces=[event({"status": "error", "model": f"{name}@main", "message": "no such folder"})])
            self.loaded.add(name)
            stages: list[dict[str, Any]] = [{"status": "loading"}, {"status": "ready", "cached": False}]
            return Say(pieces=[event({**stage, "model": f"{name}@main"}) for stage in stages])
        if path == "/v1/completions" and body["model"] in self.models:
            self.loaded.add(body["model"])
            return Say(pieces=chunks(f"{body['model']}@main", ["a", "b"], chat=False))
        return Say(b"Internal Server Error", 500)


KINDS: dict[str, Callable[..., Answering]] = {
    "openai": openai,
    "vllm": Vllm,
    "llama-swap": LlamaSwap,
    "ollama": Ollama,
    "transformers": Transformers,
}

if __name__ == "__main__":
    print("a fake server starts", flush=True)
    with serving(KINDS[sys.argv[2]](*sys.argv[3:]), int(sys.argv[1])):
        while True:
            time.sleep(60)
