"""Damage for tests: it changes a journal, always the same way for one seed, and of every kind in turn."""

from __future__ import annotations

import json
from random import Random

from dovetail.testing.damage import damaged

LINES = [
    {"journal": 2, "level": "x", "pool": {"devices": [{"id": 0, "type": "gpu"}], "types": {}}},
    {"n": 1, "t": 0.5, "k": "arrived", "job": "a", "sizes": [1.0, 2.0]},
    {"n": 2, "t": 1.5, "k": "finished", "job": "a", "task": "b"},
]
JOURNAL = b"".join(json.dumps(line).encode() + b"\n" for line in LINES)


def test_a_seed_gives_one_damage_and_many_seeds_many() -> None:
    made = [damaged(JOURNAL, Random(seed)) for seed in range(400)]
    assert made == [damaged(JOURNAL, Random(seed)) for seed in range(400)]
    assert len(set(made)) > 200
    assert sum(one == JOURNAL for one in made) < 20


def test_lines_vanish_and_double_and_values_change_in_every_line() -> None:
    made = [damaged(JOURNAL, Random(seed)) for seed in range(1000)]
    assert {one.count(b"\n") for one in made} >= {1, 2, 3, 4}
    for at, line in enumerate(JOURNAL.splitlines()):
        changed = [one.splitlines()[at] for one in made if one.count(b"\n") == 3 and len(one.splitlines()) == 3]
        assert sum(found != line for found in changed) > 20
