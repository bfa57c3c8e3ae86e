"""A validated problem: the layers of a model, and classes of alike devices with their times, memory and links."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from dovetail.core.errors import InputError
from dovetail.core.files.document import Document, Key, checked
from dovetail.core.files.plain import plain

T = TypeVar("T")

DATA_HOST = "data host"  # which sends the input and takes the output
LARGEST = 1e15  # of seconds, MiB, Mbit/s and values: sums and products of them stay finite
DTYPE_BYTES = {"torch.float32": 4, "torch.float16": 2, "torch.bfloat16": 2, "torch.float64": 8, "torch.int8": 1}
MIB = 1024 * 1024
BYTES_PER_S = MIB / 8  # of one Mbps, which the files mean as 2**20 bits


class DeviceClass(Struct):
    """Devices that are alike in everything: hosts of one type, or fewer where links tell them apart."""

    name: str
    type: str
    hosts: list[str]
    bw_mbps: float
    mem_mib: float
    time_s: list[float]
    watts_busy: float = 0.0
    watts_idle: float = 0.0
    price_per_hour: float = 0.0
    measured_on: str = ""  # the device whose times these are
    busy: float = 0.0  # of the time in which they were measured, what other programs took
    stage_s: float = 0.0  # what a stage takes for a microbatch besides its layers


class TiedWeights(Struct, forbid_unknown_fields=True):
    """Weights that several layers share: each layer's memory counts them, a stage with more than one of these once."""

    layers: list[int]
    mib: float = field(name="mem_MB")


class Pipeline(Struct, kw_only=True):
    """A validated problem. `cut_bytes[j]` leave layer j in a microbatch; `cut_bytes[0]` enter the model.

    `link_mbps` and `link_s` are by class pair where a links file was given, else None: then the slower end counts.
    """

    model: str
    layers: int
    mem_mib: list[float]
    cut_bytes: list[int]
    classes: list[DeviceClass]
    batch_size: int
    dtype: str
    buffers_in: int = 2
    buffers_out: int = 2
    link_mbps: list[list[float]] | None = None
    link_s: list[list[float]] | None = None
    warnings: list[str] = field(default_factory=list)
    tied: list[TiedWeights] = field(default_factory=list)

    @property
    def hosts(self) -> list[str]:
        return [host for c in self.classes for host in c.hosts]

    def __repr__(self) -> str:
        pool = ", ".join(f"{len(c.hosts)} {c.name}" for c in self.classes) or "no devices"
        return f"<Pipeline {self.model}: {self.layers} layers, batches of {self.batch_size}, {self.dtype}, on {pool}>"


def check_names(doc: Document, names: Iterable[Any]) -> None:
    """Keys of a mapping are names: YAML reads some words and numbers as something else."""
    for name in names:
        if not isinstance(name, str):
            raise doc.error((name,), f"expected a name, found {name!r}; write it in quotes")


def range_fault(value: float, least: int, most: float = LARGEST) -> str:
    """What is wrong with a number that is too small or too large.

    >>> range_fault(0, 1), range_fault(1e20, 1), range_fault(5, 1)
    ('expected 1 or more, found 0', 'expected at most 1e+15, found 1e+20', '')
    """
    if not value >= least:
        return f"expected {least} or more, found {value}"
    return f"expected at most {most:g}, found {value}" if value > most else ""


def check_host(doc: Document, keys: Sequence[Key], host: str, joined: bool = True) -> None:
    """A link is called by the hosts at its ends, and hosts that are `joined` by them all."""
    if host == DATA_HOST or " to " in host or (not joined and " + " in host):
        raise doc.error(keys, f"expected a host's name, found {host!r}, which is what a link or a group is called")


def check_tied(doc: Document, keys: Sequence[Key], tied: Sequence[TiedWeights], mem_mib: Sequence[float]) -> None:
    """Tied weights belong to several layers, and each of them holds them."""
    for i, group in enumerate(tied):
        known = [layer for layer in dict.fromkeys(group.layers) if 1 <= layer <= len(mem_mib)]
        if len(known) < 2 or known != group.layers:
            expected = f"expected two or more different layers from 1 to {len(mem_mib)}"
            raise doc.error((*keys, i, "layers"), f"{expected}, found {group.layers}")
        least = min(mem_mib[layer - 1] for layer in group.layers)
        if not 0 <= group.mib <= least:
            raise doc.error((*keys, i, "mem_MB"), f"expected 0 to {least:g}, what its layers hold, found {group.mib:g}")


def check_number(doc: Document, keys: Sequence[Key], value: float, most: float = LARGEST) -> None:
    """What is measured is neither negative nor beyond measure."""
    if not 0 <= value <= most:
        raise doc.error(keys, f"expected a number from 0 to {most:g}, found {value}")


def check_problem(doc: Document, p: Pipeline, at: Sequence[Key] = ()) -> None:
    """A problem that was not read from its files, by what their reader makes sure of."""
    for name, least in (("layers", 0), ("batch_size", 1), ("buffers_in", 0), ("buffers_out", 0)):
        if fault := range_fault(getattr(p, name), least):
            raise doc.error((*at, name), fault)
    if p.dtype not in DTYPE_BYTES:
        raise doc.error((*at, "dtype"), f"expected one of {', '.join(DTYPE_BYTES)}, found {p.dtype!r}")
    _check_numbers(doc, (*at, "mem_mib"), p.mem_mib, p.layers)
    _check_numbers(doc, (*at, "cut_bytes"), p.cut_bytes, p.layers + 1, 8 * LARGEST * LARGEST)
    seen: set[str] = set()
    for k, c in enumerate(p.classes):
        _check_numbers(doc, (*at, "classes", k, "time_s"), c.time_s, p.layers)
        for name in ("bw_mbps", "mem_mib", "watts_busy", "watts_idle", "price_per_hour", "busy", "stage_s"):
            check_number(doc, (*at, "classes", k, name), getattr(c, name))
        if not c.hosts:
            raise doc.error((*at, "classes", k, "hosts"), "expected at least one host, found none")
        for i, host in enumerate(c.hosts):
            if not host or host in seen:
                raise doc.error((*at, "classes", k, "hosts", i), f"expected a host of its own, found {host!r}")
            check_host(doc, (*at, "classes", k, "hosts", i), host)
            seen.add(host)
    for name, table in (("link_mbps", p.link_mbps), ("link_s", p.link_s)):
        if table is not None and len(table) != len(p.classes):
            raise doc.error((*at, name), f"expected {len(p.classes)} rows, found {len(table)}")
        for i, row in enumerate(table or ()):
            _check_numbers(doc, (*at, name, i), row, len(p.classes))
    check_tied(doc, (*at, "tied"), p.tied, p.mem_mib)


def checked_problem(given: Pipeline) -> Pipeline:
    """A problem that somebody made by hand, as it was meant: arrays as lists, numbers as such.

    >>> checked_problem(Pipeline(model="m", layers=2, mem_mib=[1.0], cut_bytes=[0] * 3, classes=[], batch_size=1,
    ...     dtype="torch.float32"))
    Traceback (most recent call last):
    dovetail.core.errors.InputError: problem: mem_mib: expected 2 values, found 1
    """
    try:
        content = msgspec.to_builtins(given, enc_hook=plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"problem: holds what is no number or text: {error}") from None
    made = checked(content, Pipeline, "problem")
    check_problem(Document(Path("problem"), b"", None), made)
    return made


def _check_numbers(
    doc: Document, keys: Sequence[Key], values: Sequence[float], count: int, most: float = LARGEST
) -> None:
    if len(values) != count:
        raise doc.error(keys, f"expected {count} values, found {len(values)}")
    for i, value in enumerate(values):
        check_number(doc, (*keys, i), value, most)
