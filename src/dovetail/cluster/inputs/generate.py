"""Workloads drawn from a seed: Poisson arrivals or all at once, durations and widths as in published cluster traces.

Every kind of draw has a generator of its own (seed + 2 jobs, + 3 arrivals, + 6 deadlines, + 7 entities), in the order
that the older system drew in, so the same seed gives the same jobs, whatever else is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf, isfinite, log
from random import Random

from dovetail.cluster.inputs.templates import TEMPLATES
from dovetail.cluster.inputs.throughputs import reference_type
from dovetail.cluster.inputs.workload import Job, Throughputs
from dovetail.core.errors import InputError

_SHORT = 0.8  # the share of jobs that are short


@dataclass(slots=True, frozen=True, kw_only=True)
class GeneratedJobs:
    """Jobs without end, or `jobs` of them; going through it again gives the same ones.

    `lam_s` is the mean time between arrivals, 0 for all at once. `prefill` are the accelerators of each type, in the
    order of the types' names: before the first arrival, each type is given jobs that fill it.

    >>> from dovetail.cluster.inputs.throughputs import RateEntry, table
    >>> fast = table([RateEntry("LM", "l4", 2.0), RateEntry("GAN", "l4", 0.5)])
    >>> jobs = GeneratedJobs(throughputs=fast, lam_s=600, jobs=3)
    >>> [(job.model, round(job.steps), round(job.arrival_s)) for job in jobs]
    [('GAN', 34172, 0), ('LM', 62033, 163), ('GAN', 1073, 635)]
    """

    throughputs: Throughputs
    lam_s: float
    seed: int = 0
    jobs: int | None = None
    multi_gpu: bool = False
    priorities: bool = False
    deadlines: bool = False
    duration_s: float | None = None  # the same for all
    prefill: Sequence[int] = ()
    entities: Sequence[str] = ()  # names; each job belongs to one of them

    def __post_init__(self) -> None:
        _expect("lam_s", self.lam_s, 0)
        _expect("jobs", self.jobs or 0, 0)
        _expect("duration_s", 1.0 if self.duration_s is None else self.duration_s, 1e-9)
        if self.lam_s == 0 and self.jobs is None:
            raise InputError("jobs that all arrive at once need a number: expected `jobs`, found none")

    def __iter__(self) -> Iterator[Job]:
        rates = self._rates()
        models = _in_order({model for model, _ in rates})
        widths = {wanted: max(w for _, w in rates if w <= wanted) for wanted in (1, 2, 4, 8)}
        draw, gaps = Random(self.seed + 2), Random(self.seed + 3)
        deadlines, entities = Random(self.seed + 6), Random(self.seed + 7)
        arrival_s = 0.0
        to_fill = [amount for amount in self.prefill if amount > 0]
        for id in count() if self.jobs is None else range(self.jobs):
            width = _width(draw)  # drawn even if all jobs get one accelerator
            width = widths[width] if self.multi_gpu else 1
            duration_s = _duration_s(draw) if self.duration_s is None else self.duration_s
            model = draw.choice(models)
            while (model, width) not in rates:
                model = draw.choice(models)
            heavy = self.priorities and draw.uniform(0, 1) <= 0.2
            yield Job(
                id=id,
                model=model,
                width=width,
                steps=duration_s * rates[model, width],
                arrival_s=arrival_s,
                weight=5.0 if heavy else 1.0,
                due_s=_slack(deadlines) * duration_s if self.deadlines else None,
                duration_s=duration_s,
                entity=entities.choice(self.entities) if self.entities else "",
            )
            if to_fill:
                to_fill[0] -= width
                if to_fill[0] <= 0:
                    del to_fill[0]
            elif self.lam_s:
                arrival_s += -log(1.0 - gaps.random()) * self.lam_s

    def _rates(self) -> dict[tuple[str, int], float]:
        """Steps per second on the reference type of all that runs there."""
        known = self.throughputs
        at = known.types.index(reference_type(known))
        rates = {kind: float(known.alone[k, at]) for k, kind in enumerate(known.kinds) if known.alone[k, at] > 0}
        if not any(width == 1 for _, width in rates):
            raise InputError(f"throughputs: expected a model that runs on one {known.types[at]}, found none")
        return rates


def jobs_per_hour(rate: float) -> float:
    """The mean time between arrivals at this many jobs per hour.

    >>> jobs_per_hour(4.0)
    900.0
    """
    if not 0 < rate < inf:
        raise InputError(f"jobs per hour: expected a number above 0, found {rate}")
    return 3600.0 / rate


def _in_order(models: set[str]) -> list[str]:
    """Models in the order of the templates, then those that the templates do not have, by name."""
    ours = [template.model for template in TEMPLATES if template.model in models]
    return ours + sorted(models - set(ours))


def _width(draw: Random) -> int:
    at = draw.uniform(0, 1)
    if at < 0.7:
        return 1
    return 2 if at <= 0.8 else 4 if at <= 0.95 else 8


def _duration_s(draw: Random) -> float:
    if draw.random() >= _SHORT:
        return float(60 * (10 ** draw.uniform(3, 4)))
    return float(60 * (10 ** draw.uniform(1.5, 3)))


def _slack(draw: Random) -> float:
    """How many times its duration a job may take."""
    at = draw.uniform(0, 1)
    return 1.2 if at < 0.33 else 2.0 if at < 0.67 else 10.0


def _expect(name: str, value: float, least: float) -> None:
    if not (isfinite(value) and value >= least):
        raise InputError(f"{name}: expected a number >= {least:g}, found {value}")
