"""Ray's jobs: what `ray job list` prints, what its REST API answers (`/api/jobs/`), or its exported events.

A job arrives when it was submitted. Ray says nothing of accelerators beyond `entrypoint_num_gpus`, so `map` names the
key that does (`width=metadata.num_gpus`). Events tell when a job began to run; without them the time that it waited
for its entry point's resources is in the time that it ran.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from dovetail.cluster.inputs.csv_rows import MOST_WHOLE, GivenRows, Source
from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.traces.json_objects import JsonObject, objects
from dovetail.cluster.inputs.traces.records import JobRecord, jobs_of
from dovetail.cluster.inputs.workload import Job
from dovetail.core.errors import InputError
from dovetail.core.files.reading import open_bytes

_PRINTED = re.compile(r"^\s*\[?\s*JobDetails\(", re.MULTILINE)
_MEMBER = re.compile(r"<\w+\.\w+: ('[^']*')>")  # how Python shows a member of an enumeration
_ENDED = ("SUCCEEDED", "FAILED", "STOPPED")
_EVENTS = ("EXPORT_SUBMISSION_JOB", "EXPORT_DRIVER_JOB")


def _read(reading: TraceReading) -> Iterator[Job]:
    return jobs_of(reading, _records(reading.path))


def _records(path: Source) -> Iterator[JobRecord | InputError | str]:
    jobs: dict[str, JsonObject] = {}  # the last that is said of each
    began_s: dict[str, float] = {}
    for each in _objects(path):
        if isinstance(each, InputError):
            yield each
            continue
        if (source := each.data.get("source_type")) is not None:
            if source not in _EVENTS or not isinstance(each.data.get("event_data"), dict):
                yield "events of other things"
                continue
            at_s = each.time_s("timestamp")
            each = JsonObject(each.place, each.data["event_data"])
            if each.data.get("status") == "RUNNING" and at_s is not None:
                began_s.setdefault(_key(each), at_s)
        if not (key := _key(each)):
            yield each.error("", f"expected submission_id or job_id, found {', '.join(each.data)[:100] or 'nothing'}")
            continue
        known = jobs[key].data if key in jobs else {}
        jobs[key] = JsonObject(
            each.place, known | {name: value for name, value in each.data.items() if value is not None}
        )
    for key, each in jobs.items():
        try:
            yield _record(key, each, began_s.get(key))
        except InputError as error:
            yield error


def _key(each: JsonObject) -> str:
    names = ("submission_id", "submission_job_id", "job_id")
    return str(next((each.data[name] for name in names if each.data.get(name)), ""))


def _record(key: str, each: JsonObject, began_s: float | None) -> JobRecord | str:
    arrival_s, end_s, status = _time_s(each, "start_time"), _time_s(each, "end_time"), each.data.get("status")
    if status == "PENDING" or arrival_s is None:
        return "jobs that never ran"
    if status not in (None, *_ENDED) or not end_s:
        return "jobs that still run"
    width = each.data.get("entrypoint_num_gpus")
    if width is not None and (not isinstance(width, int | float) or not 0 <= width <= MOST_WHOLE):
        raise each.error("entrypoint_num_gpus", f"expected a number from 0 to {MOST_WHOLE:,}, found {width!r}")
    metadata = each.data.get("metadata")
    return JobRecord(
        place=each.place,
        look=each.look,
        key=key,
        arrival_s=arrival_s,
        ran_s=end_s - (arrival_s if began_s is None else began_s),
        width=None if not width else max(round(width), 1),
        share=min(width, 1.0) if width else 1.0,
        name=str((metadata or {}).get("name", key)) if isinstance(metadata, dict | None) else key,
        ended="" if status in (None, "SUCCEEDED") else str(status),
    )


def _time_s(each: JsonObject, key: str) -> float | None:
    """Ray's times are milliseconds, as numbers or, in events, as text."""
    value = each.data.get(key)
    if value in (None, "", 0, "0"):
        return None
    try:
        return float(value) / 1000
    except (TypeError, ValueError):
        raise each.error(key, f"expected milliseconds, found {value!r}") from None


def _objects(path: Source) -> Iterator[JsonObject | InputError]:
    if isinstance(path, GivenRows):
        yield from objects(path)
        return
    with open_bytes(path) as file:
        text = file.read().decode("utf-8-sig", errors="replace")
    begin = _PRINTED.search(text)
    if begin is None:
        yield from objects(path, ("jobs",))
        return
    line = 1 + text.count("\n", 0, begin.start())
    printed = text[begin.start() :].strip()
    if printed.startswith("[") and ")]" in printed:
        printed = printed[: printed.rindex(")]") + 2]  # a terminal's own text may follow
    try:
        tree = ast.parse(_MEMBER.sub(r"\1", printed), mode="eval").body
        for node in tree.elts if isinstance(tree, ast.List) else [tree]:
            yield JsonObject(f"{path}:{line + node.lineno - 1}", _evaluated(node))
    except (SyntaxError, ValueError, AttributeError) as error:
        yield InputError(f"{path}:{line}: expected what `ray job list` prints, found something else: {error}")


def _evaluated(node: ast.AST) -> Any:
    """The value of what Python printed: literals, and objects as dicts of their fields."""
    if isinstance(node, ast.Call):
        return {word.arg: _evaluated(word.value) for word in node.keywords}
    return ast.literal_eval(node)


def _looks(text: str) -> bool:
    if _PRINTED.search(text):
        return True
    events = any(f'"{name}"' in text for name in _EVENTS)
    return text.lstrip()[:1] in ("{", "[") and (events or ('"submission_id"' in text and '"entrypoint"' in text))


FORMATS = (TraceFormat("ray", "Ray's jobs", (), _read, looks=_looks, mapped=True),)
