"""YAML and JSON into typed structs, by content and any suffix; an error names the file, the line, the key."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from dovetail.core.errors import InputError, did_you_mean

T = TypeVar("T")
Key = str | int
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PATH = re.compile(r" - at `(?:key in )?(\$[^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")


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
    def read(cls, path: Path) -> Document:
        text = read_bytes(path)
        return cls(path, text, parse(path, text))

    def error(self, keys: Sequence[Key], message: str) -> InputError:
        line = self.line_of(keys)
        place = ".".join(map(str, keys))
        return InputError(f"{self.path}{f':{line}' if line else ''}: {place + ': ' if place else ''}{message}")

    def line_of(self, keys: Sequence[Key]) -> int | None:
        """The line of the deepest of these keys that exists; None if the text cannot be walked."""
        if self._root is None:
            try:
                self._root = yaml.compose(self.text.replace(b"\t", b" "), Loader=_Loader)
            except yaml.YAMLError:
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
            raise self.error([*at, *keys], message) from None


def explain(error: msgspec.ValidationError, to: Any = None) -> tuple[list[Key], str]:
    """What a validation error says, in our words: the keys that lead to the place, and the message."""
    message = str(error)
    keys: list[Key] = []
    found = _PATH.search(message)
    if found:
        message = message[: found.start()]
        for name, number in _STEP.findall(found.group(1)):
            keys.append(name or (int(number) if number != "..." else "*"))
    unknown = _UNKNOWN.match(message)
    if unknown:
        key = unknown.group(1)
        fields = getattr(to, "__struct_encode_fields__", ())
        message = f"unknown key {key!r}{did_you_mean(key, fields)}"
        keys.append(key)
    message = message.replace("Object missing required field", "missing key")
    return keys, re.sub(r"^Expected `(.*)`, got `(.*)`$", r"expected \1, found \2", message)


def read_bytes(path: Path) -> bytes:
    """A file's bytes, or an error that a person can act on."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: is a folder; expected a file") from None
    except PermissionError:
        raise InputError(f"{path}: may not be read (permission denied)") from None
    if not text.strip():
        raise InputError(f"{path}: is empty; expected YAML or JSON")
    return text


def parse(path: Path, text: bytes) -> Any:
    """JSON if it is JSON, YAML otherwise."""
    wrong: Exception | None = None
    if text.lstrip()[:1] in b"{[":
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            wrong = error
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        if wrong is not None:
            found = re.search(r"\(byte (\d+)\)", str(wrong))
            line = text[: int(found.group(1))].count(b"\n") + 1 if found else (mark.line + 1 if mark else 1)
            raise InputError(f"{path}:{line}: not JSON: {wrong}") from None
        place = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(f"{path}{place}: not YAML: {problem}") from None


def is_json_lines(path: Path) -> bool:
    """Whether a file is a sequence of JSON objects, one per line (and not one JSON document)."""
    try:
        with path.open("rb") as file:
            lines = (line for line in (file.readline(1 << 24) for _ in range(64)) if line.strip())
            first, second = next(lines, b""), next(lines, b"")
    except OSError:
        return False
    if not first.lstrip().startswith(b"{"):
        return False
    try:
        msgspec.json.decode(first)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return second.lstrip().startswith(b"{") or (not second and path.suffix == ".jsonl")
