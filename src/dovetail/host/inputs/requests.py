"""Requests: a line of a file, or a row of a table, for each program that arrives and for each change of one."""

from __future__ import annotations

import os
from collections.abc import Iterable
from math import isfinite
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Source, as_path
from dovetail.core.files.reading import open_bytes
from dovetail.host.gpus import parse_mib

Delays = Literal["before", "after"]
_KINDS = ("execution", "update")
_MOST = 999_999
_LONGEST_S = 1e18


class Request(Struct, frozen=True, repr_omit_defaults=True):
    """A line of the request file: a program to start, or (`update`) new threads for one; `work` if it is given."""

    line: int
    kind: str
    id: str
    image: str
    threads: int
    at_s: float
    priority: int = 0
    work: float | None = None
    gpus: int = 0
    gpu_mem_mib: int | None = None
    gpu_type: str = ""


class HostRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The same as a dict or as a row of a frame. Either all come `at_s`, or each has a delay, as in a file. Without an
    id a program is called by its place."""

    threads: Annotated[int, Meta(ge=1, le=_MOST)]
    type: Literal["execution", "update"] = "execution"
    id: str | int = ""
    image: str = ""
    at_s: Annotated[float, Meta(ge=0, le=_LONGEST_S)] | None = None
    delay: Annotated[float, Meta(ge=0, le=_LONGEST_S)] = 0.0
    priority: Annotated[int, Meta(ge=0, le=_MOST)] = 0
    work: Annotated[float, Meta(ge=0, le=_LONGEST_S)] | None = None
    gpus: Annotated[int, Meta(ge=0, le=_MOST)] = 0
    gpu_mem: str | int | None = None
    gpu_type: str = ""


def read_requests(source: Source, delays: Delays = "before") -> list[Request]:
    """A file of lines `type,id,image,threads,delay[,priority[,work[,gpus[,gpu_mem[,gpu_type]]]]]`, or rows with these
    names. A delay passes before its own line, or after it; the time starts with the first request. `work`, in
    core-seconds, and what follows is ours.

    >>> read_requests([{"threads": 4}, {"threads": 2, "delay": 30}])[1]
    Request(line=2, kind='execution', id='1', image='', threads=2, at_s=30.0)
    """
    if isinstance(source, str | os.PathLike):
        return _read_file(as_path(source, "requests"), delays)
    if isinstance(source, list | tuple) and source and all(isinstance(each, Request) for each in source):
        return sorted(source, key=lambda request: request.at_s)
    doc = Document.of(source, "requests")
    rows = [doc.convert(_whole_numbers(row), HostRequest, (i,)) for i, row in enumerate(_rows(doc))]
    found = [(f"requests[{i}]", _from_row(i, row)) for i, row in enumerate(rows)]
    if any(row.at_s is not None for row in rows):
        found.sort(key=lambda each: each[1].at_s)
        return _sequence("requests", ((where, request, None) for where, request in found), delays)
    return _sequence("requests", ((*each, row.delay) for each, row in zip(found, rows, strict=True)), delays)


def _from_row(i: int, row: HostRequest) -> Request:
    name = str(i if row.id == "" else row.id)
    memory = None if row.gpu_mem is None else parse_mib(row.gpu_mem, f"requests[{i}].gpu_mem")
    first = (i + 1, row.type, name, row.image, row.threads, row.at_s or 0.0, row.priority, row.work)
    return Request(*first, row.gpus, memory, row.gpu_type)


def _rows(doc: Document) -> list[object]:
    if not isinstance(doc.data, list):
        raise doc.error((), "expected a list of requests")
    return doc.data


def _whole_numbers(row: object) -> object:
    """Frames hold whole numbers as others where a cell of the column is empty."""
    if not isinstance(row, dict):
        return row
    whole = ("threads", "priority", "id", "gpus")
    return {k: int(v) if k in whole and isinstance(v, float) and v.is_integer() else v for k, v in row.items()}


def _read_file(path: Path, delays: Delays) -> list[Request]:
    with open_bytes(path) as file:
        try:
            lines = file.read().decode("utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not text: {error.reason}") from None
    told = ((f"{path}:{number}", line) for number, line in enumerate(lines, start=1) if line.strip())
    return _sequence(path, ((place, *_request(place, line)) for place, line in told), delays)


def _sequence(name: str | Path, told: Iterable[tuple[str, Request, float | None]], delays: Delays) -> list[Request]:
    """Requests at their times; each with its place, and its delay where it has no time."""
    found: list[Request] = []
    started: set[str] = set()
    clock, passed = 0.0, 0.0
    for where, request, delay_s in told:
        if (request.gpu_mem_mib or request.gpu_type) and not request.gpus:
            raise InputError(f"{where}: gpus: is missing, expected some beside gpu_mem or gpu_type")
        if request.gpus and request.kind == "update":
            raise InputError(f"{where}: gpus: found {request.gpus} of an update, expected none: they are a start's")
        if request.kind == "execution":
            if request.id in started:
                raise InputError(f"{where}: id: {request.id} is started twice")
            started.add(request.id)
        elif request.id not in started:
            known = did_you_mean(request.id, started)
            raise InputError(f"{where}: id: update of {request.id}, which no line before it starts{known}")
        if delay_s is not None:
            if found:
                clock += delay_s if delays == "before" else passed
            passed = delay_s
            request = msgspec.structs.replace(request, at_s=clock)
        found.append(request)
    if not found:
        raise InputError(f"{name}: is empty; expected lines of type,id,image,threads,delay,priority")
    return found


def _request(place: str, line: str) -> tuple[Request, float]:
    fields = [field.strip() for field in line.split(",")]
    if not 5 <= len(fields) <= 10:
        expected = "type,id,image,threads,delay, then priority, work, gpus, gpu_mem and gpu_type if there are any"
        raise InputError(f"{place}: found {len(fields)} fields, expected {expected}")
    kind, id_, image = fields[:3]
    if kind not in _KINDS:
        raise InputError(f"{place}: type: found {kind!r}, expected execution or update{did_you_mean(kind, _KINDS)}")
    if not id_:
        raise InputError(f"{place}: id: is empty")
    threads = _whole(f"{place}: threads", fields[3], 1)
    delay_s = _seconds(f"{place}: delay", fields[4].removeprefix("[").removesuffix("]"))
    priority = _whole(f"{place}: priority", fields[5], 0) if len(fields) > 5 and fields[5] else 0
    work = _seconds(f"{place}: work", fields[6]) if len(fields) > 6 and fields[6] else None
    gpus, memory, type_ = (*fields[7:], "", "", "")[:3]
    held = (_whole(f"{place}: gpus", gpus or "0", 0), parse_mib(memory, f"{place}: gpu_mem") if memory else None, type_)
    number = int(place.rpartition(":")[2])
    return Request(number, kind, id_, image, threads, 0.0, priority, work, *held), delay_s


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
