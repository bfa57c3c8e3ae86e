"""Traces whose rows are model calls: Azure's LLM traces, Mooncake's, BurstGPT's, or any table with a mapping.

Each row becomes a request of a workflow of one node, with the row's tokens.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from dovetail.core.errors import InputError, did_you_mean
from dovetail.workflow.choices import check_choice
from dovetail.workflow.inputs.importers.common import as_paths
from dovetail.workflow.inputs.importers.spans import Span, graphs_of, keep_spans
from dovetail.workflow.inputs.importers.trace_rows import RowFault, TimeUnit, TraceRow, read_rows
from dovetail.workflow.inputs.importers.traced import Collector, ImportedTrace, OnRowError

NODE = "generate"
AZURE = {"timestamp": "TIMESTAMP", "input_tokens": "ContextTokens", "output_tokens": "GeneratedTokens"}
MOONCAKE = {
    "timestamp": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "prefix": "hash_ids",
}
BURSTGPT = {
    "timestamp": "Timestamp",
    "model": "Model",
    "input_tokens": "Request tokens",
    "output_tokens": "Response tokens",
    "workflow": "Log Type",
}
FIELDS = (
    "timestamp",
    "input_tokens",
    "output_tokens",
    "prefix",
    "model",
    "workflow",
    "id",
    "trace",
    "parent",
    "end",
)
Files = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def import_azure(files: Files, *, model: Any = None, on_error: OnRowError = "fail") -> ImportedTrace:
    """Azure's LLM inference traces of 2023 and 2024: each file is a workflow and a model, called by what its name ends
    with (`code`, `conv`). `model` says what they are: a preset or a file for all, or one for each name.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "AzureLLMInferenceTrace_conv.csv"
    >>> _ = file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\\n2023-11-16 18:15:46.6805900,374,44\\n")
    >>> found = import_azure([file])
    >>> [request["node_tokens"] for request in found.requests], list(found.config["models"])
    ([{'generate': {'input': 374, 'output': 44}}], ['conv'])
    """
    return _import(files, AZURE, model, on_error, name_of=lambda path: path.stem.rpartition("_")[2])


def import_mooncake(files: Files, *, model: Any = None, on_error: OnRowError = "fail") -> ImportedTrace:
    """Mooncake's traces: each file is a workflow and a model, called by its name (`conversation`, `toolagent`). Their
    `hash_ids` become prefixes, which models with `prefix_cache_tokens` keep."""
    return _import(files, MOONCAKE, model, on_error, "ms", name_of=lambda path: path.stem.removesuffix("_trace"))


def import_burstgpt(files: Files, *, model: Any = None, on_error: OnRowError = "fail") -> ImportedTrace:
    """BurstGPT's traces: a model for each of theirs (`ChatGPT`, `GPT-4`), a workflow for each model and log type.
    Requests that failed there (they have no response tokens) are left out and counted."""

    def failed(row: TraceRow) -> str:
        return "" if row.tokens("output_tokens") else "failed request"

    return _import(files, BURSTGPT, model, on_error, leave_out=failed)


def import_jsonl(
    files: Files,
    *,
    map: Mapping[str, str],
    time_unit: TimeUnit = "s",
    model: Any = None,
    on_error: OnRowError = "fail",
) -> ImportedTrace:
    """Any trace of model calls in JSON lines, a JSON array or CSV. `map` says which key holds what (dots lead inside):
    `timestamp` and `input_tokens`, and where there are such `output_tokens`, `prefix`, `model`, `workflow` and `id`.

    With `trace` (and `id`, `parent`, `end`) rows of the same trace become one request whose nodes are its model calls;
    rows without tokens only tell what is inside what.
    """
    check_choice("time_unit", time_unit, TimeUnit)
    if not isinstance(map, Mapping) or not all(isinstance(key, str) and key for key in map.values()):
        raise InputError(f"map: expected names and keys, found {map!r}")
    for name in map:
        if name not in FIELDS:
            raise InputError(f"map {name!r}: unknown name{did_you_mean(str(name), FIELDS)}")
    needed = ["timestamp", "input_tokens", *(["id", "end"] if "trace" in map else [])]
    for name in needed:
        if name not in map:
            raise InputError(f"map: expected a key for {name!r}: {name}=KEY")
    if "trace" not in map:
        return _import(files, map, model, on_error, time_unit)
    paths = as_paths(files)

    def rows(found: Collector) -> Iterator[dict[str, Any]]:
        with keep_spans() as kept:
            for path in paths:
                for row in read_rows(path, map, needed):
                    try:
                        kept.add(_span(row, time_unit))
                    except RowFault as fault:
                        found.faulty(row, fault)
            yield from graphs_of(kept, found)

    return ImportedTrace(rows, model, on_error)


def _span(row: TraceRow, unit: TimeUnit) -> Span:
    read, wrote = row.tokens("input_tokens"), row.tokens("output_tokens")
    model = row.text("model")
    start_s = row.need("timestamp", row.seconds("timestamp", unit))
    return Span(
        trace=row.need("trace", row.text("trace") or None),
        id=row.need("id", row.text("id") or None),
        parent=row.text("parent"),
        start_s=start_s,
        end_s=row.need("end", row.seconds("end", unit)),
        name=row.text("workflow"),
        model=model or "model" if read or wrote else "",
        input=read or 0,
        output=wrote or 0,
        place=row.place,
    )


def _import(
    files: Files,
    keys: Mapping[str, str],
    model: Any,
    on_error: OnRowError,
    unit: TimeUnit = "s",
    name_of: Callable[[Path], str] = lambda path: path.stem,
    leave_out: Callable[[TraceRow], str] = lambda row: "",
) -> ImportedTrace:
    paths = as_paths(files)
    required = [name for name in ("timestamp", "input_tokens", "output_tokens", "model") if name in keys]

    def rows(found: Collector) -> Iterator[dict[str, Any]]:
        numbers = defaultdict[str, Iterator[int]](lambda: count(1))  # files of one name are one trace
        for path in paths:
            name = name_of(path)
            for row, number in zip(read_rows(path, keys, required), numbers[name], strict=False):
                try:
                    why = leave_out(row)
                    request = {} if why else _request(row, name, number, unit, found)
                except RowFault as fault:
                    found.faulty(row, fault)
                    continue
                if request:
                    yield request
                else:
                    found.drop(why)

    return ImportedTrace(rows, model, on_error)


def _request(row: TraceRow, name: str, number: int, unit: TimeUnit, found: Collector) -> dict[str, Any]:
    at_s = row.need("timestamp", row.seconds("timestamp", unit))
    tokens = {"input": row.need("input_tokens", row.tokens("input_tokens")), "output": row.tokens("output_tokens") or 0}
    if not any(tokens.values()):
        raise RowFault("", "expected input or output tokens, found 0 of each")
    called, kind = row.text("model") or name, row.text("workflow")
    blocks, model = row.blocks("prefix"), found.model(called)
    found.call(model, tokens["input"], tokens["output"], bool(blocks))
    workflow = found.workflow((called, kind), f"{called} {kind}".strip(), lambda: one_node(model))
    return {
        "request_id": row.text("id") or f"{name}-{number:06d}",
        "timestamp": at_s,
        "workflow_id": workflow,
        "node_tokens": {NODE: tokens},
        **({"node_prefix": {NODE: blocks}} if blocks else {}),
    }


def one_node(model: str) -> dict[str, Any]:
    return {"nodes": [{"id": NODE, "model": model}], "edges": []}
