"""A row for each job: what it had when, from the events alone, and drawn so that it can be told."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from dovetail.core.events import Arrived, Complete, Failed, Finished, Pause, Reject, Resize, Resume, Start
from dovetail.report.svg.jobs import Life, Stretch, lives, picture

EVIL = "</svg><script>alert(1)</script>"
SVG = "{http://www.w3.org/2000/svg}"
STEPS: list[tuple[int, float, list[Any]]] = [
    (1, 0.0, [Arrived("a", "p"), Arrived(EVIL, "p"), Start("a", "run", "p", (0, 1, 2), 0.0, 9.0, "all free")]),
    (2, 2.0, [Resize("a", "run", (0, 1), 9.0, "shrinks"), Start(EVIL, "run", "p", (2,), 0.0, 9.0, "one free")]),
    (3, 3.0, [Pause("a", "run", "its turn is over"), Failed(EVIL, "run", "exit code 1")]),
    (
        4,
        5.0,
        [Resume("a", "run", (1, 2), 4.0, "its turn"), Pause("a", "run", "no"), Resume("a", "run", (0,), 4.0, "yes")],
    ),
    (5, 9.0, [Finished("a", "run"), Complete("a"), Reject(EVIL, "failed")]),
]


def test_a_life_is_put_together_from_events() -> None:
    found = lives(STEPS)
    assert found["a"] == Life(
        0.0,
        9.0,
        [
            Stretch(0.0, 2.0, (0, 1, 2), "all free"),
            Stretch(2.0, 3.0, (0, 1), "shrinks"),
            Stretch(3.0, 5.0, (), "its turn is over"),
            Stretch(5.0, 9.0, (0,), "yes"),  # what took no time is not drawn
        ],
    )
    assert found[EVIL] == Life(0.0, 9.0, [Stretch(2.0, 3.0, (2,), "one free")], [3.0])


def test_what_is_open_goes_on_to_the_end() -> None:
    found = lives(STEPS[:3])
    assert found["a"].stretches[-1] == Stretch(2.0, 3.0, (0, 1), "shrinks")  # the pause has just begun
    assert (found["a"].to_s, found[EVIL].to_s) == (3.0, 3.0)


def test_the_picture_tells_cores_pauses_resizes_and_failures_apart() -> None:
    drawn = ElementTree.fromstring(picture(lives(STEPS), 3, "rr <b>", "cores"))
    assert not list(drawn.iter(f"{SVG}script"))
    rects = [rect for rect in drawn.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    said = {str(rect.findtext(f"{SVG}title")): rect for rect in rects}
    assert next(iter(said)) == "a: 3 cores (0-2), 0 to 2 s: all free"
    assert said["a: paused, 3 to 5 s: its turn is over"].get("fill") == "url(#paused)"
    heights = [float(rect.get("height", "")) for rect in rects]
    assert heights[:2] == [24.0, 16.0]  # by the share of all cores
    assert (
        len([line for line in drawn.iter(f"{SVG}line") if line.get("stroke-width") == "2" and line.get("y1") != "0"])
        == 1
    )
    assert len(list(drawn.iter(f"{SVG}path"))) == 1


def test_an_empty_run_is_drawn_too() -> None:
    assert ElementTree.fromstring(picture({}, 4, "nothing", "cores")).tag == f"{SVG}svg"
