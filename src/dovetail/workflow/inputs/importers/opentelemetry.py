"""OpenTelemetry traces (OTLP as JSON, or JSON lines as its file exporter writes them) as requests.

A span that calls a model says so by the semantic conventions for generative AI: `gen_ai.request.model` and
`gen_ai.usage.input_tokens` (before version 1.27 `prompt_tokens`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.workflow.inputs.importers.calls import Files
from dovetail.workflow.inputs.importers.common import as_paths
from dovetail.workflow.inputs.importers.spans import Span, graphs_of, keep_spans
from dovetail.workflow.inputs.importers.trace_rows import RowFault, TraceRow, read_objects
from dovetail.workflow.inputs.importers.traced import Collector, ImportedTrace, OnRowError

_CALLS = ("", "chat", "generate_content", "text_completion", "embeddings")  # gen_ai.operation.name
_KEYS = {"start": "startTimeUnixNano", "end": "endTimeUnixNano", "trace": "traceId", "span": "spanId"} | {
    "parent": "parentSpanId",
    "name": "name",
}
_ATTRIBUTES = {
    "operation": ["gen_ai.operation.name"],
    "model": ["gen_ai.request.model", "gen_ai.response.model"],
    "input": ["gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"],
    "output": ["gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"],
}


def import_otel(files: Files, *, model: Any = None, on_error: OnRowError = "fail") -> ImportedTrace:
    """OpenTelemetry traces: each that calls a model becomes a request, whose nodes are its model calls and its tools
    (`execute_tool`, which take their time and no GPU); traces of the same shape are one workflow."""
    paths = as_paths(files)

    def rows(found: Collector) -> Iterator[dict[str, Any]]:
        with keep_spans() as kept:
            for path in paths:
                for place, data in read_objects(path):
                    whole = TraceRow(place, data, {"resources": "resourceSpans"})
                    try:
                        spans = [*_spans(whole)]
                    except RowFault as fault:
                        found.faulty(whole, fault)
                        continue
                    for number, raw in enumerate(spans):
                        row = TraceRow(f"{place}: span {number}", raw, _KEYS)
                        try:
                            kept.add(_span(row, raw))
                        except RowFault as fault:
                            found.faulty(row, fault)
            yield from graphs_of(kept, found)

    return ImportedTrace(rows, model, on_error)


def _spans(whole: TraceRow) -> Iterator[Any]:
    for resource in _list(whole.get("resources"), "resourceSpans"):
        for scope in _list(resource.get("scopeSpans"), "scopeSpans"):
            yield from _list(scope.get("spans"), "spans")


def _list(found: Any, key: str) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise RowFault(key, f"expected a list of objects, found {type(found).__name__}")
    return found


def _span(row: TraceRow, raw: dict[str, Any]) -> Span:
    given = {}
    for pair in _list(raw.get("attributes", []), "attributes"):
        key, value = pair.get("key", ""), pair.get("value")
        if not isinstance(key, str):
            raise RowFault("attributes", f"expected a key that is text, found {key!r}")
        if isinstance(value, dict) and value:
            given[key] = next(iter(value.values()))
    found = TraceRow(row.place, given, {key: key for keys in _ATTRIBUTES.values() for key in keys})
    operation = found.text("gen_ai.operation.name")
    read, wrote = (
        next((n for key in _ATTRIBUTES[which] if (n := found.tokens(key)) is not None), None)
        for which in ("input", "output")
    )
    called = next((name for key in _ATTRIBUTES["model"] if (name := found.text(key))), "")
    calls = operation in _CALLS and bool(read or wrote)
    return Span(
        trace=row.need("trace", row.text("trace") or None),
        id=row.need("span", row.text("span") or None),
        parent=row.text("parent"),
        start_s=row.need("start", row.seconds("start", "ns")),
        end_s=row.need("end", row.seconds("end", "ns")),
        name=row.text("name"),
        model=(called or "model") if calls else "",
        input=read or 0,
        output=wrote or 0,
        tool=operation == "execute_tool",
        place=row.place,
    )
