"""Jobs whose rate changes while they run: their phases, the batch that they choose, and what they learn of themselves.

A phase is a stretch of a job's progress in which its rate stays as it is. A job with a list of phases runs as another
kind in each; one with an application has an epoch in each, and chooses its batch whenever its placement changes, an
epoch ends or a round begins, by what it has seen so far. Under a policy that leaves widths alone it keeps the batch
that it asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from math import nan
from typing import Any

import numpy as np
from msgspec import Struct, field

from dovetail.cluster.goodput.application import NOTHING, Application, Batch, Shape
from dovetail.cluster.goodput.batch import best_batch
from dovetail.cluster.goodput.fitting import FitMemory
from dovetail.cluster.inputs.setup import AdaptiveKinds
from dovetail.cluster.policies.base import AdaptiveJobs, Floats, Ints, PhasedJobs

Point = tuple[float, float, float, float, float]


class Training(Struct):
    """A job in phases. `ends` is what is done when each phase is over; the last one is all of it."""

    ends: list[float]
    kinds: list[int]  # of each phase; none if the job has an application
    phase: int = 0
    application: Application | None = None
    asked: int = 0  # total batch
    batch: Batch = NOTHING
    on: int = -1
    shape: Shape = ()
    points: dict[int, dict[tuple[int, int, int], Point]] = field(default_factory=dict)  # by type
    numbers: dict[int, Floats] = field(default_factory=dict)  # by type: fitted to the points
    outdated: set[int] = field(default_factory=set)  # types with points that were not fitted yet
    grad_sqr: float = nan
    grad_var: float = nan
    widest: dict[int, int] = field(default_factory=dict)  # by type
    starts: int = 0

    @property
    def last(self) -> bool:
        return self.phase == len(self.ends) - 1


class Phases:
    """Keeps what is known of jobs in phases, by id."""

    def __init__(
        self,
        types: tuple[str, ...],
        per_server: Ints,
        adaptive: AdaptiveKinds | None,
        tunes: bool,
        phased: bool,
        wide_as_others: bool = False,
    ) -> None:
        """Jobs choose their batch if the policy `tunes` widths, and may come `phased`; each has at most twice the width
        that it had, or that any of its application had if they are as `wide_as_others`."""
        self._types, self._per_server, self._kinds, self._tunes = types, per_server.view(), adaptive, tunes
        self._per_server.flags.writeable = False  # policies are shown it
        self._phased, self._wide_as_others = phased, wide_as_others
        self.jobs: dict[int, Training] = {}
        self._fits = FitMemory()
        self._widest: dict[str, int] = {}  # that a job of each application has been, also those that are done

    def copied(self) -> Phases:
        """The same, to try something out with."""
        found = copy(self)
        applications = {} if self._kinds is None else {id(of): of for of in self._kinds.applications}
        found.jobs, found._widest = deepcopy(self.jobs, applications), dict(self._widest)
        return found

    @property
    def tunes(self) -> bool:
        """Whether jobs choose their batch."""
        return self._tunes and self._kinds is not None

    def arrive(self, columns: Mapping[str, Any]) -> None:
        """Jobs come, as the journal's columns have them."""
        phases = columns.get("phases") or [()] * len(columns["id"])
        for job, kind, steps, changes in zip(columns["id"], columns["kind"], columns["steps"], phases, strict=True):
            found = training(self._kinds, kind, steps, changes)
            if found is not None:
                self.jobs[int(job)] = found

    def leave(self, ids: Iterable[int]) -> None:
        for job in ids:
            self.jobs.pop(job, None)

    def ongoing(self, job: int) -> bool:
        """Whether a job has another phase after this one."""
        return job in self.jobs and not self.jobs[job].last

    def kind(self, job: int) -> int | None:
        """What a job runs as in its phase, if it came with a list of phases."""
        return self.jobs[job].kinds[self.jobs[job].phase] if self.jobs[job].kinds else None

    def left_after(self, job: int, steps: float) -> float:
        """What a job with so many steps has left to do when this phase is over."""
        return steps - self.jobs[job].ends[self.jobs[job].phase] if job in self.jobs else 0.0

    # --- what they see --------------------------------------------------------------------------------------

    def learn(self, ids: Iterable[int]) -> None:
        """These jobs have worked: they know how long their steps take there, and how noisy their gradients are."""
        for job in ids:
            me = self.jobs.get(job)
            if me is None or me.application is None or me.on < 0:
                continue
            sqr, var = me.application.statistics(me.batch.total, min(me.phase, len(me.application.progress) - 1))
            me.grad_sqr, me.grad_var = float(sqr), float(var)
            at = (len(me.shape), sum(me.shape), me.batch.local)
            seen = me.points.setdefault(me.on, {})
            if at not in seen:
                step, sync = me.application.types[self._types[me.on]].step_s(me.shape, me.batch.local)
                seen[at] = (*at, float(step), float(sync))
                me.outdated.add(me.on)

    def advance(self, ids: Iterable[int]) -> None:
        """These jobs have reached the end of their phases."""
        for job in ids:
            self.jobs[job].phase += 1

    def _fit(self, who: Iterable[Training]) -> None:
        """Fit throughputs to points that came since the last time."""
        todo = [(me, on) for me in who for on in sorted(me.outdated)]
        if not todo:
            return
        numbers = self._fits.numbers([np.array(list(me.points[on].values())) for me, on in todo])
        for (me, on), found in zip(todo, numbers, strict=True):
            me.numbers[on] = found
            me.outdated.discard(on)

    # --- what they choose ---------------------------------------------------------------------------------

    def place(self, job: int, on: int, shape: Shape, moves: bool) -> tuple[Batch, float] | None:
        """A job has a place: its batch there, and progress per second. None if it has no application."""
        me = self.jobs.get(job)
        if me is None or me.application is None:
            return None
        me.on, me.shape = on, shape
        me.widest[on] = max(me.widest.get(on, 0), sum(shape))
        self._widest[me.application.name] = max(self._widest.get(me.application.name, 0), sum(shape))
        me.starts += moves
        [me.batch] = self._chosen([me])
        epoch = min(me.phase, len(me.application.progress) - 1)
        return me.batch, float(me.application.rate(self._types[on], shape, me.batch, epoch))

    def idle(self, ids: Iterable[int]) -> None:
        """Jobs have no place any more."""
        for job in ids:
            if job in self.jobs:
                self.jobs[job].on = -1

    def retuned(self, ids: Iterable[int]) -> list[int]:
        """Of jobs that stay where they are, those that would choose another batch now."""
        who = [(job, me) for job in ids if (me := self.jobs.get(job)) and me.application is not None]
        chosen = self._chosen([me for _, me in who])
        return [job for (job, me), batch in zip(who, chosen, strict=True) if batch != me.batch]

    def _chosen(self, who: Sequence[Training]) -> list[Batch]:
        """The batch of every job where it is now."""
        found = [self._given(me) for me in who]
        if not self._tunes:
            return found
        self._fit(who)
        able = [i for i, me in enumerate(who) if me.on in me.numbers]
        if able:
            jobs = [who[i] for i in able]
            applications = [me.application for me in jobs if me.application is not None]
            profiles = [of.types[self._types[me.on]] for of, me in zip(applications, jobs, strict=True)]
            widths = np.array([sum(me.shape) for me in jobs])
            best = best_batch(
                np.array([me.numbers[me.on] for me in jobs]),
                np.array([me.grad_sqr for me in jobs]),
                np.array([me.grad_var for me in jobs]),
                np.array([len(me.shape) for me in jobs]),
                widths,
                initial=np.array([of.initial for of in applications]),
                most=np.array([of.most for of in applications]),
                least_local=np.array([profile.least_local for profile in profiles]),
                most_local=np.array([p.most_local_at(me.shape) for p, me in zip(profiles, jobs, strict=True)]),
            )
            for i, of, me, local, steps in zip(
                able, applications, jobs, best.local.tolist(), best.steps.tolist(), strict=True
            ):
                if local:
                    found[i] = of.cut(me.shape, local, steps)
        return found

    def _given(self, me: Training) -> Batch:
        """The batch of a job that does not choose, or knows nothing yet to choose by."""
        of, on = me.application, self._types[me.on]
        assert of is not None
        found = of.fixed(on, me.shape, of.initial if self._tunes else me.asked)
        if found is None:
            return of.cut(me.shape, of.types[on].least_local, 0)
        return found if not self._tunes else of.cut(me.shape, found.local, found.steps)

    # --- what policies see --------------------------------------------------------------------------------

    def most_width(self, job: int) -> int | None:
        """How many accelerators a job may have at most, by what it or its application had; None: nothing is said."""
        me = self.jobs.get(job)
        if me is None or me.application is None:
            return None
        own = max(me.widest.values(), default=0)
        return me.application.most_width(self._widest.get(me.application.name, 0) if self._wide_as_others else own)

    def modes(self, ids: Ints, kind: Ints, done: Floats) -> PhasedJobs | None:
        """What jobs that have done so many steps have run as, and may run as, if any come with phases."""
        if not self._phased:
            return None
        steps: list[dict[int, float]] = []
        for job, own, far in zip(ids.tolist(), kind.tolist(), done.tolist(), strict=True):
            me = self.jobs.get(job)
            each: dict[int, float] = {own: far} if me is None else {}
            begin = 0.0
            for end, of in zip(me.ends, me.kinds, strict=True) if me is not None else ():
                each[of] = each.get(of, 0.0) + max(min(far, end) - begin, 0.0)
                begin = end
            steps.append(each)
        most = max(map(len, steps), default=1)
        return PhasedJobs(
            modes=np.array([[*each, *[-1] * (most - len(each))] for each in steps], dtype=np.int64).reshape(-1, most),
            done=np.array([[*each.values(), *[0.0] * (most - len(each))] for each in steps]).reshape(-1, most),
        )

    def columns(self, ids: Ints, kind: Ints, pause_s: Floats, fitted: bool = True) -> AdaptiveJobs | None:
        """What is known of these jobs, if any have applications; with `fitted`, numbers are fitted to all points."""
        if self._kinds is None:
            return None
        who = [self.jobs.get(job) or Training([], []) for job in ids.tolist()]
        if fitted:
            self._fit(who)
        numbers, widest = np.full((len(who), len(self._types), 7), nan), np.zeros((len(who), len(self._types)), int)
        for i, me in enumerate(who):
            for on, found in me.numbers.items() if fitted else ():
                numbers[i, on] = found
            for on, width in me.widest.items():
                widest[i, on] = width
        return AdaptiveJobs(
            applications=self._kinds.applications,
            application=self._kinds.application[kind],
            batch=self._kinds.batch[kind],
            per_server=self._per_server,
            points=[{on: np.array(list(seen.values())) for on, seen in me.points.items()} for me in who],
            numbers=numbers,
            grad_sqr=np.array([me.grad_sqr for me in who]),
            grad_var=np.array([me.grad_var for me in who]),
            on=np.array([me.on for me in who], dtype=np.int64),
            local=np.array([me.batch.local for me in who], dtype=np.int64),
            steps=np.array([me.batch.steps for me in who], dtype=np.int64),
            epoch=np.array([me.phase for me in who], dtype=np.int64),
            widest=widest,
            restarts=np.array([max(me.starts - 1, 0) for me in who], dtype=np.int64),
            pause_s=pause_s,
        )


def training(
    adaptive: AdaptiveKinds | None, kind: int, steps: float, phases: Sequence[tuple[float, int]] = ()
) -> Training | None:
    """What a job of a kind is in: the epochs of its application, phases that it came with, or none.

    `phases` are kinds and how many steps are done when they end.
    """
    if adaptive is not None and adaptive.application[kind] >= 0:
        application = adaptive.applications[int(adaptive.application[kind])]
        ends = [end for end in application.progress[:-1] if end < steps]
        return Training([*ends, steps], [], application=application, asked=int(adaptive.batch[kind]))
    if phases:
        return Training([end for end, _ in phases[:-1]] + [steps], [of for _, of in phases])
    return None
