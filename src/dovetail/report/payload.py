"""The data that the page's script draws from: columns of numbers, with names kept once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from dovetail.report import look
from dovetail.report.collect import QUEUE, RUN, SETUP, Story

# device, span, start (a), set-up, end (b), kind, job, task, why (y), devices as text (v), wait (q), replaces,
# number of tasks, merged bars, state (f), time run if merged (x), place (o) among those that share (h)
_COLUMNS = ("d", "s", "a", "u", "b", "k", "w", "p", "y", "v", "q", "r", "n", "m", "f", "x", "o", "h")
_CURVES = (("run", RUN), ("setup", SETUP), ("queue", QUEUE))


def payload(stories: Sequence[Story], colours: dict[str, str]) -> dict[str, Any]:
    """All runs of a level over one span of time, so that they can be compared by eye."""
    return {
        "kinds": [[kind, colour, look.ink_on(colour)] for kind, colour in colours.items()],
        "runs": [
            _run_data(story, list(colours), [s for s in stories if s.header.level == story.header.level])
            for story in stories
        ],
    }


def _run_data(story: Story, kinds: Sequence[str], alike: Sequence[Story]) -> dict[str, Any]:
    low, high = min(s.from_s for s in alike), max(s.to_s for s in alike)
    high = high if high > low else low + 1.0
    unit = look.unit_for(high - low)
    # A ten-millionth of what is shown: finer than the deepest zoom.
    digits = max(7 - math.floor(math.log10(high - low)), 0)
    words, bound = story.words, story.claim("bound_makespan_s")
    kind_index = {kind: i for i, kind in enumerate(kinds)}
    strings: dict[str, int] = {}

    def index(text: str | None) -> int:
        return -1 if text is None else strings.setdefault(text, len(strings))

    own = look.own_names(story.header)

    def on(devices: Sequence[int]) -> str:
        return ", ".join(own[d] for d in devices) if own else f"{words.device} {look.devices_text(devices)}"

    rows = [
        (
            first,
            count,
            round(bar.start_s, digits),
            round(bar.setup_s, digits),
            round(bar.end_s, digits),
            kind_index[bar.kind],
            index(bar.job),
            index(bar.task),
            index(bar.why[:500]),
            index(on(bar.devices)),
            round(bar.wait_s, digits),
            index(bar.replaces),
            bar.tasks,
            bar.merged,
            bar.state,
            round(bar.run_s, digits) if bar.merged > 1 else 0,
            bar.place,
            bar.sharing,
        )
        for bar in story.bars
        for first, count in look.runs_of(bar.devices)
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in _COLUMNS]
    names, devices = look.device_names(story), story.header.pool.devices if story.scheduled else ()
    curves = {name: [round(v, 4) for v in story.strip.means[i]] for name, i in _CURVES}
    return {
        "from": low,
        "to": high,
        "unit": [unit.name, unit.seconds],
        "end": story.end_s,
        "bound": bound,
        "words": {name: word for name, word in asdict(words).items() if isinstance(word, str)},
        "rounds": story.by_round,
        "devices": [[names[d.id], d.type, d.host] for d in devices],
        "strings": list(strings),
        "bars": dict(zip(_COLUMNS, columns, strict=True)),
        "strip": {"from": story.strip.from_s, "bin": story.strip.bin_s, **curves},
    }
