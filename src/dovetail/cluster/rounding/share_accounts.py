"""What jobs are owed: the policy's shares of time, less what was received; and when the policy is asked again.

A state machine without clock or I/O: arrivals, ends and received time go in.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dovetail.cluster.policies.base import Floats, Ints, Policy, Problem, ask
from dovetail.cluster.rounding.active import Active
from dovetail.cluster.rounding.envy import envy
from dovetail.cluster.rounding.pairing import Pairs
from dovetail.cluster.rounding.phases import Phases
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import DovetailError

_LEAST_LEFT_S = 1e-3  # by rounding, a job that still runs may have next to nothing left: no policy should divide by it
_FEW = 100  # allocations
_PATIENCE = 10  # rounds of debt or credit that are remembered


class ShareAccounts:
    """What jobs and pairs of them have of the shares that the policy allots, and what they are owed of them.

    Of the table of jobs it writes shares and what is owed and received; where jobs are is written by whoever runs them.
    """

    def __init__(
        self,
        policy: Policy,
        types: tuple[str, ...],
        counts: Ints,
        rates: Floats,
        pair_rates: Floats | None,
        rules: RoundRules,
        rng: random.Random,
        entities: Mapping[str, float] | None = None,
        *,
        kinds: Sequence[tuple[str, int]],
        resizes: bool = True,
        pairs: type[Pairs] = Pairs,
        phases: Phases | None = None,
        shows_rounds: bool = True,
    ) -> None:
        """`entities` have weights; `kinds` are models and widths; jobs keep theirs unless an elastic policy `resizes`
        them. `phases` are of jobs whose rate changes. The policy knows of rounds if it `shows_rounds`."""
        self.phases = phases
        self._shows_rounds = shows_rounds
        self.types = types
        self.counts = counts.copy()
        self.rates = rates
        self._all_pairs = pair_rates  # whether the policy packs or not
        self.rules = rules
        self.by_fraction = rules.priority == "fraction"
        self._entities = tuple(entities or ())
        self._entity_weight = np.array(list(entities.values())) if entities else None
        self.jobs = Active(len(types))
        self.pairs = pairs(len(types), rules.round_s / 2)
        self.prices: Floats = np.zeros(len(types))
        self._outdated = False
        self.allocations = 0
        self.value: float | None = None
        self.why = ""
        self.envy: float | None = None  # under the last allocation, if it was looked at
        self.runs_as: Ints | None = None  # the kinds that jobs should have, under the last allocation
        self.kinds, self._resizes = list(kinds), resizes
        self.worked: Floats = np.zeros(len(types))  # seconds of every type since the last settling, for fractions
        self._rng = rng
        self._allotted_at: float | None = None
        self._counted_to = 0.0
        self._speed: Floats = np.zeros((0, len(types)))
        self._speed_of = (0, 0)  # how many jobs, and how often the table was compacted, when speeds were looked up
        self._compactions = 0
        self.narrow = True  # every job needs one accelerator only
        self._positive: NDArray[np.bool_] = np.zeros((0, len(types)), dtype=np.bool_)
        self.go_by(policy)

    def go_by(self, policy: Policy) -> None:
        """This policy decides from now on."""
        self.policy = policy
        self.every_round: bool = getattr(policy, "every_round", False)
        self.elastic: bool = self._resizes and getattr(policy, "elastic", False)
        self._know_kinds()

    def _know_kinds(self) -> None:
        """Look up again what follows from kinds, their rates and the policy."""
        self.pair_rates = self._all_pairs if self.policy.packs else None
        self.seen_pair_rates = self.pair_rates  # as the policy sees them
        self._least_left: Floats = _LEAST_LEFT_S * self.rates.max(axis=1, initial=0.0)
        self.kind_width: Ints = np.array([width for _, width in self.kinds], dtype=np.int64)
        speed = self.rates / np.maximum(self.rates.max(axis=1, initial=0.0, keepdims=True), 1e-300)
        self._fast_first: list[int] = np.argsort(-speed.sum(axis=0), kind="stable").tolist()
        self._scaled = scaled_kinds(self.kinds) if self.elastic else None
        self._compactions += 1

    # --- what happened ------------------------------------------------------------------------------

    @property
    def outdated(self) -> bool:
        """Whether something has changed since the last allocation."""
        return self._outdated

    @property
    def standstill(self) -> bool:
        """Whether another round in which nobody has anything leaves all as it is: the policy is not asked, and nobody
        is owed more than now."""
        if self._outdated or self.every_round:
            return False
        if self.by_fraction:
            return True
        limit, round_s = _PATIENCE * self.rules.round_s, self.rules.round_s
        return all(
            bool((np.minimum(rows.owed + rows.share * round_s, limit) == rows.owed).all())
            for rows in (self.jobs, self.pairs)
        )

    def arrive(self, columns: Mapping[str, Any]) -> None:
        """Jobs come, as the journal's columns have them."""
        self.jobs.append(columns, self.kind_width, self.rules.round_s / 2)
        if self.pair_rates is not None:
            self.pairs.arrive(self.jobs.width)
        self._outdated = True

    def see_prices(self, prices: Floats) -> None:
        """Accelerators cost as much from now on."""
        self.prices = prices
        self._outdated = True

    def add_accelerators(self, j: int, count: int) -> None:
        """So many more of a type can be used; fewer if `count` is negative."""
        self.counts[j] += count
        self._outdated = True

    def change_policy(self, policy: Policy, now: float) -> None:
        """Another policy decides from now on: what was owed under the last one is not owed any more."""
        self._settle(now)
        self.jobs.owed[:] = 0.0
        self.pairs.allot(np.zeros((0, 2), dtype=np.int64), np.zeros((0, len(self.types))))
        self.runs_as = None
        self.go_by(policy)
        self._outdated = True
        self.hurry()

    def add_kinds(self, kinds: Sequence[tuple[str, int]], rates: Floats) -> None:
        """Kinds become known, with their rates alone; no pair of them is known to share accelerators."""
        self.kinds += kinds
        self.rates = np.concatenate((self.rates, rates))
        if self._all_pairs is not None:
            more = len(kinds)
            self._all_pairs = np.pad(self._all_pairs, ((0, more), (0, more), (0, 0)))
        self._know_kinds()

    def learn(self, kinds: Ints, on: Ints, rates: Floats) -> None:
        """Kinds have other rates on types than was thought. Policies may keep the array, so it is replaced."""
        self.rates = self.rates.copy()
        self.rates[kinds, on] = rates
        self._know_kinds()
        self._outdated = True

    def pass_over(self, from_s: float, to_s: float) -> None:
        """Nobody could have anything in this time, and nobody is owed for it."""
        self._settle(from_s)
        self._counted_to = to_s

    def learn_pairs(self, kinds: Ints, beside: Ints, on: Ints, rates: Floats) -> None:
        """Kinds have these rates on types beside other kinds."""
        count = len(self.kinds)
        known = np.zeros((count, count, len(self.types))) if self._all_pairs is None else self._all_pairs.copy()
        known[kinds, beside, on] = rates
        self._all_pairs = known
        self._know_kinds()
        self._outdated = True

    def leave(self, gone: NDArray[np.bool_]) -> None:
        """Forget jobs that are done."""
        keep = ~gone
        if len(self.pairs):
            self.pairs.keep(np.where(keep, np.cumsum(keep) - 1, -1))
        self.jobs.keep(keep)
        self._compactions += 1
        self._outdated = True

    def receive(self, rows: Ints, on: Ints, seconds: Floats) -> None:
        """Jobs that ran alone had these seconds of these types."""
        self.jobs.received[rows, on] += seconds  # every row is there once
        if self.by_fraction:
            np.add.at(self.worked, on, seconds)

    def receive_pairs(self, a: Ints, b: Ints, on: Ints, seconds: Floats) -> None:
        """Pairs, the position of the first job smaller, had these seconds together."""
        at = self.pairs.find(a, b)
        known = at >= 0
        self.pairs.received[at[known], on[known]] += seconds[known]
        if self.by_fraction:
            np.add.at(self.worked, on[known], seconds[known])

    @property
    def speed(self) -> Floats:
        """Steps per second of every job on every type."""
        now = (len(self.jobs.kind), self._compactions)
        if self._speed_of != now:
            self._speed = self.rates[self.jobs.kind]
            self._positive = self._speed > 0
            self.narrow = not np.count_nonzero(self.jobs.width != 1)
            self._speed_of = now
        return self._speed

    @property
    def able(self) -> NDArray[np.bool_]:
        """Whether a job can run on a type at all."""
        _ = self.speed  # looks both up again if jobs have come or gone
        return self._positive

    def begin_narrow(self, count: int) -> None:
        """The last jobs that came choose their batch: whoever chooses widths begins with the narrowest."""
        if self._scaled is None:
            return
        jobs = self.jobs
        for row in range(len(jobs) - count, len(jobs)):
            same = self._scaled[jobs.kind[row]]
            kind = min(same[same >= 0].tolist(), key=lambda k: int(self.kind_width[k]))
            jobs.kind[row], jobs.width[row] = kind, self.kind_width[kind]

    def run_as(self, row: int, kind: int | None) -> None:
        """A job is of another kind in its next phase, as wide as it is; None, or not known at that width: of the
        same."""
        if kind is None:
            return
        if self._scaled is not None:
            width = self.jobs.width[row]
            kind = next((k for k in self._scaled[kind].tolist() if k >= 0 and self.kind_width[k] == width), None)
        if kind is not None:
            self.jobs.kind[row] = kind
            self._compactions += 1
            self._outdated = True

    def resize(self, rows: Ints) -> None:
        """These jobs, which do not run, have the widths that they should have from now on."""
        assert self.runs_as is not None
        self.jobs.kind[rows] = self.runs_as[rows]
        self.jobs.width[rows] = self.kind_width[self.jobs.kind[rows]]
        self._compactions += 1

    def hurry(self) -> None:
        """Ask the policy again at once, however short ago the last time was."""
        self._allotted_at = None

    def doubt(self) -> None:
        """Ask the policy again when it is time, for a reason that is not seen here."""
        self._outdated = True

    # --- shares ---------------------------------------------------------------------------------------

    def update(self, now: float) -> bool:
        """Settle what is owed, and ask the policy for new shares if it is time; whether it was asked."""
        # What was decided ahead may be decided again before its time.
        due = self._allotted_at is None or abs(now - self._allotted_at) >= self.rules.allocate_every_s
        asked = due and (self._outdated or self.every_round)
        if asked or not self.by_fraction:
            self._settle(now)
        if asked and len(self.jobs):
            self._allocate(now)
        return bool(asked)

    def _settle(self, now: float) -> None:
        """What was allotted since the last time, less what was received, is owed."""
        passed, start = now - self._counted_to, self.rules.round_s / 2
        self._counted_to = now
        for rows in (self.jobs, self.pairs):
            if not len(rows.share):
                continue
            rows.owed += rows.share * passed - (rows.received - start)
            rows.received[:] = start
            if not self.by_fraction:
                limit = _PATIENCE * self.rules.round_s
                np.maximum(rows.owed, -limit, out=rows.owed)
                np.minimum(rows.owed, limit, out=rows.owed)
        if self.by_fraction:
            self.worked = self.jobs.received.sum(axis=0) + self.pairs.received.sum(axis=0)

    def _allocate(self, now: float) -> None:
        problem = self.problem(now)
        found = ask(self.policy, problem)
        jobs = self.jobs
        if self.phases is not None and self.elastic and found.kind is not None:
            self._check_widths(found.kind, found.share.max(axis=1, initial=0.0) > 0)
        jobs.share[:] = found.share
        jobs.allotted[:] = True
        if not self.by_fraction:
            jobs.owed[found.share <= 0] = 0.0
        if len(found.pairs) or len(self.pairs):
            share = found.pair_share if len(found.pairs) else np.zeros((0, len(self.types)))
            self.pairs.allot(found.pairs, share)
        self._outdated = False
        self._allotted_at = now
        # Cheap next to solving, but not next to looking shares up: of many allocations, one in sixteen is looked at.
        looked_at = self.allocations < _FEW or self.allocations % 16 == 0
        self.envy = envy(problem, found) if looked_at else None
        self.allocations += 1
        self.value, self.why, self.runs_as = found.value, found.why, found.kind

    def _check_widths(self, kind: Ints, runs: NDArray[np.bool_]) -> None:
        """Of jobs that choose their batch, none is more than twice as wide as it or any of its application was, by
        what the policy promises, and its batch can be split over its accelerators."""
        assert self.phases is not None
        for job, width in zip(self.jobs.id[runs].tolist(), self.kind_width[kind[runs]].tolist(), strict=True):
            most = self.phases.most_width(job)
            if most is not None and width > most:
                raise DovetailError(f"the policy gave job {job} {width} accelerators; it may have {most} by now")

    def problem(self, now: float) -> Problem:
        """What the policy sees."""
        jobs, left = self.jobs, self.jobs.left(now)
        shown = _to_read(
            counts=self.counts,
            prices=self.prices,
            ids=jobs.id,
            kind=jobs.kind,
            rates=self.rates,
            width=jobs.width,
            weight=jobs.weight,
            entity=jobs.entity if self._entities else None,
            entity_weight=self._entity_weight,
            pair_rates=self.seen_pair_rates,
            scaled=self._scaled,
            kind_width=self.kind_width if self.elastic else None,
        )
        return Problem(
            now_s=now,
            types=self.types,
            **shown,
            steps_left=np.maximum(left, self._least_left[jobs.kind]),
            age_s=now - jobs.arrival_s,
            deadline_s=jobs.due_s - now,
            entities=self._entities,
            adaptive=None
            if self.phases is None
            else self.phases.columns(jobs.id, jobs.kind, self._pauses(now), self.elastic),
            phased=None if self.phases is None else self.phases.modes(jobs.id, jobs.kind, jobs.steps - left),
            round_s=self.rules.round_s if self._shows_rounds else 0.0,
            restart_s=self.rules.restart_s if self._shows_rounds else 0.0,
        )

    def _pauses(self, now: float) -> Floats:
        """Seconds until running jobs work that are in the middle of a restart."""
        return np.where(self.jobs.on >= 0, np.maximum(self.jobs.ready_s - now, 0.0), 0.0)


def _to_read(**arrays: NDArray[Any] | None) -> dict[str, Any]:
    """The same numbers for a policy, which cannot write them."""
    shown: dict[str, Any] = {}
    for name, array in arrays.items():
        shown[name] = array if array is None else array.view()
        if array is not None:
            shown[name].flags.writeable = False
    return shown


def scaled_kinds(kinds: Sequence[tuple[str, int]]) -> Ints:
    """By kind: all kinds of the same model, -1 to fill.

    >>> scaled_kinds([("a", 1), ("b", 1), ("a", 4)]).tolist()
    [[0, 2], [1, -1], [0, 2]]
    """
    same: dict[str, list[int]] = {}
    for at, (model, _) in enumerate(kinds):
        same.setdefault(model, []).append(at)
    most = max(map(len, same.values()), default=0)
    return np.array([same[model] + [-1] * (most - len(same[model])) for model, _ in kinds], dtype=np.int64)
