"""Execution logs through the checker: rows become the events of a journal, and the same rules apply."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import inf
from operator import attrgetter
from pathlib import Path

import msgspec
from msgspec import UNSET

from dovetail.core import check as core
from dovetail.core.errors import InputError
from dovetail.core.events import Arrived, Complete, Reject, Start
from dovetail.core.files.document import explain
from dovetail.core.files.reading import read_bytes
from dovetail.core.findings import Findings, Report, close, compare
from dovetail.core.journal import Header
from dovetail.workflow.check.examination import Examination, need_config
from dovetail.workflow.compat.check_old_log import OldLog
from dovetail.workflow.compat.execution_log import ExecutionRow, RequestRow, log_summary
from dovetail.workflow.compat.log_rows import (
    LoggedRun,
    LogSpan,
    check_workflows,
    end_of,
    events_of,
    number,
)
from dovetail.workflow.words import WORDS


def check_log(path: Path, config: Path | None = None, requests: Path | None = None, limit: int = 20) -> Report:
    """Check an execution log, ours or an older scheduler's, and whether it is a run of these files."""
    need_config(config, requests)
    text = read_bytes(path, "a journal or an execution log")
    try:
        log = msgspec.json.decode(text, type=LoggedRun)
    except msgspec.ValidationError as error:
        keys, message = explain(error)
        raise InputError(f"{path}: {'.'.join(map(str, keys)) or 'execution log'}: {message}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: neither a journal nor an execution log: {error}") from None
    executed = len(log.executions)

    def place(n: int, t: float) -> str:
        if n < 0:
            return f"requests[{-1 - n}]" if log.requests or requests is not None else ""
        return f"executions[{n}]" if n < executed else f"failures[{n - executed}]"

    faults = Findings(limit, place)
    if log.made_by:
        return _check_ours(path, log, faults, config, requests)
    return OldLog(path, log, faults, config, requests).check(limit, place)


def _check_ours(path: Path, log: LoggedRun, faults: Findings, config: Path | None, requests: Path | None) -> Report:
    if log.pool is None:
        raise InputError(f"{path}: missing key `pool`")
    if log.facts.get("live"):
        raise InputError(f"{path}: a live run meets more than an execution log can tell; check its journal")
    if log.preloads:
        raise InputError(
            f"{path}: a run with {log.preloads} preloads, of which an execution log says no more; check its journal"
        )
    header = Header(
        level="workflow",
        words=WORDS,
        policy=log.policy,
        options=log.options,
        mode=str(log.summary.get("mode", "")),
        seed=log.seed,
        pool=log.pool,
        graphs=log.graphs,
        facts=log.facts | {"models": log.models, "costs": log.costs, "compat": log.compat},
    )
    run = Examination(path, core.check_header(header, path), faults)
    run.hold_to_rules(config, requests)
    spans = [_our_span(i, row, faults) for i, row in enumerate([*log.executions, *log.failures])]
    arrivals, closings = _our_requests(log.requests, faults)
    check_workflows([*log.executions, *log.failures], {event.job: event.of for _, event in arrivals}, faults)
    log.executions, log.requests = [], []
    decided = sorted(spans, key=attrgetter("decision"))
    for one, two in pairwise(decided):
        if one.decision == two.decision or one.t > two.t:
            faults.at(two.n, two.t)
            found = f"found decision {two.decision} at {two.t} s after {one.decision} at {one.t} s"
            faults.add("row", f"{two.start.job}/{two.start.task}", found)
    figures, bounds = run.follow(events_of(spans, arrivals, closings, log.grown))
    rejected = sorted(event.job for _, event in closings if isinstance(event, Reject))
    if rejected != sorted(row.get("request_id", "") for row in log.rejected_requests):
        faults.add("row", "rejected_requests", f"found {len(log.rejected_requests)}, expected {len(rejected)} of these")
    if header.mode not in ("offline", "online"):
        faults.add("summary", "mode", f"found {header.mode!r}, expected 'offline' or 'online'")
    expected = log_summary(header, figures)
    for key, value in expected.items():
        if key not in log.summary:
            faults.add("summary", key, "is missing")
        elif type(value) not in (int, float) and log.summary[key] != value:
            faults.add("summary", key, f"found {log.summary[key]}, expected {value}")
    compare(log.summary, {k: v for k, v in expected.items() if type(v) in (int, float)}, faults)
    if log.bounds is not None:
        words = ("binding", "void")
        compare(log.bounds, {k: v for k, v in msgspec.to_builtins(bounds).items() if k not in words}, faults)
    return run.report("execution log", figures, bounds)


def _our_requests(
    rows: Sequence[RequestRow], faults: Findings
) -> tuple[list[tuple[float, Arrived]], list[tuple[float, Complete | Reject]]]:
    arrivals: list[tuple[float, Arrived]] = []
    closings: list[tuple[float, Complete | Reject]] = []
    for i, row in enumerate(rows):
        faults.at(-1 - i, row.arrival_time)
        end, took = row.completion_time, row.response_time
        fault = "" if row.sizes or row.status == "completed" else row.reason or "unusable"
        due_s, facts = row.deadline_seconds, row.facts
        arrived = Arrived(row.request_id, row.workflow_id, row.sizes, due_s, row.priority, fault, facts)
        arrivals.append((row.arrival_time, arrived))
        if row.status == "rejected":
            if end is not None or took is not None:
                faults.add("row", row.request_id, f"was rejected, but has completion_time {end}, response_time {took}")
            closings.append((inf, Reject(row.request_id, row.reason or "")))
            continue
        if end is None or took is None or not close(took, end - row.arrival_time):
            faults.add("row", row.request_id, f"found response_time {took} from {row.arrival_time} s to {end} s")
        closings.append((inf if end is None else end, Complete(row.request_id)))
    return arrivals, closings


def _our_span(i: int, row: ExecutionRow, faults: Findings) -> LogSpan:
    faults.at(i, row.start_time)
    who = f"{row.request_id}/{row.node_id}"
    needed = (
        "execution_time",
        "estimated_time",
        "switch_time",
        "waiting_time",
        "gpu_ids",
        "ready_time",
        "switch_start",
    )
    lacking = [key for key in needed if getattr(row, key) in (None, UNSET)]
    if lacking:
        faults.add("row", who, f"has no {', '.join(lacking)}")
    t = number(row.switch_start, row.start_time - number(row.switch_time))
    gpus = row.gpu_ids if row.gpu_ids is not UNSET else () if row.gpu_id is None else (row.gpu_id,)
    for key, found, expected in (
        ("gpu_id", row.gpu_id, gpus[0] if gpus else None),
        ("start_time", row.start_time, t + number(row.switch_time)),
        ("execution_time", number(row.execution_time), row.end_time - row.start_time),
        ("waiting_time", number(row.waiting_time), t - number(row.ready_time)),
    ):
        if found != expected and not (found is not None and expected is not None and close(found, expected)):
            faults.add("row", who, f"found {key} {found}, expected {expected} from the rest of the row")
    start = Start(
        row.request_id,
        row.node_id,
        row.model_name,
        gpus,
        number(row.ready_time),
        number(row.estimated_time),
        "",
        number(row.switch_time),
        row.from_model or None,
        row.batch,
        row.estimated_first,
        row.cached,
        row.slots,
    )
    return LogSpan(i, t, end_of(row, t, faults), start, row.reason, row.decision, row.first_token_time)
