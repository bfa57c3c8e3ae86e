"""YAML, JSON and TOML into typed structs; an error names the file, the line, the key."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from msgspec import inspect

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.plain import plain
from dovetail.core.files.reading import SafeLoader, parse, read_bytes

T = TypeVar("T")
Key = str | int
Source = str | os.PathLike[str] | Mapping[str, Any] | Sequence[Any] | Any  # the last: a struct or a frame
_PATH = re.compile(r" - at (`key` in )?`(\$[^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_ENTRY = "*"  # an entry of a mapping, whichever it is


class Document:
    """A file that was read: its data, and the way from a key back to its line.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "models.yml"
    >>> _ = file.write_text("models:\\n  llm:\\n    memory_gb: big\\n")
    >>> doc = Document.read(file)
    >>> str(doc.error(("models", "llm", "memory_gb"), "expected a number")).replace(str(file.parent), "")
    '/models.yml:3: models.llm.memory_gb: expected a number'
    """

    def __init__(self, path: Path, text: bytes, data: Any) -> None:
        self.path = path
        self.text = text
        self.data = data
        self._root: Any = None

    @classmethod
    def read(cls, path: Path, as_text: bool = False) -> Document:
        """What a file holds; `as_text`: with every value and key as the text that stands there."""
        text = read_bytes(path)
        return cls(path, text, parse(path, text, as_text))

    @classmethod
    def of(cls, source: Source, name: str) -> Document:
        """A file that is named by its path, or what stands in its place: dicts, lists, structs or a frame. Errors name
        that by `name`.

        >>> Document.of([{"rate": "fast"}], "requests").convert("fast", float, (0, "rate"))
        Traceback (most recent call last):
        dovetail.core.errors.InputError: requests: 0.rate: expected float, found str
        """
        if isinstance(source, str | os.PathLike):
            return cls.read(as_path(source, name))
        if isinstance(source, cls):
            return source
        data = plain(source)
        if not isinstance(data, dict | list):
            raise InputError(f"{name}: expected a path, dicts, lists or a frame, found {source!r}")
        return cls(Path(name), b"", data)

    def error(self, keys: Sequence[Key], message: str) -> InputError:
        line = self.line_of(keys)
        place = ".".join(map(str, keys))
        return InputError(f"{self.path}{f':{line}' if line else ''}: {place + ': ' if place else ''}{message}")

    def line_of(self, keys: Sequence[Key]) -> int | None:
        """The line of the deepest of these keys that exists; None if the text cannot be walked."""
        if self._root is None and self.path.suffix == ".toml":
            self._root = ()  # the keys are told; which line they are on, the reader does not say
        if self._root is None:
            try:
                self._root = yaml.compose(self.text.replace(b"\t", b" "), Loader=SafeLoader)
            except (yaml.YAMLError, RecursionError):
                self._root = ()
        node, line = self._root, None
        for key in keys:
            if isinstance(node, yaml.MappingNode):
                found = next(((k, v) for k, v in node.value if k.value == str(key)), None)
                if found is None:
                    break
                line, node = found[0].start_mark.line + 1, found[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
                node = node.value[key]
                line = node.start_mark.line + 1
            else:
                break
        return line

    def convert(self, data: Any, to: type[T], at: Sequence[Key] = ()) -> T:
        """Check and convert a part of the data; unknown keys are errors."""
        try:
            return msgspec.convert(data, to)
        except msgspec.ValidationError as error:
            keys, message = explain(error, to)
            raise self.error([*at, *name_entries(data, to, keys, str(error))], message) from None


def as_path(value: Any, name: str) -> Path:
    """A path that a user gave as text or as one.

    >>> as_path("run.jsonl", "journal")
    PosixPath('run.jsonl')
    >>> as_path(None, "journal")
    Traceback (most recent call last):
    dovetail.core.errors.InputError: journal: expected a path, found None
    """
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in str(value):
        raise InputError(f"{name}: expected a path, found {value!r}")
    return Path(value)


def checked(value: Any, to: type[T], name: str = "") -> T:
    """What a user gave, as what is wanted; an error names the argument, or the field of a struct.

    >>> checked(2.5, int, "repeats")
    Traceback (most recent call last):
    dovetail.core.errors.InputError: repeats: expected int, found float
    """
    try:
        return msgspec.convert(plain(value), to)
    except msgspec.ValidationError as error:
        keys, message = explain(error, to)
        place = ".".join(filter(None, (name, *map(str, keys))))
        message += "" if keys or ", found" in message else f", found {value!r}"
        raise InputError(f"{place}: {message}" if place else message) from None


def explain(error: msgspec.ValidationError, to: Any = None) -> tuple[list[Key], str]:
    """What a validation error says, in our words: the keys that lead to the place, and the message."""
    message = str(error)
    keys: list[Key] = []
    found = _PATH.search(message)
    if found:
        message = message[: found.start()]
        for name, number in _STEP.findall(found.group(2)):
            keys.append(name or (int(number) if number != "..." else _ENTRY))
        if found.group(1):
            keys.append(_ENTRY)
    unknown = _UNKNOWN.match(message)
    if unknown:
        key = unknown.group(1)
        message = f"unknown key {key!r}{did_you_mean(key, _known_keys(to, keys))}"
        keys.append(key)
    if message.startswith("Invalid enum value "):
        word = message.removeprefix("Invalid enum value ").strip("'")
        known = [str(value) for kind in _types_at(to, keys) for value in _choices(kind)]
        message = f"expected {' or '.join(known)}, found {word!r}{did_you_mean(word, known)}" if known else message
        message = message.partition("; known: ")[0]
    message = message.replace("Object missing required field", "missing key")
    message = re.sub(r"^Expected `(.*)`, got `(.*)`$", r"expected \1, found \2", message)
    return keys, re.sub(r"^Expected `(\w+)`", r"expected \1", message)


def _choices(kind: inspect.Type) -> Sequence[Any]:
    """The values that may stand here, where they are few."""
    if isinstance(kind, inspect.LiteralType):
        return kind.values
    return [each.value for each in kind.cls] if isinstance(kind, inspect.EnumType) else ()


def _known_keys(to: Any, keys: Sequence[Key]) -> list[str]:
    """The keys that a struct may have which these keys lead to."""
    types = _types_at(to, keys)
    return [field.encode_name for kind in types if isinstance(kind, inspect.StructType) for field in kind.fields]


def _types_at(to: Any, keys: Sequence[Key]) -> list[inspect.Type]:
    """What these keys lead to may be."""
    types = [] if to is None else [inspect.type_info(to)]
    for key in [*keys, None]:
        types = [kind for each in types for kind in (each.types if isinstance(each, inspect.UnionType) else (each,))]
        if key is not None:
            types = [inner for kind in types for inner in _inside(kind, key)]
    return types


def _inside(kind: inspect.Type, key: Key) -> list[inspect.Type]:
    if isinstance(kind, inspect.StructType):
        return [field.type for field in kind.fields if field.encode_name == key]
    if isinstance(kind, inspect.DictType):
        return [kind.value_type]
    return [kind.item_type] if isinstance(kind, inspect.ListType | inspect.VarTupleType | inspect.SetType) else []


def name_entries(data: Any, to: Any, keys: Sequence[Key], error: str) -> list[Key]:
    """Validation tells an item's number, but not an entry's name: the entry that gives the same error alone has it."""
    named = list(keys)
    for depth, key in enumerate(named):
        if key == _ENTRY:
            holder = data
            for step in named[:depth]:
                holder = holder[step]
            for name, value in holder.items():
                if _error(_with(data, named[:depth], {name: value}), to) == error:
                    named[depth] = name
                    break
            else:
                break
    return named


def _error(data: Any, to: Any) -> str:
    try:
        msgspec.convert(data, to)
    except msgspec.ValidationError as error:
        return str(error)
    return ""


def _with(data: Any, keys: Sequence[Any], value: Any) -> Any:
    """A copy of the data with another value at a place."""
    if not keys:
        return value
    copy = data.copy()
    copy[keys[0]] = _with(data[keys[0]], keys[1:], value)
    return copy
