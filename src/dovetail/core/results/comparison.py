"""Several runs side by side, a row for each: what comparisons and sweeps give back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.results.charts import Chart, Series
from dovetail.core.results.frames import as_frame, columns_of
from dovetail.core.results.run import Picture

_SHOWN = 20


class Comparison:
    """Rows of figures, one per run or per group of repeats; `notes` are what a user should know beside them.

    >>> found = Comparison([{"policy": "fifo", "makespan_s": 12.5}, {"policy": "srpt", "makespan_s": 9.0}])
    >>> found
    policy  makespan_s
    fifo          12.5
    srpt             9
    >>> found.best("makespan_s")["policy"]
    'srpt'
    """

    def __init__(
        self, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = (), notes: Sequence[str] = ()
    ) -> None:
        """`columns` are those that are shown first; the rows have the rest as well."""
        self.rows = [dict(row) for row in rows]
        self.notes = list(notes)
        self._columns = list(columns)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.rows[index]

    def frame(self) -> Any:
        """The rows as a frame of pandas or polars where one is installed, else as columns."""
        return as_frame(columns_of(self.rows))

    def best(self, key: str) -> dict[str, Any]:
        """The row with the least value of a figure."""
        known = [row for row in self.rows if isinstance(row.get(key), int | float) and row[key] == row[key]]
        if not known:
            why = next((f": {row['reason']}" for row in self.rows if row.get("reason")), "")
            hint = why if key in columns_of(self.rows) else did_you_mean(key, columns_of(self.rows))
            raise InputError(f"no row has a value of {key!r}{hint}")
        return min(known, key=lambda row: float(row[key]))

    def plot(self, x: str, y: str, by: str | None = None) -> Picture:
        """One figure over another, a line for each value of `by`."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in self.rows:
            if isinstance(row.get(x), int | float) and isinstance(row.get(y), int | float):
                lines.setdefault(str(row.get(by, "")) if by else "", []).append((float(row[x]), float(row[y])))
        if not lines:
            raise InputError(f"no row has both {x!r} and {y!r} as numbers{did_you_mean(y, columns_of(self.rows))}")
        chart = Chart(f"{y} over {x}", x, y, [Series(name, sorted(points)) for name, points in lines.items()])
        return Picture.of(chart)

    def _table(self) -> tuple[list[str], list[list[str]]]:
        names = self._columns or [
            n for n in columns_of(self.rows) if not any(isinstance(r.get(n), dict | list) for r in self.rows)
        ]
        return names, [[_text(row.get(name)) for name in names] for row in self.rows[:_SHOWN]]

    def __repr__(self) -> str:
        names, cells = self._table()
        if not cells:
            return "no runs"
        wide = [max(len(name), *(len(row[i]) for row in cells)) for i, name in enumerate(names)]
        right = [all(isinstance(row.get(name), int | float | None) for row in self.rows) for name in names]
        lines = [
            "  ".join(c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, wide, right, strict=True)).rstrip()
            for row in (names, *cells)
        ]
        more = [f"... and {len(self.rows) - _SHOWN} more"] if len(self.rows) > _SHOWN else []
        return "\n".join([*lines, *more])

    def _repr_html_(self) -> str:
        names, cells = self._table()
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        more = f"<p>... and {len(self.rows) - _SHOWN} more</p>" if len(self.rows) > _SHOWN else ""
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
