"""What goes into a scheduler (stimuli) and what comes out (instructions): small frozen structs.

They are also the journal's records: what was seen and what was decided is written as it is.
"""

from __future__ import annotations

from msgspec import Struct


class Event(Struct, frozen=True, gc=False, tag_field="k", omit_defaults=True):
    """Anything that a journal line may hold besides its step and time."""


# --- stimuli: what happened -----------------------------------------------------------------------


class Arrived(Event, frozen=True, gc=False, tag="arrived"):
    """A work has arrived. `sizes` are seconds per part on a device of speed 1, in the order of the shape's parts;
    `due_s` is how long after its arrival it should be complete.

    `fault` tells why an input is unusable: it arrives all the same, is rejected, and so is never silently missing.
    """

    work: str
    of: str
    sizes: tuple[float, ...] = ()
    due_s: float | None = None
    weight: float = 1.0
    fault: str = ""


class Finished(Event, frozen=True, gc=False, tag="finished"):
    work: str
    part: str


class Failed(Event, frozen=True, gc=False, tag="failed"):
    work: str
    part: str
    why: str


class Woke(Event, frozen=True, gc=False, tag="woke"):
    """The time asked for by a `WakeAt` has come."""


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


class Complete(Event, frozen=True, gc=False, tag="completed"):
    """All parts of a work have finished."""

    work: str


class Reject(Event, frozen=True, gc=False, tag="rejected"):
    """A work will not be completed, and why."""

    work: str
    why: str


class WakeAt(Event, frozen=True, gc=False, tag="wake_at"):
    at_s: float


Stimulus = Arrived | Finished | Failed | Woke
Instruction = Start | Complete | Reject | WakeAt
