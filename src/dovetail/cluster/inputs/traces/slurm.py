"""Slurm's accounts: what `sacct` prints, with any columns, parsable, with any `--delimiter`, or as a table.

A job arrives when it was submitted and ran for `Elapsed`; its accelerators are those of `AllocTRES`, else `ReqTRES`,
else `AllocGRES` on each node. Each task of an array is a job; steps, jobs that never ran and those that still run are
left out.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from dovetail.cluster.inputs.csv_rows import CsvRow, GivenRows, Source, read_rows
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.traces.records import JobRecord, jobs_of, seconds_of
from dovetail.cluster.inputs.workload import Job
from dovetail.core.errors import InputError
from dovetail.core.files.reading import BOM, open_bytes

ASK = "sacct -a -X -P -o JobID,JobName,Account,State,Submit,Start,End,Elapsed,AllocTRES,ReqTRES"
_GPU = re.compile(r"(?:gres/|gres:|PER_NODE:)?gpu(?::([^:=,()]+))??(?:[:=](\d+))?(?:\([^)]*\))?")
_LIKE_GPU = re.compile(r"(?:gres[/:]|PER_NODE:)?gpu(?![a-z/])")
_NODES = re.compile(r"\bnode=(\d+)")
_SLICE = re.compile(r"(\d)g\.\d+gb")  # part of an accelerator, in sevenths
_NOTHING = ("", "unknown", "none", "n/a", "(null)", "none assigned")
_OPEN = ("RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "STOPPED", "SIGNALING", "STAGE_OUT")
_DELIMITED = re.compile(r'\s*"?[A-Za-z]+"?([|;,\t~^!#@])')
_FREE_TEXT = {"jobname", "comment", "admincomment", "submitline", "workdir"}
_TIMES = ("elapsedraw", "elapsed", "start")
_ACCELERATORS = ("alloctres", "reqtres", "allocgres", "reqgres")


def _read(reading: TraceReading) -> Iterator[Job]:
    return jobs_of(reading, _records(reading.path, told="width" in reading.map))


def _records(path: Source, told: bool) -> Iterator[JobRecord | InputError | str]:
    rows = _lines(path, told)
    for row in rows:
        if isinstance(row, InputError):
            yield row
            continue
        try:
            yield _record(row)
        except InputError as error:
            yield error


def _record(row: CsvRow) -> JobRecord | str:
    job = row.text("jobid", row.text("jobidraw", ""))
    if not job:
        raise row.error("JobID", "expected a job, found nothing")
    if "." in job:
        return "steps of jobs"
    if job.endswith("+"):
        raise _cut_short(row, "JobID", job)
    state = row.text("state", "").split()[0].rstrip("+") if "state" in row else ""
    ran_s = _ran_s(row)
    if state in _OPEN and not (state == "RESIZING" and _time_s(row, "end") is not None):  # its rest is another row
        return "jobs that still run"
    if state == "PENDING" or "[" in job or not ran_s:
        return "jobs that never ran"
    gpus = _gpus(row)
    return JobRecord(
        place=f"{row.path}:{row.line}",
        look=lambda key: _look(row, key),
        key=job,
        arrival_s=_arrival_s(row),
        ran_s=ran_s,
        width=gpus.number,
        name=row.text("jobname", job),
        entity=row.text("account", row.text("user", "")),
        ran_on=gpus.type,
        wants=_wanted(row),
        share=gpus.share,
        ended="" if state in ("", "COMPLETED", "RESIZING") else state,
        spread=_nodes(row) > 1,
    )


def _look(row: CsvRow, key: str) -> str:
    if key.lower() not in row.columns:
        raise row.error("", f"expected a column {key!r}, found {', '.join(filter(None, row.columns))}")
    return row.text(key.lower(), "")


def _arrival_s(row: CsvRow) -> float:
    for column in ("submit", "eligible", "start"):
        if (found := _time_s(row, column)) is not None:
            return found
    raise row.error("Submit", f"expected when it came, found {row.text('submit', '')!r}")


def _ran_s(row: CsvRow) -> float | None:
    """How long it ran, time in which it was suspended aside; None if it did not."""
    for column in ("elapsedraw", "elapsed"):
        text = row.text(column, "")
        if text.lower() not in _NOTHING:
            if text.endswith("+"):
                raise _cut_short(row, column, text)
            found = seconds_of(text)
            if found is None:
                raise row.error(column, f"expected seconds or DAYS-HH:MM:SS, found {text!r}")
            return found
    start_s, end_s = _time_s(row, "start"), _time_s(row, "end")
    if start_s is None or end_s is None:
        return None
    if end_s < start_s:
        raise row.error("End", f"expected a time after Start, {row.text('start')}, found {row.text('end')}")
    return end_s - start_s


def _time_s(row: CsvRow, column: str) -> float | None:
    text = row.text(column, "")
    if text.lower() in _NOTHING:
        return None
    if text.isdecimal():
        return float(text)  # SLURM_TIME_FORMAT=%s
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        wanted = "a time such as 2024-11-13T13:03:31, seconds, or Unknown"
        raise row.error(column, f"expected {wanted}, found {text!r}") from None
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _nodes(row: CsvRow) -> int:
    """How many servers it had, as far as it is told."""
    told = _NODES.search(row.text("alloctres", ""))
    return int(told[1]) if told else max(row.whole("allocnodes", row.whole("nnodes", 1), least=0), 1)


class _Gpus(NamedTuple):
    number: int | None = None
    type: str = ""
    share: float = 1.0


def _gpus(row: CsvRow) -> _Gpus:
    """The accelerators that a job had, by the first column that says so."""
    for column in _ACCELERATORS:
        text = row.text(column, "")
        if text.lower() in _NOTHING:
            continue
        if text.endswith("+"):
            raise _cut_short(row, column, text)
        if odd := next((part for part in _parts(text) if _LIKE_GPU.match(part) and not _GPU.fullmatch(part)), None):
            raise row.error(column, f"expected accelerators as gres/gpu:a100=4, found {odd!r}")
        return _parsed(text, _nodes(row) if column.endswith("gres") else 1)
    known = [column for column in _ACCELERATORS if column in row.columns]
    return _Gpus(number=0 if known else None)


def _cut_short(row: CsvRow, column: str, found: str) -> InputError:
    return row.error(column, f"expected all of it, found {found!r}, cut short (-P, or -o {column}%120)")


def _parts(text: str) -> list[str]:
    return [part.strip() for part in re.split(r",(?![^(]*\))", text)]


def _parsed(text: str, nodes: int) -> _Gpus:
    """
    >>> _parsed("billing=24,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=48G,node=1", 1)
    _Gpus(number=4, type='a100', share=1.0)
    >>> _parsed("gpu:2(S:0-1)", 3), _parsed("cpu=4,gres/gpu:a100_3g.20gb=1", 1).share, _parsed("cpu=4,mem=1G", 1)
    (_Gpus(number=6, type='', share=1.0), 0.42857142857142855, _Gpus(number=0, type='', share=1.0))
    """
    all_of_them: int | None = None
    by_type: dict[str, int] = {}
    for part in _parts(text):
        found = _GPU.fullmatch(part)
        if found is None:
            continue
        kind, count = found.group(1), int(found.group(2) or 1)
        if kind is None:
            all_of_them = count
        else:
            by_type[kind] = by_type.get(kind, 0) + count
    total = sum(by_type.values()) if all_of_them is None else all_of_them
    kind = next(iter(by_type)) if len(by_type) == 1 else ""
    slice_ = _SLICE.search(kind)
    return _Gpus(total * nodes, kind, int(slice_.group(1)) / 7 if slice_ else 1.0)


def _wanted(row: CsvRow) -> tuple[str, ...]:
    asked = row.text("reqtres", "")
    if asked.endswith("+"):
        raise _cut_short(row, "reqtres", asked)
    found = _parsed(asked, 1)
    return (found.type,) if found.type else ()


def _lines(path: Source, told: bool) -> Iterator[CsvRow | InputError]:
    """The rows of a table with `|` or another sign between cells, or of one whose second line says by dashes how wide
    columns are. `told`: how many accelerators a job had need not stand in it."""
    if isinstance(path, GivenRows):
        given = [{name.lower(): value for name, value in row.items()} for row in path.rows]
        for each in read_rows(GivenRows(path.name, given)):
            _check(each, told)
            yield each
        return
    row: CsvRow | None = None
    spans: list[tuple[int, int]] = []
    with open_bytes(path) as file:
        for number, raw in enumerate(file, start=1):
            raw = (raw.removeprefix(BOM) if number == 1 else raw).rstrip(b"\r\n")
            line = raw.decode(errors="replace")
            if not line.strip():
                continue
            if row is None:
                between, header = _between(line), raw
                row = CsvRow(path, [name.strip().lower() for name in _split(line, between)])
                row.line = number
                if between:
                    _check(row, told)
                continue
            if not between and not spans:
                spans = [match.span() for match in re.finditer(r"-+", line)]
                if not spans or set(line.strip()) - {"-", " "}:
                    raise InputError(f"{path}:{number}: expected a line of dashes under the names, found {line[:60]!r}")
                row = CsvRow(path, [name.lower() for name in _cut(header, spans)])
                _check(row, told)
                continue
            row.line = number
            cells = _cut(raw, spans) if spans else _split(line, between)
            more = len(cells) - len(row.columns)
            free = [at for at, name in enumerate(row.columns) if name in _FREE_TEXT]
            if more > 0 and len(free) == 1 and between != ",":  # a name may have a bar in it
                cells[free[0] : free[0] + more + 1] = [between.join(cells[free[0] : free[0] + more + 1])]
            if len(cells) != len(row.columns):
                hint = " (commas in a cell need quotes around it; sacct -P prints bars)" if between == "," else ""
                yield row.error("", f"expected {len(row.columns)} columns, found {len(cells)}{hint}")
                continue
            row.cells = [cell.strip() for cell in cells]
            yield row


def _between(header: str) -> str:
    """The sign between cells; nothing if columns stand under each other.

    >>> _between("JobID|JobName"), _between('"JobID","JobName"'), _between("JobID    JobName")
    ('|', ',', '')
    """
    found = _DELIMITED.match(header)
    return found[1] if found else ""


def _split(line: str, between: str) -> list[str]:
    """The cells of a line; in those that are not between bars, quotes are taken away."""
    if between in ("", "|"):
        return line.split("|")
    return next(csv.reader([line], delimiter=between), [])


def _cut(line: bytes, spans: list[tuple[int, int]]) -> list[str]:
    """The cells of a line of a table. `sacct` fills columns up by bytes, of which a letter may have several; a time
    that is too long for its column moves what is behind it.

    >>> _cut("  Müller 10-00:00:05  2".encode(), [(0, 9), (10, 20), (21, 23)])
    ['Müller', '10-00:00:05', '2']
    """
    cells, by = [], 0
    for start, end in spans:
        blank = line.find(b" ", end + by - 1)
        to = len(line) if blank < 0 else blank
        cells.append(line[start + by : to].decode(errors="replace").strip())
        by = max(to - end, by)
    return cells


def _check(row: CsvRow, told: bool) -> None:
    """Refuse a table that cannot say what is needed."""
    needed = [("JobID", ("jobid", "jobidraw")), ("Elapsed", _TIMES), ("Submit", ("submit", "eligible", "start"))]
    for name, any_of in [*needed, *([] if told else [("AllocTRES", _ACCELERATORS)])]:
        if not set(any_of) & set(row.columns):
            found = ", ".join(filter(None, row.columns)) or "nothing"
            raise row.error("", f"missing column {name!r}; found {found[:200]} (as by {ASK})")


def _looks(text: str) -> bool:
    if text.startswith("["):
        return '"jobid' in text.lower()  # rows that were given
    header = text.lstrip().partition("\n")[0]
    cells = _split(header, _between(header)) if _between(header) else header.split()
    names = {name.strip().lower() for name in cells}
    return bool(names & {"jobid", "jobidraw"}) and len(names) > 1


FORMATS = (TraceFormat("slurm", "Slurm's sacct", ("JobID", "AllocTRES"), _read, looks=_looks, mapped=True),)
