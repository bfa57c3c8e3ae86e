"""What a checker knows of jobs in phases: where each phase ends, which batches and widths a job may have, its rate."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from dovetail.cluster.goodput.application import Application, Batch, Shape
from dovetail.cluster.inputs.setup import AdaptiveKinds

_CLOSE = 1e-6  # relative


class _InPhases(Struct):
    ends: list[float]
    kinds: list[int] = field(default_factory=list)
    application: Application | None = None
    asked: int = 0
    phase: int = 0
    widest: int = 0  # accelerators that it had


class PhaseAccounts:
    """Answers with what is wrong, or with nothing."""

    def __init__(
        self,
        types: Sequence[str],
        kinds: Sequence[tuple[str, int]],
        adaptive: AdaptiveKinds | None,
        wide_as_others: bool = False,
    ) -> None:
        """A job has at most twice the width that it had, or that any of its application had if `wide_as_others`."""
        self._types, self._kinds, self._adaptive, self._wide_as_others = types, kinds, adaptive, wide_as_others
        self._jobs: dict[int, _InPhases] = {}
        self._widest: dict[str, int] = {}  # accelerators that any job of an application had
        self._over: set[int] = set()  # who has reached the end of a phase, and did not stop yet

    def arrive(self, job: int, kind: int, steps: float, phases: Sequence[tuple[float, int]]) -> str:
        adaptive = self._adaptive
        if adaptive is not None and adaptive.application[kind] >= 0:
            of = adaptive.applications[int(adaptive.application[kind])]
            ends = [end for end in of.progress[:-1] if end < steps]
            self._jobs[job] = _InPhases([*ends, steps], application=of, asked=int(adaptive.batch[kind]))
            return ""
        if not phases:
            return ""
        ends, kinds = [end for end, _ in phases], [of for _, of in phases]
        if ends != sorted(ends) or kinds[0] != kind or max(kinds) >= len(self._kinds):
            return f"its phases are {list(phases)}, expected rising ends, kinds that there are, and its own first"
        self._jobs[job] = _InPhases([*ends[:-1], steps], kinds)
        return ""

    def reach(self, job: int, leases: bool) -> str:
        """A phase is over; it counts when the lease ends, if leases are told at all."""
        me = self._jobs.get(job)
        if me is None or me.phase == len(me.ends) - 1 or job in self._over:
            return "it reached the end of a phase, and has no other"
        if leases:
            self._over.add(job)
        else:
            me.phase += 1
        return ""

    def stop(self, job: int, done: float) -> str:
        """A lease has ended, after which so much is done."""
        me = self._jobs.get(job)
        if me is None:
            return ""
        end, slack = me.ends[me.phase], _CLOSE * max(1.0, me.ends[-1])
        if job in self._over:
            self._over.discard(job)
            me.phase += 1
            return "" if abs(done - end) <= slack else f"it did {done}, and its phase ends at {end}"
        return "" if done <= end + slack else f"it did {done} in a phase that ends at {end}"

    def kind(self, job: int, kind: int) -> int:
        """What a job that came as a kind runs as now."""
        me = self._jobs.get(job)
        return me.kinds[me.phase] if me is not None and me.kinds else kind

    def kinds(self, job: int, kind: int) -> list[int]:
        """All that a job that came as a kind runs as in its life."""
        me = self._jobs.get(job)
        return me.kinds if me is not None and me.kinds else [kind]

    def may_run_as(self, job: int, kind: int, claimed: int) -> bool:
        """Whether that is the same model at another width, or one of an earlier phase: what is not known at a width
        goes on as it was."""
        me = self._jobs.get(job)
        may = me.kinds[: me.phase + 1] if me is not None and me.kinds else [kind]
        return self._kinds[claimed][0] in {self._kinds[k][0] for k in may}

    def batch_fault(self, job: int, on: int, shape: Shape, local: int, steps: int, tunes: bool) -> str:
        """What is wrong with the batch of a lease: too small, beyond what fits there, or not the one asked for."""
        me = self._jobs.get(job)
        if me is None or me.application is None:
            return "" if not local and not steps else f"it has a batch of {local}, and no application"
        profile = me.application.types.get(self._types[on])
        if profile is None:
            return f"it has no profile of {self._types[on]}"
        most, total = profile.most_local_at(shape), sum(shape) * local * (steps + 1)
        if not 1 <= local <= most:
            return f"found a local batch of {local}, expected 1 to {most}"
        if total > me.application.most:
            return f"found a batch of {total}, expected at most {me.application.most}"
        if not tunes:
            asked = me.application.fixed(self._types[on], shape, me.asked)
            if asked is not None and (local, steps) != asked[:2]:
                return f"found {local} x {steps + 1}, expected {asked.local} x {asked.steps + 1}, as it asked"
        return ""

    def width_fault(self, job: int, width: int, tunes: bool) -> str:
        """What is wrong with how wide a lease is, where applications begin narrow and at most double."""
        me = self._jobs.get(job)
        if me is None or me.application is None:
            return ""
        widest = self._widest.get(me.application.name, 0)
        most = me.application.most_width(widest if self._wide_as_others else me.widest)
        self._widest[me.application.name], me.widest = max(widest, width), max(me.widest, width)
        return f"it may have {most} accelerators by now, found {width}" if tunes and width > most else ""

    def rate(self, job: int, on: int, shape: Shape, local: int, steps: int, tunes: bool) -> float | None:
        """Progress per second of a job with an application; None of others."""
        me = self._jobs.get(job)
        if me is None or me.application is None or self._types[on] not in me.application.types:
            return None
        of, total = me.application, sum(shape) * local * (steps + 1)
        if not tunes:
            asked = of.fixed(self._types[on], shape, me.asked)
            total = total if asked is None else asked.total
        epoch = min(me.phase, len(of.progress) - 1)
        return float(of.rate(self._types[on], shape, Batch(local, steps, total), epoch))
