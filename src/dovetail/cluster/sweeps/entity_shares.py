"""What each entity had of a recorded run, over time, beside what its weight entitles it to."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from dovetail.cluster.check import readable_steps
from dovetail.cluster.header import ClusterFacts, facts_of, setup_of
from dovetail.cluster.policies.base import Floats
from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.journal import Reader


def entity_shares(reader: Reader, parts: int) -> list[dict[str, Any]]:
    """A row for each entity and each of so many equal parts of the run.

    `share` is the entity's part of the accelerator time that was held, `progress_share` its part of what was got done:
    steps, in seconds that the job's kind takes for them on the cluster's average accelerator. Two jobs that share
    accelerators have half of them each. `entitled` is its weight over those of all entities with a job then, in the
    middle of the part. Shares are None where nobody had anything.
    """
    facts = facts_of(reader.header, reader.path)
    if not facts.entities:
        raise InputError(f"{reader.path}: expected jobs of entities, found a run without any")
    if facts.mode != "changes" or facts.clock != "rounds":
        raise InputError(f"{reader.path}: expected a journal with leases, found a summary")
    rates, counts = setup_of(reader.header).rates(), np.array(facts.counts)
    usual = rates @ counts / counts.sum()  # steps per second on the average accelerator
    leases = _Leases(reader, facts)
    if not leases.end_s:
        raise InputError(f"{reader.path}: expected jobs that ran, found a run of 0 s")
    edges = np.linspace(leases.first_s if facts.from_first_arrival else 0.0, leases.end_s, parts + 1)
    weights = np.array(list(facts.entities.values()))
    held, done = np.zeros((2, len(weights), parts))
    for entity in range(len(weights)):
        mine = leases.entity == entity
        begin, long_s = leases.begin_s[mine], leases.end[mine] - leases.begin_s[mine]
        into = np.clip(edges[:, None] - begin, 0.0, long_s)  # seconds of every lease before an edge
        held[entity] = np.diff(into @ leases.accelerators[mine])
        pace = leases.steps[mine] / usual[leases.kind[mine]] / np.maximum(long_s, 1e-300)
        done[entity] = np.diff(into @ pace)
    middle = (edges[1:] + edges[:-1]) / 2
    there = leases.present(middle, len(weights))
    claims = there * weights[:, None]
    return [
        {
            "time_s": float(edges[part]),
            "until_s": float(edges[part + 1]),
            "entity": name,
            "weight": float(weights[entity]),
            "entitled": _part(claims, entity, part),
            "accelerators": float(held[entity, part] / (edges[part + 1] - edges[part])),
            "share": _part(held, entity, part),
            "progress_share": _part(done, entity, part),
        }
        for part in range(parts)
        for entity, name in enumerate(facts.entities)
    ]


def _part(of: Floats, entity: int, part: int) -> float | None:
    total = of[:, part].sum()
    return float(of[entity, part] / total) if total > 0 else None


class _Leases:
    """All leases of a journal as columns, and when jobs of entities came and went."""

    def __init__(self, reader: Reader, facts: ClusterFacts) -> None:
        kind: dict[int, int] = {}
        entity: dict[int, int] = {}
        wide: dict[int, int] = {}  # accelerators that a job holds
        self._stay: dict[int, tuple[float, float]] = {}
        found: list[tuple[int, int, float, float, float, float]] = []
        self.first_s, self.end_s = inf, 0.0
        for _, t, events in readable_steps(reader, facts):
            self.end_s = max(self.end_s, t)
            for rows in events:
                if not isinstance(rows, Rows):
                    continue
                columns = rows.columns
                if rows.of == "arrived":
                    self.first_s = min(self.first_s, *columns["at_s"])
                    whose = columns.get("entity") or [0] * len(columns["id"])
                    for job, as_kind, of, at_s in zip(
                        columns["id"], columns["kind"], whose, columns["at_s"], strict=True
                    ):
                        kind[job], entity[job], self._stay[job] = as_kind, of, (at_s, inf)
                elif rows.of == "started":
                    wide |= zip(columns["id"], map(len, columns["devices"]), strict=True)
                    kind |= zip(columns["id"], columns.get("kind", ()), strict=False)
                elif rows.of == "stopped":
                    names = ("id", "beside", "from_s", "to_s", "steps")
                    for job, beside, begin_s, end_s, steps in zip(*(columns[name] for name in names), strict=True):
                        had = wide.get(job, 0) / (1 if beside < 0 else 2)
                        found.append((entity[job], kind[job], had, begin_s, end_s, steps))
                elif rows.of in ("completed", "rejected"):
                    ends_s = columns.get("at_s") or [t] * len(columns["id"])
                    for job, at_s in zip(columns["id"], ends_s, strict=True):
                        self._stay[job] = (self._stay[job][0], at_s)
        self._entity = entity
        table = np.array(found, dtype=np.float64).reshape(-1, 6).T
        self.entity, self.kind = table[:2].astype(np.int64)
        self.accelerators, self.begin_s, self.end, self.steps = table[2:]

    def present(self, at_s: Floats, entities: int) -> Floats:
        """Whether an entity has a job at a time."""
        found = np.zeros((entities, len(at_s)))
        for job, (begin_s, end_s) in self._stay.items():
            found[self._entity[job], (begin_s <= at_s) & (at_s < end_s)] = 1.0
        return found
