"""`dovetail workflow import azure`, `mooncake`, `burstgpt`, `otel` and `jsonl`: recorded model calls as requests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import App, Parameter

from dovetail.cli.common import Flag, Format, Pairs, one_or_named, pairs, print_json, print_table
from dovetail.core.files.output import refuse_overwrite
from dovetail.workflow import REQUEST_LINES

if TYPE_CHECKING:
    from dovetail.workflow import Imported, ImportedTrace


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TraceFlags:
    """What all importers of traces take."""

    out: Path = Path("system_config.yaml")
    "The configuration to write."
    requests: Path = Path("workflow_requests.jsonl")
    "The requests to write; a .jsonl is streamed."
    force: Flag = False
    "Write over files that exist."
    model: Pairs | None = None
    "What the models are: a preset (llama2-7b, llama2-13b, llama2-70b, bloom-176b) or a file for all, or NAME=PRESET."
    on_error: Literal["fail", "skip"] = "fail"
    "A row that cannot be read: fail stops and writes nothing; skip leaves it out and says so."
    format: Format = "table"
    "table or json."

    def how(self) -> dict[str, Any]:
        """The options of reading, as the level's functions take them."""
        named = one_or_named("--model", self.model)
        return {"model": named or None, "on_error": self.on_error}

    def write(self, files: list[Path], found: ImportedTrace) -> int:
        refuse_overwrite([self.out, self.requests], files, REQUEST_LINES)
        return finish(found, self.out, self.requests, self.force, self.format)


_TRACE = TraceFlags()


def azure(files: list[Path], /, *, flags: TraceFlags = _TRACE) -> int:
    """Import Azure's LLM inference traces of 2023 and 2024 (TIMESTAMP, ContextTokens, GeneratedTokens).

    Each file becomes a workflow and a model, called by what its name ends with: code, conv.

    Example: dovetail workflow import azure AzureLLMInferenceTrace_conv.csv --model llama2-70b

    Parameters
    ----------
    files
        CSV files.
    """
    from dovetail.workflow import import_azure

    return flags.write(files, import_azure(files, **flags.how()))


def mooncake(files: list[Path], /, *, flags: TraceFlags = _TRACE) -> int:
    """Import Mooncake's traces (timestamp in ms, input_length, output_length, hash_ids).

    Each file becomes a workflow and a model, called by its name.

    Example: dovetail workflow import mooncake conversation_trace.jsonl --model llama2-70b

    Parameters
    ----------
    files
        JSON-lines files.
    """
    from dovetail.workflow import import_mooncake

    return flags.write(files, import_mooncake(files, **flags.how()))


def burstgpt(files: list[Path], /, *, flags: TraceFlags = _TRACE) -> int:
    """Import BurstGPT's traces (Timestamp, Model, Request tokens, Response tokens, Total tokens, Log Type).

    Requests that failed there (no response tokens) are left out and counted.

    Example: dovetail workflow import burstgpt BurstGPT_1.csv --model ChatGPT=llama2-13b GPT-4=llama2-70b

    Parameters
    ----------
    files
        CSV files.
    """
    from dovetail.workflow import import_burstgpt

    return flags.write(files, import_burstgpt(files, **flags.how()))


def otel(files: list[Path], /, *, flags: TraceFlags = _TRACE) -> int:
    """Import OpenTelemetry traces (OTLP as JSON or JSON lines) whose spans call models by the GenAI conventions.

    Each trace becomes a request: its model calls and tools, in the order in which they waited for one another.

    Example: dovetail workflow import otel traces.jsonl --model gpt-4o=llama2-70b

    Parameters
    ----------
    files
        JSON files, as the collector's file exporter writes them.
    """
    from dovetail.workflow import import_otel

    return flags.write(files, import_otel(files, **flags.how()))


def jsonl(
    files: list[Path],
    /,
    *,
    map: Pairs,
    time_unit: Literal["s", "ms", "us", "ns"] = "s",
    flags: TraceFlags = _TRACE,
) -> int:
    """Import any trace of model calls in JSON lines, a JSON array or CSV, with a mapping.

    Example: dovetail workflow import jsonl calls.jsonl --map timestamp=ts,input_tokens=usage.prompt_tokens

    Parameters
    ----------
    files
        The files.
    map
        Which key holds what, dots lead inside: timestamp, input_tokens, output_tokens, model, workflow, id,
        prefix; for graphs also trace, parent and end.
    time_unit
        Of times that are numbers.
    """
    from dovetail.workflow import import_jsonl

    given = [item for word in map for item in word.split(",")]
    found = import_jsonl(files, map=pairs("--map", given), time_unit=time_unit, **flags.how())
    return flags.write(files, found)


def finish(result: Imported | ImportedTrace, out: Path, requests: Path | None, force: bool, format: Format) -> int:
    """Write what was imported and say what it is."""
    result.write(out, requests, force)
    facts: dict[str, Any] = result.counts()
    if format == "json":
        print_json(facts | {"dropped": result.dropped, "notes": result.notes})
        return 0
    print_table(["what", "count"], [[key, count] for key, count in facts.items()])
    if result.dropped:
        print("\nDropped, order kept: " + ", ".join(f"{name} x{count}" for name, count in result.dropped.items()))
    for note in result.notes:
        print(f"note: {note}")
    print(f"\nConfiguration written to {out}")
    if requests is not None:
        print(f"Requests written to {requests}")
    return 0


def register_all(app: App) -> None:
    for command in (azure, mooncake, burstgpt, otel, jsonl):
        app.command(command)
