"""Where live runs take models from: the key `source` of a model, in all its forms. Simulated runs have no use for it.

A folder, a factory (`module:function`, `file.py:function`), a server's address, or a mapping that says so; nothing is
guessed from the model's name, and no model takes over another one's source.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, structs

Swap = Literal["none", "vllm", "llama-swap", "ollama", "triton", "transformers"]
_FACTORY = re.compile(r"(?:[A-Za-z_][\w.]*|.*\.py):[A-Za-z_][\w.]*")
OF_SERVERS = ("model", "swap", "command", "api_key_env", "ready_s", "api", "timeout_s", "stop_s", "log")
_LONGEST_S = 1e6


class EmulatedSource(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A model that only takes its time: as long as is said here, else as the model's other keys say, all `speed` times
    as fast. Seconds of a call are `call_s`, or without that its tokens at the rates given here. It answers with
    `answer`, or with made-up words.

    `reload_s` is a load from host memory, `shares` the speed of each of 1, 2, ... calls at once; with `spin` the
    processor is kept busy meanwhile. `faults` is a folder: a file `MODEL.VERB.FAULT` there (`any` for any model; more
    may follow, after another dot) is taken away by the next one who does that, and happens to it.
    """

    load_s: float | None = None
    reload_s: float | None = None
    unload_s: float = 0.0
    call_s: float | None = None
    tokens_per_second: float | None = None
    prefill_tokens_per_second: float | None = None
    token_mean: float | None = None
    noise: float = 0.0
    speed: float = 1.0
    answer: str | dict[str, Any] | None = None
    shares: tuple[float, ...] = ()
    spin: bool = False
    faults: str = ""

    def problem(self) -> tuple[str, str] | None:
        """What is wrong, and under which key."""
        for key in ("load_s", "reload_s", "unload_s", "call_s", "token_mean", "noise"):
            if not 0 <= (getattr(self, key) or 0) <= _LONGEST_S:
                return key, f"expected a number from 0 to {_LONGEST_S:g}, found {getattr(self, key)}"
        for key in ("tokens_per_second", "prefill_tokens_per_second", "speed"):
            if (number := getattr(self, key)) is not None and not 0 < number <= 1e12:
                return key, f"expected a positive number, found {number}"
        if not all(0 < share <= 1 for share in self.shares):
            return "shares", f"expected numbers above 0, up to 1, found {list(self.shares)}"
        return None


class ModelSource(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One of `path`, `factory`, `url` and `emulated`, with what belongs to it; `options` are the back end's own."""

    path: str | None = None
    hub: bool = False
    factory: str | None = None
    url: str | None = None
    model: str = ""
    swap: Swap = "none"
    command: list[str] = []
    api_key_env: str = ""
    ready_s: float = 120.0
    api: Literal["", "chat", "completions", "embeddings", "infer"] = ""
    timeout_s: float = 600.0
    stop_s: float = 10.0
    log: str = ""
    emulated: EmulatedSource | None = None
    options: dict[str, Any] = {}

    @classmethod
    def of(cls, text: str) -> ModelSource:
        """What a source that is only a text means.

        >>> ModelSource.of("models/llama").path, ModelSource.of("make.py:painter").factory
        ('models/llama', 'make.py:painter')
        """
        if "://" in text:
            return cls(url=text)
        return cls(factory=text) if _FACTORY.fullmatch(text) else cls(path=text)

    def problem(self) -> tuple[tuple[str, ...], str] | None:
        """What is wrong, and under which keys."""
        forms = [key for key in ("path", "factory", "url", "emulated") if getattr(self, key) is not None]
        if len(forms) != 1:
            found = " and ".join(forms) or "none"
            return (), f"expected one of path, factory, url and emulated, found {found}"
        if self.hub and not self.path:
            return ("hub",), "expected path beside it: the name on the hub, as org/name"
        for key in OF_SERVERS:
            if self.url is None and getattr(self, key) != getattr(ModelSource(), key):
                return (key,), "expected url beside it: it is for servers"
        if self.path is not None and not self.path:
            return ("path",), "expected a folder, found nothing"
        if self.factory is not None and not _FACTORY.fullmatch(self.factory):
            return ("factory",), f"expected module:function or file.py:function, found {self.factory!r}"
        if self.url is not None and not re.match(r"https?://[^/]", self.url):
            return ("url",), f"expected http://HOST:PORT..., found {self.url!r}"
        if self.url is not None and "{port}" in self.url and not self.command:
            return ("url",), "{port} is a free port for a server that is started here; expected a command beside it"
        for key in ("ready_s", "timeout_s", "stop_s"):
            if not 0 < getattr(self, key) <= _LONGEST_S:
                return (key,), f"expected seconds, more than 0, found {getattr(self, key):g}"
        if self.emulated is not None and (wrong := self.emulated.problem()) is not None:
            return ("emulated", wrong[0]), wrong[1]
        return None

    def below(self, folder: Path) -> ModelSource:
        """The same with paths from this folder on."""
        if self.log:
            return structs.replace(self, log=str((folder / Path(self.log).expanduser()).resolve()))
        if self.emulated is not None and self.emulated.faults:
            faults = str((folder / Path(self.emulated.faults).expanduser()).resolve())
            return structs.replace(self, emulated=structs.replace(self.emulated, faults=faults))
        if self.path is not None and not self.hub:
            return structs.replace(self, path=str((folder / Path(self.path).expanduser()).resolve()))
        if self.factory is not None and ".py:" in self.factory:
            file, _, function = self.factory.rpartition(":")
            return structs.replace(self, factory=f"{(folder / Path(file).expanduser()).resolve()}:{function}")
        return self
