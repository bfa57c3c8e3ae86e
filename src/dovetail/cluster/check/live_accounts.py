"""What a checker knows of a live run: what processes reported, their epochs and failures, and the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from dovetail.cluster.policies import make
from dovetail.core.errors import DovetailError

_CLOSE = 1e-9


class _LiveJob(Struct):
    asked: int  # what it came as
    epoch: int = 0  # of its last lease
    heard: int = 0  # of the process that spoke last
    told: float = 0.0  # by that one: steps done in all
    done: float = 0.0
    saved: float = 0.0
    began: float = 0.0
    failures: int = 0
    saved_then: float = 0.0
    new: bool = True  # it came in this step


class LiveAccounts:
    """Answers with what is wrong, or with nothing."""

    def __init__(self, failures: int, policy: str, options: Mapping[str, Any]) -> None:
        self._failures = failures
        self.jobs: dict[int, _LiveJob] = {}
        self._new: list[int] = []  # who came in the last step
        self._lost: set[int] = set()  # whose process is gone, in this step
        self._hopeless: set[int] = set()  # who must be given up, in this step
        self._packs = self._elastic = self.strict = True
        self.go_by(policy, options)

    def go_by(self, name: str, options: Mapping[str, Any]) -> None:
        """This policy decides from now on; of one that is not installed, or in a file, nothing is expected."""
        self._packs = self._elastic = self.strict = True
        if ".py:" in name:
            return  # whoever checks a journal does not run what it names
        try:
            policy = make(name, {key: value for key, value in options.items() if key != "rules"})
        except DovetailError:
            return
        self._packs, self._elastic = policy.packs, bool(getattr(policy, "elastic", False))
        self.strict = policy.strict

    def begin_step(self) -> None:
        self._lost.clear()
        self._hopeless.clear()
        for job in self._new:
            self.jobs[job].new = False
        self._new.clear()

    # --- what was seen --------------------------------------------------------------------------------------

    def arrive(self, job: int, kind: int) -> None:
        self.jobs[job] = _LiveJob(kind)
        self._new.append(job)

    def progress(self, job: int, epoch: int, steps: float, saved: float) -> str:
        me = self.jobs[job]
        if me.new and not me.epoch:
            me.epoch = epoch  # it goes on from an earlier journal
        elif not me.epoch:
            return "it reported progress before it ran"
        least = me.heard if me.new else max(me.heard, 1)
        if not least <= epoch <= me.epoch:
            return f"a process of epoch {epoch} reported, expected {least} to {me.epoch}"
        if steps < me.saved - _CLOSE or (epoch == me.heard and steps < me.told - _CLOSE):
            return f"it went back to {steps} steps, of {me.told} reported and {me.saved} saved"
        if not me.saved <= saved <= steps + _CLOSE:
            return f"{saved} of its {steps} steps are saved, expected {me.saved} or more of them"
        if steps < me.began:
            me.began = min(me.saved, steps)
        me.heard, me.told, me.done, me.saved = epoch, steps, steps, saved
        return ""

    def keep(self, job: int, epoch: int) -> str:
        me = self.jobs[job]
        least = max(me.heard, 1)
        if not least <= epoch <= me.epoch:
            return f"a process of epoch {epoch} left something, expected {least} to {me.epoch}"
        me.failures = 0
        return ""

    def exit(self, job: int, epoch: int, final: bool = False) -> str:
        me = self.jobs[job]
        least = max(me.heard, 1)
        if not least <= epoch <= me.epoch:
            return f"a process of epoch {epoch} exited, expected {least} to {me.epoch}"
        me.failures = 1 if me.saved > me.saved_then else me.failures + 1
        me.saved_then = me.saved
        hopeless = final or me.failures >= self._failures
        if epoch == me.epoch or hopeless:
            self._lost.add(job)
        if hopeless:
            self._hopeless.add(job)
        return ""

    def lost(self, job: int) -> bool:
        """Whether its process is gone, in this step."""
        return job in self._lost

    def lose(self, job: int) -> None:
        """A device of a job is gone."""
        self._lost.add(job)

    # --- what was decided -----------------------------------------------------------------------------------

    def plan_fault(self, ids: Sequence[int], devices: Sequence[Sequence[int]], epochs: Sequence[int]) -> str:
        """What is wrong with the epochs of a plan."""
        for job, places, epoch in zip(ids, devices, epochs, strict=True):
            expected = self.jobs[job].epoch + bool(places)
            if epoch != expected:
                return f"job {job} is planned with epoch {epoch}, expected {expected}"
        return ""

    def start(self, job: int, epoch: int | None, stays: bool) -> str:
        me = self.jobs[job]
        expected = me.epoch + (not stays)
        me.began = me.done
        if epoch is not None:
            me.epoch = max(epoch, me.epoch)
        return "" if epoch == expected else f"found epoch {epoch}, expected {expected}"

    def policy_fault(self, job: int, kind: int, beside: int, stays: bool) -> str:
        """What this policy would not do."""
        if beside >= 0 and not self._packs and not stays:
            return f"it shares with job {beside}, which this policy does not do"
        if kind != self.jobs[job].asked and not self._elastic and not stays:
            return "it has another width than it asked for, which this policy does not do"
        return ""

    def stop(self, job: int, steps: float) -> str:
        """A lease brought what was reported in it, less what was lost."""
        me = self.jobs[job]
        if job in self._lost:
            me.done = min(me.done, me.saved)
        expected, me.began = max(me.done - me.began, 0.0), me.done
        if abs(steps - expected) > 1e-6 * max(1.0, expected):
            return f"found {steps} steps, expected {expected}: what was reported"
        return ""

    def give_up(self, job: int) -> str:
        if job in self._hopeless:
            self._hopeless.discard(job)
            return ""
        return f"it was given up after {self.jobs[job].failures} failures, expected {self._failures}"

    def end_step(self) -> list[int]:
        """Who should have been given up."""
        return sorted(self._hopeless)

    def leave(self, job: int) -> None:
        self._hopeless.discard(job)
