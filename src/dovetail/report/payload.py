"""The data that the page's script draws from: bars as pieces of columns, and what is common to a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec.structs import asdict

from dovetail.report import look
from dovetail.report.data.collect import QUEUE, RUN, SETUP, Story
from dovetail.report.data.devices import together
from dovetail.report.data.pieces import BarPiece, encode

_CURVES = (("run", RUN), ("setup", SETUP), ("queue", QUEUE))


class Payload(NamedTuple):
    """What the script reads when it starts; the texts that it then needs at once, by their names; and those of the
    finest level, which it reads as one comes near."""

    data: dict[str, Any]
    whole: dict[str, str]
    finest: dict[str, str]


def payload(stories: Sequence[Story], colours: dict[str, str]) -> Payload:
    """Runs of a level that overlap in time over one span of it, so that they can be compared by eye."""
    runs: list[dict[str, Any]] = []
    whole: dict[str, str] = {}
    finest: dict[str, str] = {}
    for place, story in enumerate(stories):
        piece = encode(story.bars, together(story.header))
        runs.append(_run_data(story, piece, _span(story, stories)))
        whole |= _texts(f"bars-{place}", piece)
        for i, kept in enumerate(story.finest):
            finest |= _texts(f"bars-{place}-{i}", kept.piece)
    kinds = [[kind, colour, look.ink_on(colour)] for kind, colour in colours.items()]
    return Payload({"kinds": kinds, "runs": runs}, whole, finest)


def _span(story: Story, stories: Sequence[Story]) -> tuple[float, float]:
    """From the first to the last of the runs that overlap with this one, or with one that does."""
    low, high = story.from_s, story.to_s
    while True:
        near = [s for s in stories if s.header.level == story.header.level and s.from_s <= high and low <= s.to_s]
        span = min(s.from_s for s in near), max(s.to_s for s in near)
        if span == (low, high):
            return span
        low, high = span


def _texts(name: str, piece: BarPiece) -> dict[str, str]:
    return dict(zip((f"{name}-names", name), piece.texts(), strict=True))


def _run_data(story: Story, whole: BarPiece, span: tuple[float, float]) -> dict[str, Any]:
    low, high = span
    high = high if high > low else low + 1.0
    unit = look.unit_for(high - low)
    words = story.words
    names, devices = look.device_names(story), story.header.pool.devices if story.scheduled else ()
    typed = look.types_say_something(story)
    curves = {name: [round(v, 4) for v in story.strip.means[i]] for name, i in _CURVES}
    return {
        "from": low,
        "to": high,
        "unit": [unit.name, unit.seconds],
        "end": story.end_s,
        "bound": story.bound_at_s,
        "words": {name: word for name, word in asdict(words).items() if isinstance(word, str)},
        "rounds": story.by_round,
        "byJob": story.by_round or _tasks_say_nothing(story, names),
        "devices": [[names[d.id], d.type, d.host, d.type if typed else ""] for d in devices],
        "whole": [low, high, whole.count, whole.base_s, whole.tick_s],
        "finest": [[k.from_s, k.to_s, k.piece.count, k.piece.base_s, k.piece.tick_s] for k in story.finest],
        "short": story.resolution_s,
        "strip": {"from": story.strip.from_s, "bin": story.strip.bin_s, **curves},
    }


def _tasks_say_nothing(story: Story, names: Sequence[str]) -> bool:
    """Whether all tasks have one name, or that of the device they are on: then a bar is told by its job."""
    return len({bar.task for bar in story.bars}) < 2 or all(
        bar.task == names[bar.devices[0]] for bar in story.bars if bar.devices
    )
