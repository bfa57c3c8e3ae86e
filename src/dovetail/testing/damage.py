"""Damaged journals: whatever a file holds, a reader of it names a fault or the line, and never breaks down itself."""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

_VALUES: tuple[Any, ...] = (None, "", "x", -1, 0, 1, 3, 1 << 40, -0.5, 1e300, True, [], [0], [[0]], {}, {"x": 1})
Place = tuple[Any, Any]  # a container, and the key or index of something in it


def damaged(journal: bytes, rng: Random, places: int = 1) -> bytes:
    """The journal with so many things wrong: in a line (most often the header, which most depends on), among the lines,
    or in the bytes.

    >>> damaged(b'{"journal":2,"level":"x"}\\n{"n":1,"t":0.0,"k":"woke"}\\n', Random(1)) != b""
    True
    """
    for _ in range(places - 1):
        journal = _damaged_lines(journal.splitlines(), rng)
    if rng.random() < 0.8:
        return _damaged_lines(journal.splitlines(), rng)
    place = rng.randrange(len(journal))
    if rng.random() < 0.5:
        return journal[:place]
    return journal[:place] + bytes([rng.randrange(256)]) + journal[place + 1 :]


def _damaged_lines(lines: list[bytes], rng: Random) -> bytes:
    at = 0 if rng.random() < 0.3 else rng.randrange(len(lines))
    match rng.choice(("value", "value", "value", "value", "key", "drop", "double", "swap")):
        case "drop" if len(lines) > 1:
            del lines[at]
        case "double":
            lines.insert(rng.randrange(len(lines)), lines[at])
        case "swap":
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case what:
            lines[at] = _altered(lines[at], rng, what == "key")
    return b"\n".join(lines) + b"\n"


def _altered(line: bytes, rng: Random, key: bool) -> bytes:
    record = json.loads(line)
    container, name = rng.choice(list(_places(record)))
    if key and isinstance(container, dict):
        container[str(rng.choice((f"{name}x", "id", "t")))] = container.pop(name)
        return json.dumps(record).encode()
    value = container[name]
    match rng.choice(("other", "other", "near", "gone", "grown")):
        case "near" if isinstance(value, int | float) and not isinstance(value, bool):
            container[name] = rng.choice((value + 1, value - 1, value * 2, value / 2, -value))
        case "gone":
            del container[name]
        case "grown" if isinstance(value, list) and value:
            value.insert(rng.randrange(len(value)), rng.choice(value))
        case _:
            alike = [other for other in _VALUES if type(other) is type(value)]
            container[name] = rng.choice(alike if alike and rng.random() < 0.5 else _VALUES)
    return json.dumps(record).encode()


def _places(value: Any) -> Iterator[Place]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield value, name
        yield from _places(inner)


def breaks_down(*commands: Sequence[str | Path]) -> list[str]:
    """What is wrong with how command lines end: an internal error, or a code that none of theirs is."""
    from dovetail.cli import main

    found = []
    for words in commands:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([str(word) for word in words])
        if code not in (0, 1, 2, 3) or "internal error" in err.getvalue():
            found.append(f"{' '.join(map(str, words))}: {code}: {err.getvalue().strip()}")
    return found
