"""From what agents say of leases to measured rates and costs: which stretch of work tells something, and what."""

from __future__ import annotations

from functools import partial

from dovetail.cluster.live.jobs import CurrentLease, JobTable
from dovetail.cluster.live.learned import LearnedTable
from dovetail.cluster.live.wire import LeaseState, ProcessEvent
from dovetail.core.events import Rows

_STRETCH = 0.2  # of a round: a shorter stretch of work tells nothing, unless it is a lease's last
_LAST_STRETCH = 0.05
_LEAST_STEPS = 3
_MOST_COST = 0.9  # of a round: a restart that takes longer is told as this
_GO, _FIRST_STEP, _EXIT = "go", "first_step", "exit"
_SAVE_BEGIN, _SAVE_END = "save_begin", "save_end"


class _Stretch:
    """The same job in the same company, from so many steps and seconds on."""

    def __init__(self, epoch: int, beside: int, state: LeaseState) -> None:
        self.epoch, self.beside = epoch, beside
        self.steps, self.seconds = state.steps, state.seconds


class LeaseMeasures:
    """Follows the leases of open jobs, and tells the table of learned numbers what they show."""

    def __init__(self, jobs: JobTable, learned: LearnedTable, round_s: float) -> None:
        self._jobs, self._learned, self._round_s = jobs, learned, round_s
        self._stretches: dict[int, _Stretch] = {}
        self._events: dict[int, dict[str, float]] = {}  # by job: when what last happened in its lease
        self._epochs: dict[int, int] = {}
        self._working: dict[int, int] = {}  # by job: the epoch in which it makes steps
        self._saves_s: dict[tuple[int, int], float] = {}  # by kind and type: the last save

    def forget(self, job: int) -> None:
        for known in (self._stretches, self._events, self._epochs, self._working):
            known.pop(job, None)

    def see(self, message: LeaseState | ProcessEvent) -> list[Rows]:
        """What an agent says; gives what the policy should hear of it."""
        lease = self._jobs.leases.get(message.job)
        if lease is None or lease.epoch != message.epoch:
            return []
        return self._state(message, lease) if isinstance(message, LeaseState) else self._event(message, lease)

    def _state(self, state: LeaseState, lease: CurrentLease) -> list[Rows]:
        if state.state == "running" and state.seconds > 0:
            self._working[state.job] = state.epoch
        else:
            self._working.pop(state.job, None)
        other = self._jobs.leases.get(lease.beside)
        if lease.beside >= 0 and (other is None or self._working.get(lease.beside) != other.epoch):
            self._stretches.pop(state.job, None)  # its company does not work yet, or no more
            return []
        stretch = self._stretches.get(state.job)
        if stretch is None or (stretch.epoch, stretch.beside) != (state.epoch, lease.beside):
            if state.seconds > 0:
                self._stretches[state.job] = _Stretch(state.epoch, lease.beside, state)
            return []
        steps, seconds = state.steps - stretch.steps, state.seconds - stretch.seconds
        least = (_LAST_STRETCH if state.state == "gone" else _STRETCH) * self._round_s
        if steps < _LEAST_STEPS or seconds < least:
            return []
        self._stretches[state.job] = _Stretch(state.epoch, lease.beside, state)
        if other is None:
            return self._learned.see_rate(lease.kind, lease.on, steps / seconds, lease.spread)
        return self._learned.see_pair(lease.kind, other.kind, lease.on, steps / seconds)

    def _event(self, event: ProcessEvent, lease: CurrentLease) -> list[Rows]:
        if event.rank != 0:
            return []
        if self._epochs.get(event.job) != event.epoch:
            self._epochs[event.job], self._events[event.job] = event.epoch, {}
        seen, where = self._events[event.job], (lease.kind, lease.on)
        see_cost = partial(self._learned.see_cost, *where, ahead=lease.ahead)
        if event.name == _FIRST_STEP and _GO in seen and _FIRST_STEP not in seen:
            seen[_FIRST_STEP] = event.at
            cost_s = event.at - seen[_GO] + self._saves_s.get(where, 0.0)
            return see_cost(min(max(cost_s, 0.0), _MOST_COST * self._round_s))
        if event.name == _EXIT and _GO in seen and _FIRST_STEP not in seen:  # it takes longer than that
            return see_cost(min(max(event.at - seen[_GO], 0.0), _MOST_COST * self._round_s))
        seen[event.name] = event.at
        if event.name == _SAVE_END and _SAVE_BEGIN in seen:
            self._saves_s[where] = max(event.at - seen[_SAVE_BEGIN], 0.0)
        return []
