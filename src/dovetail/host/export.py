"""The older scheduler's result files: Gantt rows, one row per request, use over time, and the comparison of runs."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from dovetail.host.metrics import ProgramFigures, Programs
from dovetail.host.options import HostOptions

COMPARISON = [
    "Containers",
    "Policy",
    "Asignment Policy",
    "Tf Version",
    "Priority",
    "TME",
    "TMR",
    "TMER",
    "Recursos",
    "Productividad",
    "TT",
]
GANTT = ("Task", "Start", "Finish", "Cores", "RequestId")
ARRIVAL, UPDATE, FAILURE = "-1", "-2", "-3"  # tasks that are no program
_BEGIN = datetime(2000, 1, 1)  # these files hold dates; a simulation has none of its own
_CHANGES = 2  # reassignments that the older file has columns for; more are counted
EVENTS = [
    "Model",
    "Policy",
    "Tensorflow",
    "Container",
    "User_Inter",
    "User_Intra",
    "Inter",
    "Intra",
    "Start_Request",
    "Execution_Start",
    "Execution_Finish",
    "Reassigment_1",
    "Reassigment_1_Inter",
    "Reassigment_1_Intra",
    "Reassigment_2",
    "Reassigment_2_Inter",
    "Reassigment_2_Intra",
    "Reassigment_Count",
    "Pause_Start_1",
    "Pause_Finish_1",
    "Pause_Count",
    "Request_id",
    "Execution_Time",
    "First_Execution_Time",
    "Wait_Time",
]


def _date(t: float) -> str:
    """
    >>> _date(61.5)
    '2000-01-01 00:01:01.500000'
    """
    return (_BEGIN + timedelta(seconds=t)).isoformat(sep=" ", timespec="microseconds")


def as_csv(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows under their headings."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def gantt_events(programs: Programs) -> str:
    """A row for each stretch of time in which a program had the same number of cores (0: paused); arrivals are task -1,
    updates -2, failures -3."""
    rows: list[tuple[float, Sequence[Any]]] = []
    for number, (name, row) in enumerate(programs.rows.items()):
        rows.append((row.arrived_s, (ARRIVAL, _date(row.arrived_s), _date(row.arrived_s), name, number)))
        for stretch in programs.stretches.get(name, ()):
            cells = (name, _date(stretch.from_s), _date(stretch.to_s), len(stretch.cores), number)
            rows.append((stretch.from_s, cells))
    for task, marks in ((UPDATE, programs.updates), (FAILURE, programs.failures)):
        rows += [(t, (task, _date(t), _date(t), name, "")) for t, name in marks]
    return as_csv(GANTT, (cells for _, cells in sorted(rows, key=lambda row: row[0])))


def scheduler_events(programs: Programs, options: HostOptions, model: str, version: str) -> str:
    """A row for each request; threads are 1 inter-op and the rest intra-op."""
    rows = []
    for number, row in enumerate(programs.rows.values()):
        stretches = programs.stretches.get(row.program, [])
        changes = [s for s, before in zip(stretches[1:], stretches, strict=False) if s.cores and before.cores]
        pauses = [s for s in stretches if not s.cores]
        cells: dict[str, Any] = {
            "Model": model or row.image,
            "Policy": options.assign,
            "Tensorflow": version,
            "Container": row.program,
            **_threads("User_", row.asked),
            **_threads("", row.first_cores),
            "Start_Request": _date(row.arrived_s),
            "Execution_Start": "" if row.started_s is None else _date(row.started_s),
            "Execution_Finish": "" if row.ended_s is None else _date(row.ended_s),
            "Reassigment_Count": row.resizes,
            "Pause_Count": row.pauses,
            "Request_id": number,
            "Execution_Time": row.total_s,
            "First_Execution_Time": row.first_run_s,
            "Wait_Time": row.waiting_s,
        }
        for i, change in enumerate(changes[:_CHANGES], start=1):
            threads = _threads(f"Reassigment_{i}_", len(change.cores))
            cells |= {f"Reassigment_{i}": _date(change.from_s), **threads}
        if pauses:
            cells |= {"Pause_Start_1": _date(pauses[0].from_s), "Pause_Finish_1": _date(pauses[0].to_s)}
        rows.append([cells.get(column, "") for column in EVENTS])
    return as_csv(EVENTS, rows)


def _threads(prefix: str, cores: int) -> dict[str, int]:
    return {f"{prefix}Inter": min(cores, 1), f"{prefix}Intra": max(cores - 1, 0)}


def occupation_timeline(programs: Programs, cores: int, every_s: float = 30.0) -> str:
    """The share of cores that is assigned, every 30 s."""
    stretches = [s for each in programs.stretches.values() for s in each if s.cores]
    end_s = max((s.to_s for s in stretches), default=0.0)
    rows = []
    for i in range(int(end_s // every_s) + 1):
        t = i * every_s
        used = sum(len(s.cores) for s in stretches if s.from_s <= t < s.to_s)
        rows.append((_date(t), round(100 * used / cores, 3)))
    return as_csv(("Time", "Cores"), rows)


def run_files(programs: Programs, options: HostOptions, cores: int, model: str, version: str) -> dict[str, str]:
    """The files of one run by name."""
    totals = programs.totals()
    return {
        "gantt_events.txt": gantt_events(programs),
        "scheduler_events.txt": scheduler_events(programs, options, model, version),
        "occupation_timeline.csv": occupation_timeline(programs, cores),
        "containers_failed.txt": f"{len(programs.failures)}\n",
        "throughput.txt": f"{totals.throughput_per_h}\n",
        "programs.csv": programs_csv(programs.rows.values()),
    }


def programs_csv(rows: Iterable[ProgramFigures]) -> str:
    """A row for each program, under our own names."""
    columns = ProgramFigures.__struct_fields__
    return as_csv(columns, ([cell_text(getattr(row, column)) for column in columns] for row in rows))


def cell_text(value: Any) -> Any:
    return "" if value is None else value


def comparison_row(
    containers: int, options: HostOptions, version: str, totals: Mapping[str, float], priority: int | str = ""
) -> list[Any]:
    """A run in the comparison: TME is the mean time from first start to end, TMR from arrival to first start, TMER from
    arrival to end; Recursos is the percentage of cores used, Productividad programs per hour, TT the whole time."""
    names = ("mean_total_s", "mean_first_run_s", "mean_turnaround_s")
    means = [round(totals[name], 6) for name in names]
    rest = [round(100 * totals["core_use"], 6), round(totals["throughput_per_h"], 6), round(totals["makespan_s"], 6)]
    return [containers, options.plan, options.assign, version, priority, *means, *rest]


def comparison_csv(rows: Iterable[Sequence[Any]]) -> str:
    return as_csv(COMPARISON, rows)
