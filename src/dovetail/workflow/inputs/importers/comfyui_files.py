"""ComfyUI's two file formats, read into one graph: the editor's (nodes and links) and the API's (a prompt)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from dovetail.core.errors import InputError
from dovetail.core.files import Document, Key
from dovetail.workflow.inputs.importers.common import find_cycle

_POSITIONS = {  # what the values of an editor's node are, by position; the API names them
    "KSampler": ("seed", "", "steps", "cfg"),
    "KSamplerAdvanced": ("", "noise_seed", "", "steps", "cfg"),
    "EmptyLatentImage": ("width", "height"),
    "EmptySD3LatentImage": ("width", "height"),
    "CLIPTextEncode": ("text",),
}
_OFF = {2: "muted", 4: "bypassed"}
_TYPED = frozenset({"MODEL", "CLIP", "VAE", "CONTROL_NET", "UPSCALE_MODEL", "CLIP_VISION", "GUIDER"})


class ComfyNode(Struct):
    id: str
    type: str
    values: dict[str, Any]
    texts: list[str]  # all values that are text, in order
    off: str = ""


class ComfyLink(Struct):
    """`role` is what the target uses it for: `model`, `clip`, `positive`, ..."""

    source: str
    target: str
    role: str
    keys: tuple[Key, ...]
    label: str


class ComfyGraph(Struct):
    path: Path
    nodes: dict[str, ComfyNode]
    links: list[ComfyLink]
    subgraphs: dict[str, str]  # type of the node that stands for it: its name
    into: dict[str, list[ComfyLink]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.into = {node: [] for node in self.nodes}
        for link in self.links:
            self.into[link.target].append(link)


class _Input(Struct):
    name: str = ""
    link: int | None = None


class _UiNode(Struct):
    id: int | str
    type: str
    mode: int = 0
    widgets_values: Any = None
    inputs: list[_Input] | None = None


class _ApiNode(Struct):
    class_type: str
    inputs: dict[str, Any] = field(default_factory=dict)


def read_graph(path: Path) -> ComfyGraph:
    """Read a file of either format; links to nowhere and cycles are errors."""
    doc = Document.read(path)
    data = doc.data
    if isinstance(data, dict) and isinstance(data.get("prompt"), dict):
        graph = _read_api(doc, data["prompt"], ("prompt",))
    elif isinstance(data, dict) and isinstance(data.get("nodes"), list):
        graph = _read_ui(doc, data)
    elif isinstance(data, dict) and data and all(isinstance(n, dict) and "class_type" in n for n in data.values()):
        graph = _read_api(doc, data, ())
    else:
        raise InputError(f"{path}: not a ComfyUI workflow: expected nodes and links, or a prompt in API format")
    ring = find_cycle(graph.nodes, [(link.source, link.target) for link in graph.links])
    if ring:
        closing = next(link for link in graph.links if [link.source, link.target] == ring[-2:])
        raise doc.error(closing.keys, f"{closing.label} closes a cycle: {' -> '.join(ring)}")
    return graph


def _read_ui(doc: Document, data: Mapping[str, Any]) -> ComfyGraph:
    given: dict[str, _UiNode] = {}
    for i, raw in enumerate(data["nodes"]):
        node = doc.convert(raw, _UiNode, ("nodes", i))
        if str(node.id) in given:
            raise doc.error(("nodes", i, "id"), f"node {node.id} is defined twice")
        given[str(node.id)] = node
    raw_links = data.get("links", [])
    if not isinstance(raw_links, list):
        raise doc.error(("links",), f"expected a list, found {type(raw_links).__name__}")
    links = []
    numbers = set()
    for i, raw in enumerate(raw_links):
        number, link = _ui_link(doc, i, raw, given)
        numbers.add(number)
        links.append(link)
    for i, node in enumerate(given.values()):
        for j, entry in enumerate(node.inputs or ()):
            if entry.link is not None and entry.link not in numbers:
                message = f"input {entry.name!r} of node {node.id} comes from link {entry.link}, which is not in links"
                raise doc.error(("nodes", i, "inputs", j), message)
    nodes = {name: _ui_node(name, node) for name, node in given.items()}
    links += _wireless(nodes)
    return ComfyGraph(doc.path, nodes, links, dict(_subgraphs(data)))


def _ui_node(name: str, given: _UiNode) -> ComfyNode:
    widgets = given.widgets_values
    if isinstance(widgets, dict):
        values, listed = widgets, list(widgets.values())
    else:
        listed = widgets if isinstance(widgets, list) else []
        positions = _POSITIONS.get(given.type, ())
        values = {key: value for key, value in zip(positions, listed, strict=False) if key}
    return ComfyNode(name, given.type, values, _texts(listed), _OFF.get(given.mode, ""))


def _ui_link(doc: Document, i: int, raw: Any, nodes: Mapping[str, _UiNode]) -> tuple[Any, ComfyLink]:
    if isinstance(raw, dict):
        raw = [raw.get(key) for key in ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")]
    if not isinstance(raw, list) or len(raw) < 5 or any(isinstance(end, list | dict | None) for end in raw[:5]):
        expected = "expected [link, from node, from slot, to node, to slot, type]"
        raise doc.error(("links", i), f"{expected}, found {raw!r}")
    number, source, _, target, slot, *kind = raw
    label = f"link {number} ({source} -> {target})"
    for end in (source, target):
        if str(end) not in nodes:
            raise doc.error(("links", i), f"{label}: there is no node {end}")
    inputs = nodes[str(target)].inputs or []
    role = inputs[slot].name if isinstance(slot, int) and 0 <= slot < len(inputs) else ""
    if kind and kind[0] in _TYPED:
        role = kind[0].lower()
    return number, ComfyLink(str(source), str(target), role, ("links", i), label)


def _wireless(nodes: Mapping[str, ComfyNode]) -> Iterator[ComfyLink]:
    """Pairs of set and get nodes are links too: they meet by the name in their first value."""
    setters = {node.texts[0]: node for node in nodes.values() if node.type == "SetNode" and node.texts}
    for i, node in enumerate(nodes.values()):
        setter = setters.get(node.texts[0]) if node.type == "GetNode" and node.texts else None
        if setter is not None:
            yield ComfyLink(setter.id, node.id, "", ("nodes", i), f"{node.texts[0]!r} ({setter.id} -> {node.id})")


def _subgraphs(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    definitions = data.get("definitions")
    for raw in definitions.get("subgraphs", ()) if isinstance(definitions, dict) else ():
        if isinstance(raw, dict) and "id" in raw:
            yield str(raw["id"]), str(raw.get("name", raw["id"]))


def _read_api(doc: Document, data: Mapping[str, Any], at: tuple[Key, ...]) -> ComfyGraph:
    given = {name: doc.convert(raw, _ApiNode, (*at, name)) for name, raw in data.items()}
    nodes, links = {}, []
    for name, node in given.items():
        values = {}
        for key, value in node.inputs.items():
            if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)):
                values[key] = value
                continue
            source, keys = value[0], (*at, name, "inputs", key)
            if source not in given:
                raise doc.error(keys, f"link {value!r}: there is no node {source}")
            role = re.sub(r"\d+$", "", key)
            links.append(ComfyLink(source, name, role, keys, f"link {value!r} ({source} -> {name})"))
        nodes[name] = ComfyNode(name, node.class_type, values, _texts(list(values.values())))
    return ComfyGraph(doc.path, nodes, links, {})


def _texts(values: list[Any]) -> list[str]:
    return [value for value in values if isinstance(value, str) and value]
