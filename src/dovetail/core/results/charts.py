"""Line charts as data: a level puts them into its journal's header or summary; reports draw them as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.files.document import explain

KEY = "charts"  # where a header's facts, and the summary at the end, hold them


class Series(Struct, forbid_unknown_fields=True):
    """A line: its name and its points, from left to right."""

    name: str
    points: list[tuple[float, float]]


class Chart(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Lines over one pair of axes; `x` and `y` say what the axes show. A logarithmic axis needs positive values."""

    title: str
    x: str
    y: str
    series: list[Series]
    log_x: bool = False


def as_fact(charts: Iterable[Chart]) -> dict[str, Any]:
    """Charts as a header's facts hold them; nothing if there are none.

    >>> as_fact([Chart("pace", "devices", "items/s", [Series("best", [(1, 2.0)])])])["charts"][0]["series"]
    [{'name': 'best', 'points': [[1, 2.0]]}]
    """
    plain = [msgspec.json.decode(msgspec.json.encode(chart)) for chart in charts]
    return {KEY: plain} if plain else {}


def charts_of(facts: Mapping[str, Any], where: str, root: str = "facts") -> list[Chart]:
    """The charts that a header's facts, or a closing summary, hold."""
    try:
        charts = msgspec.convert(facts.get(KEY, []), list[Chart])
    except msgspec.ValidationError as error:
        keys, message = explain(error, list[Chart])
        raise InputError(f"{where}: {root}.{'.'.join(map(str, [KEY, *keys]))}: {message}") from None
    for i, chart in enumerate(charts):
        for x, y in (point for series in chart.series for point in series.points):
            if not (isfinite(x) and isfinite(y)) or (chart.log_x and x <= 0):
                raise InputError(f"{where}: {root}.{KEY}.{i}: expected points of numbers, found ({x}, {y})")
    return charts
