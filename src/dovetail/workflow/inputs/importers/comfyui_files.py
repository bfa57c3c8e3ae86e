"""ComfyUI's two file formats, read into one flat graph: the editor's (nodes and links) and the API's (a prompt).

The editor's graph is flattened as the editor does when it sends a prompt: subgraphs and group nodes are opened,
reroutes, named and broadcast wires followed, bypassed nodes passed through, muted nodes cut off.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct, field

from dovetail.core.errors import InputError
from dovetail.core.files.document import Document, Key
from dovetail.core.files.reading import read_bytes
from dovetail.workflow.inputs.importers.comfyui_media import embedded
from dovetail.workflow.inputs.importers.comfyui_types import ANY, NodeTypes, names_weights
from dovetail.workflow.inputs.importers.common import find_cycle

T = TypeVar("T")
_MUTED, _BYPASSED = 2, 4
_INPUTS, _OUTPUTS = "-10", "-20"  # the ends of a subgraph, in its links
_REROUTE = re.compile(r"Reroute( \(rgthree\))?$")
_SET, _GET = re.compile(r"(easy )?setNode$", re.IGNORECASE), re.compile(r"(easy )?getNode$", re.IGNORECASE)
_BROADCAST = re.compile(r"(Anything|Prompts|Seed) Everywhere")
_NOTE = re.compile(r"(Markdown)?Note$|Note Plus|Label \(rgthree\)|Bookmark|Fast (Groups |)(Bypasser|Muter)")
_SWITCHED = re.compile(r"on_(true|false)|any(thing)?_?\d*|(input|value)_?\d*")
_CONTROL = frozenset({"fixed", "increment", "decrement", "randomize"})
_MOST = 100_000  # nodes after opening subgraphs


class ComfyNode(Struct):
    id: str
    type: str
    values: dict[str, Any]
    listed: list[Any]  # all values, in order
    outputs: list[str] | None  # their types; None: the file does not say
    lacks: list[str] = field(default_factory=list)  # inputs that come from muted nodes


class ComfyLink(Struct):
    source: str
    slot: int
    target: str
    input: str
    type: str
    keys: tuple[Key, ...] = ()
    optional: bool = False
    broadcast: bool = False


class ComfyGraph(Struct):
    path: Path
    nodes: dict[str, ComfyNode]
    links: list[ComfyLink]
    notes: list[str] = field(default_factory=list)
    off: Counter[str] = field(default_factory=Counter)
    into: dict[str, list[ComfyLink]] = field(default_factory=dict)
    out: dict[str, list[ComfyLink]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.into = {node: [] for node in self.nodes}
        self.out = {node: [] for node in self.nodes}
        for link in self.links:
            self.into[link.target].append(link)
            self.out[link.source].append(link)

    def order(self) -> list[str]:
        """The nodes, each after those that lead to it."""
        before = {node: [link.source for link in links] for node, links in self.into.items()}
        return list(TopologicalSorter(before).static_order())


class _Input(Struct):
    name: str = ""
    type: Any = ANY
    link: Any = None
    widget: Any = None
    shape: Any = None

    @property
    def optional(self) -> bool:
        return self.shape == 7 or self.widget is not None


class _Output(Struct):
    name: str = ""
    type: Any = ANY


class _UiNode(Struct):
    id: int | str
    type: str
    mode: int = 0
    widgets_values: Any = None
    inputs: list[_Input] | None = None
    outputs: list[_Output] | None = None
    properties: Any = None


class _End(Struct):
    """An input or output of a subgraph."""

    name: str = ""
    linkIds: list[int | str] = field(default_factory=list)  # noqa: N815


class _UiLink(Struct):
    origin: str
    slot: int
    target: str
    target_slot: int
    type: str
    keys: tuple[Key, ...]


class _ApiNode(Struct):
    class_type: str
    inputs: dict[str, Any] = field(default_factory=dict)


def read_graph(path: Path, types: NodeTypes) -> ComfyGraph:
    """Read a file of either format, or a picture with one inside; a cycle is an error, a link to nowhere a note."""
    doc = _document(path)
    data = doc.data
    at: tuple[Key, ...] = ()
    for name in ("workflow", "prompt"):  # as posted to the server, and as some packs write it into films
        inside = data.get(name) if isinstance(data, dict) and "nodes" not in data else None
        inside = _json(path, inside.encode()) if isinstance(inside, str) else inside
        if isinstance(inside, dict) and "class_type" not in inside:
            data, at = inside, (name,)
            break
    if isinstance(data, dict) and isinstance(data.get("nodes"), list):
        graph = _Editor(doc, types, data).graph(data, at)
    elif isinstance(data, dict) and any(isinstance(node, dict) and "class_type" in node for node in data.values()):
        graph = _read_api(doc, types, data, at)
    else:
        raise InputError(f"{path}: not a ComfyUI workflow: expected nodes and links, or a prompt in API format")
    ring = find_cycle(graph.nodes, [(link.source, link.target) for link in graph.links])
    if ring:
        closing = next(link for link in graph.links if [link.source, link.target] == ring[-2:])
        said = f"the link to input {closing.input!r} ({closing.source} -> {closing.target}) closes a cycle"
        raise doc.error(closing.keys, f"{said}: {' -> '.join(ring)}")
    return graph


def _document(path: Path) -> Document:
    raw = read_bytes(path)
    text = embedded(path, raw)
    if text is not None:
        return Document(path, text, _json(path, text))
    if b"\0" in raw[:1024] and not raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(
            f"{path}: not a ComfyUI workflow: expected JSON, or a PNG, WebP, MP4 or FLAC file that has one"
        )
    return Document.read(path)


def _json(path: Path, text: bytes) -> Any:
    try:
        return msgspec.json.decode(re.sub(rb"-?\b(NaN|Infinity)\b", b"null", text))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"{path}: the workflow in its metadata is not JSON: {error}") from None


class _Scope:
    """One level of the editor's graph: the file's own, or a subgraph where a node stands for it."""

    def __init__(self, prefix: str, parent: _Scope | None = None, instance: _UiNode | None = None) -> None:
        self.prefix = prefix
        self.parent, self.instance = parent, instance
        self.takes: list[str] = []  # a subgraph's inputs, by name
        self.gives: list[list[str]] = []  # the links to each of its outputs
        self.nodes: dict[str, _UiNode] = {}
        self.links: dict[str, _UiLink] = {}
        self.inner: dict[str, _Scope] = {}
        self.keys: dict[str, tuple[Key, ...]] = {}

    def chain(self) -> Iterator[_Scope]:
        at: _Scope | None = self
        while at is not None:
            yield at
            at = at.parent


class _Value(Struct):
    """What an input gets instead of a link."""

    value: Any


_Origin = tuple[_Scope, _UiNode, int]


class _Editor:
    def __init__(self, doc: Document, types: NodeTypes, data: Mapping[str, Any]) -> None:
        self.doc, self.types = doc, types
        self.definitions = dict(_subgraphs(data)) | dict(_group_nodes(data))
        self.notes: list[str] = []
        self.off: Counter[str] = Counter()
        self.wires: dict[str, tuple[_Scope, _UiNode]] = {}  # of set nodes, by name
        self.everywhere: dict[str, tuple[_Scope, _UiNode, int]] = {}  # of broadcast nodes, by type
        self.count = 0

    def graph(self, data: Mapping[str, Any], at: tuple[Key, ...]) -> ComfyGraph:
        scopes = list(self._open(_Scope(""), data, at))
        nodes: dict[str, ComfyNode] = {}
        links: list[ComfyLink] = []
        for scope in scopes:
            for name, node in scope.nodes.items():
                if node.mode in (_MUTED, _BYPASSED):
                    if not _NOTE.match(node.type):
                        self.off[f"{node.type} ({'muted' if node.mode == _MUTED else 'bypassed'})"] += 1
                elif name not in scope.inner and not _virtual(node.type):
                    made = self._node(scope, node)
                    nodes[made.id] = made
                    links += self._links(scope, node, made)
        links = [link for link in links if link.source in nodes]
        while ring := find_cycle(nodes, [(link.source, link.target) for link in links]):
            wires = [link for link in links if link.broadcast and (link.source, link.target) in pairwise(ring)]
            if not wires:
                break
            links.remove(wires[0])  # its pack sends nothing round in a circle either
        return ComfyGraph(self.doc.path, nodes, links, self.notes, self.off)

    def _open(self, scope: _Scope, data: Mapping[str, Any], at: tuple[Key, ...]) -> Iterator[_Scope]:
        """This level and all below it, with the nodes and links of each."""
        self._read(scope, data, at)
        yield scope
        opened = {one.instance.type for one in scope.chain() if one.instance is not None}
        for name, node in scope.nodes.items():
            definition = self.definitions.get(node.type)
            if definition is None or node.mode in (_MUTED, _BYPASSED):
                continue
            if node.type in opened:
                title = str(definition.get("name", node.type))
                raise self.doc.error(scope.keys[name], f"subgraph {title!r} contains itself")
            scope.inner[name] = _Scope(f"{scope.prefix}{name}:", scope, node)
            yield from self._open(scope.inner[name], definition, definition["at"])

    def _read(self, scope: _Scope, data: Mapping[str, Any], at: tuple[Key, ...]) -> None:
        doc = self.doc
        for i, raw in enumerate(_list(doc, data, "nodes", at)):
            keys = (*at, "nodes", i)
            node = doc.convert(raw, _UiNode, keys)
            name = str(node.id)
            if name in scope.nodes:
                raise doc.error((*keys, "id"), f"node {node.id} is defined twice")
            scope.nodes[name], scope.keys[name] = node, keys
            if _SET.match(node.type) and (wire := _first_text(node)):
                self.wires[wire] = scope, node
            if _BROADCAST.match(node.type):
                for slot, entry in enumerate(node.inputs or ()):
                    kind = entry.name if _type(entry.type) == ANY else _type(entry.type)
                    self.everywhere.setdefault(kind, (scope, node, slot))
        self.count += len(scope.nodes)
        if self.count > _MOST:
            raise InputError(f"{doc.path}: expected at most {_MOST:,} nodes with subgraphs opened, found more")
        if scope.parent is not None:
            takes, gives = (doc.convert(data.get(key) or [], list[_End], (*at, key)) for key in ("inputs", "outputs"))
            scope.takes = [one.name for one in takes]
            scope.gives = [[str(link) for link in one.linkIds] for one in gives]
        for i, raw in enumerate(_list(doc, data, "links", at)):
            self._read_link(scope, raw, (*at, "links", i))
        for name, node in scope.nodes.items():
            for j, entry in enumerate(node.inputs or ()):
                if entry.link is not None and str(entry.link) not in scope.links:
                    what = f"input {entry.name!r} of node {node.id} comes from link {entry.link}, which is not in links"
                    self._note((*scope.keys[name], "inputs", j), what)

    def _read_link(self, scope: _Scope, raw: Any, keys: tuple[Key, ...]) -> None:
        if isinstance(raw, dict):
            raw = [raw.get(key) for key in ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")]
        if raw is None:  # the editor leaves holes
            return
        if not isinstance(raw, list) or len(raw) < 5 or not all(isinstance(end, int | str) for end in raw[:5]):
            expected = "expected [link, from node, from slot, to node, to slot, type]"
            raise self.doc.error(keys, f"{expected}, found {raw!r}")
        number, source, slot, target, target_slot, *kind = raw
        for end in (source, target):
            if str(end) not in scope.nodes and not (scope.parent and str(end) in (_INPUTS, _OUTPUTS)):
                self._note(keys, f"link {number} ({source} -> {target}): there is no node {end}")
                return
        type_ = _type(kind[0] if kind else ANY)
        link = _UiLink(str(source), max(0, _slot(slot)), str(target), _slot(target_slot), type_, keys)
        scope.links[str(number)] = link
        node = scope.nodes.get(link.target)
        if node is not None and link.target_slot >= len(node.inputs or ()):  # hand-made files list no inputs
            node.inputs = [*(node.inputs or ()), _Input("", link.type, number)]

    def _note(self, keys: tuple[Key, ...], what: str) -> None:
        place = ".".join(map(str, keys))
        self.notes.append(f"{place}: {what}: left out")

    def _node(self, scope: _Scope, given: _UiNode) -> ComfyNode:
        widgets = given.widgets_values
        listed = list(widgets.values() if isinstance(widgets, dict) else widgets if isinstance(widgets, list) else [])
        values = dict(widgets) if isinstance(widgets, dict) else self._named(given, listed)
        outputs = [_type(output.type) for output in given.outputs or ()]
        return ComfyNode(f"{scope.prefix}{given.id}", given.type, values, listed, outputs)

    def _named(self, node: _UiNode, listed: list[Any]) -> dict[str, Any]:
        """An editor's node has its values by position; the names are in its inputs, or those of its type."""
        named = [entry.name for entry in node.inputs or () if entry.widget is not None]
        plain = [v for i, v in enumerate(listed) if not (v in _CONTROL if isinstance(v, str) else False) or i == 0]
        names = named if len(named) == len(plain) else self.types.widgets(node.type)
        return {name: value for name, value in zip(names, plain, strict=False) if name}

    def _links(self, scope: _Scope, node: _UiNode, made: ComfyNode) -> Iterator[ComfyLink]:
        for index, entry in enumerate(node.inputs or ()):
            found = self._origin(scope, node, index)
            if isinstance(found, _Value):
                self._set(made, entry.name, found.value)
            elif found is not None:
                origin, source, slot = found
                if source.mode == _MUTED:
                    made.lacks += [] if entry.optional else [entry.name]
                    continue
                outputs = source.outputs or []
                kinds = [_type(outputs[slot].type) if slot < len(outputs) else ANY, _type(entry.type)]
                kind = next((one for one in kinds if one != ANY), ANY)
                keys = (*scope.keys[str(node.id)], "inputs", index)
                name = f"{origin.prefix}{source.id}"
                yield ComfyLink(name, slot, made.id, entry.name, kind, keys, entry.optional, entry.link is None)

    @staticmethod
    def _set(node: ComfyNode, name: str, value: Any) -> None:
        """Put a value in the place of the node's own; where that has no name, of the first that is as much a file."""
        own = node.values.get(name)
        if own is None and names_weights(value) and value not in node.listed:
            own = next((one for one in node.listed if names_weights(one)), None)
        if own in node.listed and own is not None:
            node.listed[node.listed.index(own)] = value
        elif value not in node.listed:
            node.listed.append(value)
        node.values[name] = value

    def _origin(self, scope: _Scope, node: _UiNode, index: int) -> _Origin | _Value | None:
        """Where the value of an input comes from: a node that runs (or is muted) and its slot, or a plain value."""
        wanted = _type((node.inputs or [])[index].type)
        seen = set()
        while True:
            entry = (node.inputs or [])[index]
            step = (scope.prefix, str(node.id), index)
            if step in seen:
                keys = (*scope.keys[str(node.id)], "inputs", index)
                raise self.doc.error(keys, f"input {entry.name!r} of node {node.id} leads back to itself")
            seen.add(step)
            if entry.link is None:
                there = None if entry.optional else self.everywhere.get(_type(entry.type))
                found: _Origin | _Value | None = None if there is None or there[1] is node else there
            else:
                link = scope.links.get(str(entry.link))
                end = None if link is None else _into_subgraphs(scope, link.origin, link.slot)
                if end is None:
                    return None
                scope, source, slot = end
                if source == _INPUTS:
                    found = self._outside(scope, slot)
                elif not self._passes_on(scope.nodes[source]):
                    return scope, scope.nodes[source], slot
                else:
                    found = self._before(scope, scope.nodes[source], slot, wanted)
            if not isinstance(found, tuple):
                return found
            scope, node, index = found

    def _outside(self, scope: _Scope, slot: int) -> _Origin | _Value | None:
        """The input of the node that stands for a subgraph, or the value that it has instead of a link."""
        node = scope.instance
        assert scope.parent is not None
        assert node is not None
        name = scope.takes[slot] if slot < len(scope.takes) else ""
        inputs = node.inputs or []
        at = next((i for i, one in enumerate(inputs) if one.name == name), None if name else slot)
        if at is not None and at < len(inputs) and (inputs[at].link is not None or inputs[at].widget is None):
            return scope.parent, node, at
        sockets = {one.name for one in inputs if one.widget is None}
        shown = _entries(node.properties.get("proxyWidgets") if isinstance(node.properties, dict) else None, list)
        told = [str(one[-1]) if str(one[0]) == "-1" else "" for one in shown if one]
        names = told or [one for one in scope.takes if one not in sockets]
        given = node.widgets_values if isinstance(node.widgets_values, list) else []
        value = dict(zip(names, given, strict=True)).get(name) if len(names) == len(given) else None
        return None if value is None else _Value(value)

    @staticmethod
    def _passes_on(node: _UiNode) -> bool:
        kinds = (_REROUTE, _SET, _GET)
        passes = node.type == "PrimitiveNode" or any(pattern.match(node.type) for pattern in kinds)
        return node.mode == _BYPASSED or (passes and node.mode != _MUTED)

    def _before(self, scope: _Scope, node: _UiNode, slot: int, wanted: str) -> _Origin | _Value | None:
        """What a node that is not run itself passes on."""
        if node.mode == _BYPASSED:
            place = _bypass(node, slot, wanted)
            return None if place is None else (scope, node, place)
        if node.type == "PrimitiveNode":
            listed = node.widgets_values
            return _Value(listed[0]) if isinstance(listed, list) and listed else None
        if _GET.match(node.type):
            wire = self.wires.get(_first_text(node))
            return (*wire, 0) if wire and wire[1].inputs else None
        return (scope, node, 0) if node.inputs else None


def _into_subgraphs(scope: _Scope, source: str, slot: int) -> tuple[_Scope, str, int] | None:
    """The node inside a subgraph that leads to its output."""
    while source in scope.inner:
        scope = scope.inner[source]
        told = scope.gives[slot] if 0 <= slot < len(scope.gives) else []
        inside = next((scope.links[number] for number in told if number in scope.links), None)
        if inside is None:
            ends = (one for one in scope.links.values() if one.target == _OUTPUTS and one.target_slot == slot)
            inside = next(ends, None)
        if inside is None:
            return None
        source, slot = inside.origin, inside.slot
    return scope, source, slot


def _bypass(node: _UiNode, slot: int, wanted: str) -> int | None:
    """The input that takes the place of a bypassed node's output: at the same place, else the first of its type."""
    inputs, outputs = node.inputs or [], node.outputs or []
    if wanted == ANY:
        return None if not inputs else slot if slot < len(inputs) else 0
    given = _type(outputs[slot].type) if slot < len(outputs) else ANY
    fits = [i for i, one in enumerate(inputs) if _type(one.type) in (wanted, ANY) and given in (wanted, ANY)]
    alike = [i for i, one in enumerate(inputs) if _type(one.type) == wanted]
    return slot if slot in fits else next(iter([*alike, *fits]), None)


def _virtual(kind: str) -> bool:
    patterns = (_REROUTE, _SET, _GET, _BROADCAST, _NOTE)
    return kind == "PrimitiveNode" or any(pattern.match(kind) for pattern in patterns)


def _subgraphs(data: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    definitions = data.get("definitions")
    given = definitions.get("subgraphs") if isinstance(definitions, dict) else None
    for i, raw in enumerate(given if isinstance(given, list) else ()):
        if isinstance(raw, dict) and "id" in raw:
            yield str(raw["id"]), raw | {"at": ("definitions", "subgraphs", i)}
            yield from _subgraphs(raw)


def _group_nodes(data: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Group nodes of older files, as subgraphs: what is not linked inside is an input or an output, in order."""
    extra = data.get("extra")
    given = extra.get("groupNodes") if isinstance(extra, dict) else None
    for name, raw in given.items() if isinstance(given, dict) else ():
        if not isinstance(raw, dict):
            continue
        links: list[list[Any]] = []
        takes: list[dict[str, Any]] = []
        gives = 0
        for wire in _entries(raw.get("links"), list):
            if len(wire) > 3 and all(isinstance(end, int) for end in wire[:4]):  # those from outside begin with nothing
                links.append([len(links), *wire[:4], wire[-1]])
        shown = [one[:2] for one in _entries(raw.get("external"), list)]
        used = [link[1:3] for link in links if link[1:3] not in shown]
        nodes = [dict(node) for node in _entries(raw.get("nodes"), dict)]
        for index, node in enumerate(nodes):
            node["id"] = index
            node["inputs"] = [dict(one) for one in _entries(node.get("inputs"), dict)]
            for slot, entry in enumerate(node["inputs"]):
                inside = next((link[0] for link in links if link[3:5] == [index, slot]), None)
                entry["link"] = inside
                if inside is None and not entry.get("widget"):
                    entry["link"] = len(links)
                    links.append([len(links), _INPUTS, len(takes), index, slot, entry.get("type")])
                    takes.append({})  # matched by place, not by name
            for slot, _ in enumerate(_entries(node.get("outputs"), dict)):
                if [index, slot] not in used:
                    links.append([len(links), index, slot, _OUTPUTS, gives, ANY])
                    gives += 1
        made = {"name": name, "nodes": nodes, "links": links, "inputs": takes, "at": ("extra", "groupNodes", name)}
        yield f"workflow/{name}", made
        yield f"workflow>{name}", made


def _entries(given: Any, kind: type[T]) -> list[T]:
    return [one for one in given if isinstance(one, kind)] if isinstance(given, list) else []


def _read_api(doc: Document, types: NodeTypes, data: Mapping[str, Any], at: tuple[Key, ...]) -> ComfyGraph:
    given = {}
    graph = ComfyGraph(doc.path, {}, [])
    for name, raw in data.items():
        if isinstance(raw, dict) and "class_type" in raw:
            given[name] = doc.convert(raw, _ApiNode, (*at, name))
        else:
            graph.notes.append(f"{name}: not a node: left out")
    nodes: dict[str, ComfyNode] = {}
    links: list[ComfyLink] = []
    for name, node in given.items():
        values = {}
        for key, value in node.inputs.items():
            if not (isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)):
                values[key] = value
                continue
            source, keys = value[0], (*at, name, "inputs", key)
            if source not in given:
                graph.notes.append(f"{'.'.join(map(str, keys))}: link {value!r}: there is no node {source}: left out")
                continue
            slot = max(0, _slot(value[1]))
            kind = types.gives(given[source].class_type, slot) or types.takes(node.class_type, key)
            links.append(ComfyLink(source, slot, name, key, kind, keys))
        known = types.outputs(node.class_type)
        nodes[name] = ComfyNode(name, node.class_type, values, list(values.values()), known)
    graph = ComfyGraph(doc.path, nodes, links, graph.notes)
    for _ in range(len(links)):  # what a switch is given is what it gives
        unknown = [link for link in links if link.type == ANY and _SWITCHED.fullmatch(link.input)]
        for link in unknown:
            link.type = next((one.type for one in graph.out[link.target] if one.type != ANY), ANY)
        if all(link.type == ANY for link in unknown):
            break
    return graph


def _list(doc: Document, data: Mapping[str, Any], key: str, at: tuple[Key, ...]) -> Iterable[Any]:
    found = data.get(key) or []
    if isinstance(found, dict):  # written by some versions of the editor, by number
        found = list(found.values())
    if not isinstance(found, list):
        raise doc.error((*at, key), f"expected a list, found {type(found).__name__}")
    return found


def _type(given: Any) -> str:
    """The name of a type; a list of choices is one of them, and zero or nothing is any."""
    if isinstance(given, list):
        return "COMBO"
    return given if isinstance(given, str) and given else ANY


def _slot(given: Any) -> int:
    return int(given) if isinstance(given, int) or (isinstance(given, str) and given.isdigit()) else 0


def _first_text(node: _UiNode) -> str:
    listed = node.widgets_values
    values = list(listed.values()) if isinstance(listed, dict) else listed if isinstance(listed, list) else []
    return next((value for value in values if isinstance(value, str)), "")
