"""What goes into a scheduler (stimuli) and what comes out (instructions): small frozen structs.

They are also the journal's records: what was seen and what was decided is written as it is.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class Event(Struct, frozen=True, gc=False, tag_field="k", omit_defaults=True):
    """Anything that a journal line may hold besides its step and time."""


# --- stimuli: what happened -----------------------------------------------------------------------


class Arrived(Event, frozen=True, gc=False, tag="arrived"):
    """A work has arrived. `sizes` are seconds per part on a device of speed 1, in the order of the shape's parts;
    `due_s` is how long after its arrival it should be complete.

    `fault` tells why an input is unusable: it arrives all the same, is rejected, and so is never silently missing.
    `facts` holds what only the level understands, of works that no header can describe ahead.
    """

    work: str
    of: str
    sizes: tuple[float, ...] = ()
    due_s: float | None = None
    weight: float = 1.0
    fault: str = ""
    facts: dict[str, Any] = {}


class Finished(Event, frozen=True, gc=False, tag="finished"):
    work: str
    part: str


class Failed(Event, frozen=True, gc=False, tag="failed"):
    work: str
    part: str
    why: str


class Woke(Event, frozen=True, gc=False, tag="woke"):
    """The time asked for by a `WakeAt` has come."""


class Asked(Event, frozen=True, gc=False, tag="asked"):
    """Somebody asks for something about a work: to pause or resume it, to resize it to `value`, and so on. What can be
    asked for, and whether it is granted, is the level's business."""

    work: str
    what: str
    value: float | None = None


class Settled(Event, frozen=True, gc=False, tag="settled"):
    """An executor's word that a change has taken effect: the part now really has these devices (none: it is paused)."""

    work: str
    part: str
    devices: tuple[int, ...] = ()


class Rows(Event, frozen=True, gc=False, tag="rows"):
    """Many things of one kind at one instant, column by column: what happened or was decided at a level whose grain is
    the round, where an event for each would drown it. The level says what `of` and the columns mean."""

    of: str
    columns: dict[str, Any]


# --- instructions: what was decided ---------------------------------------------------------------


class Start(Event, frozen=True, gc=False, tag="started"):
    """Run a part on these devices now: first `setup_s` to make `kind` resident, then an expected `run_s`.

    `replaces` is what the first device that needs a change held before; `batch` is shared by parts that run as one.
    """

    work: str
    part: str
    kind: str
    devices: tuple[int, ...]
    ready_s: float
    run_s: float
    why: str
    setup_s: float = 0.0
    replaces: str | None = None
    batch: int = 0


class Pause(Event, frozen=True, gc=False, tag="paused"):
    """Halt a running part and take its devices away; it keeps what it has done."""

    work: str
    part: str
    why: str


class Resume(Event, frozen=True, gc=False, tag="resumed"):
    """Let a paused part go on, on these devices, for an expected `run_s` more."""

    work: str
    part: str
    devices: tuple[int, ...]
    run_s: float
    why: str


class Resize(Event, frozen=True, gc=False, tag="resized"):
    """Let a running part go on with other devices, for an expected `run_s` more."""

    work: str
    part: str
    devices: tuple[int, ...]
    run_s: float
    why: str


class Stop(Event, frozen=True, gc=False, tag="stopped"):
    """End a running or paused part for good. It holds its devices until its end is reported, as `Failed` or
    `Finished`: whichever was first."""

    work: str
    part: str
    why: str


class Defer(Event, frozen=True, gc=False, tag="deferred"):
    """A part goes on waiting, and why. It changes nothing but what can be read; given when the reason changes."""

    work: str
    part: str
    why: str


class Complete(Event, frozen=True, gc=False, tag="completed"):
    """All parts of a work have finished."""

    work: str


class Reject(Event, frozen=True, gc=False, tag="rejected"):
    """A work will not be completed, and why."""

    work: str
    why: str


class WakeAt(Event, frozen=True, gc=False, tag="wake_at"):
    at_s: float


Change = Pause | Resume | Resize | Stop
Stimulus = Arrived | Finished | Failed | Woke | Asked | Settled
Instruction = Start | Change | Defer | Complete | Reject | WakeAt
