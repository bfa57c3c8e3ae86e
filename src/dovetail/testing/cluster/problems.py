"""Random problems for tests and measurements: jobs of a few kinds on a cluster of unlike types."""

from __future__ import annotations

import numpy as np

from dovetail.cluster.policies.base import Problem


def random_problem(
    generator: np.random.Generator,
    *,
    jobs: int,
    kinds: int,
    counts: tuple[int, ...],
    widths: tuple[int, ...] = (1,),
    weights: tuple[float, ...] = (1.0,),
    unfit: float = 0.0,
    pairs: bool = False,
    entities: int = 0,
    deadlines: float = 0.0,
) -> Problem:
    """A problem drawn from the generator; `unfit` is the chance that a kind does not run on a type.

    `deadlines` is the part of the jobs that have one. Two jobs together run at 30 to 90 percent of their rates alone,
    or not at all.
    """
    types = len(counts)
    rates = generator.uniform(1, 100, (kinds, 1)) * generator.uniform(0.2, 1, (kinds, types))
    rates[generator.random((kinds, types)) < unfit] = 0.0
    kind = generator.integers(0, kinds, jobs)
    kind_width = generator.choice(widths, kinds)
    pair_rates = None
    if pairs:
        together = rates[:, None, :] * generator.uniform(0.3, 0.9, (kinds, kinds, types))
        never = generator.random((kinds, kinds, types)) < unfit / 2
        never |= never.swapaxes(0, 1) | (kind_width[:, None] != kind_width)[:, :, None]
        pair_rates = np.where(never | (rates[:, None] == 0) | (rates[None] == 0), 0.0, together)
    steps = 10 ** generator.uniform(3, 6, jobs)
    due = np.where(generator.random(jobs) < deadlines, generator.uniform(-0.1, 4, jobs), np.inf)
    return Problem(
        now_s=0.0,
        types=tuple(f"type{number}" for number in range(types)),
        counts=np.array(counts, dtype=np.int64),
        prices=generator.uniform(0.1, 2, types),
        ids=np.arange(jobs) * 3,
        kind=kind,
        rates=rates,
        width=kind_width[kind],
        weight=generator.choice(weights, jobs),
        steps_left=steps,
        age_s=np.sort(generator.uniform(0, 1e5, jobs))[::-1].copy(),
        deadline_s=due * steps / np.maximum(rates[kind].max(axis=1), 1.0),
        entity=generator.integers(0, entities, jobs) if entities else None,
        entity_weight=generator.choice([1.0, 2.0], entities) if entities else None,
        entities=tuple(f"entity{number}" for number in range(entities)),
        pair_rates=pair_rates,
    )
