"""What the columns of this level's rows must be: whole numbers, times, lists as long as each other.

What they refer to (jobs, devices, kinds, reasons) is for the checker to judge; this is what it must be able to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from dovetail.core.errors import InputError
from dovetail.core.events import Rows
from dovetail.core.files.reading import open_bytes
from dovetail.core.journal import Reader

LARGEST = 1e15  # seconds, steps, prices: no sum of them loses its meaning

_Place = Annotated[int, Meta(ge=0, lt=1 << 31)]
_Amount = Annotated[float, Meta(ge=0, le=LARGEST)]
_Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
_Other = Annotated[int, Meta(ge=-1, lt=1 << 31)]  # a job, or nobody
_Ids = Annotated[list[_Place], Meta(min_length=1)]


class _Arrived(Struct):
    id: _Ids
    kind: list[_Place]
    steps: list[_Amount]
    at_s: list[_Amount]
    name: list[str] = []
    weight: list[_Amount] = []
    due_s: list[_Number | None] = []
    duration_s: list[_Amount | None] = []
    entity: list[_Place] = []
    stays: list[bool] = []
    phases: list[list[tuple[_Amount, _Place]]] = []


class _Started(Struct):
    id: _Ids
    on: list[_Place]
    devices: list[list[_Place]]
    why: list[_Place]
    kind: list[_Place] = []
    beside: list[_Other] = []
    setup_s: list[_Amount] = []
    local: list[_Place] = []
    accumulation: list[_Place] = []
    epoch: list[_Place] = []


class _Stopped(Struct):
    id: _Ids
    on: list[_Place]
    beside: list[_Other]
    from_s: list[_Amount]
    to_s: list[_Amount]
    steps: list[_Amount]


class _Completed(Struct):
    id: _Ids
    at_s: list[_Amount]


class _Rejected(Struct):
    id: _Ids
    why: list[str]


class _Failed(Struct):
    device: _Ids
    jobs: list[list[_Place]]


class _Prices(Struct):
    price: list[_Number]
    until_s: Annotated[list[_Amount], Meta(max_length=1)] = []


class _Envy(Struct):
    share: list[_Number]


class _Used(Struct):
    accelerator_s: list[_Amount]


class _Due(Struct):
    what: Annotated[list[Literal["plan", "round"]], Meta(min_length=1, max_length=1)]


class _Progress(Struct):
    id: _Ids
    epoch: list[_Place]
    steps: list[_Amount]
    saved: list[_Amount]


class _Exited(Struct):
    id: _Ids
    epoch: list[_Place]
    why: list[str]
    final: list[bool] = []


class _Kept(Struct):
    id: _Ids
    epoch: list[_Place]


class _OfJobs(Struct):
    id: _Ids


class _OfDevices(Struct):
    device: _Ids


class _Joined(Struct):
    device: _Ids
    on: list[_Place]
    server: list[_Place]


class _Kinds(Struct):
    model: Annotated[list[str], Meta(min_length=1)]
    width: list[Annotated[int, Meta(ge=1, lt=1 << 31)]]
    alone: list[list[_Amount]]
    spread: list[list[_Amount]] = []


class _Learned(Struct):
    kind: _Ids
    on: list[_Place]
    rate: list[_Amount]
    spread: list[bool] = []


class _LearnedPairs(Struct):
    kind: _Ids
    beside: list[_Place]
    on: list[_Place]
    rate: list[_Amount]


class _Costs(Struct):
    kind: _Ids
    on: list[_Place]
    restart_s: list[_Amount]
    ahead: list[bool] = []


class _Policy(Struct):
    name: Annotated[list[str], Meta(min_length=1, max_length=1)]
    options: list[dict[str, Any]]


class _Saved(Struct):
    """Nothing but that it was."""


class _Undecided(Struct):
    why: Annotated[list[str], Meta(min_length=1)]


class _Planned(Struct):
    id: _Ids
    on: list[_Other]
    devices: list[list[_Place]]
    epoch: list[_Place] = []
    beside: list[_Other] = []
    kind: list[_Place] = []


class _Spares(Struct):
    id: list[_Place]
    devices: list[list[_Place]]
    epoch: list[_Place] = []


_SCHEMAS: dict[str, type[Struct]] = {
    "arrived": _Arrived,
    "started": _Started,
    "stopped": _Stopped,
    "phase": _OfJobs,
    "completed": _Completed,
    "rejected": _Rejected,
    "failed": _Failed,
    "mended": _OfDevices,
    "prices": _Prices,
    "envy": _Envy,
    "used": _Used,
    "due": _Due,
    "progress": _Progress,
    "exited": _Exited,
    "lapsed": _Completed,
    "kept": _Kept,
    "cancelled": _OfJobs,
    "drained": _OfDevices,
    "undrained": _OfDevices,
    "joined": _Joined,
    "kinds": _Kinds,
    "learned": _Learned,
    "learned_pairs": _LearnedPairs,
    "costs": _Costs,
    "policy": _Policy,
    "saved": _Saved,
    "planned": _Planned,
    "spares": _Spares,
    "given_up": _Rejected,
    "undecided": _Undecided,
}
_DECIDED = ("started", "stopped", "rejected", "envy", "planned", "spares", "given_up", "undecided")
_OF_TYPES = {"prices": "price", "used": "accelerator_s"}  # columns that are as long as there are types


def fault_in(rows: Rows, types: int) -> str:
    """What is wrong with the form of rows; nothing if they can be read.

    >>> fault_in(Rows("completed", {"id": [3, 4], "at_s": [1.5]}), types=2)
    'completed.at_s has 1 values, expected 2'
    >>> fault_in(Rows("mended", {"device": ["x"]}), types=2)
    'mended: Expected `int`, got `str` - at `$.device[...]`'
    """
    schema = _SCHEMAS.get(rows.of)
    if schema is None:
        return f"there are no rows of {rows.of!r}"
    if rows.of != "completed" and rows.decided != (rows.of in _DECIDED):
        return f"{rows.of}: found it {'decided' if rows.decided else 'seen'}, which it cannot be"
    try:
        found = msgspec.convert(rows.columns, schema)
    except msgspec.ValidationError as error:
        return f"{rows.of}: {error}"
    if rows.of in _OF_TYPES:
        length = types
        columns: dict[str, Sequence[Any]] = {_OF_TYPES[rows.of]: getattr(found, _OF_TYPES[rows.of])}
    else:
        columns = {name: getattr(found, name) for name in schema.__struct_fields__}
        length = len(next(iter(columns.values()), ()))
    for name, column in columns.items():
        if len(column) != length and (column or name in rows.columns):
            return f"{rows.of}.{name} has {len(column)} values, expected {length}"
    return ""


def sound_steps(reader: Reader, types: int) -> Iterator[tuple[int, float, Sequence[Any]]]:
    """The steps of a journal, rows as rows; ends with an error that names the line if some cannot be read."""
    for n, t, events in reader.rows():
        if not 0 <= t <= LARGEST:
            raise InputError(f"{reader.path}:{line_of(reader, n)}: t is {t}, expected seconds")
        for at, event in enumerate(events):
            if isinstance(event, Rows) and (fault := fault_in(event, types)):
                raise InputError(f"{reader.path}:{line_of(reader, n, at)}: {fault}")
        yield n, t, events


class _Numbered(Struct):
    n: int


def line_of(reader: Reader, n: int, place: int = 0) -> int:
    """The number of the line that holds a step's event, or its first one."""
    with open_bytes(reader.path) as file:
        for number, line in enumerate(file, start=1):
            if number > 1 and msgspec.json.decode(line, type=_Numbered).n == n:
                return number + place
    return 1
