"""`dovetail workflow submit`, `status`, `result`, `cancel`: runs of a running service."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dovetail.cli.common import Flag, Format, Pairs, atomic_write, pairs, print_json, print_table, value
from dovetail.cli.complete import WORKFLOW_RUNS, WORKFLOWS_SERVED
from dovetail.cli.workflow.place import PLACE, PlaceFlags
from dovetail.core.errors import InputError

if TYPE_CHECKING:
    from dovetail.workflow import RunResult, RunStatus

State = Literal["queued", "running", "completed", "failed", "cancelled"]
Inputs = Annotated[list[str], Parameter(consume_multiple=True, negative=())]


def submit(
    workflow: Annotated[str, WORKFLOWS_SERVED],
    /,
    *,
    input: Inputs | None = None,
    input_file: Path | None = None,
    option: Pairs | None = None,
    tenant: str = "",
    weight: float = 1.0,
    due: float | None = None,
    key: str | None = None,
    wait: Flag = False,
    format: Format = "table",
    place: PlaceFlags = PLACE,
) -> int:
    """Ask a running service for a workflow or a model; prints the run's id, or with --wait its answer.

    Exit code 1 if it was waited for and not completed.

    Example: dovetail workflow submit summarise --input text@report.txt language=en --wait

    Parameters
    ----------
    workflow
        A workflow of the configuration, or a model.
    input
        Values by name: NAME=VALUE (a number, true, a list or a mapping as JSON, else text) or NAME@FILE (its text, or
        its bytes).
    input_file
        A JSON or YAML file with all values by name.
    option
        Options of the node that answers: --option max_tokens=100 temperature=0; of others by their names:
        --option 'node_configs={"draft": {"max_tokens": 50}}'.
    tenant
        On whose account.
    weight
        How much it matters.
    due
        Seconds within which it should be complete.
    key
        The same key and content are the same run, however often it is sent.
    wait
        Wait for its end, and print its answer.
    format
        table or json.
    """
    client = place.connect()
    run = client.submit(
        workflow,
        _inputs(input, input_file),
        options={name: value(text) for name, text in pairs("--option", option).items()},
        tenant=tenant,
        weight=weight,
        due=due,
        key=key,
    )
    if wait:
        return _show(client.result(run), format, None)
    print_json({"id": run}) if format == "json" else print(run)
    return 0


def _inputs(given: list[str] | None, file: Path | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if file is not None:
        from dovetail.core.files.document import Document

        document = Document.read(file)
        if not isinstance(document.data, dict):
            raise document.error((), "expected values by name")
        found |= document.data
    for word in given or []:
        name, sign, text = word.partition("=")
        if "@" in name or not sign:
            name, sign, text = word.partition("@")
            if not sign or not name:
                raise InputError(f"--input {word}: expected NAME=VALUE or NAME@FILE")
            found[name] = _content(Path(text))
        elif not name:
            raise InputError(f"--input {word}: expected NAME=VALUE or NAME@FILE")
        else:
            found[name] = value(text)
    return found


def _content(path: Path) -> str | bytes:
    from dovetail.core.files.reading import read_bytes

    content = read_bytes(path)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content


def status(
    run: Annotated[str | None, WORKFLOW_RUNS] = None,
    /,
    *,
    only: State | None = None,
    limit: int = 50,
    format: Format = "table",
    place: PlaceFlags = PLACE,
) -> int:
    """Show a run of a service with its nodes, or the newest runs.

    Example: dovetail workflow status --only queued

    Parameters
    ----------
    run
        Its id; without one, the newest runs are listed.
    only
        List only those in this state.
    limit
        How many to list.
    format
        table or json.
    """
    if limit < 1:
        raise InputError(f"--limit {limit}: expected 1 or more")
    client = place.connect()
    if run is None:
        listed = client.runs(only, limit)
        if format == "json":
            print_json(listed)
        else:
            print_table(_COLUMNS, [_cells(each) for each in listed])
        return 0
    found = client.status(run)
    if format == "json":
        print_json(found)
        return 0
    print_table(_COLUMNS, [_cells(found)])
    rows = [
        [name, node.model, node.state, ",".join(map(str, node.gpus)), node.attempts, node.why]
        for name, node in found.nodes.items()
    ]
    print()
    print_table(["node", "model", "state", "gpus", "attempts", "why"], rows)
    return 0


_COLUMNS = ("run", "workflow", "tenant", "state", "waited_s", "took_s", "error")


def _cells(run: RunStatus) -> list[Any]:
    def since(begin: float | None, end: float | None) -> float | None:
        return None if begin is None or end is None else round(end - begin, 3)

    waited, took = since(run.arrived_s, run.started_s), since(run.arrived_s, run.ended_s)
    return [run.id, run.workflow, run.tenant or None, run.state, waited, took, run.error or None]


def result(
    run: Annotated[str, WORKFLOW_RUNS],
    /,
    *,
    wait: float | None = None,
    out: Path | None = None,
    format: Format = "table",
    place: PlaceFlags = PLACE,
) -> int:
    """Wait for a run of a service to end, and print its answer.

    Exit code 1 if it was not completed.

    Example: dovetail workflow result run-0c1d --out answer.json --format json

    Parameters
    ----------
    run
        Its id.
    wait
        Seconds to wait for its end; by default as long as it takes.
    out
        Write the answer to a file.
    format
        table: the text of the answer; json: the outputs of all nodes.
    """
    return _show(place.connect().result(run, wait), format, out)


def _show(found: RunResult, format: Format, out: Path | None) -> int:
    import msgspec

    if found.state != "completed":
        print(f"run {found.id} was not completed: {found.state}{found.error and ': '}{found.error}", file=sys.stderr)
    text = found.answer.get("text") if len(found.answer) == 1 and format == "table" else None
    if not isinstance(text, str):
        told = found.plain()
        text = msgspec.json.format(msgspec.json.encode(told["answer"] if format == "table" else told)).decode()
    if out is not None:
        atomic_write(out, text + "\n")
        print(f"Answer written to {out}")
    elif found.state == "completed" or format == "json":
        print(text)
    return 0 if found.state == "completed" else 1


def cancel(*run: Annotated[str, WORKFLOW_RUNS], place: PlaceFlags = PLACE) -> int:
    """Cancel runs of a service, whether they wait or run.

    Example: dovetail workflow cancel run-0c1d

    Parameters
    ----------
    run
        Their ids.
    """
    if not run:
        raise InputError("expected ids of runs; `dovetail workflow status` has them")
    client = place.connect()
    for each in run:
        print(f"{each}: {client.cancel(each).state}")
    return 0
