"""Numbers of a model's configuration, by the names that they have in one family or another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.core.files.document import Document

_OTHER_NAMES = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner",),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("top_k_experts",),
}


class ModelConfig:
    """What a configuration says; `inside` is where its numbers stand."""

    def __init__(self, doc: Document, data: Mapping[str, Any], inside: tuple[str, ...] = ()) -> None:
        self.doc = doc
        self.data = data
        self.inside = inside

    def number(self, key: str, default: int | None = None, least: int = 1) -> int:
        for name in (key, *_OTHER_NAMES.get(key, ())):
            value = self.data.get(name)
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 10**9:
                    raise self.doc.error(
                        (*self.inside, name), f"expected a whole number from {least} on, found {value!r}"
                    )
                return value
        if default is None:
            raise self.doc.error(self.inside, f"{key} is missing")
        return default

    def left_out(self, key: str, default: int) -> int:
        """A family's default, for a key that is not there; null says that there is no such number."""
        return 0 if key in self.data else default

    def flag(self, key: str, default: bool) -> bool:
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.doc.error((*self.inside, key), f"expected true or false, found {value!r}")
        return default if value is None else value

    def kinds(self, key: str, count: int, known: tuple[str, ...], of: str) -> list[str] | None:
        """A list with one of some words for every block, if there is one."""
        found = self.data.get(key)
        if found is None:
            return None
        if not isinstance(found, list) or len(found) != count:
            raise self.doc.error((*self.inside, key), f"expected {count} kinds of {of}")
        for i, kind in enumerate(found):
            if kind not in known:
                raise self.doc.error((*self.inside, key, i), f"expected {' or '.join(known)}, found {kind!r}")
        return found

    def numbers(self, key: str) -> list[Any] | None:
        """A list of numbers of blocks, if there is one."""
        found = self.data.get(key)
        if found is not None and not isinstance(found, list):
            raise self.doc.error((*self.inside, key), f"expected numbers of blocks, found {found!r}")
        return found
