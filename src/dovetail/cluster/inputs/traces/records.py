"""What the log of a scheduler says of one job, as a job of ours: what it does not say is told by a mapping.

A record says when a job came, how long it ran, on how many accelerators and perhaps on which type. A user's `map` names
the key that holds what else is known (model, steps, weight, ...), `model` says what the names there are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import combinations
from typing import Any

from dovetail.cluster.inputs.csv_rows import LEAST_WEIGHT, MOST, MOST_WEIGHT, MOST_WHOLE
from dovetail.cluster.inputs.traces.format import TraceReading
from dovetail.cluster.inputs.workload import Job
from dovetail.core.errors import InputError, did_you_mean

MAPPED = ("model", "steps", "width", "weight", "due_s", "entity", "name", "type")
_BOUNDS = {"steps": (0, MOST), "width": (1, MOST_WHOLE), "weight": (LEAST_WEIGHT, MOST_WEIGHT), "due_s": (0, MOST)}
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(?:(\d+):)?(\d+(?:\.\d+)?)")


def check_map(map: Mapping[str, str]) -> None:
    """
    >>> check_map({"modle": "JobName"})
    Traceback (most recent call last):
    dovetail.core.errors.InputError: map: unknown name 'modle'; did you mean 'model'?
    """
    for name in map:
        if name not in MAPPED:
            raise InputError(f"map: unknown name {name!r}{did_you_mean(name, MAPPED)}")


@dataclass(slots=True, kw_only=True)
class JobRecord:
    """What a log says of one job. `wants` are types that it asked for, `ran_on` the one that it had; `ended` is how, if
    not well. `look` gives what a key of the log's record holds."""

    place: str
    look: Callable[[str], Any]
    key: str
    arrival_s: float
    ran_s: float
    width: int | None
    name: str = ""
    entity: str = ""
    ran_on: str = ""
    wants: tuple[str, ...] = ()
    share: float = 1.0  # of an accelerator
    ended: str = ""
    spread: bool = False  # over several servers

    def error(self, column: str, message: str) -> InputError:
        return InputError(f"{self.place}: {column + ': ' if column else ''}{message}")

    def mapped(self, name: str, key: str) -> str:
        """What the key holds that stands for this name, as text; a number in the place of a key is its value."""
        if not key or _is_number(key):
            return key
        found = self.look(key)
        return "" if found is None else str(found).strip()

    def number(self, name: str, key: str) -> float | None:
        text = self.mapped(name, key)
        if not text or text.upper() in ("UNLIMITED", "NONE", "N/A", "UNKNOWN"):
            return None
        least, most = _BOUNDS[name]
        value = seconds_of(text)
        if value is None or not least <= value <= most or (name == "width" and value != int(value)):
            kind = "a whole number" if name == "width" else "a number"
            raise self.error(key, f"expected {kind} from {least:g} to {most:g} for {name}, found {text!r}")
        return value


def jobs_of(reading: TraceReading, records: Iterator[JobRecord | InputError | str]) -> Iterator[Job]:
    """Jobs of records. A reader gives a text in the place of a record that it leaves out, and an error where it cannot
    read one."""
    check_map(reading.map)
    for told in reading.model.values():
        if told not in reading.mapper.models:
            raise InputError(f"model {told!r}: no throughputs for it{did_you_mean(told, reading.mapper.models)}")
    for record in records:
        try:
            if isinstance(record, InputError):
                raise record
            if isinstance(record, str):
                reading.leave_out(record)
            elif (job := _job(reading, record)) is not None:
                yield job
        except InputError as error:
            if reading.on_error == "fail":
                raise
            reading.skip(str(error))


def _job(reading: TraceReading, record: JobRecord) -> Job | None:
    map = reading.map
    width = record.number("width", map["width"]) if "width" in map else record.width
    if width is None:
        reading.leave_out("jobs that do not say how many accelerators they had (--map width=KEY tells)")
        return None
    if not width or not record.ran_s > 0:
        reading.leave_out("jobs that took no time" if width else "jobs without a GPU")
        return None
    if not 0 < width <= MOST_WHOLE or not record.ran_s <= MOST:
        found = f"{width:g} accelerators for {record.ran_s:g} s"
        raise record.error("", f"expected 1 to {MOST_WHOLE} accelerators and at most {MOST:g} s, found {found}")
    width, mapper = int(width), reading.mapper
    name = record.mapped("name", map["name"]) if "name" in map else record.name
    theirs = record.mapped("model", map["model"]) if "model" in map else name
    told = _told(reading.model, theirs, name)
    model = reading.draw(record, record.key, width, told or (theirs if "model" in map else ""))
    wants = (record.mapped("type", map["type"]),) if "type" in map else record.wants
    types = [known for wanted in wants if wanted and (known := known_type(wanted, mapper.types))]
    ran_on = known_type(record.ran_on, mapper.types) or (types[0] if len(types) == 1 else "")
    steps = record.number("steps", map["steps"]) if "steps" in map else None
    if any(wants):
        model = reading.only_on(model, width, types)
    if record.ended:
        reading.ended[record.ended] += 1
    return reading.job(
        record,
        model=model,
        width=width,
        arrival_s=record.arrival_s,
        steps=steps,
        duration_s=None if steps is not None else record.ran_s * record.share,
        ran_on=ran_on,
        spread=record.spread,
        weight=(record.number("weight", map["weight"]) if "weight" in map else None) or 1.0,
        due_s=record.number("due_s", map["due_s"]) if "due_s" in map else None,
        entity=record.mapped("entity", map["entity"]) if "entity" in map else record.entity,
        name=name,
    )


def _told(model: Mapping[str, str], theirs: str, name: str) -> str:
    """Which model a user says that this is: the first pattern that fits, else the one for all others."""
    for pattern, found in model.items():
        if pattern and (fnmatchcase(theirs, pattern) or fnmatchcase(name, pattern)):
            return found
    return model.get("", "")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def seconds_of(text: str) -> float | None:
    """Seconds of a number, or of a time as `[DAYS-[HOURS:]]MINUTES:SECONDS`; None if it is neither.

    >>> seconds_of("2-03:04:05"), seconds_of("1-12"), seconds_of("03:04.500"), seconds_of("90"), seconds_of("soon")
    (183845.0, 129600.0, 184.5, 90.0, None)
    """
    found = _CLOCK.fullmatch(text)
    if found is None:
        return float(text) if _is_number(text) else None
    days, *parts, last = found.groups()
    clock = [float(part) for part in parts if part is not None] + [float(last)]
    if days is not None:  # behind days come hours, then minutes, then seconds
        return float(days) * 86400 + sum(each * 60.0 ** (2 - i) for i, each in enumerate(clock))
    return sum(each * 60.0**i for i, each in enumerate(reversed(clock)))


def known_type(name: str, types: Collection[str]) -> str:
    """Which of our types a scheduler's name of one means; nothing if none.

    >>> known_type("NVIDIA-A100-SXM4-80GB", ["a10", "a100", "a100-80"]), known_type("nvidia_a100", ["a10"])
    ('a100-80', '')
    >>> known_type("rtx_2080_ti", ["rtx2080ti"]), known_type("hub-h100-spot-1x", ["h100"])
    ('rtx2080ti', 'h100')
    """
    words = [word.removesuffix("gb") for word in re.split(r"[^a-z0-9]+", name.lower()) if word]
    said = {"".join(words[i:k]) for i, k in combinations(range(len(words) + 1), 2)}
    fitting = [each for each in types if set(re.split(r"[^a-z0-9]+", each.lower())) <= said or _plain(each) in said]
    return max(fitting, key=lambda each: len(_plain(each)), default="")


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", name.lower())
