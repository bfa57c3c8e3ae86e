"""What is written: files that appear whole or not at all, and none over an input; words that only say what they say."""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from dovetail.core.errors import InputError, cannot_write


def printable(text: str, keep: str = "") -> str:
    r"""What anybody may have written, without what a terminal would obey: such characters are shown by their names.

    >>> printable("a\x1b[2Jb\n"), printable("two\nlines", keep="\n") == "two\nlines"
    ('a\\x1b[2Jb\\n', True)
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def shortened(text: str, longest: int = 200) -> str:
    """A message whose words are no longer than one can read: the middle of longer ones is left out.

    >>> shortened(f"there is no job {'x' * 1000}; known: a", 20)
    'there is no job xxxxxxxx...xxxxxxx; known: a'
    """
    half = longest // 2 - 2
    return re.sub(rf"\S{{{longest + 1},}}", lambda word: f"{word[0][:half]}...{word[0][-half:]}", text)


# What Dovetail puts near the beginning of what it writes to be known by, by the end of a file's name.
_OURS = {
    ".html": (b'<meta name="generator" content="dovetail ',),
    ".svg": (b"<desc>dovetail", b"<dc:title>dovetail</dc:title>"),
    ".png": (b"Software\0dovetail",),
}
_LINES, _JOURNAL = ".jsonl", b'{"journal":'
_HEAD = 4096


def refuse_overwrite(outputs: Iterable[Path], inputs: Iterable[Path | None], lines: bytes = _JOURNAL) -> None:
    """Refuse, before anything is written, an output that is one of the inputs or another output; and a page, a picture
    or JSON lines in the place of a file that does not look like one of Dovetail's. JSON lines are a journal, or begin
    with what the caller writes as the first of its `lines`.

    Links are followed, so another name for the same file is found too. A device or a pipe can be both.

    >>> refuse_overwrite([Path("requests.yaml")], [Path("config.yaml"), Path("./requests.yaml"), None])
    Traceback (most recent call last):
    dovetail.core.errors.InputError: requests.yaml: is the same file as the input requests.yaml; name another output
    """
    sources = [path for path in inputs if path is not None]
    taken: list[Path] = []
    for output in outputs:
        for path in sources:
            if _same_file(output, path):
                raise InputError(f"{output}: is the same file as the input {path}; name another output")
        for path in taken:
            if _same_file(output, path):
                raise InputError(f"{output}: is the same file as {path}, which is written too; name another output")
        taken.append(output)
    for output in taken:
        _refuse_foreign(output, lines)


def _refuse_foreign(output: Path, lines: bytes) -> None:
    suffix = output.suffix.lower()
    if suffix not in (*_OURS, _LINES) or not output.is_file():
        return
    try:
        with output.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return  # whoever writes it says what is wrong with it
    if suffix == _LINES:
        ours = any(head.startswith(each) or each.startswith(head) for each in (_JOURNAL, lines))  # it may be cut
    else:
        ours = not head or any(each in head for each in _OURS[suffix])
    if not ours:
        raise InputError(
            f"{output}: is there, and does not look like one of Dovetail's; remove it or name another output"
        )


def need_folders(outputs: Iterable[Path]) -> None:
    """Refuse, before anything is computed, a file in a folder that is not there: a slip must not become a folder.

    >>> need_folders([Path("run.jsonl"), Path("no/such/run.jsonl")])
    Traceback (most recent call last):
    dovetail.core.errors.InputError: no/such/run.jsonl: cannot be written: there is no folder no/such
    """
    for output in outputs:
        if not output.parent.is_dir():
            raise InputError(f"{output}: cannot be written: there is no folder {output.parent}")


def _same_file(one: Path, two: Path) -> bool:
    try:
        if one.exists() and two.exists():
            return one.is_file() and one.samefile(two)
        return os.path.realpath(one) == os.path.realpath(two)
    except (OSError, ValueError):
        return False  # whoever opens it says what is wrong with it


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes its name at the end: a reader sees the old one or the new one, never a part.

    Folders above it are made. An error while it is written leaves the old one as it was.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "results" / "summary.json"
    >>> with written_whole(path) as file:
    ...     _ = file.write(b"{}")
    >>> path.read_bytes()
    b'{}'
    """
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:  # /dev/null or a pipe must not be replaced by a file; a folder is refused
                yield file
            return
        target = Path(os.path.realpath(path))  # a link stays a link
        target.parent.mkdir(parents=True, exist_ok=True)
        # Not from tempfile, whose files only their owner may read; and of one process alone, also in a folder that
        # several machines share.
        temporary = target.with_name(f".dovetail-{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("xb") as file:
                yield file
            if target.exists():
                shutil.copymode(target, temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except BrokenPipeError:  # whoever reads a pipe may stop: that is not the file's fault
        raise
    except OSError as error:
        raise cannot_write(path, error) from error


def atomic_write(path: Path, content: bytes | str) -> None:
    """Write a file, and the folders above it, so that a reader sees the old content or the new, never a part of it."""
    with written_whole(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)
