"""Request files: a line for each program that arrives, and for each change of one."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files import open_bytes

Delays = Literal["before", "after"]
_KINDS = ("execution", "update")


class Request(Struct, frozen=True):
    """A line of the request file: a program to start, or (`update`) new threads for one; `work` if it is given."""

    line: int
    kind: str
    id: str
    image: str
    threads: int
    at_s: float
    priority: int = 0
    work: float | None = None


def read_requests(path: Path, delays: Delays = "before") -> list[Request]:
    """Lines `type,id,image,threads,delay[,priority[,work]]`. A delay passes before its own line, or after it; the time
    starts with the first request. `work` is ours: core-seconds.
    """
    with open_bytes(path) as file:
        try:
            lines = file.read().decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not text: {error.reason}") from None
    found: list[Request] = []
    started: set[str] = set()
    clock, passed = 0.0, 0.0
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        request, delay_s = _request(path, number, line)
        if request.kind == "execution":
            if request.id in started:
                raise InputError(f"{path}:{number}: id: {request.id} is started twice")
            started.add(request.id)
        elif request.id not in started:
            known = did_you_mean(request.id, started)
            raise InputError(f"{path}:{number}: id: update of {request.id}, which no line before it starts{known}")
        if found:
            clock += delay_s if delays == "before" else passed
        passed = delay_s
        found.append(msgspec.structs.replace(request, at_s=clock))
    if not found:
        raise InputError(f"{path}: is empty; expected lines of type,id,image,threads,delay,priority")
    return found


def _request(path: Path, number: int, line: str) -> tuple[Request, float]:
    fields = [field.strip() for field in line.split(",")]
    place = f"{path}:{number}"
    if not 5 <= len(fields) <= 7:
        expected = "type,id,image,threads,delay, then priority and work if there are any"
        raise InputError(f"{place}: found {len(fields)} fields, expected {expected}")
    kind, id_, image = fields[:3]
    if kind not in _KINDS:
        raise InputError(f"{place}: type: found {kind!r}, expected execution or update{did_you_mean(kind, _KINDS)}")
    if not id_:
        raise InputError(f"{place}: id: is empty")
    threads = _whole(f"{place}: threads", fields[3], 1)
    delay_s = _seconds(f"{place}: delay", fields[4].removeprefix("[").removesuffix("]"))
    priority = _whole(f"{place}: priority", fields[5], 0) if len(fields) > 5 and fields[5] else 0
    work = _seconds(f"{place}: work", fields[6]) if len(fields) > 6 else None
    return Request(number, kind, id_, image, threads, 0.0, priority, work), delay_s


def _whole(where: str, text: str, least: int) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > 6 or int(text) < least:
        raise InputError(f"{where}: found {text!r}, expected a whole number from {least} on")
    return int(text)


def _seconds(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not isfinite(value) or value < 0:
        raise InputError(f"{where}: found {text!r}, expected a number from 0 on")
    return value
