"""What a level calls the things that a journal names neutrally, and which of its closing figures are shown.

They travel in the journal's header, so that the checker and the report need to know no level.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Unit = Literal["s", "share", "count", "number"]


class Claim(Struct, frozen=True, array_like=True):
    """A figure of a journal's closing summary: its key there, its name, and what it counts in."""

    key: str
    name: str
    unit: Unit = "number"


class Words(Struct, frozen=True, omit_defaults=True):
    """A level's words for what the journal calls job, task, kind and device.

    >>> Words(job="request", jobs="requests").jobs, Words().tasks
    ('requests', 'tasks')
    """

    job: str = "job"
    jobs: str = "jobs"
    task: str = "task"
    tasks: str = "tasks"
    kind: str = "kind"
    kinds: str = "kinds"
    type: str = "type of job"
    device: str = "device"
    devices: str = "devices"
    setup: str = "set-up"  # empty where there is no such thing
    setups: str = "set-ups"
    response: str = "response"  # the time from arrival to completion
    waiting: str = "tasks"  # what waits
    rejected: str = "rejected"  # what the journal calls so: where programs fail and are cancelled, they are that too
    parts: bool = False  # jobs are parts of one piece of work: what counts is when all are done
    resume: str = ""  # how a run that was interrupted can go on
    claims: tuple[Claim, ...] = ()
