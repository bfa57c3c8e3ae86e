"""Server-sent events, read from bytes that are cut anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def data_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """The data of each event. Lines end in CR, LF or both; an event at the end without its empty line counts too, so
    that no last word is lost: what makes an answer whole is said in it.

    >>> list(data_of([b'data: {"a"', b": 1}\\r", b"\\n\\r\\n: a remark\\n\\ndata: [DO", b"NE]"]))
    ['{"a": 1}', '[DONE]']
    """
    lines: list[str] = []
    for line in _lines(pieces):
        if not line:
            if lines:
                yield "\n".join(lines)
            lines = []
        elif line.startswith(b"data:"):
            lines.append(line[5:].removeprefix(b" ").decode(errors="replace"))
    if lines:
        yield "\n".join(lines)


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest, ended_in_cr = b"", False
    for piece in pieces:
        new = piece.removeprefix(b"\n") if ended_in_cr else piece
        ended_in_cr = piece.endswith(b"\r")
        *whole, rest = (rest + new).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        yield from whole
    if rest:
        yield rest
