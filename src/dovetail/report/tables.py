"""HTML tables from rows of text. Whatever is not marked as raw is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_MANY = 5  # columns that find room on a narrow screen


class Raw(str):
    """Text that is HTML already."""

    __slots__ = ()


class TableColumn(NamedTuple):
    name: str
    number: bool = False
    style: str = ""


def table(columns: Sequence[TableColumn], rows: Sequence[Sequence[str]]) -> str:
    """Of one with many columns each cell has its column's name, which a narrow screen shows: there a row is a block.

    >>> table([TableColumn("model")], [["<b>"]])
    '<table><thead><tr><th scope="col">model</th></tr></thead><tbody><tr><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    classes = [" ".join(filter(None, ("number" if c.number else "", c.style))) for c in columns]
    attributes = [f' class="{c}"' if c else "" for c in classes]
    many = sum(c.style != "bar" for c in columns) > _MANY
    named = [
        f' data-name="{escape(c.name)}"{a}' if many and i else a
        for i, (c, a) in enumerate(zip(columns, attributes, strict=True))
    ]
    head = "".join(
        f'<th scope="col"{a}>{escape(c.name).replace("_", "_<wbr>")}</th>'
        for a, c in zip(attributes, columns, strict=True)
    )
    body = "".join(
        "<tr>" + "".join(f"<td{a}>{_cell(v)}</td>" for a, v in zip(named, row, strict=True)) + "</tr>" for row in rows
    )
    style = ' class="many"' if many else ""
    return f"<table{style}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: str) -> str:
    return value if isinstance(value, Raw) else escape(value)
