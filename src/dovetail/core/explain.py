"""Why a piece of work waited, or why it went where it went: read from the journal, told in sentences."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.events import Arrived, Failed, Finished, Reject, Start
from dovetail.core.journal import Reader
from dovetail.core.work import ShapeError

_SHOWN = 10


class Other(Struct, frozen=True):
    """Another part that had to do with the wait."""

    work: str
    part: str
    kind: str
    devices: tuple[int, ...]
    started_s: float
    why: str


class Explanation(Struct, kw_only=True):
    """What happened to one part of a work. `holders` ran when it became ready, `overtakers` became ready later and
    started earlier; `never_why` tells why it could never become ready."""

    work: str
    part: str
    kind: str
    width: int
    status: str
    arrived_s: float
    after: list[str]
    ready_s: float | None = None
    waited_s: float | None = None
    started_s: float | None = None
    setup_s: float = 0.0
    replaces: str | None = None
    finished_s: float | None = None
    devices: tuple[int, ...] = ()
    why: str = ""
    attempts: int = 0
    rejected_why: str = ""
    never_why: str = ""
    free_when_ready: int | None = None
    holders: list[Other] = []
    overtakers: list[Other] = []
    overtaken_by: int = 0


def explain(journal: Reader, work: str, part: str | None = None) -> list[Explanation]:
    """The story of one part, or of all parts of a work, in their order."""
    arrived_s, shape_name, rejected = _find(journal, work)
    try:
        shape = journal.header.build_shapes().get(shape_name)
    except ShapeError as error:
        raise InputError(f"{journal.path}:1: not a usable header: {error}") from None
    if shape is None:
        why = f": {rejected}" if rejected else ""
        raise InputError(f"{work!r} was rejected on arrival{why}")
    if part is not None and part not in shape.index:
        raise InputError(f"{work!r} has no part {part!r}{did_you_mean(part, shape.index)}")
    stories = []
    for i, own in enumerate(shape.parts):
        if part is None or own.name == part:
            after = [shape.parts[j].name for j in shape.after[i]]
            status = "rejected" if rejected else "waiting"
            story = Explanation(
                work=work,
                part=own.name,
                kind=own.kind,
                width=own.width,
                status=status,
                arrived_s=arrived_s,
                after=after,
                rejected_why=rejected,
                never_why=shape.never.get(i, ""),
            )
            stories.append(story)
    _starts(journal, work, stories)
    for story in stories:
        if story.waited_s:
            _wait(journal, story)
    return stories


def _find(journal: Reader, work: str) -> tuple[float, str, str]:
    arrived: tuple[float, str] | None = None
    rejected = ""
    some: list[str] = []
    for _, t, event in journal:
        if isinstance(event, Arrived):
            if event.work == work:
                arrived = (t, event.of)
            elif len(some) < 1000:
                some.append(event.work)
        elif isinstance(event, Reject) and event.work == work:
            rejected = event.why
    if arrived is None:
        raise InputError(f"{journal.path}: no work called {work!r} arrived{did_you_mean(work, some)}")
    return *arrived, rejected


def _starts(journal: Reader, work: str, stories: Sequence[Explanation]) -> None:
    """Fill in what is recorded of the parts themselves; the last attempt counts."""
    by_part = {story.part: story for story in stories}
    finished: dict[str, float] = {}
    for _, t, event in journal:
        if not isinstance(event, Start | Finished | Failed) or event.work != work:
            continue
        if isinstance(event, Finished):
            finished[event.part] = t
        story = by_part.get(event.part)
        if story is None:
            continue
        if isinstance(event, Start):
            story.status, story.started_s, story.attempts = "running", t, story.attempts + 1
            story.ready_s, story.waited_s = event.ready_s, t - event.ready_s
            story.setup_s, story.replaces = event.setup_s, event.replaces
            story.devices, story.why = event.devices, event.why
        elif isinstance(event, Finished):
            story.status, story.finished_s = "finished", t
        else:
            story.status = f"failed: {event.why}"
    for story in stories:
        if story.ready_s is None and not story.never_why and all(name in finished for name in story.after):
            story.ready_s = max([story.arrived_s, *[finished[name] for name in story.after]])


def _wait(journal: Reader, story: Explanation) -> None:
    """Who held the devices when the part became ready, and who went first although ready later."""
    running: dict[tuple[str, str], Other] = {}
    assert story.ready_s is not None
    assert story.started_s is not None
    settled = False
    for _, t, event in journal:
        if t > story.ready_s and not settled:
            settled = True
            story.holders = list(running.values())
            held = {gpu for other in story.holders for gpu in other.devices}
            story.free_when_ready = len(journal.header.pool) - len(held)
        if t >= story.started_s:
            return
        if isinstance(event, Start):
            other = Other(event.work, event.part, event.kind, event.devices, t, event.why)
            running[event.work, event.part] = other
            if event.ready_s > story.ready_s:
                story.overtaken_by += 1
                if len(story.overtakers) < _SHOWN:
                    story.overtakers = [*story.overtakers, other]
        elif isinstance(event, Finished | Failed):
            running.pop((event.work, event.part), None)


def sentences(story: Explanation) -> list[str]:
    """The story in words."""
    name = f"{story.work}/{story.part}"
    lines = [
        f"{name} needs {story.kind} on {_many(story.width, 'device')}; its work arrived at {story.arrived_s:.2f} s."
    ]
    if story.rejected_why:
        lines.append(f"Its work was rejected: {story.rejected_why}.")
    if story.ready_s is None:
        lines.append(f"It never became ready: it {story.never_why or 'must wait for ' + ', '.join(story.after)}.")
        return lines
    behind = f" when {', '.join(story.after)} had finished" if story.after else " on arrival"
    lines.append(f"It became ready at {story.ready_s:.2f} s{behind}.")
    if story.started_s is None:
        lines.append("It has not started.")
        return lines
    if not story.waited_s:
        lines.append("It started at once.")
    else:
        lines.append(f"It waited {story.waited_s:.2f} s.")
        if story.free_when_ready is not None and story.free_when_ready < story.width:
            held = ", ".join(f"{list(o.devices)} by {o.work}/{o.part} ({o.kind})" for o in story.holders[:_SHOWN])
            lines.append(f"Only {_free(story.free_when_ready)} when it became ready; held were {held}.")
        elif story.free_when_ready is not None:
            lines.append(f"{_free(story.free_when_ready)} then, but the policy preferred others.")
        if story.overtaken_by:
            first = ", ".join(f"{o.work}/{o.part} ({o.kind}, {o.why})" for o in story.overtakers[:3])
            lines.append(f"{_many(story.overtaken_by, 'part')} became ready later and started earlier, first {first}.")
    where = f"on {list(story.devices)}" if story.devices else "on no device"
    lines.append(f"It started at {story.started_s:.2f} s {where}: {story.why}.")
    if story.setup_s:
        old = f" in the place of {story.replaces}" if story.replaces else ""
        lines.append(f"Making {story.kind} resident{old} took {story.setup_s:.2f} s.")
    if story.attempts > 1:
        lines.append(f"That was attempt {story.attempts}.")
    if story.finished_s is not None:
        lines.append(f"It finished at {story.finished_s:.2f} s.")
    elif story.status != "running":
        lines.append(f"It {story.status}.")
    return lines


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _free(count: int) -> str:
    return f"{_many(count, 'device')} {'was' if count == 1 else 'were'} free"
