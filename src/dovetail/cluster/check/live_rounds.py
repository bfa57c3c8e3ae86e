"""When rounds and plans are due in a live run, what a plan may say, and what a round must be that was planned."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf

from msgspec import Struct

_LATE = 0.2  # of a round: one that begins later than that begins anew, and is not cut short
_SOFT = {"arrived", "completed", "exited", "cancelled", "learned", "learned_pairs"}
_HARD = {"policy", "failed", "mended", "joined", "drained", "undrained", "lapsed"}


class RoundLease(Struct, frozen=True):
    """A lease as a round finds it: where, since when, and whether two share."""

    devices: tuple[int, ...]
    from_s: float
    shared: bool = False
    gathered: bool = False


class LivePlan(Struct):
    """By job, where it is to begin; nowhere: it is to stop."""

    at_s: float
    places: dict[int, tuple[int, ...]]
    doubted: bool = False  # something happened since: more may begin, but whoever was named still does as was said
    excused: set[int] = set()  # whose processes are gone since


class LiveRounds:
    """Answers with what is wrong, or with nothing. `next_s` is when the next round is due, reckoned as the run must."""

    def __init__(self, round_s: float, decide_at: float) -> None:
        self._round_s, self._decide_at = round_s, decide_at
        self.next_s = -inf
        self.strict = False  # the policy is asked whenever something happens
        self.begun = False  # a round, in this step
        self._planned = False  # the next one
        self._told: list[str] = []  # what was due in this step
        self._changed = False  # something happened that lets a strict or a new policy plan anew
        self.plan: LivePlan | None = None  # as long as it says what must be

    def begin_step(self, now: float, due: Sequence[str], busy: bool, leaves: bool) -> str:
        """A step in which this is said to be due, with jobs that are not done or without."""
        self.begun = self._changed = False
        plan_s = self.next_s - (1 - self._decide_at) * self._round_s
        expected: list[str] = []
        if busy and now >= self.next_s:
            expected = ["round"]
        elif busy and self._decide_at < 1 and not self._planned and now >= plan_s:
            expected = ["plan"]
        self._told = expected
        if leaves and not due:
            return ""
        return "" if list(due) == expected else f"found {_named(due)} due, expected {_named(expected)}"

    def see(self, of: str, now: float) -> None:
        """Rows come, in order."""
        if of == "arrived" and now >= self.next_s and not self.begun:
            self._begin(now, busy=False)  # whoever comes when nobody was there
        if of in _HARD or (self.strict and of in _SOFT):
            self.plan, self._changed = None, True
        elif of in _SOFT and self.plan is not None:
            self.plan.doubted = True

    def due(self, what: str, now: float, busy: bool) -> None:
        """It is time for something, and `busy` tells whether anybody is still there for whom it is."""
        if what == "round":
            self._begin(now, busy)
        elif busy:
            self._planned, self.plan = True, LivePlan(now, {})

    def _begin(self, now: float, busy: bool) -> None:
        keeps_pace = 0 < now - self.next_s <= _LATE * self._round_s and busy
        self.next_s = (self.next_s if keeps_pace else now) + self._round_s
        self.begun, self._planned = True, False

    def lapse(self, last_s: float) -> None:
        """Nobody has a lease any more, since then."""
        self.next_s, self._planned, self.plan = last_s, False, None

    def exit(self, job: int) -> None:
        if self.plan is not None:
            self.plan.excused.add(job)

    def make(self, now: float, places: Mapping[int, tuple[int, ...]]) -> str:
        """A plan is told."""
        in_time = self._told == ["plan"] or (self._changed and self._planned)
        self._planned, self.plan = True, LivePlan(now, dict(places))
        return "" if in_time else "a round was planned when that was not due"

    def begin_early(self, job: int, devices: tuple[int, ...]) -> str:
        """A lease begins inside a round; who is planned to begin has its place, who is to leave gets none."""
        if self.plan is None or job not in self.plan.places or self.plan.places[job] == devices:
            return ""
        return f"it begins on {list(devices)}, planned was {list(self.plan.places[job]) or 'its end'}"

    def compare(self, now: float, held: Mapping[int, RoundLease], before: Mapping[int, RoundLease]) -> str:
        """The leases that there are when a round has begun, and that there were; who stays where it was but has other
        company is in neither. They must be what the plan says, as far as nothing happened in between."""
        plan, self.plan = self.plan, None
        if plan is None:
            return ""
        begun = {job: lease.devices for job, lease in held.items() if lease.from_s == now}
        if not plan.doubted:
            expected = {job: devices for job, devices in plan.places.items() if devices}
            return "" if begun == expected else f"{begun} began, {expected} was planned"
        old = {job for job, lease in before.items() if lease.from_s < plan.at_s and not lease.shared}
        for job in sorted(old - plan.places.keys() - plan.excused):
            if job not in held or (held[job].from_s == now and not held[job].gathered and not held[job].shared):
                return f"job {job} had to leave, which was not planned"
        new = [lease for lease in held.values() if plan.at_s <= lease.from_s < now or lease.gathered or lease.shared]
        taken = {device for lease in new for device in lease.devices}
        for job, devices in plan.places.items():
            mine = held.get(job)
            if mine is not None and mine.from_s < plan.at_s:
                return f"job {job} stays, and was told to leave"
            if not devices or job in plan.excused or (mine is not None and (mine.from_s < now or mine.shared)):
                continue
            if taken.isdisjoint(devices) and begun.get(job) != devices:
                return f"job {job} began on {list(begun.get(job, ()))}, planned was {list(devices)}"
        return ""

    def forget(self, jobs: Collection[int]) -> None:
        """They have ended."""
        if self.plan is not None:
            for job in jobs:
                self.plan.places.pop(job, None)


def _named(due: Sequence[str]) -> str:
    return " and ".join(f"a {what}" for what in due) or "nothing"
