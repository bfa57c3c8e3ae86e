"""The story of a job: what the journal tells of it, and the same in words."""

from __future__ import annotations

from msgspec import Struct


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
    end: str = "still running"


class TypeThen(Struct, kw_only=True):
    """Accelerators of one type when a wait began, and the first few jobs that held them."""

    type: str
    count: int
    free: int
    down: int
    holders: list[int]
    held_by: int


class JobWait(Struct, kw_only=True):
    """A time without accelerators. `types` are those that the job can use; `others` counts leases that other jobs began
    on them meanwhile, `later` those of jobs that arrived after it."""

    from_s: float
    to_s: float | None = None
    types: list[TypeThen]
    others: int = 0
    later: int = 0
    first: list[int]
    why: str = ""


class JobStory(Struct, kw_only=True):
    """A job from its arrival on; `cut_s` is the instant at which a journal without an end breaks off."""

    job: int
    name: str
    model: str
    width: int
    steps: float
    arrived_s: float
    weight: float = 1.0
    due_s: float | None = None
    leases: list[LeaseStory]
    waits: list[JobWait]
    completed_s: float | None = None
    rejected_why: str = ""
    rho: float | None = None
    ended_s: float | None = None
    cut_s: float | None = None
    brief: bool = False

    @property
    def waited_s(self) -> float:
        return sum(wait.to_s - wait.from_s for wait in self.waits if wait.to_s is not None)

    def opening(self) -> list[str]:
        """Who it is and what it asked for."""
        work = f"{self.steps:,.0f} steps of {self.model} on {_many(self.width, 'accelerator')}"
        lines = [f"Job {self.job}{f' ({self.name})' if self.name else ''} arrived at {self.arrived_s:.2f} s: {work}."]
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
        if self.completed_s is not None:
            took_s = self.completed_s - self.arrived_s
            lines.append(f"It was complete at {self.completed_s:.2f} s, {took_s:.2f} s after its arrival.")
            if self.due_s is not None:
                early_s = self.due_s - took_s
                lines.append(f"That was {abs(early_s):.2f} s {'before' if early_s >= 0 else 'after'} its deadline.")
            if self.rho is not None:
                compared = "no later" if self.rho <= 1 else "later"
                equal = "with an equal share of the cluster at every moment"
                lines.append(f"Its finish-time rho is {self.rho:.3f}: it was done {compared} than {equal}.")
        elif self.rejected_why:
            lines.append(f"It was rejected: {self.rejected_why}.")
        elif self.ended_s is not None:
            lines.append(f"It was not complete when the run ended at {self.ended_s:.2f} s.")
        elif self.cut_s is not None:
            lines.append(f"The journal breaks off at {self.cut_s:.2f} s, before it was complete.")
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
                rows.append((stretch.from_s, stretch.to_s, "ran", where, _lease(stretch)))
        return rows


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _lease(lease: LeaseStory) -> str:
    beside = "" if lease.beside is None else f", beside job {lease.beside}"
    restart = f", {lease.setup_s:g} s to start" if lease.setup_s else ""
    done = lease.end if lease.to_s is None else f"{lease.steps:,.0f} steps; ended: {lease.end}"
    return f"{lease.why}{beside}{restart}; {done}"


def _wait(story: JobStory, wait: JobWait) -> str:
    if wait.why:
        return wait.why
    if not wait.types:
        return "no type of accelerator here can run it"
    told = "; ".join(_type(then, story.width) for then in wait.types)
    if wait.others:
        first = ", ".join(map(str, dict.fromkeys(wait.first)))
        later = f", {wait.later} of them of later arrivals" if wait.later else ""
        told += f"; meanwhile {wait.others} leases of others began there{later} (first jobs {first})"
    return told


def _type(then: TypeThen, width: int) -> str:
    """
    >>> _type(TypeThen(type="v100", count=8, free=1, down=0, holders=[3, 4], held_by=2), 2)
    '1 of 8 v100 free, held by jobs 3, 4'
    >>> _type(TypeThen(type="k80", count=8, free=4, down=1, holders=[], held_by=0), 2)
    '4 of 8 k80 free, 1 down, but the policy did not give them to it'
    """
    told = f"{then.free or 'none'} of {then.count} {then.type} free" + (f", {then.down} down" if then.down else "")
    if then.free >= width:
        return f"{told}, but the policy did not give them to it"
    if not then.held_by:
        return told
    more = f" and {then.held_by - len(then.holders)} more" if then.held_by > len(then.holders) else ""
    return f"{told}, held by jobs {', '.join(map(str, then.holders))}{more}"
