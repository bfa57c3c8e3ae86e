"""Draw the pictures of README.md from what was measured.

    python -m bench.pictures                 writes docs/img/gain.svg, levels.svg and fidelity.svg

The first is a simulation; the other two show what pictures.toml names: figures and pairs of a prediction and
a measurement, all of measured.json.
"""

from __future__ import annotations

import argparse
import math
import re
import tempfile
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import msgspec
from msgspec import Struct

from bench.figures import ROOT, load, read_measured
from dovetail.report.look import PALETTE, number
from dovetail.report.show import standalone
from dovetail.report.svg.charts import label

FOLDER = ROOT / "docs" / "img"
_DATA = Path(__file__).with_suffix(".toml")
_BAND = 0.1
_RECORDED = re.compile(r"([\d.]+) CPU s recorded")


class LevelBar(Struct, frozen=True, forbid_unknown_fields=True):
    """How many times better a level does than what came before it, by a figure of the measurements."""

    level: str
    figure: str
    older: str
    what: str

    @property
    def times(self) -> float:
        value = read_measured()[self.figure].value
        (figure,) = [figure for run in load() for figure in run.figure if figure.name == self.figure]
        if figure.unit == "times":
            return value
        recorded = _RECORDED.search(figure.against)
        assert recorded, f"{self.figure}: no time is recorded for the older system"
        return float(recorded[1]) / value


class LiveRuns(Struct, frozen=True, forbid_unknown_fields=True):
    """What a level predicted, and what was then measured, in one unit; or figures that say the one over the other."""

    level: str
    what: str
    unit: str
    command: str
    figures: list[str] = []

    @property
    def points(self) -> list[tuple[float, float]]:
        known = read_measured()
        if self.figures:
            return [(100 * known[name].value, 100.0) for name in self.figures]
        (run,) = [run for run in load() if run.words == self.command]
        return known[run.figure[0].name].pairs


class PictureData(Struct, frozen=True, forbid_unknown_fields=True):
    level: list[LevelBar]
    runs: list[LiveRuns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    for name, draw in PICTURES.items():
        (FOLDER / name).write_text(draw(), encoding="utf-8")
        print(FOLDER / name)


def read() -> PictureData:
    return msgspec.toml.decode(_DATA.read_bytes(), type=PictureData)


def gain() -> str:
    """The same requests under two rules, as `dovetail demo` draws them."""
    from dovetail.cli.demo import levels
    from dovetail.report.gains import picture

    with tempfile.TemporaryDirectory() as folder:
        return picture(levels.workflow(levels.Machine(1e6, 0.5), levels.MeasuredChain(1e6, 1e6), Path(folder)))


def level_bars() -> str:
    """A bar for each level on a logarithmic axis: how many times what came before it."""
    bars = read().level
    width, left, right, above, pitch = 900.0, 320.0, 70.0, 34.0, 46.0
    top = 10.0 ** math.ceil(math.log10(max(bar.times for bar in bars)))
    floor = above + pitch * len(bars)

    def x(times: float) -> float:
        return left + math.log10(times) / math.log10(top) * (width - left - right)

    out = [label(12, 18, "Times better than what came before (logarithmic)", "start", "heading")]
    for power in range(round(math.log10(top)) + 1):
        at = x(10.0**power)
        out.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{above}" y2="{floor}"/>')
        out.append(label(at, floor + 18, f"{10**power:,} x" if power else "as before", "middle"))
    for i, bar in enumerate(bars):
        y = above + pitch * i
        out.append(label(12, y + 18, f"{bar.level}, beside {bar.older}", "start", "value"))
        out.append(label(12, y + 34, bar.what, "start"))
        long = max(x(bar.times) - left, 1.0)
        out.append(f'<rect class="bar best" x="{left:.1f}" y="{y + 8:.1f}" width="{long:.1f}" height="26" rx="3"/>')
        out.append(label(x(bar.times) + 8, y + 26, f"{number(bar.times, 3)} x", "start", "value"))
    return _picture(out, width, floor + 32, "One bar per level: the older system against Dovetail")


def fidelity() -> str:
    """Predictions over measurements on two logarithmic axes: the diagonal, and a tenth to both sides of it."""
    runs = read().runs
    levels = list(dict.fromkeys(each.level for each in runs))
    side, left, above, below = 430.0, 70.0, 40.0, 52.0
    low, high = 1.0, 10.0 ** math.ceil(math.log10(max(max(pair) for each in runs for pair in each.points)))

    def along(value: float) -> float:
        return (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low)) * side

    def place(measured: float, predicted: float) -> tuple[float, float]:
        return left + along(measured), above + side - along(predicted)

    out = [label(12, 18, "Predicted against measured; the band is 10 % to both sides", "start", "heading")]
    reach = 1 + _BAND
    edges = [
        (low, low),
        (low, low * reach),
        (high / reach, high),
        (high, high),
        (high, high / reach),
        (low * reach, low),
    ]
    band = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*edge) for edge in edges))
    out.append(f'<polygon points="{band}" style="fill:var(--accent-soft);fill-opacity:.6"/>')
    for power in range(round(math.log10(high)) + 1):
        at, text = 10.0**power, f"{10**power:,}"
        (x, _), (_, y) = place(at, low), place(low, at)
        out.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{above}" y2="{above + side}"/>')
        out.append(f'<line class="grid" x1="{left}" x2="{left + side}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(label(x, above + side + 18, text, "middle"))
        out.append(label(left - 8, y + 4, text, "end"))
    (x0, y0), (x1, y1) = place(low, low), place(high, high)
    out.append(f'<line class="axis" x1="{x0:.1f}" y1="{y0:.1f}" x2="{x1:.1f}" y2="{y1:.1f}"/>')
    out.append(label(left + side / 2, above + side + 40, "measured, in the unit of each", "middle"))
    turned = f'transform="rotate(-90 16 {above + side / 2:.1f})"'
    out.append(f'<text x="16" y="{above + side / 2:.1f}" text-anchor="middle" {turned}>predicted</text>')
    for each in runs:
        for predicted, measured in each.points:
            told = f"{each.level}: {number(predicted)} predicted, {number(measured)} {each.unit} measured ({each.what})"
            out.append(_mark(levels.index(each.level), *place(measured, predicted), told))
    out += _key(runs, levels, left + side + 36, above + 10)
    return _picture(out, 960.0, above + side + below, "Predicted against measured, live runs of four levels")


def _mark(i: int, x: float, y: float, told: str = "") -> str:
    """A mark that can be told from the others without its colour."""
    shapes = (
        f"M{x - 4.5:.1f},{y:.1f}a4.5,4.5 0 1,0 9,0a4.5,4.5 0 1,0 -9,0z",
        f"M{x:.1f},{y - 5.5:.1f}l5,9.5h-10z",
        f"M{x - 4:.1f},{y - 4:.1f}h8v8h-8z",
        f"M{x:.1f},{y - 5.5:.1f}l5.5,5.5l-5.5,5.5l-5.5,-5.5z",
    )
    title = f"<title>{escape(told)}</title>" if told else ""
    return f'<path d="{shapes[i]}" style="fill:{PALETTE[i]};stroke:#ffffff;stroke-width:1">{title}</path>'


def _key(runs: Sequence[LiveRuns], levels: Sequence[str], x: float, y: float) -> list[str]:
    """Which mark is which level, how many of its pairs lie in the band, and what measured them."""
    out = []
    for i, level in enumerate(levels):
        pairs = [pair for each in runs if each.level == level for pair in each.points]
        near = sum(within(*pair) for pair in pairs)
        out.append(_mark(i, x + 6, y))
        out.append(label(x + 20, y + 4, f"{level}: {near} of {len(pairs)} within 10 %", "start", "value"))
        for each in (each for each in runs if each.level == level):
            y += 18
            out.append(label(x + 20, y + 4, f"{each.unit}, python -m {each.command}", "start"))
        y += 34
    return out


def within(predicted: float, measured: float) -> bool:
    """Whether a pair lies in the band.

    >>> within(91.0, 100.0), within(109.0, 100.0), within(278.0, 52.5)
    (True, True, False)
    """
    return 1 / (1 + _BAND) <= predicted / measured <= 1 + _BAND


def _picture(parts: Sequence[str], width: float, height: float, title: str) -> str:
    head = f'<svg viewBox="0 0 {width:g} {height:g}" role="img" class="chart"><title>{escape(title)}</title>'
    return standalone(f"{head}{''.join(parts)}</svg>")


PICTURES: dict[str, Callable[[], str]] = {"gain.svg": gain, "levels.svg": level_bars, "fidelity.svg": fidelity}

if __name__ == "__main__":
    main()
