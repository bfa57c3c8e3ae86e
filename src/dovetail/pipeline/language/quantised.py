"""How many bits the weights of a quantised model have, module by module: from `quantization_config` in its
configuration, or from NVIDIA ModelOpt's `hf_quant_config.json` beside it. Scales are counted with the weights."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from dovetail.core.files.document import Document

BESIDE = "hf_quant_config.json"
_MIXED = "MIXED_PRECISION"
# Bits of a value, of a scale, and how many values have one; 0: so many that scales do not count.
_ALGORITHMS = {
    "FP8": (8, 0, 0),
    "FP8_PER_CHANNEL_PER_TOKEN": (8, 0, 0),
    "FP8_PB_WO": (8, 0, 0),
    "FP8_PB_REAL": (8, 0, 0),
    "MXFP8": (8, 8, 32),
    "NVFP4": (4, 8, 16),
    "NVFP4_AWQ": (4, 8, 16),
    "W4A16_NVFP4": (4, 8, 16),
    "W4A8_NVFP4_FP8": (4, 8, 16),
    "MXFP4": (4, 8, 32),
    "W4A8_MXFP4_FP8": (4, 8, 32),
    "W4A16": (4, 16, 128),
    "W4A16_AWQ": (4, 16, 128),
    "W4A8_AWQ": (4, 16, 128),
    "W8A16": (8, 0, 0),
    "W8A8_SQ_PER_CHANNEL": (8, 0, 0),
    "INT8_SQ": (8, 0, 0),
}
_METHODS = {"fp8": "FP8", "fbgemm_fp8": "FP8", "mxfp4": "MXFP4"}
_ONE_BYTE = "torch.int8"  # what a key or value of eight bits occupies


class Quantisation:
    """Bits by module, 0 for those in the model's dtype; the dtype of keys and values ("": the model's); and notes of
    what could not be read."""

    def __init__(self) -> None:
        self.bits = 0.0
        self.cache_dtype = ""
        self.notes: list[str] = []
        self._by_module: dict[str, float] = {}
        self._by_holder: dict[str, float] = {}  # of modules that hold such: the first of theirs
        self._excluded: list[str] = []
        self._seen: set[str] = set()
        self._of_weights = True

    @classmethod
    def read(cls, doc: Document, data: Mapping[str, Any], weights: bool = True) -> Quantisation:
        """What a configuration says, and the file beside it of what it does not; without `weights` only of keys and
        values."""
        made, given = cls(), data.get("quantization_config")
        made._of_weights = weights
        if given is not None:
            made._take(doc, ("quantization_config",), given if isinstance(given, dict) else {})
        beside = doc.path.parent / BESIDE
        if doc.path.name == "config.json" and beside.is_file():
            other = Document.of(beside, BESIDE)
            told = other.data.get("quantization") if isinstance(other.data, dict) else None
            if not isinstance(told, dict):
                raise other.error(("quantization",), "expected how the weights are quantised")
            if given is None:
                made._take(other, ("quantization",), told)
            elif not made.cache_dtype:
                made._take_cache(told)
        return made

    def _take(self, doc: Document, where: tuple[str, ...], told: Mapping[str, Any]) -> None:
        if self._of_weights:
            self._take_weights(doc, where, told)
        self._take_cache(told)

    def _take_weights(self, doc: Document, where: tuple[str, ...], told: Mapping[str, Any]) -> None:
        name, size = told.get("quant_algo"), told.get("group_size")
        layers = told.get("quantized_layers")
        if name == _MIXED and isinstance(layers, dict):
            self._mixed(layers)
        elif isinstance(name, str):
            self.bits = self._algorithm(name, size)
        else:
            self.bits = self._stated(told)
            if not self.bits:
                text = "how many bits a weight has is not told as known here; --weight-bits tells"
                raise doc.error(where, text)
        for key in ("exclude_modules", "ignore", "modules_to_not_convert"):
            names = told.get(key)
            self._excluded += [_plain(each) for each in names or () if isinstance(each, str)]

    def _take_cache(self, told: Mapping[str, Any]) -> None:
        cache = told.get("kv_cache_quant_algo") or told.get("kv_cache_scheme")
        bits = cache.get("num_bits") if isinstance(cache, dict) else {"FP8": 8, "INT8": 8}.get(str(cache))
        if bits == 8:
            self.cache_dtype = _ONE_BYTE
        elif cache:
            self.notes.append(
                f"keys and values quantised by {cache} are counted in the model's dtype; see --cache-dtype"
            )

    def _algorithm(self, name: str, size: Any) -> float:
        known = _ALGORITHMS.get(name.upper())
        if known is None:
            self.notes.append(
                f"weights quantised by {name!r} are counted in the model's dtype; --weight-bits tells others"
            )
            return 0.0
        bits, scale, usual = known
        return bits + (scale / (size if isinstance(size, int) and size > 0 else usual) if usual else 0.0)

    def _stated(self, told: Mapping[str, Any]) -> float:
        """Bits where no algorithm of ModelOpt is named."""
        bits, method = told.get("bits") or told.get("w_bit"), told.get("quant_method")
        if bits is None and told.get("load_in_4bit"):  # a scale for 64 weights, itself of eight bits if asked for
            return 4 + (8 / 64 if told.get("bnb_4bit_use_double_quant") else 32 / 64)
        if bits is None and told.get("load_in_8bit"):
            return 8.0
        size = told.get("group_size") or told.get("q_group_size")
        if isinstance(bits, int) and isinstance(size, int) and size > 0:  # GPTQ, AWQ: a scale and a zero for each group
            return bits + (16 + bits) / size if 1 <= bits <= 16 else 0.0
        if bits is None and method in _METHODS:
            return self._algorithm(_METHODS[str(method)], told.get("group_size"))
        groups = told.get("config_groups")
        if bits is None and isinstance(groups, dict):
            weights = [each.get("weights") for each in groups.values() if isinstance(each, dict)]
            found = [each for each in weights if isinstance(each, dict)]
            kinds = {(each.get("num_bits"), each.get("group_size")) for each in found}
            if len(kinds) > 1:
                self.notes.append("weights are quantised in several ways; the one with most bits is counted for all")
            found = [each for each in found if isinstance(each.get("num_bits"), int)]
            if found:
                most = max(found, key=lambda each: int(each["num_bits"]))
                size = most.get("group_size")
                scale = 8 if most.get("type") == "float" else 16
                scale += int(most["num_bits"]) if most.get("symmetric") is False else 0
                bits = most["num_bits"] + (scale / size if isinstance(size, int) and size > 0 else 0.0)
        if isinstance(bits, bool) or not isinstance(bits, int | float) or not 1 <= bits <= 17:
            return 0.0
        return bits

    def _mixed(self, layers: Mapping[str, Any]) -> None:
        """Every module by its name; those that hold it, such as all experts, have what the first of them has."""
        for name, each in layers.items():
            told = each if isinstance(each, dict) else {}
            bits = self._algorithm(str(told.get("quant_algo")), told.get("group_size"))
            self._by_module[_plain(name)] = bits
            for holder in _upwards(_plain(name)):
                self._by_holder.setdefault(holder, bits)
        self.notes = list(dict.fromkeys(self.notes))

    @property
    def given(self) -> bool:
        return bool(self.bits or self._by_module)

    def module_bits(self, *names: str) -> float:
        """Of a module `layers.N.self_attn.q_proj`; by several names, where families call it differently."""
        for name in names:
            full = f"model.{name}"
            for pattern in self._excluded:
                if _matches(pattern, full):
                    self._seen.add(pattern)
                    return 0.0
        if self._by_module:
            listed = [self._by_module.get(part) for name in names for part in _upwards(f"model.{name}")]
            held = [self._by_holder.get(f"model.{name}") for name in names]
            return next((bits for bits in [*listed, *held] if bits is not None), 0.0)  # what is not listed is as it was
        return self.bits

    def unknown(self, blocks: int) -> list[str]:
        """Notes, also of modules of blocks that were to be left out and that no block has."""
        left = [
            p
            for p in self._excluded
            if p not in self._seen
            and (at := re.search(r"layers\.(\d+)\.", p))
            and int(at[1]) < blocks
            and not re.search(r"norm|_scale|bias", p)
        ]
        more = f"{len(left)} modules that are not quantised are not known here, such as {left[0]!r}" if left else ""
        return [*self.notes, *([more] if more else [])]


def _plain(name: str) -> str:
    """A module's name as a language model alone has it.

    >>> _plain("model.language_model.layers.1.mlp"), _plain("language_model.model.layers.1"), _plain("layers.1")
    ('model.layers.1.mlp', 'model.layers.1', 'model.layers.1')
    """
    name = name.replace("language_model.", "")
    return f"model.{name}" if name.startswith("layers.") else name


def _upwards(name: str) -> Iterator[str]:
    while name.count(".") > 2:  # a block's own name says nothing of its modules
        yield name
        name = name.rpartition(".")[0]


def _matches(pattern: str, full: str) -> bool:
    """Whether a module, or what it is part of, is named by a pattern: a glob, `re:` and an expression, or words.

    >>> full = "model.layers.3.self_attn.q_proj"
    >>> given = "model.layers.*.self_attn", "re:.*self_attn.*", "q_proj", "model.layers.3*", "gate"
    >>> [_matches(pattern, full) for pattern in given]
    [True, True, True, True, False]
    """
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], full) is not None
        except re.error:
            return False
    if any(sign in pattern for sign in "*?["):
        return any(fnmatchcase(part, pattern) for part in (full, *_upwards(full)))
    return f".{pattern}." in f".{full}."
