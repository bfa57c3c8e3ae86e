"""Objects of a JSON file with their lines: JSON lines, one after another, an array, or a list under a key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

from dovetail.cluster.inputs.csv_rows import MOST, GivenRows, Source
from dovetail.core.errors import InputError
from dovetail.core.files.reading import open_bytes

_SPACE = re.compile(r"[\s,]*")
_MORE = re.compile(r"[^\w.+-]")
_DECODER = json.JSONDecoder()


class JsonObject(NamedTuple):
    """An object, and where it is."""

    place: str
    data: dict[str, Any]

    def error(self, key: str, message: str) -> InputError:
        return InputError(f"{self.place}: {key + ': ' if key else ''}{message}")

    def look(self, key: str) -> Any:
        """What a key holds; dots lead inside, unless a key is called so.

        >>> JsonObject("jobs.json:1", {"labels": {"team.io/model": "LM"}}).look("labels.team.io/model")
        'LM'
        """
        return _inside(self.data, key)

    def dicts(self, key: str) -> list[dict[str, Any]]:
        """The objects in a list; none if there is no list."""
        value = self.look(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
            raise self.error(key, f"expected a list of objects, found {str(value)[:60]!r}")
        return value

    def time_s(self, key: str) -> float | None:
        """Seconds of a time as ISO 8601 or as a number; None if there is none."""
        value = self.look(key)
        if value is None or value == "":
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MOST:
            return float(value)
        try:
            found = datetime.fromisoformat(str(value))
        except ValueError:
            raise self.error(key, f"expected a time such as 2024-11-13T13:03:31Z, found {value!r}") from None
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _inside(data: Any, key: str) -> Any:
    if not isinstance(data, dict):
        return None
    if key in data:
        return data[key]
    parts = key.split(".")
    for i in range(len(parts) - 1, 0, -1):
        if (head := ".".join(parts[:i])) in data:
            return _inside(data[head], ".".join(parts[i:]))
    return None


def _at_end(error: json.JSONDecodeError) -> bool:
    """Whether it is only at the end of the text, or at a word that ends it, that something is missing."""
    return error.msg.startswith("Unterminated string") or not _MORE.search(error.doc.rstrip(), error.pos)


def objects(path: Source, lists: tuple[str, ...] = ("items",)) -> Iterator[JsonObject | InputError]:
    """The objects of a file. Of one with a list under one of these keys, those in the list."""
    if isinstance(path, GivenRows):
        for i, row in enumerate(path.rows):
            yield JsonObject(f"{path.name}[{i}]", row)
        return
    with open_bytes(path) as file:
        text = file.read().decode("utf-8-sig", errors="replace")
    at, line, counted = 0, 1, 0
    until: list[int] = []  # where to go on when the lists are over that are being read
    while (at := _SPACE.match(text, at).end()) < len(text):  # type: ignore[union-attr]
        if text[at] in "[]":
            at = at + 1 if text[at] == "[" or not until else until.pop()
            continue
        line, counted = line + text.count("\n", counted, at), at
        try:
            data, end = _DECODER.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            cut = text[at] == "{" and isinstance(error, json.JSONDecodeError) and _at_end(error)
            end = text.find("\n", at)
            end = len(text) if end < 0 else end
            found = f"{text[at:end][:60]!r}" + (
                ", which goes on to the end of the file: is it truncated?" if cut else ""
            )
            yield InputError(f"{path}:{line}: expected an object as JSON, found {found}")
            at = end
            continue
        listed = next((key for key in lists if isinstance(data, dict) and isinstance(data.get(key), list)), None)
        if listed is not None and (begin := re.compile(rf'"{listed}"\s*:\s*\[').search(text, at, end)):
            until.append(end)
            at = begin.end()
            continue
        at = end
        if isinstance(data, dict):
            yield JsonObject(f"{path}:{line}", data)
        else:
            yield InputError(f"{path}:{line}: expected an object, found {json.dumps(data)[:60]}")
