"""The three files as `sched-pipeline` reads them: by their text, so that a number may stand in quotes and a host be
called 7, and without a word about keys that it does not know."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from msgspec import inspect

from dovetail.core.files.document import Document
from dovetail.pipeline.inputs.files import DeviceTypeEntry, ModelEntry

_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_NOTHING = ("", "~", "null", "Null", "NULL")
MODELS, DEVICE_TYPES, DEVICES = dict[str, ModelEntry], dict[str, DeviceTypeEntry], dict[str, list[str]]


def read(path: Path, kind: Any, warnings: list[str]) -> Document:
    """A file of this kind with its values as what they are meant to be. What cannot be meant is left as it stands, for
    the reader that follows to refuse; keys that mean nothing are left out, with a warning."""
    doc = Document.read(path, as_text=True)
    doc.data = _meant(doc, doc.data, inspect.type_info(kind), (), warnings)
    return doc


def _meant(doc: Document, value: Any, kind: inspect.Type, at: tuple[str | int, ...], warnings: list[str]) -> Any:
    if isinstance(kind, inspect.UnionType):  # with nothing as the other choice
        if isinstance(value, str) and value in _NOTHING:
            return None
        kind = next(each for each in kind.types if not isinstance(each, inspect.NoneType))
    if isinstance(value, str):
        return _scalar(value, kind)
    if isinstance(kind, inspect.ListType) and isinstance(value, list):
        return [_meant(doc, each, kind.item_type, (*at, i), warnings) for i, each in enumerate(value)]
    if isinstance(kind, inspect.DictType) and isinstance(value, dict):
        return {key: _meant(doc, each, kind.value_type, (*at, key), warnings) for key, each in value.items()}
    if isinstance(kind, inspect.StructType) and isinstance(value, dict):
        known = {field.encode_name: field.type for field in kind.fields}
        unknown = [key for key in value if key not in known]
        warnings += [str(doc.error((*at, key), "unknown key: it is ignored")) for key in unknown]
        return {key: _meant(doc, value[key], known[key], (*at, key), warnings) for key in known if key in value}
    return value


def _scalar(text: str, kind: inspect.Type) -> Any:
    """Text as a number where one is meant, and as nothing where a list or a mapping is."""
    if isinstance(kind, inspect.IntType | inspect.FloatType) and _NUMBER.fullmatch(text.strip()):
        number = float(text)
        return int(number) if isinstance(kind, inspect.IntType) and number.is_integer() else number
    return None if not isinstance(kind, inspect.StrType) and text in _NOTHING else text
