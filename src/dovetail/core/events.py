"""What goes into a scheduler (stimuli) and what comes out (instructions): small frozen structs.

They are also the journal's records: what was seen and what was decided is written as it is.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from dovetail.core.resources import Device, DeviceType
from dovetail.core.tasks import Task, TaskGraphRecord


class Event(Struct, frozen=True, gc=False, tag_field="k", omit_defaults=True):
    """Anything that a journal line may hold besides its step and time."""


# --- stimuli: what happened -----------------------------------------------------------------------


class Arrived(Event, frozen=True, gc=False, tag="arrived"):
    """A job has arrived. `sizes` are seconds per task on a device of speed 1, in the order of the graph's tasks;
    `due_s` is how long after its arrival it should be complete.

    `fault` tells why an input is unusable: it arrives all the same, is rejected, and so is never silently missing.
    `facts` holds what only the level understands, of jobs that no header can describe ahead.
    """

    job: str
    of: str
    sizes: tuple[float, ...] = ()
    due_s: float | None = None
    weight: float = 1.0
    fault: str = ""
    facts: dict[str, Any] = {}


class Grew(Event, frozen=True, gc=False, tag="grew"):
    """The end of a task adds tasks to its job, with their sizes, and edges that lead to them or to tasks that are not
    ready yet; `why` says what was decided. It is told in the same step as the task's `Finished`, and before it."""

    job: str
    task: str
    tasks: tuple[Task, ...]
    edges: tuple[tuple[str, str], ...] = ()
    sizes: tuple[float, ...] = ()
    why: str = ""


class Finished(Event, frozen=True, gc=False, tag="finished"):
    job: str
    task: str


class Failed(Event, frozen=True, gc=False, tag="failed"):
    """A task has ended without a result. `lost`: with the place where it ran, which is to blame, and not the task."""

    job: str
    task: str
    why: str
    lost: bool = False


class Woke(Event, frozen=True, gc=False, tag="woke"):
    """The time asked for by a `WakeAt` has come."""


class Asked(Event, frozen=True, gc=False, tag="asked"):
    """Somebody asks for something about a job: to pause or resume it, to resize it to `value`, and so on. What can be
    asked for, and whether it is granted, is the level's business; `facts` holds what only the level understands."""

    job: str
    what: str
    value: float | None = None
    facts: dict[str, Any] = {}


class Settled(Event, frozen=True, gc=False, tag="settled"):
    """An executor's word that a change has taken effect: the task now really has these devices (none: it is paused)."""

    job: str
    task: str
    devices: tuple[int, ...] = ()


class PrepareEnded(Event, frozen=True, gc=False, tag="prepared"):
    """What a `Prepare` asked for is resident, or is not after all, and why."""

    id: int
    why: str = ""


class Measured(Event, frozen=True, gc=False, tag="measured"):
    """A running task was seen to do so much per second on so many devices; in which unit, the level says."""

    job: str
    task: str
    width: int
    rate: float


class Observed(Event, frozen=True, gc=False, tag="observed"):
    """Something that only the level understands was seen: a host that fell silent, a step that took too long."""

    what: str
    facts: dict[str, Any] = {}


class Added(Event, frozen=True, gc=False, tag="added"):
    """Devices, or graphs of jobs, that join a run: they are used like those of the header from here on. Devices are
    numbered on from those that are there."""

    why: str
    devices: tuple[Device, ...] = ()
    types: dict[str, DeviceType] = {}
    graphs: tuple[TaskGraphRecord, ...] = ()


class Rows(Event, frozen=True, gc=False, tag="rows"):
    """Many things of one kind at one instant, column by column: what happened or was `decided` at a level whose grain
    is the round, where an event for each would drown it. The level says what `of` and the columns mean."""

    of: str
    columns: dict[str, Any]
    decided: bool = False


# --- instructions: what was decided ---------------------------------------------------------------


class Start(Event, frozen=True, gc=False, tag="started"):
    """Run a task on these devices now: first `setup_s` to make `kind` resident, then an expected `run_s`.

    `replaces` is what the first device that needs a change held before; `batch` is shared by tasks that run as one.
    `first_s` is how much of the run is expected to pass before the first output, where that is seen; `cached` how much
    of its input was there already, in what the level counts it in. With `slots`, up to so many tasks of one kind hold
    these same devices at once, each slower the more there are; who joins while the first is set up has what is left of
    that as `setup_s`. Without, a task is there alone. `gpus` are those that it uses beside its devices, where those are
    the cores of a machine; others may use them too, as the level has it.
    """

    job: str
    task: str
    kind: str
    devices: tuple[int, ...]
    ready_s: float
    run_s: float
    why: str
    setup_s: float = 0.0
    replaces: str | None = None
    batch: int = 0
    first_s: float | None = None
    cached: int = 0
    slots: int = 0
    gpus: tuple[int, ...] = ()


class Prepare(Event, frozen=True, gc=False, tag="preparing"):
    """Make `kind` resident on these devices before any task needs it, which is expected to take `setup_s`. They are
    held until `PrepareEnded`, or until a task of that kind starts on these same devices: it has what is left of that as
    its `setup_s`, and `PrepareEnded` is told all the same. `replaces` is as for a start."""

    id: int
    kind: str
    devices: tuple[int, ...]
    setup_s: float
    why: str
    replaces: str | None = None


class Pause(Event, frozen=True, gc=False, tag="paused"):
    """Halt a running task and take its devices away; it keeps what it has done."""

    job: str
    task: str
    why: str


class Resume(Event, frozen=True, gc=False, tag="resumed"):
    """Let a paused task go on, on these devices, for an expected `run_s` more."""

    job: str
    task: str
    devices: tuple[int, ...]
    run_s: float
    why: str


class Resize(Event, frozen=True, gc=False, tag="resized"):
    """Let a running task go on with other devices, for an expected `run_s` more."""

    job: str
    task: str
    devices: tuple[int, ...]
    run_s: float
    why: str


class Stop(Event, frozen=True, gc=False, tag="stopped"):
    """End a running or paused task for good. It holds its devices until its end is reported, as `Failed` or
    `Finished`: whichever was first."""

    job: str
    task: str
    why: str


class Defer(Event, frozen=True, gc=False, tag="deferred"):
    """A task goes on waiting, and why. It changes nothing but what can be read; given when the reason changes."""

    job: str
    task: str
    why: str


class Complete(Event, frozen=True, gc=False, tag="completed"):
    """All tasks of a job have finished."""

    job: str


class Reject(Event, frozen=True, gc=False, tag="rejected"):
    """A job will not be completed, and why; `cancelled` if somebody asked for that. `queue` names the queue that was
    full when it arrived, if that is why."""

    job: str
    why: str
    cancelled: bool = False
    queue: str = ""


class Decided(Event, frozen=True, gc=False, tag="decided"):
    """Something that only the level understands was decided, and why: a new plan, a host given up."""

    what: str
    why: str
    facts: dict[str, Any] = {}


class WakeAt(Event, frozen=True, gc=False, tag="wake_at"):
    at_s: float


Change = Pause | Resume | Resize | Stop
Order = Start | Prepare | Change  # what an executor carries out
Stimulus = Arrived | Grew | Finished | Failed | Woke | Asked | Settled | PrepareEnded | Measured | Observed | Added
Instruction = Start | Prepare | Change | Defer | Complete | Reject | Decided | WakeAt
