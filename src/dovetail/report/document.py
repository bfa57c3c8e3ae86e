"""The frame of every page: one file that holds its style sheet and script, and loads nothing."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib import resources

from dovetail.version import __version__


def document(title: str, body: str, script: str = "") -> str:
    """A page. `script` is what follows the body: elements with data and programs; without it none may run."""
    programs = " script-src 'unsafe-inline';" if script else ""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'unsafe-inline';{programs} img-src data:\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta name="generator" content="dovetail {__version__}"><title>{escape(title)} · Dovetail</title>'
        f"<style>{asset('page.css')}</style></head>\n"
        f'<body><div class="wide">{body}</div>\n{script}</body></html>\n'
    )


def card(title: str, content: str, lead: str = "") -> str:
    """A section under a heading. What it says first, and its content, which scrolls where it is too wide, are HTML."""
    lead = f'<p class="lead">{lead}</p>' if lead else ""
    content = f'<div class="scroll">{content}</div>' if content else ""
    return f'<section class="card"><h2>{escape(title)}</h2>{lead}{content}</section>'


WIDE, NARROW = 640.0, 400.0  # the units across a chart beside another one, and across one on a telephone


def for_widths(draw: Callable[[float], str], wide: float = WIDE) -> str:
    """A chart drawn for a wide screen and for a narrow one, of which the style sheet shows one: what is drawn for the
    one is too small to read, or too wide, on the other."""
    return f'<div class="narrow">{draw(NARROW)}</div><div class="roomy">{draw(wide)}</div>'


def asset(name: str) -> str:
    """A file of this package."""
    return resources.files("dovetail.report").joinpath(name).read_text(encoding="utf-8")
