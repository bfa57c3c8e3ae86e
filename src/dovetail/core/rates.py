"""The table in which levels meet: how fast a kind of work runs on a type of device, what a change costs, and how each
number is known. A lower level writes it, a higher level reads it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import inf
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from dovetail.core.files import Document, written_whole

Source = Literal["measured", "estimated", "given"]


class Rate(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """`rate` is relative to the reference device for this kind: 2.0 means half the time."""

    kind: str
    device: str
    rate: float
    width: int = 1
    neighbour: str = ""
    source: Source = "given"


class Switch(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Seconds to make `to` resident on a device type; `from` empty means that the device was empty."""

    to: str
    seconds: float
    previous: str = msgspec.field(default="", name="from")
    device: str = ""
    source: Source = "given"


class _RateFile(Struct, forbid_unknown_fields=True):
    rates: list[Rate] = []
    switches: list[Switch] = []


class RateTable:
    """Look a rate or a price up; None when the table does not know, so that the level's own formula applies.

    >>> table = RateTable([Rate("llm7b", "l4", 0.4)], [Switch("llm7b", 3.0, "sd", "l4")])
    >>> table.rate("llm7b", "l4"), table.rate("llm7b", "a100"), table.switch_s("sd", "llm7b", "l4")
    (0.4, None, 3.0)
    """

    def __init__(self, rates: list[Rate] | None = None, switches: list[Switch] | None = None) -> None:
        self.rates = {_place(r): r for r in rates or []}
        self.switches = {_change(s): s for s in switches or []}

    def __bool__(self) -> bool:
        return bool(self.rates or self.switches)

    def rate(self, kind: str, device: str, width: int = 1, neighbour: str = "") -> float | None:
        """The closest that is known: beside this neighbour, else at this width, else of one device alone."""
        known = self.rates
        found = (
            known.get((kind, device, width, neighbour))
            or known.get((kind, device, width, ""))
            or known.get((kind, device, 1, ""))
        )
        return found.rate if found else None

    def switch_s(self, previous: str | None, to: str, device: str) -> float | None:
        found = self.switches.get((previous or "", to, device)) or self.switches.get((previous or "", to, ""))
        return found.seconds if found else None

    @classmethod
    def read(cls, path: Path) -> RateTable:
        doc = Document.read(path)
        content = doc.convert(doc.data, _RateFile)
        for i, rate in enumerate(content.rates):
            if not 0 < rate.rate < inf:
                raise doc.error(("rates", i, "rate"), f"expected a positive rate, found {rate.rate}")
            if rate.width < 1:
                raise doc.error(("rates", i, "width"), f"expected at least 1 device, found {rate.width}")
        for i, switch in enumerate(content.switches):
            if not 0 <= switch.seconds < inf:
                raise doc.error(("switches", i, "seconds"), f"expected seconds >= 0, found {switch.seconds}")
        _refuse_doubles(doc, "rates", [_place(rate) for rate in content.rates])
        _refuse_doubles(doc, "switches", [_change(switch) for switch in content.switches])
        return cls(content.rates, content.switches)

    def write(self, path: Path) -> None:
        content = _RateFile(list(self.rates.values()), list(self.switches.values()))
        with written_whole(path) as file:
            file.write(msgspec.json.format(msgspec.json.encode(content)) + b"\n")


def _place(rate: Rate) -> tuple[str, str, int, str]:
    return rate.kind, rate.device, rate.width, rate.neighbour


def _change(switch: Switch) -> tuple[str, str, str]:
    return switch.previous, switch.to, switch.device


def _refuse_doubles(doc: Document, key: str, entries: Sequence[Hashable]) -> None:
    """Of two numbers for one thing, nobody could say which one counts."""
    first: dict[Hashable, int] = {}
    for i, entry in enumerate(entries):
        if (before := first.setdefault(entry, i)) != i:
            raise doc.error((key, i), f"the same as {key}.{before}; expected each once")
