"""Charts that a level puts into its journal: drawn on the page and in pictures, for any level."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dovetail.core.errors import InputError
from dovetail.core.results.charts import Chart, Series, as_fact
from dovetail.report.data.collect import collect
from dovetail.report.html import page
from dovetail.report.static import draw
from dovetail.report.svg.lines import line_chart
from tests.report_pages import roomy

Write = Callable[..., Path]
EVIL = "<b>&\"'"
CHARTS = [
    Chart("Pace by devices", "devices", "items/s", [Series("best", [(1, 2.0), (2, 3.5)]), Series(EVIL, [(1, 1.0)])]),
    Chart("Pace by speed", "times as fast", "items/s", [Series("best", [(0.25, 1.0), (1, 2.0), (4, 2.0)])], log_x=True),
]


def test_page_and_picture_draw_them(write: Write) -> None:
    story = collect(write(**as_fact(CHARTS)))
    html = roomy(page([story]))
    assert html.count("<polyline") == 3
    assert html.count("<circle") == 6
    assert "<b>&" not in html
    assert "1/4" in html
    picture = "\n".join(ElementTree.fromstring(draw([story], "svg")).itertext())
    for chart in CHARTS:
        assert chart.title in html
        assert chart.title in picture
    assert "<polyline" not in page([collect(write("other"))])


def test_a_chart_is_sound_svg_and_keeps_its_points_inside() -> None:
    for chart in [*CHARTS, Chart("one", "x", "y", [Series("a", [(3, 0.0)])])]:
        root = ElementTree.fromstring(line_chart(chart))
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        circles = [element for element in root.iter() if element.tag.endswith("circle")]
        assert len(circles) == sum(len(series.points) for series in chart.series)
        for circle in circles:
            assert 0 < float(circle.attrib["cx"]) < width
            assert 0 < float(circle.attrib["cy"]) < height
    assert "there are no points" in line_chart(Chart("none", "x", "y", []))


def test_higher_values_are_drawn_higher() -> None:
    root = ElementTree.fromstring(line_chart(CHARTS[0]))
    heights = [float(element.attrib["cy"]) for element in root.iter() if element.tag.endswith("circle")]
    assert heights[1] < heights[0] < heights[2]  # 3.5 above 2 above 1: the axis points down


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([{"title": "t"}], "run: facts.charts.0: missing key `x`"),
        ([{"title": "t", "x": "", "y": "", "serie": []}], "unknown key 'serie'; did you mean 'series'?"),
        (
            [{"title": "t", "x": "", "y": "", "log_x": True, "series": [{"name": "a", "points": [[0, 1]]}]}],
            "expected points of numbers",
        ),
    ],
)
def test_what_is_wrong_with_a_chart_is_named(write: Write, given: Any, message: str) -> None:
    with pytest.raises(InputError) as raised:
        page([collect(write(charts=given))])
    assert message in str(raised.value)
