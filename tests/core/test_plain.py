"""What stands in the place of a file is read as the file would be."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.files.document import Document
from dovetail.core.files.plain import plain
from dovetail.core.results.comparison import Comparison

ROWS = [{"job": "a", "rate": 0.5, "at": datetime(2026, 1, 2)}, {"job": "b", "width": 2}]


class Point(Struct):
    x: float
    tags: list[str] = []


BLANK = {"job": None, "rate": None, "at": None, "width": None}


@pytest.mark.parametrize(
    "frame", [pd.DataFrame(ROWS), pl.DataFrame(ROWS), pl.DataFrame([*ROWS, BLANK])], ids=["pandas", "polars", "blank"]
)
def test_a_frame_gives_its_rows_without_what_they_lack(frame: Any) -> None:
    assert plain(frame) == ROWS
    assert Document.of(frame, "jobs").data == ROWS


def test_numbers_and_structs_are_plain() -> None:
    given = {"n": np.int64(3), "x": np.float32(0.5), "ok": np.bool_(True), "row": np.arange(3), "point": Point(1.0)}
    found = plain(given)
    assert found == {"n": 3, "x": 0.5, "ok": True, "row": [0, 1, 2], "point": {"x": 1.0, "tags": []}}
    assert {type(found[key]) for key in ("n", "x", "ok")} == {int, float, bool}
    assert plain((Path("a"), {"b"})) == ["a", ["b"]]


def test_errors_name_the_place_in_what_was_given(tmp_path: Path) -> None:
    doc = Document.of({"models": {"llm": {"x": "big"}}}, "config")
    with pytest.raises(InputError, match=r"^config: models\.llm\.x: expected float, found str$"):
        doc.convert(doc.data["models"]["llm"], Point, ("models", "llm"))
    file = tmp_path / "config.yaml"
    file.write_text("models:\n  llm: {x: big}\n")
    doc = Document.of(str(file), "config")
    with pytest.raises(InputError, match=r"config\.yaml:2: models\.llm\.x: expected float, found str$"):
        doc.convert(doc.data["models"]["llm"], Point, ("models", "llm"))
    for wrong in (None, 3, object()):
        with pytest.raises(InputError, match="config: expected a path, dicts, lists or a frame, found"):
            Document.of(wrong, "config")


def test_a_comparison_shows_ranks_and_draws() -> None:
    rows = [
        {"policy": p, "gpus": g, "mean_s": s, "more": {}} for p, g, s in (("a", 1, 4.0), ("b", 1, 3.0), ("a", 2, 2.5))
    ]
    found = Comparison([*rows, {"policy": "c", "gpus": 4, "mean_s": None}])
    assert repr(found).splitlines()[0].split() == ["policy", "gpus", "mean_s"]
    assert repr(found).splitlines()[-1].split() == ["c", "4", "-"]
    assert found.best("mean_s") == rows[2]
    drawn = found.plot("gpus", "mean_s", by="policy").svg
    assert (drawn.count("<polyline"), "var(--" in drawn) == (2, False)
    assert "<td>2.5</td>" in found._repr_html_()
    assert list(found.frame()["policy"]) == ["a", "b", "a", "c"]
    assert (len(found), found[1], [row["gpus"] for row in found]) == (4, rows[1], [1, 1, 2, 4])
    with pytest.raises(InputError, match="did you mean 'mean_s'"):
        found.best("means_s")
    with pytest.raises(InputError, match="no row has both"):
        found.plot("gpus", "policy")
    long = Comparison([{"n": n} for n in range(30)])
    assert "... and 10 more" in repr(long)
    assert repr(Comparison([])) == "no runs"
