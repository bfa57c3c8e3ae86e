"""The story of a job: what the journal tells of it, and the same in words."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dovetail.cluster.rounding import records

BEFORE, CHOSEN = -1, -2
_SHOWN = 5
_NO_TIME = 1e-6  # what rounding leaves of a difference, in seconds
_WENT_FIRST = {  # by the numbers of reasons in the records
    BEFORE: "there before it",
    CHOSEN: "chosen by the policy",
    records.ROUND: "owed more",
    records.FREE: "first to take what was free",
    records.KEPT: "kept in their places",
    records.GATHERED: "moved into one server",
    records.CHANGED: "kept in their places",
    records.MOVED: "moved to other servers",
}


class LeaseStory(Struct, kw_only=True):
    """A stay on the same accelerators; `end` tells why it ended."""

    from_s: float
    to_s: float | None = None
    type: str
    devices: tuple[int, ...]
    why: str
    setup_s: float
    beside: int | None = None
    steps: float = 0.0
    lost_s: float = 0.0  # of work, with a failure
    end: str = "still running"

    @property
    def start_s(self) -> float:
        """What its start took: less than it costs if the lease ended before that."""
        return self.setup_s if self.to_s is None else min(self.setup_s, self.to_s - self.from_s)


class TypeThen(Struct, kw_only=True):
    """Accelerators of one type when a wait began, and the first few jobs that held them."""

    type: str
    count: int
    free: int
    down: int
    holders: list[int]
    held_by: int


class WentFirst(Struct, kw_only=True):
    """Others on a type that a job could have used while it waited: `reason` is the number of why they had it, among the
    header's, CHOSEN if the policy is asked every round, or BEFORE if they were there when the wait began."""

    type: str
    reason: int
    jobs: list[int]
    entities: list[str]  # theirs, if jobs have any; not the waiting job's own
    own: list[int] = []  # those of these jobs that are of its own entity
    later: int  # jobs that arrived after it
    accelerator_s: float


class JobParts(Struct, kw_only=True):
    """Where the time of a job went; the parts add up to the time from its arrival to its end.

    Of its `work_s`, `best_s` is what it takes at the best rate that it can have here, `slower_s` what it took beyond
    that. Of jobs whose rate changes as they go these two are not known.
    """

    waits_s: float
    restarts_s: float
    lost_s: float
    work_s: float
    best_s: float | None = None
    slower_s: float | None = None


class JobWait(Struct, kw_only=True):
    """A time without accelerators. `types` are those that the job can use; `others` counts leases that other jobs began
    on them meanwhile, `later` those of jobs that arrived after it. One whose process failed `rests` at first."""

    from_s: float
    to_s: float | None = None
    types: list[TypeThen]
    others: int = 0
    later: int = 0
    first: list[int]
    went_first: list[WentFirst] = []
    why: str = ""
    rests: bool = False


class JobStory(Struct, kw_only=True):
    """A job from its arrival on; `cut_s` is the instant at which a journal without an end breaks off."""

    job: int
    name: str
    model: str
    width: int
    steps: float
    arrived_s: float
    weight: float = 1.0
    entity: str = ""
    due_s: float | None = None
    parts: JobParts | None = None  # of one that is complete
    leases: list[LeaseStory]
    waits: list[JobWait]
    completed_s: float | None = None
    rejected_why: str = ""
    rho: float | None = None
    ended_s: float | None = None
    cut_s: float | None = None
    live: bool = False
    brief: bool = False
    namesakes: list[int] = []  # other jobs of the name that it was asked for by

    @property
    def waited_s(self) -> float:
        """Seconds of waits, of one that goes on in a live run so far."""
        now_s = self.cut_s if self.live else None
        ends = [(wait.from_s, now_s if wait.to_s is None else wait.to_s) for wait in self.waits]
        return sum(to_s - from_s for from_s, to_s in ends if to_s is not None)

    def opening(self) -> list[str]:
        """Who it is and what it asked for."""
        work = f"{self.steps:,.0f} steps of {self.model} on {_many(self.width, 'accelerator')}"
        lines = [f"Job {self.job}{f' ({self.name})' if self.name else ''} arrived at {self.arrived_s:.2f} s: {work}."]
        if self.namesakes:
            others = ", ".join(map(str, self.namesakes[:_SHOWN])) + " and more" * (len(self.namesakes) > _SHOWN)
            lines.append(
                f"{len(self.namesakes) + 1:,} jobs have this name, of which it is the first; others: {others}."
            )
        if self.entity:
            lines.append(f"It is of the entity {self.entity}.")
        if self.weight != 1.0:
            lines.append(f"Its weight is {self.weight:g}.")
        if self.due_s is not None:
            lines.append(f"It is due {self.due_s:.2f} s after that, at {self.arrived_s + self.due_s:.2f} s.")
        if self.brief:
            lines.append("The journal is a summary: it holds no leases, so it cannot tell where and when the job ran.")
        return lines

    def closing(self) -> list[str]:
        """How it ended."""
        lines = []
        if self.leases:
            setups = sum(lease.setup_s > 0 for lease in self.leases)
            waited = (
                f"waited {self.waited_s:.2f} s in {_many(len(self.waits), 'wait')}" if self.waits else "never waited"
            )
            leases = _many(len(self.leases), "lease")
            lines.append(f"It had {leases}, {setups} of them with a start or restart, and {waited}.")
            lines += self._moves()
        if because := _because(self):
            lines.append(because)
        if self.completed_s is not None:
            took_s = self.completed_s - self.arrived_s
            lines.append(f"It was complete at {self.completed_s:.2f} s, {took_s:.2f} s after its arrival.")
            if self.due_s is not None:
                early_s = self.due_s - took_s
                lines.append(f"That was {abs(early_s):.2f} s {'before' if early_s >= 0 else 'after'} its deadline.")
                if early_s < 0 and self.parts is not None:
                    lines.append(_late(self.parts, self.due_s))
            if self.parts is not None:
                lines.append(f"Its {time_of(took_s)}: {_parts(self.parts)}.")
            if self.rho is not None:
                compared = "no later" if self.rho <= 1 else "later"
                equal = "with an equal share of the cluster at every moment"
                lines.append(f"Its finish-time rho is {self.rho:.3f}: it was done {compared} than {equal}.")
        elif self.rejected_why:
            lines.append(f"It was rejected: {self.rejected_why}.")
        elif self.ended_s is not None:
            lines.append(f"It was not complete when the run ended at {self.ended_s:.2f} s.")
        elif self.cut_s is not None and self.live:
            lines.append(f"It is not complete yet, as far as the journal goes, at {self.cut_s:.2f} s.")
        elif self.cut_s is not None:
            lines.append(f"The journal breaks off at {self.cut_s:.2f} s, before it was complete.")
        return lines

    def _moves(self) -> list[str]:
        """How often it was moved and started again, and what that cost."""
        pairs = list(zip(self.leases, self.leases[1:], strict=False))
        types = sum(one.type != two.type for one, two in pairs)
        moves = sum(one.devices != two.devices for one, two in pairs)
        again_s = sum(lease.start_s for lease in self.leases[1:])
        lost_s = sum(lease.lost_s for lease in self.leases)
        lines = []
        if moves:
            other = f", {types} of them to another type" if types else ""
            took = "were expected to take" if self.live else "took"
            lines.append(f"It was moved {_times(moves)}{other}; restarts {took} {time_of(again_s)}.")
        if lost_s:
            lines.append(f"Failures cost it {time_of(lost_s)} of work.")
        return lines

    def course(self) -> list[tuple[float, float | None, str, str, str]]:
        """Leases and waits in order: from, to, what, where, why."""
        stretches: list[LeaseStory | JobWait] = sorted([*self.leases, *self.waits], key=lambda stretch: stretch.from_s)
        rows: list[tuple[float, float | None, str, str, str]] = []
        for stretch in stretches:
            if isinstance(stretch, JobWait):
                rows.append((stretch.from_s, stretch.to_s, "waited", "", _wait(self, stretch)))
            else:
                where = f"{stretch.type} {', '.join(map(str, stretch.devices))}"
                rows.append((stretch.from_s, stretch.to_s, "ran", where, _lease(stretch, self.live)))
        return rows


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _lease(lease: LeaseStory, live: bool) -> str:
    beside = "" if lease.beside is None else f", beside job {lease.beside}"
    expected = " expected" if live else ""  # what it really took, the job's timeline tells
    restart = f", {lease.setup_s:g} s{expected} to start" if lease.setup_s else ""
    done = lease.end if lease.to_s is None else f"{lease.steps:,.0f} steps; ended: {lease.end}"
    return f"{lease.why}{beside}{restart}; {done}"


def _wait(story: JobStory, wait: JobWait) -> str:
    if wait.why:
        return wait.why
    if not wait.types:
        return "no type of accelerator here can run it"
    told = "; ".join(_type(then, story.width, wait.rests) for then in wait.types)
    if wait.others:
        first = ", ".join(map(str, dict.fromkeys(wait.first)))
        later = f", {wait.later} of them of later arrivals" if wait.later else ""
        leases, jobs = ("lease" if wait.others == 1 else "leases"), ("job" if len(set(wait.first)) == 1 else "jobs")
        told += f"; meanwhile {wait.others} {leases} of others began there{later} (first {jobs} {first})"
    if wait.went_first:
        told += f"; {_reasons(wait.went_first)}"
    return told


def _because(story: JobStory) -> str:
    """All waits in one sentence."""
    gone: dict[tuple[str, int], WentFirst] = {}
    for each in (each for wait in story.waits for each in wait.went_first):
        known = gone.get((each.type, each.reason))
        if known is None:
            gone[each.type, each.reason] = replace(each)
        else:
            known.jobs = list(dict.fromkeys([*known.jobs, *each.jobs]))
            known.entities = list(dict.fromkeys([*known.entities, *each.entities]))
            known.own = list(dict.fromkeys([*known.own, *each.own]))
            known.accelerator_s += each.accelerator_s
    if not gone or not story.waited_s:
        return ""
    most = sorted(gone.values(), key=lambda each: -each.accelerator_s)
    return f"It waited {time_of(story.waited_s)} because {_reasons(most)}."


def _reasons(went_first: list[WentFirst]) -> str:
    """
    >>> _reasons([WentFirst(type="a100", reason=0, jobs=[3, 4, 7], entities=["x", "y"], later=0, accelerator_s=7200.0)])
    '2 entities were owed more on a100 (x, y; 3 jobs, 2.0 accelerator-hours)'
    """
    told = []
    for each in went_first[:_SHOWN]:
        named = len(each.entities) or len(each.jobs)
        who = _many(named, "entity" if each.entities else "job").replace("entitys", "entities")
        who += " was" if named == 1 else " were"
        inside = ", ".join(each.entities[:_SHOWN]) + f"; {_many(len(each.jobs), 'job')}"
        inside += f", {len(each.own)} of its own entity" if each.own else ""
        inside = inside if each.entities else f"jobs {', '.join(map(str, each.jobs[:_SHOWN]))}"
        inside += " and more" if not each.entities and len(each.jobs) > _SHOWN else ""
        what = _WENT_FIRST.get(each.reason, "given accelerators")
        told.append(f"{who} {what} on {each.type} ({inside}, {each.accelerator_s / 3600:.1f} accelerator-hours)")
    return ", ".join(told)


def _parts(parts: JobParts) -> str:
    """
    >>> _parts(JobParts(waits_s=60, restarts_s=10, lost_s=0, work_s=3600, best_s=3600, slower_s=0))
    '1 min 0 s waiting, 10 s starting, 1 h 0 min of work at its best'
    """
    told = [(parts.waits_s, "waiting"), (parts.restarts_s, "starting"), (parts.lost_s, "of work lost in failures")]
    if parts.best_s is None or parts.slower_s is None:
        told.append((parts.work_s, "of work"))
    else:
        told += [(parts.best_s, "of work at its best"), (parts.slower_s, "more on slower accelerators")]
    return ", ".join(f"{time_of(value)} {what}" for value, what in told if value > _NO_TIME) or "no time"


def _late(parts: JobParts, due_s: float) -> str:
    """Because of what a deadline was missed: the largest of what came on top of its work at its best."""
    if parts.best_s is not None and parts.best_s > due_s:
        return f"No schedule could have kept it: its work takes {time_of(parts.best_s)} at its best."
    causes = {"waiting": parts.waits_s, "starts": parts.restarts_s, "failures": parts.lost_s}
    causes["slower accelerators"] = parts.slower_s or 0.0
    most = max(causes, key=lambda name: causes[name])
    spare = (
        f"; at its best it would have had {time_of(due_s - parts.best_s)} to spare" if parts.best_s is not None else ""
    )
    return f"Most of what came on top of its work was {most}, {time_of(causes[most])}{spare}."


def time_of(seconds: float) -> str:
    """
    >>> time_of(4.25), time_of(2460), time_of(5405), time_of(200_000)
    ('4.25 s', '41 min 0 s', '1 h 30 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.3g} s" if seconds < 10 else f"{seconds:.0f} s"
    for big, small, name, other in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        if seconds >= big:
            return f"{int(seconds // big)} {name} {int(seconds % big // small)} {other}"
    return ""


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _type(then: TypeThen, width: int, rests: bool = False) -> str:
    """
    >>> _type(TypeThen(type="v100", count=8, free=1, down=0, holders=[3, 4], held_by=2), 2)
    '1 of 8 v100 free, held by jobs 3, 4'
    >>> _type(TypeThen(type="k80", count=8, free=4, down=1, holders=[], held_by=0), 2)
    '4 of 8 k80 free, 1 down, but the policy did not give them to it'
    """
    told = f"{then.free or 'none'} of {then.count} {then.type} free" + (f", {then.down} down" if then.down else "")
    if then.free >= width:
        rest = "after its failure it rests until the next round"
        return f"{told}, but {rest if rests else 'the policy did not give them to it'}"
    if not then.held_by:
        return told
    more = f" and {then.held_by - len(then.holders)} more" if then.held_by > len(then.holders) else ""
    return f"{told}, held by {'job' if then.held_by == 1 else 'jobs'} {', '.join(map(str, then.holders))}{more}"
