"""`dovetail workflow replay`: send a recorded trace to a running service, and tell what came back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from dovetail.cli.common import Flag, Format, Pairs, check_writable, pairs, print_json, print_table, progress
from dovetail.core.errors import InputError
from dovetail.workflow import TraceFormat


def replay(
    trace: Path,
    /,
    *,
    url: str | None = None,
    token_file: Path | None = None,
    of: TraceFormat | None = None,
    workflow: Pairs | None = None,
    speed: float = 1.0,
    requests: int | None = None,
    connections: int = 1000,
    results: Path | None = None,
    answers: Flag = False,
    format: Format = "table",
) -> int:
    """Send a recorded trace to a running service at its times, and tell what came back.

    A trace of Azure's, Mooncake's, BurstGPT's or OpenTelemetry's, or a file of requests. Each request is sent when it
    is due, whatever became of those before it; prompts have as many words as the trace says tokens. Exit code 3 if
    not all were completed. (`dovetail replay` decides a journal again.)

    Example: dovetail workflow replay conversation_trace.jsonl --speed 10 --url http://127.0.0.1:8000 --workflow chat

    Parameters
    ----------
    trace
        The file.
    url
        Of the service, or its state folder; by default the usual one.
    token_file
        The file of the service's token; without it the service's folder or DOVETAIL_TOKEN has it.
    of
        What the file is, if its content does not tell: azure, mooncake, burstgpt, otel or requests.
    workflow
        What of the service they are sent to: a model or workflow for all, or THEIRS=OURS for each.
    speed
        So many times as fast as it was.
    requests
        Only the first so many.
    connections
        Requests that may be open at once; beyond that the sender is late, and says so.
    results
        Write what came of each request here, as JSON lines.
    answers
        With the answers.
    format
        table or json.
    """
    from dovetail.workflow import replay as send

    check_writable(results)
    with progress("sending", requests) as done:
        found = send(
            trace,
            url,
            token_file=token_file,
            of=of,
            workflow=targets(workflow),
            speed=speed,
            requests=requests,
            connections=connections,
            results=results,
            answers=answers,
            progress=done,
        )
    return show(found.metrics, found.interrupted, results, format)


def targets(given: list[str] | None) -> Any:
    """One for all, or pairs of names."""
    alone = [item for item in given or [] if "=" not in item]
    if len(alone) > 1 or (alone and len(given or []) > 1):
        raise InputError(f"--workflow {' '.join(given or [])}: expected one for all, or THEIRS=OURS for each")
    return alone[0] if alone else pairs("--workflow", given, verbatim=True)


def show(metrics: dict[str, Any], interrupted: bool, results: Path | None, format: Format) -> int:
    if format == "json":
        print_json(metrics)
    else:
        shown = [[name.replace("_", " "), value] for name, value in metrics.items() if name != "errors"]
        print_table(["what", "value"], shown)
        for error, count in metrics.get("errors", {}).items():
            print(f"{count} times: {error}")
        if results is not None:
            print(f"\nWhat came of each request is in {results}")
    if interrupted:
        print(f"error: interrupted: {metrics['not_sent']} requests were not sent", file=sys.stderr)
        return 130
    return 0 if metrics["completed"] == metrics["sent"] else 3
