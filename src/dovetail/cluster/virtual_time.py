"""Virtual time: what comes from outside and what is expected to end, in order; one loop for all ways to run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from dovetail.cluster.inputs.setup import ClusterSetup
from dovetail.cluster.policies.base import Policy
from dovetail.cluster.rounding import records
from dovetail.cluster.rounding.mechanism import Mechanism
from dovetail.cluster.rounding.stimuli import NeverDoneError, Stimuli
from dovetail.cluster.rounds import Rounds
from dovetail.cluster.rules import RoundRules
from dovetail.core.events import Rows
from dovetail.core.journal import Observer


class VirtualTime(ABC):
    """Takes turns until all jobs, or those that are measured, are done. What happens at one instant is one step."""

    def __init__(self, setup: ClusterSetup, mechanism: Mechanism) -> None:
        self.stimuli = Stimuli(setup)
        self.mechanism = mechanism
        self.rounds_begun = 0
        self._observers: Sequence[Observer] = ()
        self.now = 0.0
        self.steps = 0
        self.saved = False  # since the last turn

    def take_up(self, setup: ClusterSetup, observers: Sequence[Observer]) -> None:
        """Begin, or go on after a checkpoint was loaded, with the same setup; observers are shown every step."""
        self.stimuli.take_up(setup)
        self._observers = observers

    @property
    def busy(self) -> bool:
        """Whether a job is there that is not done."""
        return len(self.mechanism.jobs) > 0

    @abstractmethod
    def turn(self) -> None:
        """Let something happen; `now` does not go back."""

    def close(self) -> None:  # noqa: B027  (not abstract: it may do nothing)
        """All is done. Most ways to run leave nothing behind."""

    def run(self, pause: Callable[[], None] = lambda: None) -> None:
        """Run to the end; `pause` is called before every turn."""
        while (self.stimuli.arrival_s < inf or self.busy) and not self.stimuli.complete:
            pause()
            self.turn()
        self.close()

    def tell(self, rows: Sequence[Rows]) -> None:
        """Show a step to those who watch."""
        if not rows:
            return
        self.stimuli.close(rows)
        self.steps += 1
        for observer in self._observers:
            observer.step(self.steps, self.now, rows)


class RoundsInVirtualTime(VirtualTime):
    """Rounds, with arrivals, ends, outages and new prices inside them: jobs end when they are expected to."""

    def __init__(self, setup: ClusterSetup, policy: Policy, rules: RoundRules) -> None:
        self.rounds = Rounds(setup, policy, rules)
        super().__init__(setup, self.rounds.mechanism)

    def __getstate__(self) -> dict[str, Any]:
        """For a checkpoint: without those who watch."""
        return self.__dict__ | {"_observers": ()}

    @property
    def busy(self) -> bool:
        return self.rounds.busy

    def turn(self) -> None:
        """A round, what happens inside it, and the way to the next one."""
        rounds, stimuli = self.rounds, self.stimuli
        if rounds.busy:
            self.now = rounds.next_round_s
        else:
            self._wait_for_a_job()
        if self.saved:
            self.saved = False
            self.tell(rounds.handle([records.saved()], self.now))
        self.tell(rounds.handle([*stimuli.prices(self.now), *stimuli.arrivals(self.now)], self.now))
        began_s, idle = self.now, rounds.idle
        if idle and stimuli.arrival_s == inf and not stimuli.awaits_repair:
            raise NeverDoneError(f"job {rounds.jobs.id[0]} can never run on this cluster under this policy")
        while not stimuli.complete and self._inside():
            pass
        if rounds.busy and not stimuli.complete:
            rounds.pass_over(min(stimuli.arrival_s, stimuli.outage_s, stimuli.price_until))
        if idle and rounds.idle:
            stimuli.idle_s += rounds.next_round_s - began_s
        self.rounds_begun = rounds.rounds

    def _wait_for_a_job(self) -> None:
        """Nobody is here until the next arrival; only devices fail and come back, and prices change."""
        stimuli = self.stimuli
        begins_s = max(self.now, self.rounds.rules.begins_s(stimuli.arrival_s))
        while (changes_s := min(stimuli.outage_s, stimuli.price_until)) <= begins_s:
            self.now = max(self.now, changes_s)
            happened = stimuli.prices(self.now) if changes_s == stimuli.price_until else []
            self.tell(self.rounds.handle([*happened, *stimuli.outages(self.now, busy=False)], self.now))
        self.now = begins_s

    def _inside(self) -> bool:
        """What happens next before the next round, all of one instant; whether something did."""
        rounds, stimuli = self.rounds, self.stimuli
        end, outage, prices = rounds.next_end_s(), stimuli.outage_s, stimuli.price_until
        if min(outage, prices) < inf and not rounds.busy and stimuli.arrival_s == inf:
            outage = prices = inf  # what fails or changes after the last end is no part of the run
        arrival = stimuli.arrival_s if rounds.rules.inside else inf
        plan = rounds.plan_s
        at = min(end, outage, prices, arrival, plan)
        if at > rounds.next_round_s or (at == rounds.next_round_s and at not in (end, outage)):
            return False
        self.now = at
        happened = rounds.ending(at) if at == end else []
        if at == outage:
            happened += stimuli.outages(at)
        if at < rounds.next_round_s:
            if at == prices:
                happened += stimuli.prices(at)
            if at == arrival:
                happened += stimuli.arrivals(at)
        self.tell(rounds.handle(happened, at))  # if nothing happened, it is time to decide the next round
        return True

    def close(self) -> None:
        """The window is complete: leases that still run end here."""
        self.tell(self.rounds.close(self.now))
