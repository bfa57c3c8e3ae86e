"""What all reports share: colours that colour-blind readers can tell apart, names, numbers as text."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from dovetail.core.journal import Header
from dovetail.core.resources import Pool
from dovetail.core.resources import devices_text as devices_text
from dovetail.core.resources import runs_of as runs_of
from dovetail.report.data.collect import Story
from dovetail.report.data.devices import own_names
from dovetail.report.data.units import Unit as Unit
from dovetail.report.data.units import unit_for as unit_for

# Okabe and Ito's colours, without black and grey (grey is for set-ups) and with some more of other lightness.
_BASE = (
    "#0072b2",
    "#e69f00",
    "#009e73",
    "#cc79a7",
    "#56b4e9",
    "#d55e00",
    "#8e83d6",
    "#d9c72e",
    "#a3315f",
    "#8f9a33",
    "#9a6a48",
    "#63cfc0",
)
# Once the base colours are used up they come again lighter, then darker, which is hard to see on a dark page.
_VARIANTS = ((255, 0.0), (255, 0.5), (0, 0.4))
PALETTE = tuple(
    "#" + "".join(f"{round(int(c[i : i + 2], 16) * (1 - share) + towards * share):02x}" for i in (1, 3, 5))
    for towards, share in _VARIANTS
    for c in _BASE
)


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a colour.

    >>> ink_on("#0072b2"), ink_on("#e69f00")
    ('#ffffff', '#15181d')
    """
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else math.pow((c + 0.055) / 1.055, 2.4) for c in channels]
    red, green, blue = linear
    luminance = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    return "#15181d" if luminance > 0.22 else "#ffffff"


def colours(stories: Sequence[Story]) -> dict[str, str]:
    """A colour per kind, the same in all runs; the kinds that take the most time get the most distinct colours, of
    each level anew: nobody compares a chunk with a model."""
    found: dict[str, str] = {}
    for level in dict.fromkeys(story.header.level for story in stories):
        taken_s: dict[str, float] = {}
        for kind in (kind for story in stories if story.header.level == level for kind in story.kinds):
            taken_s[kind.kind] = taken_s.get(kind.kind, 0.0) + kind.run_device_s + kind.setup_device_s
        ranked = [kind for kind in sorted(taken_s, key=lambda kind: (-taken_s[kind], kind)) if kind not in found]
        left = [colour for colour in PALETTE if colour not in {found.get(kind) for kind in taken_s}] or PALETTE
        found |= {kind: left[i % len(left)] for i, kind in enumerate(ranked)}
    return found


class Headline(NamedTuple):
    """A figure that every report shows first, beside its lower bound if the journal has one."""

    name: str
    value_s: float
    bound_s: float | None


def headlines(story: Story) -> tuple[Headline, Headline, Headline]:
    """Makespan, mean and P99 of the response."""
    figures, response = story.figures, story.words.response

    def bound(*keys: str) -> float | None:
        """What did not end is not held against a bound."""
        return next((found for key in keys if story.ended and (found := story.claim(key))), None)

    return (
        Headline("Makespan", figures.makespan_s, bound("bound_makespan_s")),
        Headline(f"Mean {response}", figures.response_s.mean, bound("bound_mean_s", "bound_avg_jct_s")),
        Headline(f"P99 {response}", figures.response_s.p99, bound("bound_p99_s")),
    )


def counted(story: Story) -> tuple[Headline, ...]:
    """Those that say how good a run is: of parts of one piece of work only when all were done, as the time of a part
    says no more than how large it was made."""
    return headlines(story)[: 1 if story.words.parts else 3]


def pace(story: Story) -> tuple[str, str]:
    """How many jobs were completed in which unit of time: in the one that reads best."""
    per_s = story.figures.completed / story.figures.makespan_s if story.figures.makespan_s else 0.0
    each, unit, short = (1, "second", "s") if per_s >= 0.1 or not per_s else (3600, "hour", "h")
    return f"{number(each * per_s)} /{short}", f"{story.words.jobs} per {unit}"


def types_say_something(story: Story) -> bool:
    """Whether the types of devices say more than their names: not where there is one, or each is called so."""
    devices, own = story.header.pool.devices, device_names(story)
    return len({d.type for d in devices}) > 1 and any(own[d.id] != d.type for d in devices)


def running(story: Story) -> float:
    """The share of its devices' time in which a run used them, set-ups left out."""
    devices = story.figures.devices
    busy_s, setup_s = sum(device.busy_s for device in devices), sum(device.setup_s for device in devices)
    return story.figures.utilisation * (1 - setup_s / busy_s) if busy_s else 0.0


def bounds_of_responses(story: Story) -> list[tuple[str, float]]:
    """The lower bounds that a distribution of response times shows, named."""
    _, mean, p99 = headlines(story)
    named = (("bound of the mean", mean.bound_s), ("bound of P99", p99.bound_s))
    return [(name, bound_s) for name, bound_s in named if bound_s]


def device_names(story: Story) -> list[str]:
    """What each device of a run is called: by its level's facts, or by its number."""
    device = story.words.device
    return own_names(story.header) or [f"{device} {d.id}" for d in story.header.pool.devices]


def names(stories: Sequence[Story]) -> list[str]:
    """A short name per run that tells them apart: the policy, if need be with its options, with what it ran on or of
    which work, or the file; with the level before it where there are several."""
    levels = [story.header.level for story in stories]
    if len({*levels}) > 1:
        parts = {level: iter(names([s for s in stories if s.header.level == level])) for level in levels}
        return [f"{level}: {next(parts[level])}" for level in levels]
    policies = [story.header.policy for story in stories]
    with_options = [" ".join([story.header.policy, *options(story.header)]) for story in stories]
    facet = {i: name for name, members in facets(stories) for i in members}
    tries = [
        policies,
        with_options,
        *([f"{name}, {facet[i]}" for i, name in enumerate(each)] for each in (policies, with_options)),
    ]
    tries.append([story.name for story in stories])
    unlike = next((each for each in tries if len({*each}) == len(stories)), None)
    return unlike or [f"{policy} ({i})" for i, policy in enumerate(policies, start=1)]


def facets(stories: Sequence[Story]) -> list[tuple[str, list[int]]]:
    """Runs of one level that can be ranked together, under what they have in common: devices and work."""
    on = [pool_text(story.header.pool) for story in stories]
    works = [_work(story) for story in stories]
    known = {pool: work for pool, work in zip(on[::-1], works[::-1], strict=True) if work}
    keys = [(pool, work or known.get(pool, "")) for pool, work in zip(on, works, strict=True)]
    groups: dict[tuple[str, str], list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    found: dict[str, list[int]] = {}
    for (pool, _), members in groups.items():
        first = stories[members[0]]
        told = [pool] if len({*on}) > 1 or len(groups) == 1 else []
        if len({work for _, work in groups}) > 1:
            told.append(_load(first))
        name = " · ".join(told)
        found[name if name not in found else f"{name} ({len(found) + 1})"] = members
    return list(found.items())


def _work(story: Story) -> str:
    """What tells one work from another: what the level says of its requests; or, of a simulation in rounds, when its
    first jobs came, which no policy changes."""
    said = story.header.facts.get("requests")
    if said is not None:
        return str(said)
    return str(story.first_arrivals_s) if story.by_round and story.header.clock.source == "virtual" else ""


def _load(story: Story) -> str:
    count, jobs = story.figures.arrived, story.words.jobs
    over_s = story.last_arrival_s - next(iter(story.first_arrivals_s), 0.0)
    pace = f", {number(3600 * (count - 1) / over_s, 3)} per hour" if over_s else " at once"
    return f"{count:,} {jobs}{pace}"


def title(story: Story) -> str:
    """What a page of one run is called: its file, and more where that is a number, as a service's journals have."""
    return f"{story.header.policy}, journal {story.name}" if story.name.isdecimal() else story.name


def options(header: Header) -> list[str]:
    """The options that a policy was given, as a user writes them; the rules of a run are no policy's."""
    shown = ((name, value) for name, value in header.options.items() if not isinstance(value, dict))
    return [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in shown]


def pool_text(pool: Pool) -> str:
    """How many devices of which type, in the order of the pool.

    >>> from dovetail.core.resources import DeviceType
    >>> pool_text(Pool.parse("a100:2,l4:1", {"a100": DeviceType("a100"), "l4": DeviceType("l4")}))
    '2 x a100, 1 x l4'
    """
    return ", ".join(f"{count} x {name}" for name, count in Counter(d.type for d in pool.devices).items())


def ran_on(header: Header) -> list[str]:
    """What really carried the devices, and how far the clock may be wrong: of runs that were not simulated."""
    carried: dict[str, list[str]] = {}
    for name, what in header.hardware.items():
        carried.setdefault(what, []).append(name)
    told = [f"{', '.join(names)}: {what}" for what, names in carried.items()]
    if header.clock.source != "virtual":
        error = f", wrong by at most {seconds(header.clock.error_s)}" if header.clock.error_s else ""
        told.append(f"{header.clock.source} clock{error}")
    return told


def number(value: float, digits: int = 4) -> str:
    """Four significant digits, never an exponent, thousands apart.

    >>> number(12345.678), number(1.23456), number(0.0), number(250)
    ('12,346', '1.235', '0', '250')
    """
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def digits(values: Sequence[float]) -> int:
    """How many digits tell values in rising order apart, 4 at least.

    >>> digits([472222.0, 472222.5, 472223.0]), digits([0.0, 5.0, 10.0])
    (7, 4)
    """
    apart = [b - a for a, b in pairwise(values) if b > a]
    if not apart:
        return 4
    return max(4, math.floor(math.log10(max(map(abs, values)))) - math.floor(math.log10(min(apart))) + 1)


def seconds(value: float, among: float = 0.0) -> str:
    """In the unit that reads best for it, or for the largest that it stands among, beside which rounding errors are 0.

    >>> seconds(0.01234), seconds(1234.5678), seconds(0), seconds(5400, among=200_000), seconds(2.8e-14, among=60)
    ('12.34 ms', '1,235 s', '0 s', '1.5 h', '0 s')
    """
    if abs(value) < 1e-12 * among:
        value = 0.0
    unit = unit_for(max(abs(value), among))
    return f"{number(value / unit.seconds)} {unit.name}"


def instants(times_s: Sequence[float]) -> list[str]:
    """In one unit, with as many digits as tell them apart, down to microseconds.

    >>> instants([5400.0, 180_000.0, 180_036.0])
    ['1.5 h', '50 h', '50.01 h']
    """
    unit = unit_for(max(map(abs, times_s), default=0.0))
    shown = [round(t, 6) / unit.seconds for t in times_s]
    most = digits(sorted(shown))
    return [f"{number(t, most)} {unit.name}" for t in shown]


_UNIT = re.compile(r"(?<=\d) (?=[µm]?s\b|h\b|d\b|%)")  # where a line must not break


def unbroken(text: str) -> str:
    """Numbers stay with their units where lines are broken."""
    return _UNIT.sub(chr(160), text)


def percent(share: float) -> str:
    """
    >>> percent(0.1234), percent(0.99996), percent(0), percent(-1e-16)
    ('12.3 %', '100 %', '0 %', '0 %')
    """
    return f"{share * 100:z.1f}".removesuffix(".0") + " %"


def shares(parts: Sequence[float]) -> list[str]:
    """Parts of a whole in percent, rounded so that they sum to 100: up where that is nearest.

    >>> shares([0.8157, 0.1505, 0.0338]), shares([1, 1, 1]), shares([0.0, 0.0])
    (['81.6 %', '15 %', '3.4 %'], ['33.4 %', '33.3 %', '33.3 %'], ['0 %', '0 %'])
    """
    whole = sum(parts)
    if not whole > 0:
        return [percent(0.0) for _ in parts]
    exact = [1000 * part / whole for part in parts]
    tenths = [math.floor(each) for each in exact]
    nearest = sorted(range(len(parts)), key=lambda i: (tenths[i] - exact[i], i))
    for i in nearest[: 1000 - sum(tenths)]:
        tenths[i] += 1
    return [percent(each / 1000) for each in tenths]


def above(value: float, bound: float | None) -> str:
    """How far a value lies above its lower bound; nothing where there is no bound.

    >>> above(110, 100), above(2500, 100), above(100, 100), above(7, None)
    ('10 %', '25 times', '0 %', '')
    """
    if not bound or bound < 0:
        return ""
    return percent((value - bound) / bound) if value < 5 * bound else f"{number(value / bound, 3)} times"


def ticks(top: float, about: float = 5) -> list[float]:
    """Round values from 0 up to `top`.

    >>> ticks(23)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    if not top > 0:
        return [0.0]
    rough = top / about
    size = math.pow(10.0, math.floor(math.log10(rough)))
    step = next(size * m for m in (1, 2, 5, 10) if size * m >= rough * (1 - 1e-9))
    return [i * step for i in range(int(top / step + 1e-9) + 1)]
