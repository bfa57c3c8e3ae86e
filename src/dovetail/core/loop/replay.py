"""Decide a recorded run again: the same stimuli, given to a scheduler made from the header, must give the same."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.files.document import as_path
from dovetail.core.journal import Ended, Reader, open_journal
from dovetail.core.loop.engine import Scheduler, replay
from dovetail.core.registry import room

_ROOMS = ("replay", "scheduler", "rounds", "planner", "simulate")  # where a level may have its `scheduler_for`


class Difference(Struct, frozen=True):
    """The first decision that is not the recorded one; one of the two is empty where nothing stands against it."""

    step: int
    t: float
    decided: str
    recorded: str


class Agreement(Struct, frozen=True):
    """How many steps were decided as they are recorded, until one was not or the journal ended."""

    journal: str
    level: str
    policy: str
    steps: int
    difference: Difference | None = None


def scheduler_of(reader: Reader) -> Scheduler:
    """The scheduler that a journal's header describes, made by its level."""
    level = reader.header.level
    rooms = [found for name in _ROOMS if (found := room(level, name)) is not None]
    makers = [found.scheduler_for for found in rooms if hasattr(found, "scheduler_for")]
    if not makers:
        raise InputError(f"{reader.path}: level {level!r} is not installed, or cannot decide a recorded run again")
    scheduler: Scheduler = makers[0](reader)
    return scheduler


def replay_journal(path: str | os.PathLike[str], scheduler: Scheduler | None = None) -> Agreement:
    """Decide a recorded run again, up to the first difference: what comes after one is another run. The scheduler is
    the one that the header describes, unless it is given."""
    reader = open_journal(as_path(path, "journal"))
    header, steps, n, t = reader.header, 0, 0, 0.0
    difference = None
    try:
        for n, t, decided, recorded in replay(scheduler or scheduler_of(reader), reader):
            difference = _difference(n, t, decided, recorded)
            if difference is not None:
                if not (difference.decided and difference.recorded) and _breaks_off(reader, n):
                    difference = None
                break
            steps += 1
    except InputError:
        raise
    except Exception as error:  # of a scheduler that is told what cannot have happened: the journal is damaged
        difference = Difference(n + 1, t, f"{type(error).__name__}: {error}", "")
    return Agreement(str(path), header.level, header.policy, steps, difference)


def _difference(n: int, t: float, decided: list[Any], recorded: list[Any]) -> Difference | None:
    try:
        if decided == recorded:
            return None
    except ValueError:  # columns that are arrays have no one truth
        pass
    ours, theirs = [_told(event) for event in decided], [_told(event) for event in recorded]
    length = max(len(ours), len(theirs))
    ours, theirs = ours + [""] * (length - len(ours)), theirs + [""] * (length - len(theirs))
    unlike = [Difference(n, t, one, two) for one, two in zip(ours, theirs, strict=True) if one != two]
    return unlike[0] if unlike else None  # arrays and lists of the same numbers are told alike


def _breaks_off(reader: Reader, n: int) -> bool:
    """Whether a journal has no end and this is its last step: a part of what was seen or decided may be missing."""
    ((last, _, events),) = deque(reader.rows(), maxlen=1)
    return last == n and not any(isinstance(event, Ended) for event in events)


def _told(event: Any) -> str:
    return msgspec.json.encode(event, enc_hook=lambda value: value.tolist()).decode()
