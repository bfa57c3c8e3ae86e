"""The workflow that ComfyUI writes into what it makes: PNG, WebP, MP4 and FLAC."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from dovetail.core.errors import InputError

_NAMES = (b"workflow", b"prompt")  # the editor's file has types, the prompt has none
_EXIF = re.compile(rb"(workflow|prompt):(\{[^\0]*)", re.IGNORECASE)
_MP4 = re.compile(rb"(?s)(.{4})data\x00\x00\x00\x01.{4}(?=\{)")
_FLAC = re.compile(rb"(?s)(.{4})(workflow|prompt)=(?=\{)")


def embedded(path: Path, raw: bytes) -> bytes | None:
    """The text of the workflow inside a picture, a film or a sound; None if the file is none of these."""
    if raw.startswith(b"\x89PNG\r\n\x1a\n"):
        found = dict(_png(raw))
    elif raw[:4] == b"RIFF" and raw[8:12] == b"WEBP":
        found = {name.lower(): text for name, text in _EXIF.findall(raw)}
    elif raw[4:8] == b"ftyp":
        found = dict(_mp4(raw))
    elif raw.startswith(b"fLaC"):
        lengths = [(m[2], m.end(), int.from_bytes(m[1], "little") - len(m[2]) - 1) for m in _FLAC.finditer(raw)]
        found = {name: raw[at : at + length] for name, at, length in lengths}
    else:
        return None
    text = next((found[name] for name in _NAMES if found.get(name)), None)
    if text is None:
        raise InputError(f"{path}: no ComfyUI workflow in it: expected metadata named workflow or prompt")
    return text


def _png(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 8
    while at + 8 <= len(raw):
        length, kind = int.from_bytes(raw[at : at + 4], "big"), raw[at + 4 : at + 8]
        name, _, text = raw[at + 8 : at + 8 + length].partition(b"\0")
        if name in _NAMES:
            try:
                if kind == b"tEXt":
                    yield name, text.decode("latin-1").encode()
                elif kind == b"zTXt":
                    yield name, zlib.decompress(text[1:]).decode("latin-1").encode()
                elif kind == b"iTXt":
                    *_, body = text[2:].split(b"\0", 2)
                    yield name, zlib.decompress(body) if text[:1] == b"\1" else body
            except zlib.error:
                pass  # as if it were not there
        at += 12 + length


def _mp4(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Values of the metadata; a film of older node packs has one with both inside, which is read as it is."""
    for value in _MP4.finditer(raw):
        text = raw[value.end() : value.start() + int.from_bytes(value[1], "big")]
        yield (b"prompt" if b'"class_type"' in text and b'"nodes"' not in text else b"workflow"), text
