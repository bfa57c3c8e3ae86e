"""What the commands share: output as table or JSON, progress, and files that appear whole or not at all."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, Literal
from unicodedata import combining, east_asian_width

from cyclopts import Parameter

from dovetail.core.errors import InputError, cannot_write
from dovetail.core.files.output import atomic_write as atomic_write  # the commands find it here with the rest
from dovetail.core.files.output import printable

Format = Literal["table", "json"]
Flag = Annotated[bool, Parameter(negative=())]  # given or not; there is no --no-...
Force = Annotated[bool, Parameter(name=["--force", "-f"], negative=())]
Numbers = Annotated[tuple[int, ...], Parameter(consume_multiple=True, negative=())]
Pairs = Annotated[list[str], Parameter(consume_multiple=True, negative=())]  # NAME=VALUE, any number

_LINES_S = 10.0  # from one line of progress to the next, where there is no terminal
_LONG = 24  # of a word that a table keeps whole
_MANY_ROWS = 500  # for more, the terminal itself breaks lines: to find widths for all would take seconds


def print_json(obj: Any) -> None:
    """Print what msgspec can encode (structs, containers, numbers) as indented JSON.

    >>> print_json({"usable": True})
    {
      "usable": true
    }
    """
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(obj)).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print rows under headings; a column of numbers is right-aligned, and a pipe gets plain text, never cut. In a
    terminal that is too narrow for its columns, each row is a few lines: no word or number is broken.

    >>> print_table(["policy", "makespan_s"], [["fcfs", 12.5], ["sjf", 9]])
     policy   makespan_s
    ─────────────────────
     fcfs           12.5
     sjf               9
    """
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    # Not printed by rich itself: it would end the program on a closed pipe, with its own exit code.
    print("\n".join(table_lines(columns, rows, title, room)))


def table_lines(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", room: int | None = None
) -> Iterable[str]:
    """The same as lines for a terminal with room for so many characters; None: for a pipe."""
    content = [list(row) for row in rows]
    known = [[row[i] for row in content if row[i] is not None] for i in range(len(columns))]
    right = [bool(cells) and all(map(_is_number, cells)) for cells in known]
    texts = [[_text(cell) for cell in row] for row in content]
    if room is None or len(texts) > _MANY_ROWS:
        return _plain_lines(columns, texts, right, title)
    headings, widths = list(columns), [max(map(_width, cells)) for cells in zip(columns, *texts, strict=True)]
    if sum(widths) + 3 * len(widths) > room:
        words = _words(texts, len(columns))
        headings = [_broken(name, max(each)) for name, each in zip(columns, words, strict=True)]
        least = [max(*map(_width, name.split("\n")), *each) for name, each in zip(headings, words, strict=True)]
        if sum(least) + 3 * len(least) > room:
            return _blocks(columns, texts, title, room)
        while sum(widths) + 3 * len(widths) > room:  # the widest gives first
            widest = max(range(len(widths)), key=lambda i: (widths[i] > least[i], widths[i]))
            widths[widest] -= 1
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for heading, is_right, width in zip(headings, right, widths, strict=True):
        table.add_column(heading, justify="right" if is_right else "left", overflow="fold", width=width)
    for row in texts:
        table.add_row(*row)
    # With a height, as rich takes 80 columns for a dumb terminal unless it is told both.
    console = Console(width=room, height=25, force_terminal=True, markup=False, emoji=False, highlight=False)
    with console.capture() as captured:
        console.print(table, crop=False)
    return [line.rstrip() for line in captured.get().splitlines()]


def _words(rows: Sequence[Sequence[str]], columns: int) -> list[list[int]]:
    """How wide the words of each column are; one that nobody reads in a table, such as a path, may break."""
    return [[1, *(min(_width(word), _LONG) for row in rows for word in row[i].split())] for i in range(columns)]


def _broken(heading: str, width: int) -> str:
    """A heading in lines no longer than a width, if its words and parts allow it.

    >>> _broken("mean_turnaround_s", 7)
    'mean_\\nturnaround_\\ns'
    """
    lines = [""]
    for part in re.findall(r"[^_ ]*[_ ]?", heading)[:-1]:
        if lines[-1] and len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines)


def _blocks(columns: Sequence[str], rows: Sequence[Sequence[str]], title: str, room: int) -> Iterator[str]:
    """
    >>> print("\\n".join(_blocks(["policy", "makespan s", "gap %"], [["fcfs", "12.5", "3"]], "", 20)))
    fcfs
      makespan s 12.5
      gap % 3
    """
    if title:
        yield title
    for first, *others in rows:
        yield f"{columns[0]} {first}" if first[:1].isdigit() else first  # a number says nothing alone
        line = " "
        for pair in (f"{name} {cell}" for name, cell in zip(columns[1:], others, strict=True) if cell):
            if line.strip() and _width(line) + 3 + _width(pair) > room:
                yield line
                line = " "
            line += ("   " if line.strip() else " ") + pair
        yield line


def _plain_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], title: str
) -> Iterator[str]:
    """A table whose lines are as long as they are."""
    widths = [max(map(_width, column)) for column in zip(columns, *rows, strict=True)]
    if title:
        yield title
    for i, row in enumerate((columns, *rows)):
        gaps = [" " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [gap + cell if r else cell + gap for cell, gap, r in zip(row, gaps, right, strict=True)]
        yield f" {'   '.join(cells)}".rstrip()
        if not i:
            yield "─" * (sum(widths) + 3 * len(widths) - 1)


def _width(text: str) -> int:
    """How many columns of a terminal a text takes.

    >>> _width("a100"), _width("模型")
    (4, 4)
    """
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 1 + (east_asian_width(c) in "WF") for c in text)


def live_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Any:
    """A table of a screen that changes; figures are short."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(_short(cell)) for cell in row))
    return table


def _short(value: Any) -> str:
    """
    >>> [_short(value) for value in (None, "", 0.12345, 12345.6, ["a", "b"])]
    ['-', '-', '0.123', '12346', 'a,b']
    """
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
    if isinstance(value, list):
        value = ",".join(map(str, value))
    return "-" if value in (None, "") else printable(str(value))


def interval(apart: Mapping[str, Any] | None) -> str:
    """A ratio that was found pair by pair, its 95 % interval, and a star where that leaves 1 out: then with as many
    digits as it takes to see it.

    >>> interval({"ratio": 0.9, "least": 0.8, "most": 1.01, "sure": False})
    '0.900 (0.800 to 1.010)'
    >>> interval({"ratio": 0.99, "least": 0.98, "most": 0.99996, "sure": True})
    '0.99000 (0.98000 to 0.99996) *'
    """
    if apart is None or apart["ratio"] is None:
        return ""
    if apart["least"] is None:
        return f"{apart['ratio']:.3f}"
    ends = (apart["least"], apart["most"])
    digits = next((n for n in range(3, 9) if not apart["sure"] or all(round(end, n) != 1 for end in ends)), 9)
    shown = [f"{value:.{digits}f}" for value in (apart["ratio"], *ends)]
    return f"{shown[0]} ({shown[1]} to {shown[2]})" + (" *" if apart["sure"] else "")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: object) -> str:
    """A cell's text.

    >>> [_text(value) for value in (None, True, 3, 0.1234567, 1234567.8, "a100")]
    ['-', 'yes', '3', '0.123457', '1234568', 'a100']
    """
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:.0f}"
    return printable(str(value))


@contextmanager
def progress(
    title: str, total: float | None = None, lines_s: float | None = _LINES_S
) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr that vanishes at the end; gives a function that reports how much is done so far.

    `total` None means that the end is unknown, 1 that shares are told. Without a terminal there is no bar, but a line
    after `lines_s` whenever it has changed, or none if that is None.

    >>> with progress("simulating", total=10) as done:
    ...     done(10)
    """
    if not sys.stderr.isatty():
        with nullcontext(lambda _: None) if lines_s is None else _lines(title, total, lines_s) as done:
            yield done
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda completed: bar.update(task, completed=completed)


@contextmanager
def _lines(title: str, total: float | None, every_s: float) -> Iterator[Callable[[float], None]]:
    """Lines on stderr for who reads a file or a pipe, also before anything ends."""
    known, over = [0.0], threading.Event()

    def tell() -> None:
        told = ""
        while not over.wait(every_s):
            of = "" if total is None else f" of {total:g}"
            done = f"{known[0]:.0%}".replace("%", " %") if total == 1 else f"{known[0]:g}{of}"
            if done != told:
                print(f"{title}: {done} done", file=sys.stderr, flush=True)
            told = done

    def done(completed: float) -> None:
        known[0] = completed

    thread = threading.Thread(target=tell, name="progress lines", daemon=True)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


def check_writable(*paths: Path | None) -> None:
    """Find out before long work whether its results can be written; folders above them are made."""
    for path in paths:
        if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
            continue  # nothing to write, or a device
        if path.is_dir():
            raise InputError(f"{path}: is a folder; expected a file")
        trial = Path(os.path.realpath(path)).with_name(f".dovetail-{os.getpid()}-trial.tmp")
        try:
            trial.parent.mkdir(parents=True, exist_ok=True)
            trial.touch()
            trial.unlink()
        except OSError as error:
            raise cannot_write(path, error) from error


def pairs(flag: str, given: list[str] | None, verbatim: bool = False) -> dict[str, Any]:
    """What `--flag NAME=VALUE` was given. Names are those of Python's keywords, unless they are the user's own.

    >>> pairs("--option", ["age-step=40"]), pairs("--on", ["gpu-0=cpu"], verbatim=True)
    ({'age_step': '40'}, {'gpu-0': 'cpu'})
    """
    pairs = {}
    for item in given or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise InputError(f"{flag} {item}: expected NAME=VALUE")
        pairs[key if verbatim else key.replace("-", "_")] = value
    return pairs


def one_or_named(flag: str, given: list[str] | None) -> dict[str, str]:
    """What `--flag VALUE NAME=VALUE ...` was given: the value without a name is for all others, as "".

    >>> one_or_named("--model", ["llama2-7b", "gpt-4=llama2-70b"])
    {'gpt-4': 'llama2-70b', '': 'llama2-7b'}
    """
    named = pairs(flag, [item for item in given or [] if "=" in item], verbatim=True)
    if all_others := [item for item in given or [] if "=" not in item]:
        if len(all_others) > 1:
            raise InputError(f"{flag} {' '.join(all_others)}: expected one for all, others as NAME={all_others[1]}")
        named[""] = all_others[0]
    return named


def value(text: str) -> Any:
    """A value of the command line: what it is as JSON (a number, true, a list), else the text.

    >>> value("12"), value("0.5"), value("true"), value("relu"), value("[1, 2]")
    (12, 0.5, True, 'relu', [1, 2])
    """
    import msgspec

    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text


def whole_numbers(flag: str, text: str) -> tuple[int, ...]:
    """Whole numbers between commas.

    >>> whole_numbers("--shape", "3,224,224")
    (3, 224, 224)
    """
    try:
        numbers = tuple(int(word) for word in text.split(",") if text)
    except ValueError:
        numbers = (-1,)
    if any(number < 0 for number in numbers):
        raise InputError(f"{flag} {text}: expected whole numbers with commas between them")
    return numbers


def newest(*patterns: str, level: str = "") -> Path | None:
    """The file in this folder that was written last, of those whose names match, and that are journals of this level if
    one is named; None if there is none.

    JSON lines that neither are called a journal nor begin as one, such as requests, are passed over.
    """
    from dovetail.core.journal import is_journal

    found = {path for pattern in patterns for path in Path().glob(pattern) if path.is_file()}
    latest = sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True)
    other = (".json", "_journal.jsonl")
    journals = (path for path in latest if path.name.endswith(other) or is_journal(path))
    return next((path for path in journals if not level or _level_of(path) in (level, "")), None)


def _level_of(path: Path) -> str:
    """A journal's level; nothing of one that cannot be read, so that whoever reads it says why."""
    from dovetail.core.journal import open_journal

    try:
        return open_journal(path).header.level
    except InputError:
        return ""


def newest_journal(pattern: str = "*.jsonl") -> Path:
    """The journal in this folder that was written last, for commands that were given none."""
    journal = newest(pattern)
    if journal is None:
        raise InputError(f"no journal {pattern} in this folder: name one")
    return journal


def make_folder(out: Path) -> None:
    """The folder that results go to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"--out {out}: cannot be made: {error.strerror}") from error


@contextmanager
def folder_for(out: Path) -> Iterator[None]:
    """The folder that results go to; it goes again if what was asked for makes no sense."""
    made = [folder for folder in (out, *out.parents) if not folder.exists()]
    make_folder(out)
    try:
        yield
    except InputError:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()
        raise


def show_live(look: Callable[[], Any], every_s: float, once: bool = False) -> None:
    """Show what there is to see as it changes, until Ctrl-C; once, as plain lines, where there is no terminal."""
    from rich.console import Console

    if once or not sys.stdout.isatty():
        with (console := Console(width=None if sys.stdout.isatty() else 200)).capture() as shown:
            console.print(look())
        print("\n".join(line.rstrip() for line in shown.get().splitlines()))
        return
    from rich.live import Live

    with Live(screen=True, auto_refresh=False) as live, suppress(KeyboardInterrupt):
        while True:
            live.update(look(), refresh=True)
            time.sleep(every_s)
