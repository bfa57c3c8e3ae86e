"""A journal as a Chrome trace, which ui.perfetto.dev and chrome://tracing open: one track per device.

Hosts are processes and devices their threads; each bar is a slice for the set-up and one for the run. Slices are
written as the journal is read, so the memory needed does not grow with them; of each start only the two instants that
the queue's counter needs are kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np

from dovetail.core.events import Added, Arrived, Complete, Reject, Start
from dovetail.core.journal import Ended, Header, Reader, open_journal
from dovetail.core.resources import Device
from dovetail.report.data.bars import DONE, FAILED, Bar, Bars
from dovetail.report.data.devices import own_names

_US = 1e6
_SLOT = 1 << 20  # from the track of a slot to that of the next one
_STATES = {DONE: "done", FAILED: "failed"}
_encode = msgspec.json.Encoder().encode


def write(journal: Path | Reader, out: BinaryIO) -> int:
    """Write the trace into an open file; gives the number of slices."""
    reader = journal if isinstance(journal, Reader) else open_journal(journal)
    header = reader.header
    about = {"policy": header.policy, "level": header.level, "made_by": header.made_by, "seed": header.seed}
    out.write(b'{"displayTimeUnit":"ms","otherData":' + _encode(about) + b',"traceEvents":[\n')
    slices = 0
    first = True
    for event in _events(reader):
        out.write((b"" if first else b",\n") + _encode(event))
        first = False
        slices += event["ph"] == "X"
    out.write(b"\n]}\n")
    return slices


def _events(reader: Reader) -> Iterator[dict[str, Any]]:
    pool = reader.header.pool
    tracks: dict[int, tuple[int, int]] = {}
    yield from _name_tracks(reader.header, pool.devices, tracks)
    by_round = reader.in_rounds
    bars = Bars(pool, str(reader.path), apart=by_round)
    ready, started, arrived, closed = array("d"), array("d"), array("d"), array("d")
    now, ended = 0.0, False
    for _, now, events in reader.steps():
        for bar in bars.step(now, events):
            yield from _slices(bar, tracks)
        for event in events:
            if isinstance(event, Start):
                ready.append(min(event.ready_s, now))
                started.append(now)
            elif isinstance(event, Arrived):
                arrived.append(now)
            elif isinstance(event, Added):
                pool = pool.joined(event.devices, event.types)
                yield from _name_tracks(reader.header, event.devices, tracks)
            elif isinstance(event, Complete):
                closed.append(now)
            elif isinstance(event, Reject):
                closed.append(now)
                args = {"why": event.why}
                yield {
                    "ph": "i",
                    "s": "g",
                    "name": f"rejected {event.job}",
                    "pid": 1,
                    "tid": 1,
                    "ts": now * _US,
                    "args": args,
                }
            ended = ended or isinstance(event, Ended)
    for bar in bars.still_open(now):
        yield from _slices(bar, tracks)
    yield from _counter("waiting", "tasks", ready, started)
    if by_round:
        yield from _counter("active", reader.header.words.jobs, arrived, closed)
    if not ended:
        yield {"ph": "i", "s": "g", "name": "this run did not end", "pid": 1, "tid": 1, "ts": now * _US}


def _name_tracks(
    header: Header, devices: Sequence[Device], tracks: dict[int, tuple[int, int]]
) -> Iterator[dict[str, Any]]:
    """Give each device a track, and its host a name. Viewers treat process and thread 0 as special."""
    own = own_names(header) or []
    for host in sorted({d.host + 1 for d in devices} - {pid for pid, _ in tracks.values()}):
        name = f"{header.level} host {host - 1}"
        yield {"ph": "M", "name": "process_name", "pid": host, "args": {"name": name}}
        yield {"ph": "M", "name": "process_sort_index", "pid": host, "args": {"sort_index": host - 1}}
    for d in devices:
        pid, tid = tracks[d.id] = d.host + 1, d.id + 1
        named = {"name": f"{own[d.id] if d.id < len(own) else f'device {d.id}'} ({d.type})"}
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": named}
        yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": d.id}}


def _slices(bar: Bar, tracks: dict[int, tuple[int, int]]) -> Iterator[dict[str, Any]]:
    args: dict[str, Any] = {
        "job": bar.job,
        "task": bar.task,
        "kind": bar.kind,
        "why": bar.why,
        "wait_s": bar.wait_s,
        "devices": bar.devices,
        "state": _STATES.get(bar.state, "still running"),
    }
    if bar.tasks > 1:
        args["batch_of"] = bar.tasks
    if bar.slot is not None:
        args["slot"] = bar.slot
    middle = bar.setup_end_s
    for device in bar.devices:
        pid, tid = tracks[device]
        if bar.slot:  # slices of one track must not overlap
            key, tid = device + bar.slot * _SLOT, tid + bar.slot * _SLOT
            if key not in tracks:
                tracks[key] = pid, tid
                yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": f"slot {bar.slot}"}}
                yield {"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": device}}
        if middle > bar.start_s:
            change = {"from": bar.replaces, "to": bar.kind, "job": bar.job, "task": bar.task}
            name = f"switch {bar.replaces} to {bar.kind}" if bar.replaces else f"load {bar.kind}"
            yield _slice(name, "setup", pid, tid, bar.start_s, middle, change)
        yield _slice(f"{bar.kind}: {bar.job}/{bar.task}", "run", pid, tid, middle, bar.end_s, args)


def _slice(
    name: str, category: str, pid: int, tid: int, start: float, end: float, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": pid,
        "tid": tid,
        "ts": round(start * _US, 3),
        "dur": round((end - start) * _US, 3),
        "args": args,
    }


def _counter(name: str, of: str, come: array[float], gone: array[float]) -> Iterator[dict[str, Any]]:
    """How many had come and not gone, at each instant when that changed."""
    times = np.concatenate([np.asarray(come), np.asarray(gone)])
    changes = np.concatenate([np.ones(len(come)), -np.ones(len(gone))])
    instants, place = np.unique(times, return_inverse=True)
    lengths = np.cumsum(np.bincount(place, weights=changes, minlength=len(instants)))
    last = 0
    for at, length in zip(instants.tolist(), lengths.tolist(), strict=True):
        if int(length) != last or at == instants[0]:
            last = int(length)
            yield {"ph": "C", "name": name, "pid": 1, "ts": round(at * _US, 3), "args": {of: last}}
