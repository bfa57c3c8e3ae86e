"""The table in which levels meet: how fast a kind of work runs on a type of device, what a change costs, and how each
number is known. A lower level writes it, a higher level reads it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from dovetail.core.files.document import Document
from dovetail.core.files.document import Source as Given
from dovetail.core.files.output import written_whole

ANY = "*"  # in the place of whatever there was
HOST = "host memory"  # where something comes from that need not be read from its source
PREFILL = "prefill tokens/s"  # the unit of reading, of models that read before they write
Source = Literal["measured", "estimated", "given"]


class Rate(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Without a `unit`, `rate` is relative to the reference device for this kind: 2.0 means half the time. With one
    (items/s, steps/s, ...) it is so much per second. At a `concurrency` above 1 it is the rate of each of so many that
    run there at once."""

    kind: str
    device: str
    rate: float
    width: int = 1
    neighbour: str = ""
    source: Source = "given"
    unit: str = ""
    concurrency: int = 1


class Switch(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Seconds to make `to` resident on a device type; `from` empty means that the device was empty: a first load, or
    a restart. `*` stands for all that the table does not name, an empty device too; `host memory` for a load from
    there, whatever leaves."""

    to: str
    seconds: float
    previous: str = msgspec.field(default="", name="from")
    device: str = ""
    source: Source = "given"


class Link(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a transfer from one device or host to another costs."""

    sender: str = msgspec.field(name="from")
    to: str
    mib_per_s: float
    latency_s: float = 0.0
    source: Source = "given"


class _RateFile(Struct, forbid_unknown_fields=True, omit_defaults=True):
    rates: list[Rate] = []
    switches: list[Switch] = []
    links: list[Link] = []


class RateTable:
    """Look a rate or a price up; None when the table does not know, so that the level's own formula applies.

    >>> table = RateTable([Rate("llm7b", "l4", 0.4), Rate("llm7b", "l4", 31.0, unit="items/s")])
    >>> table.rate("llm7b", "l4"), table.rate("llm7b", "a100"), table.per_s("llm7b", "l4", "items/s")
    (0.4, None, 31.0)
    """

    def __init__(self, rates: Iterable[Rate] = (), switches: Iterable[Switch] = (), links: Iterable[Link] = ()) -> None:
        """Of several numbers for one thing the last one counts."""
        self.rates = {_place(r): r for r in rates}
        self.switches = {_change(s): s for s in switches}
        self.links = {(link.sender, link.to): link for link in links}

    def __repr__(self) -> str:
        return f"<RateTable of {len(self.rates)} rates, {len(self.switches)} switches, {len(self.links)} links>"

    def __bool__(self) -> bool:
        return bool(self.rates or self.switches or self.links)

    def __or__(self, other: RateTable) -> RateTable:
        """Both tables; where both know a number, the other's."""
        return RateTable(
            (self.rates | other.rates).values(),
            (self.switches | other.switches).values(),
            (self.links | other.links).values(),
        )

    def rate(self, kind: str, device: str, width: int = 1, neighbour: str = "") -> float | None:
        """Relative to the reference device; the closest that is known: beside this neighbour, else at this width, else
        of one device alone."""
        return self._closest(kind, device, width, neighbour, "")

    def per_s(self, kind: str, device: str, unit: str, width: int = 1, neighbour: str = "") -> float | None:
        """So many of the unit per second; likewise the closest that is known."""
        return self._closest(kind, device, width, neighbour, unit)

    def _closest(self, kind: str, device: str, width: int, neighbour: str, unit: str) -> float | None:
        known = self.rates
        found = (
            known.get((kind, device, width, neighbour, unit, 1))
            or known.get((kind, device, width, "", unit, 1))
            or known.get((kind, device, 1, "", unit, 1))
        )
        return found.rate if found else None

    def at_once(self, kind: str, device: str, unit: str = "", width: int = 1) -> dict[int, float]:
        """The rate of each of so many at once, of any unit or none: at this width if that is known, else of one device.

        >>> RateTable([Rate("llm", "l4", 0.4), Rate("llm", "l4", 0.3, concurrency=8)]).at_once("llm", "l4", width=2)
        {1: 0.4, 8: 0.3}
        """
        for known in (width, 1):
            place = (kind, device, known, "", unit)
            if found := {key[-1]: rate.rate for key, rate in self.rates.items() if key[:-1] == place}:
                return dict(sorted(found.items()))
        return {}

    def switch_s(self, previous: str | None, to: str, device: str) -> float | None:
        known = self.switches
        for before in (previous or "", ANY):
            if found := known.get((before, to, device)) or known.get((before, to, "")):
                return found.seconds
        return None

    def put(self, rate: Rate) -> None:
        """A number that takes the place of the one before."""
        self.rates[_place(rate)] = rate

    @classmethod
    def read(cls, source: Given) -> RateTable:
        """A table from a file, or from what stands in its place: dicts, or a table."""
        return source if isinstance(source, cls) else cls.of(Document.of(source, "rates"))

    @classmethod
    def of(cls, doc: Document) -> RateTable:
        content = doc.convert(doc.data, _RateFile)
        for i, rate in enumerate(content.rates):
            if not 0 < rate.rate < inf:
                raise doc.error(("rates", i, "rate"), f"expected a positive rate, found {rate.rate}")
            if rate.width < 1:
                raise doc.error(("rates", i, "width"), f"expected at least 1 device, found {rate.width}")
            if rate.concurrency < 1:
                raise doc.error(("rates", i, "concurrency"), f"expected at least 1 at once, found {rate.concurrency}")
        for i, switch in enumerate(content.switches):
            if not 0 <= switch.seconds < inf:
                raise doc.error(("switches", i, "seconds"), f"expected seconds >= 0, found {switch.seconds}")
        for i, link in enumerate(content.links):
            if not 0 < link.mib_per_s < inf:
                raise doc.error(("links", i, "mib_per_s"), f"expected a positive rate, found {link.mib_per_s}")
            if not 0 <= link.latency_s < inf:
                raise doc.error(("links", i, "latency_s"), f"expected seconds >= 0, found {link.latency_s}")
        _refuse_doubles(doc, "links", [(link.sender, link.to) for link in content.links])
        _refuse_doubles(doc, "rates", [_place(rate) for rate in content.rates])
        _refuse_doubles(doc, "switches", [_change(switch) for switch in content.switches])
        return cls(content.rates, content.switches, content.links)

    def add_to(self, path: Path) -> None:
        """Write into a file what this table holds; what else the file holds is kept."""
        (RateTable.read(path) | self if path.exists() else self).write(path)

    def write(self, path: Path) -> None:
        content = _RateFile(list(self.rates.values()), list(self.switches.values()), list(self.links.values()))
        with written_whole(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def _place(rate: Rate) -> tuple[str, str, int, str, str, int]:
    return rate.kind, rate.device, rate.width, rate.neighbour, rate.unit, rate.concurrency


def _change(switch: Switch) -> tuple[str, str, str]:
    return switch.previous, switch.to, switch.device


def _refuse_doubles(doc: Document, key: str, entries: Sequence[Hashable]) -> None:
    """Of two numbers for one thing, nobody could say which one counts."""
    first: dict[Hashable, int] = {}
    for i, entry in enumerate(entries):
        if (before := first.setdefault(entry, i)) != i:
            raise doc.error((key, i), f"the same as {key}.{before}; expected each once")
