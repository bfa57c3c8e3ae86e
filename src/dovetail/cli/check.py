"""`dovetail check`: whether a recorded run is a valid schedule, from its journal or its execution log."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from dovetail.cli.common import Format, atomic_write, newest, print_json, print_table
from dovetail.core.errors import InputError
from dovetail.core.files.output import refuse_overwrite

if TYPE_CHECKING:
    from dovetail.core.findings import Finding, Report
    from dovetail.core.words import Words

_BASELINE = Path("baseline_execution_log.json")
_SHOWN = 10  # faults on the screen; the report has more


def check(
    *log: Path,
    config: Path | None = None,
    requests: Path | None = None,
    save_report: bool = False,
    quiet: Annotated[bool, Parameter(alias="-q")] = False,
    format: Format = "table",
) -> int:
    """Check that recorded runs are valid schedules.

    It looks for overlaps on every GPU of a window, broken order, starts before arrival, wrong prices of switches,
    missing and doubled nodes, wrong durations, a summary that differs from a recount, and figures below a bound.

    Exit code 0: valid; 1: faults were found; 2: a log cannot be read.

    Example: dovetail check dovetail_journal.jsonl --config system_config.yaml --requests workflow_requests.yaml

    Parameters
    ----------
    log
        Journals, or execution logs: ours, or those of the older schedulers. By default baseline_execution_log.json or,
        where there is none, the newest *_execution_log.json or journal (*.jsonl) here.
    config
        The configuration it is a run of. An older log does not hold the GPUs, order and prices of its nodes.
    requests
        The requests it is a run of: none may be missing, and each must be as the file says.
    save_report
        Write the report beside the log, as LOG_report.json without the log's suffix.
    quiet
        Print only PASS or FAIL.
    format
        table for people, json for programs: the report of the log, or a list with one of each.
    """
    from dovetail import check_journal

    reports = []
    for path in log or (_default(),):
        report = check_journal(path, config=config, requests=requests)
        reports.append(report)
        if save_report:
            _save(report, path, [config, requests])
        if quiet and format == "table":
            print("PASS" if report.valid else f"FAIL: {_count(report)}")
        elif format == "table":
            _show(report)
    if format == "json":
        print_json(reports if len(reports) > 1 else reports[0])
    return 0 if all(report.valid for report in reports) else 1


def _default() -> Path:
    if _BASELINE.is_file():
        return _BASELINE
    found = newest("*_execution_log.json", "*.jsonl")
    if found is None:
        raise InputError("no *_execution_log.json and no journal *.jsonl in this folder: name what to check")
    return found


def _count(report: Report) -> str:
    count = sum(report.faults_by_code.values())
    return f"{count} fault{'' if count == 1 else 's'}"


def _show(report: Report) -> None:
    counted = report.counted
    what = f"{report.kind} {report.log}"
    figures = (
        f"{counted['completed']} of {counted['arrived']} completed, {counted['rejected']} {_words(report).rejected}, "
        f"{counted['tasks']} {_words(report).tasks} run, makespan {_seconds(counted['makespan_s'])} s"
    )
    if counted.get("bound_makespan_s"):
        figures += f" (no less than {_seconds(counted['bound_makespan_s'])} s is possible)"
    for note in report.notes:
        print(f"note: {note}")
    if report.valid:
        print(f"PASS: {what}: {figures}")
        return
    print(f"FAIL: {what}: {_count(report)}; {figures}")
    described = _codes(report)
    rows = [[code, count, described.get(code, "")] for code, count in sorted(report.faults_by_code.items())]
    print_table(["fault", "count", "what it is"], rows)
    print()
    shown = _first_of_each(report)
    print_table(["fault", "where", "what"], [[fault.code, fault.where, fault.message] for fault in shown])
    if sum(report.faults_by_code.values()) > len(shown):
        print("\n--format json shows more of them, --save-report keeps them.")


def _seconds(seconds: float) -> str:
    """
    >>> _seconds(30.248), _seconds(0.0414244)
    ('30.25', '0.0414')
    """
    return f"{seconds:.2f}" if seconds >= 1 or not seconds else f"{seconds:.3g}"


def _first_of_each(report: Report) -> list[Finding]:
    """Some faults to show: of each code at least one."""
    per_code = max(_SHOWN // len(report.faults_by_code), 1)
    seen: dict[str, int] = {}
    shown = []
    for fault in report.faults:
        seen[fault.code] = seen.get(fault.code, 0) + 1
        if seen[fault.code] <= per_code:
            shown.append(fault)
    return shown


def _codes(report: Report) -> dict[str, str]:
    """What codes mean, which levels may say in words of their own."""
    from dovetail.core.check import CODES
    from dovetail.core.journal import open_journal
    from dovetail.core.registry import room

    level = open_journal(Path(report.log)).header.level if report.kind == "journal" else "workflow"
    rules = room(level, "check")
    return CODES | (rules.CODES if rules is not None else {})


def _words(report: Report) -> Words:
    if report.kind == "journal":
        from dovetail.core.journal import open_journal

        return open_journal(Path(report.log)).header.words
    from dovetail.workflow.words import WORDS

    return WORDS


def _save(report: Report, log: Path, others: Sequence[Path | None]) -> None:
    """Beside the log, and never over it or another input, whatever they are called or linked to."""
    import msgspec

    path = log.with_name(f"{log.stem}_report.json")
    refuse_overwrite([path], [log, *others])
    atomic_write(path, msgspec.json.format(msgspec.json.encode(report)) + b"\n")
