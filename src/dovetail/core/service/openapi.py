"""A service's operations described: as an OpenAPI document, derived from the types of their JSON, and as a page."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from typing import Any

import msgspec

from dovetail.core.service.http import Operation
from dovetail.version import __version__

_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
code,pre{font:13px/1.4 ui-monospace,monospace}table{border-collapse:collapse;margin:.5rem 0 1rem}
td,th{border:1px solid #ccc;padding:.15rem .5rem;text-align:left;vertical-align:top}
h2{margin-top:2rem;font-size:1.05rem}b.method{display:inline-block;min-width:4.5rem}
@media(prefers-color-scheme:dark){body{background:#181818;color:#ddd}td,th{border-color:#444}a{color:#8bf}}"""


def document(title: str, description: str, operations: Iterable[Operation]) -> dict[str, Any]:
    """The OpenAPI 3.1 document of operations."""
    listed = list(operations)
    types = [kind for each in listed for kind in (each.takes, each.gives) if kind is not None]
    schemas, parts = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    of = iter(schemas)
    paths: dict[str, dict[str, Any]] = {}
    for each in listed:
        told: dict[str, Any] = {"summary": each.summary, "operationId": _name(each)}
        if each.takes is not None:
            told["requestBody"] = {"required": True, "content": {"application/json": {"schema": next(of)}}}
        found = {"200": {"description": "done"}, "default": {"$ref": "#/components/responses/Error"}}
        if each.gives is not None:
            found["200"]["content"] = {"application/json": {"schema": next(of)}}  # type: ignore[assignment]
        path, names = re.sub(r":path}", "}", each.path), re.findall(r"{(\w+)", each.path)
        told["responses"] = found
        told["parameters"] = [
            {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}
            for place, several in (("path", names), ("query", each.query))
            for name in several
        ]
        if each.public:
            told["security"] = []
        paths.setdefault(path, {})[each.method.lower()] = told
    error = {"type": "object", "properties": {name: {} for name in ("message", "type", "param", "code")}}
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": __version__, "description": description},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": parts,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Error": {
                    "description": "what is wrong",
                    "content": {"application/json": {"schema": {"type": "object", "properties": {"error": error}}}},
                }
            },
        },
    }


def _name(operation: Operation) -> str:
    return "_".join([operation.method.lower(), *re.findall(r"\w+", operation.path.replace(":path", ""))])


def page(told: dict[str, Any]) -> str:
    """An OpenAPI document for people to read; it asks for nothing from anywhere."""
    rows = [f"<h1>{escape(told['info']['title'])}</h1><p>{escape(told['info']['description'])}</p>"]
    rows.append('<p>As a document for programs: <a href="openapi.json">openapi.json</a></p>')
    for path, methods in told["paths"].items():
        for method, each in methods.items():
            rows.append(f'<h2><b class="method">{method.upper()}</b> <code>{escape(path)}</code></h2>')
            rows.append(f"<p>{escape(each['summary'])}</p>")
            query = [one["name"] for one in each["parameters"] if one["in"] == "query"]
            if query:
                rows.append(f"<p>query: <code>{escape(', '.join(query))}</code></p>")
            if "requestBody" in each:
                rows.append(_fields("body", each["requestBody"], told))
            if "content" in each["responses"]["200"]:
                rows.append(_fields("answer", each["responses"]["200"], told))
    head = f'<meta charset="utf-8"><title>{escape(told["info"]["title"])}</title><style>{_STYLE}</style>'
    return f"<!doctype html><html lang=en><head>{head}</head><body>{''.join(rows)}</body></html>\n"


def _fields(title: str, holder: dict[str, Any], told: dict[str, Any]) -> str:
    schema = holder["content"]["application/json"]["schema"]
    schema = told["components"]["schemas"].get(schema.get("$ref", "").rpartition("/")[2], schema)
    rows = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{escape(_type(field))}</td>"
        f"<td>{'required' if name in schema.get('required', ()) else _default(field)}</td></tr>"
        for name, field in schema.get("properties", {}).items()
    )
    return f"<table><tr><th>{title}</th><th>type</th><th>default</th></tr>{rows}</table>" if rows else ""


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "anyOf" in field:
        return " or ".join(_type(each) for each in field["anyOf"])
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items') or {})}"
    return str(field.get("type", "anything"))


def _default(field: dict[str, Any]) -> str:
    value = field.get("default")
    return "" if value is None or value in ({}, [], ()) else escape(msgspec.json.encode(value).decode())
