"""What a policy of this level sees, and what it decides: arrays over jobs and accelerator types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.goodput.application import MOST_WIDTH, Application
from dovetail.core.errors import DovetailError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_ABOVE = 1e-3  # above 1: some are quotients of what a solver gave
_ROUNDING = 1e-6  # below 0 by as much as a solver's tolerances add up to


@dataclass(slots=True, kw_only=True)
class AdaptiveJobs:
    """What is known of jobs whose rate depends on their batch, placement and progress: columns over a problem's jobs.

    A job's application is that of its kind; -1 is none, and then the other columns mean nothing. Points are rows
    (servers, accelerators, local batch, seconds of a step, seconds of it that were exchange), as the job saw them; the
    seven numbers are fitted to them, for elastic policies. What is not known yet is nan.
    """

    applications: tuple[Application, ...]
    application: Ints
    batch: Ints  # total, as asked for
    per_server: Ints  # accelerators in a server of each type
    points: list[dict[int, Floats]]  # by job and type
    numbers: Floats  # jobs x types x 7
    grad_sqr: Floats  # seen last
    grad_var: Floats
    on: Ints  # the type that a job has now, or -1
    local: Ints  # batch of each accelerator now, or when it ran last; 0 before
    steps: Ints  # of accumulation
    epoch: Ints
    widest: Ints  # jobs x types: most accelerators that it had
    restarts: Ints  # without the first start
    pause_s: Floats  # until the job works, if it is in the middle of a restart

    @property
    def most_width(self) -> Ints:
        """The most accelerators that jobs may have next; those without an application any number."""
        widest = self.widest.max(axis=1, initial=0).tolist()
        most = (
            self.applications[of].most_width(had) if of >= 0 else MOST_WIDTH
            for of, had in zip(self.application.tolist(), widest, strict=True)
        )
        return np.fromiter(most, dtype=np.int64, count=len(widest))


@dataclass(slots=True, kw_only=True)
class PhasedJobs:
    """Jobs that change what they run as while they run: columns over a problem's jobs.

    Steps are of the first mode: `rates` of every mode are in them, as is `steps_left`.
    """

    modes: Ints  # jobs x modes: kinds that a job runs as in its life, the first one first, -1 to fill
    done: Floats  # jobs x modes: steps so far as each


@dataclass(slots=True, kw_only=True)
class Problem:
    """The jobs that are active now, in order of arrival, and the accelerators that they share.

    A job's `kind` is its model and width: jobs of one kind run alike. `rates[kind, type]` are steps per second alone
    (0: it does not fit), `pair_rates[a, b, type]` those of kind `a` while it shares the accelerators with a job of kind
    `b`. A rate is of the whole job, whatever its width.
    """

    now_s: float
    types: tuple[str, ...]
    counts: Ints  # accelerators of each type
    prices: Floats  # per accelerator and hour
    ids: Ints
    kind: Ints
    rates: Floats
    width: Ints  # accelerators that a job needs at once
    weight: Floats
    steps_left: Floats
    age_s: Floats
    deadline_s: Floats  # from now; inf if there is none, negative if it has passed
    entity: Ints | None = None  # the entity that a job belongs to
    entity_weight: Floats | None = None
    entities: tuple[str, ...] = ()  # their names
    pair_rates: Floats | None = None  # None if jobs do not share accelerators
    scaled: Ints | None = None  # kinds x choices: the same model at every width it may have, -1 to fill; None: rigid
    kind_width: Ints | None = None  # accelerators of every kind, given with `scaled`
    adaptive: AdaptiveJobs | None = None  # what is known of jobs that choose their batch, if there are any
    phased: PhasedJobs | None = None  # what is known of jobs that come with phases, if there are any
    round_s: float = 0.0  # shares are carried out in rounds of this length; 0: exactly
    restart_s: float = 0.0  # what a job usually loses when it starts anew

    @property
    def speed(self) -> Floats:
        """Steps per second of every job on every type."""
        return self.rates[self.kind]

    @property
    def jobs(self) -> int:
        return len(self.ids)

    @property
    def most_width(self) -> Ints:
        """The most accelerators that an elastic policy may give to every job now."""
        return np.full(self.jobs, self.counts.max(initial=0)) if self.adaptive is None else self.adaptive.most_width


@dataclass(slots=True, kw_only=True)
class Allocation:
    """The share of time that every job should have on every type, alone and beside others, and why.

    `pairs` holds positions (not ids) of two jobs of the same width, the first one smaller.
    """

    share: Floats  # jobs x types
    pairs: Ints = field(default_factory=lambda: np.zeros((0, 2), dtype=np.int64))
    pair_share: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # pairs x types
    value: float | None = None  # of the policy's objective, where it has one
    why: str = ""
    kind: Ints | None = None  # what every job should run as, where a policy chooses its width

    def fault(self, problem: Problem) -> str:
        """What makes it no answer to this problem; nothing if it is one."""
        if fault := self._not_arrays(problem.jobs, len(problem.types)):
            return fault
        for name, share, rows in (
            ("share", self.share, problem.jobs),
            ("pair_share", self.pair_share, len(self.pairs)),
        ):
            if rows and not (share.min() >= -_ROUNDING and share.max() <= 1 + _ABOVE):
                return f"{name} holds a value that is no share of time, which is 0 to 1"
        if self.kind is not None:
            may = problem.kind[:, None] if problem.scaled is None else problem.scaled[problem.kind]
            if not (may == self.kind[:, None]).any(axis=1).all():
                return "kind holds one of another model, or its policy is not elastic"
        if not len(self.pairs):
            return ""
        if problem.pair_rates is None:
            return "it has pairs, but its policy does not pack"
        first, second = self.pairs[:, 0], self.pairs[:, 1]
        if not ((first >= 0) & (first < second) & (second < problem.jobs)).all():
            return "pairs holds positions that are no two jobs, the first one smaller"
        if (problem.width[first] != problem.width[second]).any():
            return "pairs holds jobs of different width"
        return ""

    def _not_arrays(self, jobs: int, types: int) -> str:
        """Which of the arrays is none, or has not the shape or the numbers that it must have."""
        pairs = len(np.atleast_1d(self.pairs)) if isinstance(self.pairs, np.ndarray) else 0
        for name, shape, numbers in (
            ("share", (jobs, types), "biuf"),
            ("pairs", (pairs, 2), "iu"),
            ("pair_share", (pairs, types), "biuf"),
            ("kind", (jobs,), "iu"),
        ):
            found = getattr(self, name)
            if found is None and name == "kind":
                continue
            if not isinstance(found, np.ndarray):
                return f"{name} is a {type(found).__name__}, expected an array"
            if shape[0] and found.shape != shape:
                return f"{name} is {found.shape}, expected {shape}"
            if shape[0] and found.dtype.kind not in numbers:
                return f"{name} holds {found.dtype}, expected {'numbers' if 'f' in numbers else 'whole numbers'}"
        return ""

    def in_floats(self) -> Allocation:
        """The same, with shares that were whole numbers, or true and false, as what is reckoned with."""
        share, pair_share = self.share.astype(np.float64, copy=False), self.pair_share
        if len(self.pairs):
            pair_share = pair_share.astype(np.float64, copy=False)
        same = share is self.share and pair_share is self.pair_share
        return self if same else replace(self, share=share, pair_share=pair_share)

    def throughput(self, problem: Problem) -> Floats:
        """Steps per second that every job gets under these shares."""
        kind = problem.kind if self.kind is None else self.kind
        got: Floats = (problem.rates[kind] * self.share).sum(axis=1)
        if len(self.pairs):
            assert problem.pair_rates is not None
            for me, other in ((0, 1), (1, 0)):
                mine, theirs = self.pairs[:, me], self.pairs[:, other]
                rate = problem.pair_rates[problem.kind[mine], problem.kind[theirs]]
                np.add.at(got, mine, (rate * self.pair_share).sum(axis=1))
        return got


class Policy(Protocol):
    """Decides shares. It may remember what it decided before, and nothing else: same calls, same answers.

    `agnostic` policies do not tell types apart, so the mechanism tries types in random order for them; `packs` policies
    let two jobs share accelerators; of `strict` ones, a job without a share stays idle even if accelerators are free.
    Six more may be left out: `every_round` policies are asked before every round, `elastic` ones may change widths,
    `tunes` ones go by the goodput of jobs with profiles, `narrow` ones refuse jobs that need more than one accelerator;
    `wide_as_others`: jobs with profiles have at most twice what any of their application had, not what they had;
    `by_older_rules()` gives a copy that decides as the older simulator's did.
    """

    agnostic: bool = False
    packs: bool = False
    strict: bool = False

    def allocate(self, problem: Problem) -> Allocation: ...


def by_older_rules(policy: Policy) -> Policy:
    """The policy for a run by the older simulator's rules: a copy where it decides otherwise by them."""
    older: Callable[[], Policy] | None = getattr(policy, "by_older_rules", None)
    return policy if older is None else older()


def ask(policy: Policy, problem: Problem) -> Allocation:
    """A policy's answer, if it can be carried out."""
    found: object = policy.allocate(problem)
    name = getattr(policy, "name", type(policy).__name__)
    if not isinstance(found, Allocation):
        raise DovetailError(f"policy {name}: allocate gave {type(found).__name__}, expected an Allocation")
    if fault := found.fault(problem):
        raise DovetailError(f"policy {name} gave an allocation that cannot be carried out: {fault}")
    return found.in_floats()
