"""How model servers are told to load and unload: one row of verbs for each kind.

Every `load` returns when the model is where it is used, or raises; none leaves another model in its place.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from dovetail.core.errors import did_you_mean
from dovetail.workflow.live.backends.events import data_of
from dovetail.workflow.live.backends.http_client import Reply, ServerClient, failure, message_of
from dovetail.workflow.live.protocol import BackEndError

LOOK_S = 0.05
UNKNOWN = "dovetail-asks-for-a-model-that-is-not-there"


class SwapVerbs(Struct, frozen=True):
    """`ready` is a path that answers once the server serves. `whole`: unloading ends everything on the server, not one
    model. `keeps`: unloading can leave the weights in the server's host memory; `load` is told if it surely has."""

    load: Callable[[ServerClient, str, str, bool], None]
    unload: Callable[[ServerClient, str, bool], None]
    look: Callable[[ServerClient, str], dict[str, Any]]
    ready: str = "/health"
    whole: bool = False
    keeps: bool = False


def ready(client: ServerClient, path: str) -> bool:
    """Whether the server serves. One without such a path serves, too: it has answered."""
    try:
        reply = client.ask(path, timeout_s=5)
    except BackEndError:
        return False
    return reply.ok or reply.status == 404


def same_model(asked: str, answered: str) -> bool:
    """Whether a server's name for a model is the one that was asked for, but for the version it adds by itself.

    >>> same_model("/m/a", "/m/a@main"), same_model("llama3", "llama3:latest"), same_model("llama3", "llama3:70b")
    (True, True, False)
    """
    return answered in (asked, f"{asked}@main", f"{asked}:latest")


# --- any server of OpenAI's API ---------------------------------------------------------------------


def _check_name(client: ServerClient, model: str, api: str, kept: bool) -> None:
    """That this server serves this model, by its list. Where it has no list: it must answer under this name, and must
    not answer under a name that nothing has, because then its names mean nothing."""
    reply = client.ask("/v1/models")
    listed = [str(entry.get("id")) for entry in _entries(reply)]
    if any(same_model(model, name) for name in listed):
        return
    if listed:
        raise BackEndError(f"{client.url} does not serve {model!r}{did_you_mean(model, listed)}")
    answered = _probe(client, model, api)
    if answered is None or not same_model(model, answered):
        raise BackEndError(f"{client.url} answers for {answered!r} when it is asked for {model!r}")
    if _probe(client, UNKNOWN, api) == UNKNOWN:
        raise BackEndError(f"{client.url} has no list of models and takes any name: what serves {model!r} is unknown")


def _entries(reply: Reply) -> list[dict[str, Any]]:
    if not reply.ok:
        return []
    value = reply.json()
    data = value.get("data") if isinstance(value, dict) else None
    return [entry for entry in data or [] if isinstance(entry, dict)]


def _probe(client: ServerClient, model: str, api: str) -> str | None:
    """The name under which the smallest call is answered."""
    asked: dict[str, tuple[str, dict[str, Any]]] = {
        "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        "completions": ("/v1/completions", {"prompt": "a", "max_tokens": 1}),
        "embeddings": ("/v1/embeddings", {"input": ["a"]}),
    }
    path, body = asked[api]
    reply = client.ask(path, {"model": model, **body})
    if reply.ok:
        return str(reply.json().get("model"))
    if model != UNKNOWN:
        reply.fail()
    return None


def _nothing(client: ServerClient, model: str, keep: bool) -> None:
    pass


def _unknown(client: ServerClient, model: str) -> dict[str, Any]:
    return {}


# --- vLLM: one model for each server, which sleeps --------------------------------------------------


def _vllm_load(client: ServerClient, model: str, api: str, kept: bool) -> None:
    """A sleeper of level 2 has lost its weights, and nothing says which level it is: so they are read again, unless
    it is known that they were kept."""
    if _vllm_look(client, model)["asleep"]:
        if kept:
            _told(client, "/wake_up")
        else:
            _told(client, "/wake_up?tags=weights")
            _told(client, "/collective_rpc", {"method": "reload_weights"})
            _told(client, "/wake_up?tags=kv_cache")
        _until(lambda: not _vllm_look(client, model)["asleep"], client, f"{model} did not wake up")
    _check_name(client, model, api, kept)


def _vllm_unload(client: ServerClient, model: str, keep: bool) -> None:
    _told(client, f"/sleep?level={1 if keep else 2}")
    _until(lambda: _vllm_look(client, model)["asleep"], client, f"{model} did not go to sleep")


def _vllm_look(client: ServerClient, model: str) -> dict[str, Any]:
    reply = client.ask("/is_sleeping")
    if reply.status == 404:
        raise BackEndError(
            f"{client.url} has no /is_sleeping: start it with VLLM_SERVER_DEV_MODE=1, --enable-sleep-mode"
        )
    return {"asleep": bool(_good(reply).json().get("is_sleeping"))}


# --- llama-swap: by name ----------------------------------------------------------------------------


def _llama_swap_load(client: ServerClient, model: str, api: str, kept: bool) -> None:
    """Any path of the model's own server makes llama-swap start it; what that server says to it does not matter."""
    reply = client.ask(f"/upstream/{quote(model)}/health")
    if not _llama_swap_look(client, model)["resident"]:
        raise failure(f"{client.url} did not start {model!r}: {reply.status}, {message_of(reply.whole())}")


def _llama_swap_unload(client: ServerClient, model: str, keep: bool) -> None:
    _told(client, f"/api/models/unload/{quote(model)}")


def _llama_swap_look(client: ServerClient, model: str) -> dict[str, Any]:
    running = _good(client.ask("/running")).json()["running"]
    return {"resident": any(entry["model"] == model and entry["state"] == "ready" for entry in running)}


# --- Ollama: by name, for as long as it is told -----------------------------------------------------


def _ollama_load(client: ServerClient, model: str, api: str, kept: bool) -> None:
    path = "/api/embed" if api == "embeddings" else "/api/generate"
    body = {"model": model, "keep_alive": -1, "stream": False}
    _told(client, path, {**body, "input": "a"} if api == "embeddings" else body)
    if not _ollama_look(client, model)["resident"]:
        raise BackEndError(f"{client.url} has loaded {model!r}, but it is not among the running ones")


def _ollama_unload(client: ServerClient, model: str, keep: bool) -> None:
    _told(client, "/api/generate", {"model": model, "keep_alive": 0, "stream": False})
    _until(lambda: not _ollama_look(client, model)["resident"], client, f"{model} did not leave")


def _ollama_look(client: ServerClient, model: str) -> dict[str, Any]:
    found = [m for m in _good(client.ask("/api/ps")).json()["models"] or [] if same_model(model, m["name"])]
    return {"resident": bool(found), **({"device_mib": found[0].get("size_vram", 0) / 2**20} if found else {})}


# --- Triton and other servers of KServe's version 2: by name ----------------------------------------


def _triton_load(client: ServerClient, model: str, api: str, kept: bool) -> None:
    _told(client, f"/v2/repository/models/{quote(model)}/load", {})
    if not _triton_look(client, model)["resident"]:
        raise BackEndError(f"{client.url} has loaded {model!r}, but it is not ready")


def _triton_unload(client: ServerClient, model: str, keep: bool) -> None:
    _told(client, f"/v2/repository/models/{quote(model)}/unload", {})
    _until(lambda: not _triton_look(client, model)["resident"], client, f"{model} did not leave")


def _triton_look(client: ServerClient, model: str) -> dict[str, Any]:
    return {"resident": client.ask(f"/v2/models/{quote(model)}/ready").ok}


# --- transformers serve: loads by name, unloads all -------------------------------------------------


def _transformers_load(client: ServerClient, model: str, api: str, kept: bool) -> None:
    with client.asking("/load_model", {"model": model}) as reply:
        if not reply.ok:
            reply.fail()
        last: dict[str, Any] = {}
        for data in data_of(reply.pieces()):
            last = json.loads(data)
    if last.get("status") != "ready":
        raise failure(f"{client.url} did not load {model!r}: {last.get('message', 'its word broke off')}")
    if not same_model(model, str(last.get("model"))):
        raise BackEndError(f"{client.url} loaded {last.get('model')!r} when it was asked for {model!r}")


def _transformers_unload(client: ServerClient, model: str, keep: bool) -> None:
    _told(client, "/reset")


# --- the table --------------------------------------------------------------------------------------

SWAPS = {
    "none": SwapVerbs(_check_name, _nothing, _unknown),
    "vllm": SwapVerbs(_vllm_load, _vllm_unload, _vllm_look, whole=True, keeps=True),
    "llama-swap": SwapVerbs(_llama_swap_load, _llama_swap_unload, _llama_swap_look),
    "ollama": SwapVerbs(_ollama_load, _ollama_unload, _ollama_look, ready="/api/version"),
    "triton": SwapVerbs(_triton_load, _triton_unload, _triton_look, ready="/v2/health/ready"),
    "transformers": SwapVerbs(_transformers_load, _transformers_unload, _unknown, whole=True),
}


def _told(client: ServerClient, path: str, body: object = None) -> Reply:
    return _good(client.ask(path, body, method="POST"))


def _good(reply: Reply) -> Reply:
    if not reply.ok:
        raise failure(f"{reply.url}: {reply.status}, {message_of(reply.body)}")
    return reply


def _until(true: Callable[[], bool], client: ServerClient, why: str) -> None:
    limit = time.monotonic() + client.timeout_s
    while not true():
        if time.monotonic() > limit:
            raise BackEndError(f"{client.url}: {why} in {client.timeout_s:g} s")
        time.sleep(LOOK_S)
