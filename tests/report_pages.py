"""Reads a page as its script does: the data, and the bars of a piece as columns."""

from __future__ import annotations

import json
import re
import zlib
from base64 import b64decode
from struct import unpack
from typing import Any

_TIMES = ("length_s", "setup_s", "wait_s", "ran_s")
_COLUMNS = 10


def data_of(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    loaded: dict[str, Any] = json.loads(found[1])
    return loaded


def piece_ids(text: str) -> list[str]:
    return re.findall(r'<script type="text/plain" id="(bars-[\d-]+)">', text)


def bars_of(text: str, piece: str = "bars-0") -> list[dict[str, Any]]:
    """The bars of a piece, each by the names of its columns, with its end."""
    run = data_of(text)["runs"][int(piece.split("-")[1])]
    about = run["finest"][int(piece.split("-")[2])] if piece.count("-") == 2 else run["whole"]
    count, base_s, tick_s = about[2:]
    names, body = json.loads(_unpacked(text, f"{piece}-names")), _unpacked(text, piece)
    columns = [body[i * 4 * count : (i + 1) * 4 * count] for i in range(_COLUMNS)]
    strings, groups, alike = json.loads(body[_COLUMNS * 4 * count :])
    bars: list[dict[str, Any]] = []
    ticks = known = 0
    for i in range(count):
        step, *times, back, task, why, group, others = (bytes(column[i::count]) for column in columns)
        ticks += _whole(step)
        bar: dict[str, Any] = dict(zip(_TIMES, (unpack("<f", cell)[0] for cell in times), strict=True))
        bar["end_s"] = base_s + tick_s * ticks
        bar["job"] = names[known - _whole(back)]
        known += not _whole(back)
        bar["task"], bar["why"] = strings[_whole(task)], strings[_whole(why)]
        bar["device"], bar["span"], on = groups[_whole(group)]
        kind, replaces, bar["tasks"], bar["merged"], bar["state"], bar["place"], bar["of"] = alike[_whole(others)]
        bars.append(bar | {"on": strings[on], "kind": strings[kind], "replaces": strings[replaces]})
    return bars


def _whole(cell: bytes) -> int:
    return int.from_bytes(cell, "little")


def _unpacked(text: str, name: str) -> bytes:
    found = re.search(rf'<script type="text/plain" id="{name}">(.*?)</script>', text)
    assert found
    return zlib.decompress(b64decode(found[1]))


def roomy(page: str) -> str:
    """A page without what is drawn once more for narrow screens."""
    return re.sub(r'<div class="narrow">.*?</div>', "", page, flags=re.DOTALL)
