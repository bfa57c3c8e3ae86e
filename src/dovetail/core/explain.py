"""Why a job waited, or why it went where it went: read from the journal, told in sentences."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.events import (
    Added,
    Arrived,
    Complete,
    Defer,
    Failed,
    Finished,
    Grew,
    Observed,
    Pause,
    Prepare,
    PrepareEnded,
    Reject,
    Resize,
    Resume,
    Settled,
    Start,
    Stop,
)
from dovetail.core.journal import Ended, Header, Reader, Recorded
from dovetail.core.journal.preloads import Preloads
from dovetail.core.tasks import Task, TaskGraph, TaskGraphError

_SHOWN = 10
_TURNS: dict[type, str] = {
    Pause: "was paused",
    Resume: "was resumed",
    Resize: "was resized",
    Stop: "was stopped",
    Defer: "had to wait",
}


class Other(Struct, frozen=True):
    """Another task that had to do with the wait."""

    job: str
    task: str
    kind: str
    devices: tuple[int, ...]
    started_s: float
    why: str


class Turn(Struct, frozen=True):
    """Something that was decided about a task beside its start: that it waits, pauses, goes on, changes or stops."""

    t_s: float
    what: str
    why: str
    devices: tuple[int, ...] = ()


class Explanation(Struct, kw_only=True):
    """What happened to one task of a job, or, without a task, to a job that was rejected on arrival.

    `holders` ran when it became ready, `overtakers` became ready later and started earlier; `fragmented` says that
    enough devices were free then, but not side by side. `never_why` tells why it could never become ready, `cut_s`
    where an interrupted journal leaves it unfinished. `turns` are the reasons it was given to wait, and the changes it
    met while it ran; `widths` tells how many devices a malleable task can have; `added_by` is the task whose end added
    it, if it was not there from the start. On devices with `slots`, `beside` others ran there when it started; `seen`
    is what else was seen of it, and when.
    """

    job: str
    task: str
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
    cached: int = 0
    finished_s: float | None = None
    devices: tuple[int, ...] = ()
    why: str = ""
    attempts: int = 0
    rejected_why: str = ""
    never_why: str = ""
    cut_s: float | None = None
    free_when_ready: tuple[int, ...] | None = None
    fragmented: bool = False
    holders: list[Other] = []
    overtakers: list[Other] = []
    overtaken_by: int = 0
    turns: list[Turn] = []
    widths: str = ""
    added_by: str = ""
    added_why: str = ""
    slots: int = 0
    beside: int = 0
    seen: list[tuple[float, str]] = []
    preload: Turn | None = None  # what had made its kind resident there before it was needed


def explain(journal: Reader, job: str, task: str | None = None) -> list[Explanation]:
    """The story of one task, or of all tasks of a job, in their order; of one rejected on arrival, one for all."""
    witness = _Witness(journal.header, job)
    for _, t, event in journal:
        if witness.see(t, event):
            break
    if witness.arrived is None:
        run = f"{journal.header.level} run: no {journal.header.words.job}"
        raise InputError(f"{journal.path}: {run} called {job!r} arrived{did_you_mean(job, witness.others)}")
    stories = witness.tell()
    known = list(witness.graph.index) if witness.graph is not None else [story.task for story in stories]
    if task is not None and task not in known and known != [""]:
        raise InputError(f"{job!r} has no task {task!r}{did_you_mean(task, known)}")
    return [story for story in stories if task is None or story.task in (task, "")]


class _Wait:
    """What goes on while a task of the job waits."""

    def __init__(self, since: float) -> None:
        self.since = since
        self.free: tuple[int, ...] | None = None
        self.holders: list[Other] = []
        self.overtakers: list[Other] = []
        self.overtaken_by = 0


class _Witness:
    """Follows a run and keeps what has to do with one job. An instant is judged when it is over: what starts together
    overtakes nobody, and devices that were taken when a task became ready were not free for it."""

    def __init__(self, header: Header, job: str) -> None:
        self.arrived: Arrived | None = None
        self.others: list[str] = []  # some that arrived, in case that the name is wrong
        self._pool, self._graphs, self._job = header.pool, header.build_graphs(), job
        self.graph: TaskGraph | None = None
        self._next = f"next {header.words.task}"  # of a job without a graph, whose tasks are known when they start
        self._now, self._ended, self._done = 0.0, False, False
        self._arrived_s, self._rejected = 0.0, ""
        self._stories: dict[str, Explanation] = {}
        self._left: list[int] = []
        self._running: dict[tuple[str, str | int], Other] = {}  # preloads by number
        self._ahead: Preloads[tuple[int, Turn]] = Preloads()  # their numbers
        self._waits: dict[str, _Wait] = {}
        self._began: list[tuple[float, Other]] = []  # at this instant: when ready, and what

    def see(self, t: float, event: Recorded) -> bool:
        """Whether nothing more can happen to the job."""
        if t > self._now:
            self._settle()
            self._now = t
        if isinstance(event, Start):
            other = Other(event.job, event.task, event.kind, event.devices, t, event.why)
            self._running[event.job, event.task] = other
            self._find_prepared(event)
            if event.job == self._job:
                self._start(t, event)
            if self._waits:
                self._began.append((event.ready_s, other))
        elif isinstance(event, Finished | Failed):
            self._running.pop((event.job, event.task), None)
            if event.job == self._job:
                self._end(t, event)
        elif isinstance(event, Arrived):
            self._arrive(t, event)
        elif isinstance(event, Reject) and event.job == self._job:
            self._rejected = event.why
            self._give_up()
        elif isinstance(event, Pause | Resume | Resize | Stop | Defer):
            self._turn(t, event)
        elif isinstance(event, Added | Grew):
            self._add(t, event)
        elif isinstance(event, Prepare | PrepareEnded):
            self._prepare(t, event)
        elif isinstance(event, Observed | Settled):
            self._observe(t, event)
        self._ended = self._ended or isinstance(event, Ended)
        self._done = isinstance(event, Complete) and event.job == self._job
        return self._done

    def _prepare(self, t: float, event: Prepare | PrepareEnded) -> None:
        key = ("preload", event.id)
        if isinstance(event, PrepareEnded):
            self._running.pop(key, None)
            self._ahead.end(event)
            return
        self._running[key] = Other("preload", str(event.id), event.kind, event.devices, t, event.why)
        self._ahead.begin(event, (event.id, Turn(t, "was preloaded", event.why, event.devices)))

    def _find_prepared(self, start: Start) -> None:
        """What was loaded ahead for a task, or still is: it has the devices from here on."""
        found = self._ahead.find(start)
        if found is not None:
            self._running.pop(("preload", found.kept[0]), None)
        story = self._stories.get(start.task) if start.job == self._job else None
        if story is not None:
            story.preload = found.kept[1] if found is not None and found.used else None

    def _observe(self, t: float, event: Observed | Settled) -> None:
        if isinstance(event, Settled):
            told = self._stories.get(event.task) if event.job == self._job else None
            if told is not None and told.started_s is not None and told.setup_s:
                told.setup_s = t - told.started_s
            return
        story = self._stories.get(str(event.facts.get("task")))
        if story is not None and event.facts.get("job") == self._job:
            story.seen.append((t, event.what))

    def _add(self, t: float, event: Added | Grew) -> None:
        if isinstance(event, Grew):
            self._grow(t, event)
            return
        self._pool = self._pool.joined(event.devices, event.types)
        try:
            self._graphs |= {record.name: record.build() for record in event.graphs}
        except TaskGraphError as error:
            raise InputError(f"a graph was added at {t} s that is none: {error}") from None

    def _turn(self, t: float, event: Pause | Resume | Resize | Stop | Defer) -> None:
        devices = event.devices if isinstance(event, Resume | Resize) else ()
        running = self._running.get((event.job, event.task))
        if running is not None and isinstance(event, Pause | Resume | Resize):
            self._running[event.job, event.task] = replace(running, devices=devices)
        story = self._stories.get(event.task) if event.job == self._job else None
        if story is None:
            return
        story.turns.append(Turn(t, _TURNS[type(event)], event.why, devices))
        if isinstance(event, Pause | Resume):
            story.status = "paused" if isinstance(event, Pause) else "running"

    def _arrive(self, t: float, event: Arrived) -> None:
        if event.job != self._job:
            if len(self.others) < 1000:
                self.others.append(event.job)
            return
        self.arrived, self._arrived_s = event, t
        graph = self.graph = self._graphs.get(event.of)
        if event.fault or (graph is None and self._graphs):
            return
        if graph is None:
            self._new(self._next, event.of, 0)
            self._waits[self._next] = _Wait(t)
            return
        for i, own in enumerate(graph.tasks):
            story = self._new_of(own)
            story.after = [graph.tasks[j].name for j in graph.after[i]]
            story.never_why = graph.never.get(i, "")
        self._left = [len(after) for after in graph.after]
        for i in graph.roots:
            self._waits[graph.tasks[i].name] = _Wait(t)

    def _grow(self, t: float, event: Grew) -> None:
        if event.job != self._job or self.graph is None:
            return
        try:
            graph = self.graph = self.graph.grown(event.tasks, event.edges)
        except TaskGraphError as error:
            raise InputError(f"what was added to {self._job} at {t} s is no graph: {error}") from None
        for own in event.tasks:
            story = self._new_of(own)
            story.added_by, story.added_why = event.task, event.why
        done = {name for name, story in self._stories.items() if story.finished_s is not None}
        names = [task.name for task in graph.tasks]
        self._left += [0] * len(event.tasks)
        for i in {graph.index[name] for name in (*(own.name for own in event.tasks), *(to for _, to in event.edges))}:
            self._stories[names[i]].after = [names[j] for j in graph.after[i]]
            self._left[i] = sum(names[j] not in done for j in graph.after[i])
            if not self._left[i]:
                self._waits[names[i]] = _Wait(t)

    def _new_of(self, own: Task) -> Explanation:
        story = self._new(own.name, own.kind, own.width)
        story.widths = "" if own.needs == str(own.width) else own.needs
        return story

    def _new(self, task: str, kind: str, width: int) -> Explanation:
        story = self._stories[task] = Explanation(
            job=self._job, task=task, kind=kind, width=width, status="waiting", arrived_s=self._arrived_s, after=[]
        )
        return story

    def _start(self, t: float, event: Start) -> None:
        """The last attempt counts."""
        wait = self._waits.pop(event.task, None)
        if self._next in self._stories:
            del self._stories[self._next]
            wait = self._waits.pop(self._next, None)
            self._new(event.task, event.kind, len(event.devices))
        story = self._stories.get(event.task)
        if story is None:
            return
        story.status, story.started_s, story.attempts = "running", t, story.attempts + 1
        story.setup_s, story.replaces, story.cached = event.setup_s, event.replaces, event.cached
        story.devices, story.why, story.slots, story.seen = event.devices, event.why, event.slots, []
        if event.slots:
            story.beside = sum(other.devices == event.devices for other in self._running.values()) - 1
        self._waited(story, wait or _Wait(event.ready_s))
        story.ready_s, story.waited_s = event.ready_s, t - event.ready_s

    def _end(self, t: float, event: Finished | Failed) -> None:
        story, graph = self._stories.get(event.task), self.graph
        if story is None:
            return
        if isinstance(event, Failed):
            story.status = f"failed: {event.why}"
        else:
            story.status, story.finished_s = "finished", t
        if graph is None:
            self._new(self._next, story.kind, story.width)
            self._waits[self._next] = _Wait(t)
            return
        if isinstance(event, Failed):
            self._waits[event.task] = _Wait(t)
            return
        for j in graph.before[graph.index[event.task]]:
            self._left[j] -= 1
            if not self._left[j] and j not in graph.never:
                self._waits[graph.tasks[j].name] = _Wait(t)

    def _settle(self) -> None:
        """This instant is over."""
        for wait in self._waits.values():
            for ready_s, other in self._began:
                if ready_s > wait.since:
                    wait.overtaken_by += 1
                    if len(wait.overtakers) < _SHOWN:
                        wait.overtakers.append(other)
            if wait.free is None:
                wait.holders = list(self._running.values())
                held = {device for other in wait.holders for device in other.devices}
                wait.free = tuple(device.id for device in self._pool.devices if device.id not in held)
        self._began.clear()

    def _waited(self, story: Explanation, wait: _Wait) -> None:
        story.ready_s, story.holders, story.free_when_ready = wait.since, wait.holders, wait.free
        story.overtakers, story.overtaken_by = wait.overtakers, wait.overtaken_by
        if wait.free is not None and len(wait.free) >= story.width:
            free, windows = set(wait.free), self._pool.windows(story.width, aligned=False)
            story.fragmented = not any(free.issuperset(window) for window in windows)

    def _give_up(self) -> None:
        """What waits will not start any more."""
        for task, wait in self._waits.items():
            story = self._stories.get(task)
            if story is not None and story.started_s is None:
                self._waited(story, wait)
        self._waits.clear()

    def tell(self) -> list[Explanation]:
        self._settle()
        self._give_up()
        assert self.arrived is not None
        if self._done and len(self._stories) > 1:
            self._stories.pop(self._next, None)
        if not self._stories:
            story = Explanation(
                job=self._job, task="", kind="", width=0, status="rejected", arrived_s=self._arrived_s, after=[]
            )
            story.rejected_why = self._rejected or self.arrived.fault
            return [story]
        for story in self._stories.values():
            story.rejected_why = self._rejected
            if story.status == "waiting" and self._rejected:
                story.status = "rejected"
            if story.status in ("waiting", "running", "paused") and not self._ended:
                story.cut_s = self._now
        return list(self._stories.values())


def sentences(story: Explanation) -> list[str]:
    """The story in words."""
    if not story.task:
        why = f": {story.rejected_why}" if story.rejected_why else ""
        return [f"{story.job} arrived at {story.arrived_s:.2f} s and was rejected on arrival{why}."]
    cut = "" if story.cut_s is None else f"The journal breaks off at {story.cut_s:.2f} s, before it "
    wide = f"{story.widths} devices" if story.widths else _many(story.width, "device")
    lines = [f"{story.job}/{story.task} needs {story.kind} on {wide}; its job arrived at {story.arrived_s:.2f} s."]
    if story.added_by:
        lines.append(f"It was added when {story.added_by} ended{': ' if story.added_why else ''}{story.added_why}.")
    if story.rejected_why:
        lines.append(f"Its job was rejected: {story.rejected_why}.")
    if story.ready_s is None:
        waits = f"must wait for {', '.join(story.after)}"
        if cut and not story.never_why:
            lines.append(f"{cut}became ready: it {waits}.")
        else:
            lines.append(f"It never became ready: it {story.never_why or waits}.")
        return lines
    behind = f" when {', '.join(story.after)} had finished" if story.after else ""
    behind = " on arrival" if story.ready_s == story.arrived_s else behind
    lines.append(f"It became ready at {story.ready_s:.2f} s{behind}.")
    if story.started_s is None:
        return [*lines, *_wait(story), *_turns(story), f"{cut}started." if cut else "It has not started."]
    if story.waited_s:
        lines += [f"It waited {story.waited_s:.2f} s.", *_wait(story), *_turns(story, story.started_s, before=True)]
    else:
        lines.append("It started at once.")
    where = f"on {list(story.devices)}" if story.devices else "on no device"
    lines.append(f"It started at {story.started_s:.2f} s {where}: {story.why}.")
    lines += _found_there(story)
    if story.attempts > 1:
        lines.append(f"That was attempt {story.attempts}.")
    lines += [*_shared(story), *_turns(story, story.started_s)]
    if story.finished_s is not None:
        lines.append(f"It finished at {story.finished_s:.2f} s.")
    elif story.status not in ("running", "paused"):
        lines.append(f"It {story.status}.")
    elif cut:
        lines.append(f"{cut}ended.")
    return lines


def _found_there(story: Explanation) -> list[str]:
    """What it found on its devices, and what it had to wait for."""
    lines = []
    if story.preload is not None:
        lines.append(f"{story.kind} was preloaded there from {story.preload.t_s:.2f} s on: {story.preload.why}.")
    if story.setup_s:
        old = f" in the place of {story.replaces}" if story.replaces else ""
        lines.append(f"Making {story.kind} resident{old} took {story.setup_s:.2f} s.")
    if story.cached:
        lines.append(
            f"{_many(story.cached, 'block')} of its input {'was' if story.cached == 1 else 'were'} cached there."
        )
    return lines


def _wait(story: Explanation) -> list[str]:
    """Why it could not start at once, as far as the devices and the others tell."""
    lines, free = [], story.free_when_ready
    if free is not None and len(free) < story.width:
        held = ", ".join(f"{list(o.devices)} by {o.job}/{o.task} ({o.kind})" for o in story.holders[:_SHOWN])
        few = f"Only {_free(len(free))}" if free else "No device was free"
        lines.append(f"{few} when it became ready" + (f"; held were {held}." if held else "."))
    elif free is not None and story.fragmented:
        named = ", ".join(map(str, free[:_SHOWN])) + (", ..." if len(free) > _SHOWN else "")
        lines.append(f"{_free(len(free))} then ({named}), but no {story.width} side by side.")
    elif free is not None and not any(turn.what == _TURNS[Defer] for turn in story.turns):  # which say it better
        lines.append(f"{_free(len(free))} then, but the policy preferred others.")
    if story.overtaken_by:
        first = ", ".join(f"{o.job}/{o.task} ({o.kind}, {o.why})" for o in story.overtakers[:3])
        lines.append(f"{_many(story.overtaken_by, 'task')} became ready later and started earlier, first {first}.")
    return lines


def _shared(story: Explanation) -> list[str]:
    """Whom it shared its devices with, and what was seen of it there."""
    lines = [f"At {t:.2f} s its {what} {'were' if what.endswith('s') else 'was'} seen." for t, what in story.seen]
    if story.slots:
        lines.insert(0, f"It had one of {story.slots} slots there, beside {_many(story.beside, 'other')}.")
    return lines


def _turns(story: Explanation, started_s: float = 0.0, before: bool = False) -> list[str]:
    """What was decided about it before its (last) start, or from then on."""
    lines = []
    for turn in story.turns:
        if (turn.t_s < started_s) == before:
            where = f" on {list(turn.devices)}" if turn.devices else ""
            lines.append(f"At {turn.t_s:.2f} s it {turn.what}{where}: {turn.why}.")
    return lines


def _many(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"


def _free(count: int) -> str:
    return f"{_many(count, 'device')} {'was' if count == 1 else 'were'} free"
