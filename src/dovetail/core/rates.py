"""The table in which levels meet: how fast a kind of work runs on a type of device, what a change costs, and how each
number is known. A lower level writes it, a higher level reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.files import Document

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
        self.rates = {(r.kind, r.device, r.width, r.neighbour): r for r in rates or []}
        self.switches = {(s.previous, s.to, s.device): s for s in switches or []}

    def __bool__(self) -> bool:
        return bool(self.rates or self.switches)

    def rate(self, kind: str, device: str, width: int = 1, neighbour: str = "") -> float | None:
        found = self.rates.get((kind, device, width, neighbour)) or self.rates.get((kind, device, 1, ""))
        return found.rate if found else None

    def switch_s(self, previous: str | None, to: str, device: str) -> float | None:
        found = self.switches.get((previous or "", to, device)) or self.switches.get((previous or "", to, ""))
        return found.seconds if found else None

    @classmethod
    def read(cls, path: Path) -> RateTable:
        doc = Document.read(path)
        content = doc.convert(doc.data, _RateFile)
        for i, rate in enumerate(content.rates):
            if not rate.rate > 0:
                raise doc.error(("rates", i, "rate"), f"expected a positive rate, found {rate.rate}")
        for i, switch in enumerate(content.switches):
            if not switch.seconds >= 0:
                raise doc.error(("switches", i, "seconds"), f"expected seconds >= 0, found {switch.seconds}")
        return cls(content.rates, content.switches)

    def write(self, path: Path) -> None:
        if path.is_dir():
            raise InputError(f"{path}: is a folder; expected a file name")
        content = _RateFile(list(self.rates.values()), list(self.switches.values()))
        path.write_bytes(msgspec.json.format(msgspec.json.encode(content)) + b"\n")
