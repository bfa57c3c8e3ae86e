"""One lease on one node: its ranks, how long they may run, and what they are answered. No input or output here."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, inf
from typing import Any, Literal, NamedTuple

import msgspec

from dovetail.cluster.live.processes import RankExit
from dovetail.cluster.live.wire import Done, Lease, LeaseState, NodeLease
from dovetail.core.service import shim

SILENT_ROUNDS = 5.0  # an evaluation, a first compilation may take more than one
_START_S = 10.0  # so long a process may take until it asks for its lease
AHEAD = 2  # steps: ranks in lockstep are at most one apart, and who has not asked yet must still hear where to stop


class Margins(NamedTuple):
    """Seconds around the end of a lease."""

    grace_s: float = 1.0
    kill_after_s: float = 1.0


class Limits(NamedTuple):
    """When processes are ended, by the monotonic clock."""

    end: float
    kill: float
    how: int = shim.TO_ALL


@dataclass
class RankReport:
    """A process of a lease, as far as it has told."""

    number: int
    steps: int = 0
    seconds: float = 0.0
    greeted: bool = False
    exit: RankExit | None = None


@dataclass
class NodeRun:
    lease: NodeLease
    begun_epoch: int  # whose checkpoint folder it has: that of its first lease, if it was stopped since
    ranks: dict[int, RankReport] = field(default_factory=dict)
    end: float | None = None  # of the lease, by the monotonic clock
    granted: float | None = None  # the end of a lease that begins when its accelerators are free
    wait_until: float = inf  # for a lease
    begun_at: float = inf
    launched: float = 0.0  # by the clock on the wall; 0 is unknown
    heard: float = inf  # when one of its processes last said a word
    released: bool = False  # it has saved for the last time, and its accelerators are emulated: they are free
    round_s: float = inf
    stopped_at: float = inf  # when it was told to stop before its lease ends
    kill_at: float = inf
    why: str = ""  # why it was ended by the agent
    saved: int = 0
    complete: bool = False
    kept: bool = False  # it counts no steps, and has left something new
    started: bool = False
    gone: bool = False  # its processes have ended, and what they left is taken care of
    dropped: bool = False  # it will never begin, or was planned for other accelerators: nobody wants to hear of it
    next: tuple[NodeLease, float] | None = None  # the lease that takes its place once it is gone
    stop_steps: int | None = None

    def __post_init__(self) -> None:
        self.ranks = {number: RankReport(number) for number in self.lease.ranks}
        self.saved = self.lease.done

    @property
    def key(self) -> tuple[int, int]:
        return self.lease.job, self.lease.epoch

    @property
    def mode(self) -> Literal["iterator", "own", "pause"]:
        return self.lease.command.checkpoint

    @property
    def ranks_gone(self) -> bool:
        return self.started and all(rank.exit is not None for rank in self.ranks.values())

    @property
    def may_start(self) -> bool:
        """A process that says hello may start before its turn, and waits; others start when it has come."""
        return (
            not self.started and not self.lease.end and (self.begun or (self.mode == "iterator" and self.lease.early))
        )

    @property
    def begun(self) -> bool:
        return self.end is not None

    # --- what the service says --------------------------------------------------------------------------

    def told(self, lease: NodeLease, sent: float, now: float, round_s: float) -> None:
        """What the service wants of it, in answer to a beat that was sent then."""
        if self.dropped or (self.started and self.is_elsewhere(lease)):
            self.drop(now)
            self.next = (lease, sent)
            return
        self.lease = msgspec.structs.replace(lease, done=self.lease.done) if self.begun else lease
        self.wait_until, self.round_s = now + round_s, round_s
        if lease.go and lease.seconds is not None:
            self.granted = max(sent + lease.seconds, self.granted or 0.0)  # each is before it ends at the service
            self.end = self.end and self.granted
        if lease.stop_steps is not None:
            self.stop_steps = max(lease.stop_steps, self.stop_steps or 0)
        if lease.end == "kill":
            self.kill_at = min(self.kill_at, now)
        elif lease.end == "stop":
            self.unwanted(now)

    def is_elsewhere(self, lease: NodeLease) -> bool:
        """Whether it waits, or waited until it was gone, for its turn on other accelerators than these."""
        return not self.begun and _layout(lease) != _layout(self.lease)

    def begin(self, now: float = inf) -> None:
        """Its accelerators are free, and it may begin."""
        self.end, self.begun_at = self.granted, now
        self.saved = max(self.saved, self.lease.done)
        if self.owes_a_word:
            self.heard = now

    def goes_on(self, now: float) -> None:
        """Its processes were stopped, and another lease has come for them. Meanwhile they could not say a word."""
        self.why, self.complete, self.stop_steps = "", False, None
        self.heard = now if self.heard < inf else inf

    def unwanted(self, now: float) -> None:
        """It is to stop now: a newer lease has taken its place, or it was never to begin."""
        if self.over(now) and self.mode != "pause":
            return  # it is leaving
        if self.begun:
            self.stopped_at = min(self.stopped_at, now)
        else:
            self.drop(now)

    def drop(self, now: float) -> None:
        self.dropped, self.next = True, None
        self.kill_at = min(self.kill_at, now)

    def limits(self, margins: Margins) -> Limits:
        grace, kill = margins
        found = Limits(inf, inf)
        if self.end is None:
            found = Limits(self.wait_until, self.wait_until + kill)
        elif self.mode == "iterator":
            found = Limits(self.end + grace, self.end + grace + kill, shim.TO_PROGRAM)
        elif self.mode == "own":
            found = Limits(self.end, self.end + grace + kill)
        else:
            found = Limits(self.end, inf, shim.STOPS)
        if self.stopped_at < found.end or (self.stopped_at < inf and found.how == shim.STOPS):
            how = shim.TO_PROGRAM if self.mode == "iterator" else shim.TO_ALL
            found = Limits(self.stopped_at, self.stopped_at + grace + kill, how)
        return Limits(min(found.end, self.kill_at), min(found.kill, self.kill_at), found.how)

    # --- what its processes ask -------------------------------------------------------------------------

    def left_s(self, now: float) -> float:
        if self.end is None:
            return 0.0
        return max(min(self.end, self.stopped_at, self.kill_at) - now, 0.0)

    def greet(self, rank: int, now: float) -> Lease | Done | None:
        """The answer to a hello; None as long as its turn has not come."""
        if rank not in self.ranks:
            return Done(False, f"rank {rank} of job {self.lease.job} does not run here")
        self.ranks[rank].greeted = True
        return self.offer(now) if self.begun else None

    def offer(self, now: float) -> Lease:
        """What is left of the lease, a round at most: who comes back for more each round saves each round."""
        left_s = self.left_s(now)
        last = (self.lease.last or self.stopped_at <= now) and left_s <= self.round_s
        total = self.lease.command.total_steps
        seconds = min(left_s, self.round_s)
        return Lease(seconds, self.stop_steps, total, last, self.lease.done, self.lease.beside)

    def hangs(self, now: float) -> bool:
        """Whether processes that know of leases have not said a word for so long that they never will."""
        silent_s = max(SILENT_ROUNDS * self.round_s, _START_S if self.owes_a_word else 0.0)
        return self.begun and not self.over(now) and now - self.heard > silent_s

    def reported(self, rank: int, steps: int, seconds: float) -> None:
        said = self.ranks[rank]
        said.steps, said.seconds = max(said.steps, steps), max(said.seconds, seconds)

    def fixes_stop(self, now: float, leaves: bool) -> bool:
        """Whether a rank that asks now fixes where all of them stop; who `leaves`, perhaps sooner than was fixed."""
        over = leaves or self.lease.last or self.left_s(now) <= 0 or self.stopped_at <= now
        known = self.stop_steps is not None and not (leaves and self.all_here)
        return self.lease.world > 1 and over and not known

    @property
    def all_here(self) -> bool:
        """Whether all ranks of the job run on this node."""
        return len(self.ranks) == self.lease.world

    def renew(self, rank: int, now: float, leaves: bool = False, notice_s: float = 0.0) -> Lease | int:
        """The answer to a rank that wants more time: a lease; or, if ranks on other nodes have to stop alike, where it
        expects to be at the end, which the service is to be asked about. They hear of it within `notice_s`."""
        if not self.fixes_stop(now, leaves):
            return self.offer(now)
        said = self.ranks[rank]
        speed = max(said.steps - self.lease.done, 0) / said.seconds if said.seconds > 0 else 0.0
        left_s = max(0.0 if leaves else self.left_s(now), 0.0 if self.all_here else notice_s)
        stop = max(said.steps + ceil(left_s * speed), max(each.steps for each in self.ranks.values()) + AHEAD)
        if not self.all_here:
            return stop
        self.stop_steps = min(stop, self.stop_steps or stop)
        return self.offer(now)

    # --- ends -------------------------------------------------------------------------------------------

    def ended(self, rank: int, exit: RankExit, now: float) -> None:
        """A process is gone; if it failed, the others of the lease go with it."""
        self.ranks[rank].exit = exit
        if not self.begun and now >= self.wait_until:
            self.drop(now)  # nobody came to let it begin
        elif not exit.good and not self.over(now):
            self.why = self.why or str(exit)
            self.kill_at = min(self.kill_at, now)

    def over(self, now: float) -> bool:
        """Whether its lease has ended, so that its processes end as they should."""
        return self.begun and min(self.end or inf, self.stopped_at) <= now

    def is_off(self, now: float) -> bool:
        """Whether its processes use no accelerator: gone, stopped, or never begun."""
        stopped = self.mode == "pause" and self.over(now)
        return self.ranks_gone or self.released or not self.begun or stopped

    @property
    def counts_no_steps(self) -> bool:
        """Whether it was told nothing of its lease, and tells nothing, as always."""
        return not self.lease.counts and not any(rank.greeted for rank in self.ranks.values())

    @property
    def owes_a_word(self) -> bool:
        """Whether it has not asked for its lease, but its job has counted steps in an earlier one. Only of rank 0 it is
        known that it asks."""
        return self.lease.counts and 0 in self.ranks and not any(rank.greeted for rank in self.ranks.values())

    @property
    def had_its_turn(self) -> bool:
        """Whether it had a round or more in one piece, and enough to ask for its lease, if it was going to."""
        asks_s = _START_S if self.mode == "iterator" else 0.0
        whole_s = max(0.9 * self.round_s, asks_s)
        return self.end is not None and self.stopped_at >= self.end and self.end - self.begun_at >= whole_s

    def verdict(self, margins: Margins, now: float, kept: bool, idle: bool = False) -> str:
        """Why its end is a failure; nothing if it ended as it should. `kept`: it leaves a checkpoint of its lease;
        `idle`: it counts no steps, and has written nothing."""
        if self.why or not self.begun:
            return self.why or "it left before its turn"
        exits = [rank.exit for rank in self.ranks.values() if rank.exit is not None]
        bad = next((exit for exit in exits if not exit.good), None)
        if self.complete and bad is None:
            return ""
        if self.owes_a_word and ((bad is None and not self.over(now)) or (self.mode != "pause" and self.had_its_turn)):
            return "it has not asked for its lease"
        if not self.over(now):
            early = not self.lease.last and 0 in self.ranks  # whose rank 0 is elsewhere may leave when all is done
            return str(bad) if bad else "it left before its lease ended" if early else ""
        if any(exit.signal == 9 for exit in exits) and now >= self.limits(margins).kill:
            return "it did not stop at the end of its lease, and was killed"
        if not kept and any(rank.steps > self.lease.done for rank in self.ranks.values()):
            return "it left no checkpoint of its lease" + (f": {bad}" if bad else "")
        if idle and self.mode != "pause" and self.had_its_turn:
            return "its turn was over and it had saved nothing, so it begins anew"
        return ""

    def state(self, now: float) -> LeaseState:
        place: Any = "starting"
        if self.gone:
            place = "gone"
        elif self.begun and self.mode == "pause" and self.over(now):
            place = "paused"
        elif self.begun and (self.mode != "iterator" or any(rank.greeted for rank in self.ranks.values())):
            place = "running"
        elif self.started and all(rank.greeted for rank in self.ranks.values()):
            place = "waiting"
        return LeaseState(
            self.lease.job,
            self.lease.epoch,
            place,
            max((rank.steps for rank in self.ranks.values()), default=0),
            self.saved,
            max((rank.seconds for rank in self.ranks.values()), default=0.0),
            self.complete,
            self.why,
            self.left_s(now) if self.begun else None,
            self.granted is not None,
            self.kept,
            any(rank.exit is not None and rank.exit.absent for rank in self.ranks.values()),
        )


def _layout(lease: NodeLease) -> tuple[Any, ...]:
    return lease.ranks, lease.places, lease.world, lease.master, lease.port


class KeptRun(msgspec.Struct, frozen=True):
    """What is written down of a run, for an agent that takes the place of this one."""

    lease: NodeLease
    begun_epoch: int
    end: float | None
    granted: float | None
    boot: str
    gone: bool = False
    why: str = ""
    complete: bool = False
    kept: bool = False
    greeted: tuple[int, ...] = ()
    launched: float = 0.0
