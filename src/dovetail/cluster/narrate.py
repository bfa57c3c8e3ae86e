"""The story of a job in words."""

from __future__ import annotations

from dovetail.cluster.explain import JobStory, JobWait, LeaseStory, TypeThen


def opening(story: JobStory) -> list[str]:
    """Who it is and what it asked for."""
    work = f"{story.steps:,.0f} steps of {story.model} on {_many(story.width, 'accelerator')}"
    lines = [f"{_title(story)} arrived at {story.arrived_s:.2f} s: {work}."]
    if story.weight != 1.0:
        lines.append(f"Its weight is {story.weight:g}.")
    if story.due_s is not None:
        lines.append(f"It is due {story.due_s:.2f} s after that, at {story.arrived_s + story.due_s:.2f} s.")
    if story.brief:
        lines.append("The journal is a summary: it holds no leases, so it cannot tell where and when the job ran.")
    return lines


def closing(story: JobStory) -> list[str]:
    """How it ended."""
    lines = []
    if story.leases:
        setups = sum(lease.setup_s > 0 for lease in story.leases)
        waited = (
            f"waited {story.waited_s:.2f} s in {_many(len(story.waits), 'wait')}" if story.waits else "never waited"
        )
        leases = _many(len(story.leases), "lease")
        lines.append(f"It had {leases}, {setups} of them with a start or restart, and {waited}.")
    if story.completed_s is not None:
        took_s = story.completed_s - story.arrived_s
        lines.append(f"It was complete at {story.completed_s:.2f} s, {took_s:.2f} s after its arrival.")
        if story.due_s is not None:
            early_s = story.due_s - took_s
            lines.append(f"That was {abs(early_s):.2f} s {'before' if early_s >= 0 else 'after'} its deadline.")
        if story.rho is not None:
            compared = "no later" if story.rho <= 1 else "later"
            equal = "with an equal share of the cluster at every moment"
            lines.append(f"Its finish-time rho is {story.rho:.3f}: it was done {compared} than {equal}.")
    elif story.rejected_why:
        lines.append(f"It was rejected: {story.rejected_why}.")
    elif story.ended_s is not None:
        lines.append(f"It was not complete when the run ended at {story.ended_s:.2f} s.")
    elif story.cut_s is not None:
        lines.append(f"The journal breaks off at {story.cut_s:.2f} s, before it was complete.")
    return lines


def course(story: JobStory) -> list[tuple[float, float | None, str, str, str]]:
    """Leases and waits in order: from, to, what, where, why."""
    stretches: list[LeaseStory | JobWait] = sorted([*story.leases, *story.waits], key=lambda stretch: stretch.from_s)
    rows: list[tuple[float, float | None, str, str, str]] = []
    for stretch in stretches:
        if isinstance(stretch, JobWait):
            rows.append((stretch.from_s, stretch.to_s, "waited", "", _wait(story, stretch)))
        else:
            rows.append((stretch.from_s, stretch.to_s, "ran", _where(stretch), _lease(stretch)))
    return rows


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _title(story: JobStory) -> str:
    return f"Job {story.job}" + (f" ({story.name})" if story.name else "")


def _where(lease: LeaseStory) -> str:
    return f"{lease.type} {', '.join(map(str, lease.devices))}"


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
