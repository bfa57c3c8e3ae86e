"""Journals with a little damage: a value of another kind or size, a line lost, doubled, moved or cut."""

from __future__ import annotations

import copy
import json
from random import Random
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1, 7, 10**9, -(10**12), 0.5, -0.25, 1e300, 1e-300, "", "x", "job 1", [], [0], [[]], {}, {"a": 1}
)  # fmt: skip


def damaged(text: str, random: Random) -> str:
    """A journal that differs in one to three places."""
    lines = text.splitlines()
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        how = random.random()
        at = 0 if random.random() < 0.35 else random.randrange(len(lines))
        if how < 0.8:
            try:
                lines[at] = json.dumps(_changed(json.loads(lines[at]), random))
            except json.JSONDecodeError:
                continue
        elif how < 0.85 and len(lines) > 1:
            del lines[at]
        elif how < 0.9:
            lines.insert(random.randrange(len(lines)), lines[at])
        elif how < 0.95:
            lines.insert(random.randrange(len(lines)), lines.pop(at))
        else:
            lines[at] = lines[at][: random.randrange(len(lines[at]) + 1)]
    return "\n".join(lines) + "\n"


def _changed(record: Any, random: Random) -> Any:
    record = copy.deepcopy(record)
    where = record
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        if not keys:
            return record
        key = random.choice(keys)
        below = where[key]
        if isinstance(below, dict | list) and below and random.random() < 0.8:
            where = below
            continue
        break
    how = random.random()
    if how < 0.7:
        alike = [odd for odd in ODD if type(odd) is type(below)]
        if isinstance(below, int | float) and not isinstance(below, bool):
            alike += [type(below)(below * random.choice((-1, 2, 1000)) + random.choice((0, 1, -1)))] * 6
        where[key] = random.choice(alike if alike and random.random() < 0.7 else ODD)
    elif how < 0.85:
        del where[key]
    elif isinstance(where, list):
        where.insert(random.randrange(len(where) + 1), copy.deepcopy(below))
    else:
        where[key] = copy.deepcopy(where[random.choice(keys)])
    return record
