"""A picture with a row for each job: how many devices it had when, where it was resized and where it was paused.

The page draws what devices do; this draws what becomes of jobs that come, shrink, grow, pause and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from msgspec import Struct

from dovetail.core.events import Arrived, Complete, Failed, Finished, Pause, Reject, Resize, Resume, Start
from dovetail.report.look import PALETTE, devices_text, ink_on, number, ticks

_WIDTH, _LEFT, _RIGHT, _TOP, _ROW, _GAP = 1100.0, 150.0, 20.0, 56.0, 24.0, 8.0
_STYLE = "text{font:12px sans-serif;fill:#1a1a2e}.small{font-size:11px}.grid{stroke:#d5d8e0}.wait{stroke:#9aa0ae}"
_HATCH = (
    '<defs><pattern id="paused" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<rect width="6" height="6" fill="#f0f1f5"/><line x1="0" y1="0" x2="0" y2="6" stroke="#8a8f9c" stroke-width="2"/>'
    "</pattern></defs>"
)


class Stretch(Struct):
    """A job had these devices from then to then; none: it was paused."""

    from_s: float
    to_s: float
    devices: tuple[int, ...]
    why: str


class Life(Struct):
    """What became of a job."""

    arrived_s: float
    to_s: float
    stretches: list[Stretch] = []
    failed_s: list[float] = []


def lives(steps: Iterable[tuple[int, float, Sequence[Any]]]) -> dict[str, Life]:
    """From a journal's steps; what is open at its end goes on to there."""
    found: dict[str, Life] = {}
    now = 0.0
    open_: dict[str, Life] = {}
    for _, now, events in steps:
        for event in events:
            if isinstance(event, Arrived):
                found[event.job] = open_[event.job] = Life(now, now)
                continue
            life = open_.get(getattr(event, "job", ""))
            if life is None:
                continue
            if isinstance(event, Start | Pause | Resume | Resize | Finished | Failed):
                _end(life, now)
            if isinstance(event, Start | Resume | Resize):
                life.stretches.append(Stretch(now, -1.0, event.devices, event.why))
            elif isinstance(event, Pause):
                life.stretches.append(Stretch(now, -1.0, (), event.why))
            elif isinstance(event, Failed):
                life.failed_s.append(now)
            elif isinstance(event, Complete | Reject):
                life.to_s = now
                del open_[event.job]
    for life in open_.values():
        _end(life, now)
        life.to_s = now
    return found


def _end(life: Life, now: float) -> None:
    if life.stretches and life.stretches[-1].to_s < 0:
        life.stretches[-1].to_s = now
        if life.stretches[-1].from_s == now:
            life.stretches.pop()


def picture(found: dict[str, Life], devices: int, title: str, unit: str) -> str:
    """The SVG: the height of a bar is the share of all devices that the job has; hatched: paused; a thin line: it
    waits; a dark edge: a resize; a cross: a failure."""
    end_s = max((life.to_s for life in found.values()), default=0.0) or 1.0
    height = _TOP + len(found) * (_ROW + _GAP) + 10

    def x(t: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * t / end_s

    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:g} {height:g}"><desc>dovetail</desc>'
    out = [f"{head}<style>{_STYLE}</style>"]
    out += [_HATCH, '<rect width="100%" height="100%" fill="#fff"/>', f'<text x="8" y="18">{escape(title)}</text>']
    for t in ticks(end_s, 10):
        out.append(f'<line class="grid" x1="{x(t):.1f}" x2="{x(t):.1f}" y1="{_TOP - 6}" y2="{height - 6:g}"/>')
        out.append(f'<text class="small" x="{x(t):.1f}" y="{_TOP - 12}" text-anchor="middle">{number(t)} s</text>')
    for i, (name, life) in enumerate(found.items()):
        out += _row(i, name, life, x, devices, unit)
    return "\n".join([*out, "</svg>\n"])


def _gaps(life: Life) -> list[tuple[float, float]]:
    """When it waited in the queue: before its first start, and after a failure."""
    ends = [life.arrived_s, *(each.to_s for each in life.stretches)]
    begins = [*(each.from_s for each in life.stretches), life.to_s]
    return [(end, begin) for end, begin in zip(ends, begins, strict=True) if begin > end]


def _row(i: int, name: str, life: Life, x: Callable[[float], float], devices: int, unit: str) -> list[str]:
    top = _TOP + i * (_ROW + _GAP)
    floor, middle, colour = top + _ROW, top + _ROW / 2, PALETTE[i % len(PALETTE)]
    short = name if len(name) <= 20 else name[:19] + "…"
    out = [f'<text x="{_LEFT - 10}" y="{middle + 4:g}" text-anchor="end">{escape(short)}</text>']
    out.append(
        f'<line class="wait" x1="{x(life.arrived_s):.1f}" x2="{x(life.arrived_s):.1f}" y1="{top}" y2="{floor}"/>'
    )
    for from_s, to_s in _gaps(life):
        out.append(f'<line class="wait" x1="{x(from_s):.1f}" x2="{x(to_s):.1f}" y1="{middle:g}" y2="{middle:g}"/>')
    before: Stretch | None = None
    for each in life.stretches:
        left, wide = x(each.from_s), max(x(each.to_s) - x(each.from_s), 0.5)
        high = max(_ROW * len(each.devices) / devices, 3.0) if each.devices else _ROW
        fill = colour if each.devices else "url(#paused)"
        has = f"{len(each.devices)} {unit} ({devices_text(each.devices)})" if each.devices else "paused"
        said = escape(f"{name}: {has}, {number(each.from_s)} to {number(each.to_s)} s: {each.why}")
        out.append(
            f'<rect x="{left:.1f}" y="{floor - high:.1f}" width="{wide:.1f}" height="{high:.1f}" fill="{fill}">'
            f"<title>{said}</title></rect>"
        )
        if each.devices and wide > 24:
            inside = high > 12
            y, ink = (floor - high / 2 + 4, ink_on(colour)) if inside else (floor - high - 3, "#1a1a2e")
            text = f'<text class="small" x="{left + wide / 2:.1f}" y="{y:.1f}" text-anchor="middle" style="fill:{ink}">'
            out.append(f"{text}{len(each.devices)}</text>")
        if before is not None and before.devices and each.devices:
            out.append(
                f'<line x1="{left:.1f}" x2="{left:.1f}" y1="{top}" y2="{floor}" stroke="#1a1a2e" stroke-width="2"/>'
            )
        before = each
    for t in life.failed_s:
        a, b = x(t) - 4, x(t) + 4
        out.append(f'<path d="M{a:.1f} {top}L{b:.1f} {floor}M{b:.1f} {top}L{a:.1f} {floor}" stroke="#c1121f"/>')
    return out
