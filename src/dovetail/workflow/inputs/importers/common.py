"""What the importers share: their result, names that stay unique, and order that survives dropped nodes."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct, field

from dovetail.core.errors import InputError
from dovetail.core.files.document import as_path
from dovetail.workflow.inputs.write import file_format, output_paths, write_config, write_requests

N = TypeVar("N", bound=Hashable)
START = "2024-01-01T00:00:00"  # when imported requests arrive: a file says what was done, not when it is wanted


class Imported(Struct):
    """A configuration for `read_system`, requests for it, what was left out (type: how many), and what to know."""

    config: dict[str, Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    dropped: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<Imported {', '.join(f'{count:,} {what}' for what, count in self.counts().items())}>"

    def counts(self) -> dict[str, int]:
        """What was found, in numbers."""
        workflows = self.config["workflows"]
        nodes = sum(len(workflow["nodes"]) for workflow in workflows.values())
        found = {"models": len(self.config["models"]), "workflows": len(workflows), "nodes": nodes}
        return found | {"requests": len(self.requests)}

    def write(
        self, config: str | os.PathLike[str], requests: str | os.PathLike[str] | None = None, force: bool = False
    ) -> None:
        """Write the configuration and, where a file is named for them, the requests; over files that exist only with
        `force`."""
        out, rows = output_paths(config, requests, force)
        write_config(out, self.config)
        if rows is not None:
            write_requests(self.requests, rows, file_format(rows))


def as_paths(files: Any) -> list[Path]:
    """One file, or several, as a user names them."""
    given = [files] if isinstance(files, str | os.PathLike) else files
    if not isinstance(given, Sequence) or not given:
        raise InputError(f"files: expected one or more paths, found {files!r}")
    return [as_path(file, "files") for file in given]


class Names:
    """Plain names for things that have others; different things never get the same one.

    >>> names = Names()
    >>> names.of("a", "SD XL-1.0"), names.of("b", "sd_xl-1.0"), names.of("a", "SD XL-1.0"), names.of("c", "?")
    ('sd_xl_1_0', 'sd_xl_1_0_2', 'sd_xl_1_0', 'unnamed')
    """

    def __init__(self) -> None:
        self._given: dict[Hashable, str] = {}
        self._taken: set[str] = set()

    def of(self, thing: Hashable, wanted: str) -> str:
        """The name of a thing; what is wanted matters on the first call only."""
        if thing not in self._given:
            plain = name = re.sub(r"\W+", "_", wanted.lower()).strip("_") or "unnamed"
            number = 2
            while name in self._taken:
                name, number = f"{plain}_{number}", number + 1
            self._taken.add(name)
            self._given[thing] = name
        return self._given[thing]


def find_cycle(nodes: Iterable[N], edges: Iterable[tuple[N, N]]) -> list[N] | None:
    """A way round, its first node repeated at the end; None if there is none.

    >>> find_cycle("abc", [("a", "b"), ("b", "a"), ("b", "c")])
    ['a', 'b', 'a']
    """
    try:
        TopologicalSorter(_before(nodes, edges)).prepare()
    except CycleError as error:
        ring: list[N] = error.args[1]
        return ring
    return None


def bridge(nodes: Iterable[N], edges: Iterable[tuple[N, N]], kept: Collection[N]) -> list[tuple[N, N]]:
    """Edges between the kept nodes that order them as before: a -> dropped -> b becomes a -> b.

    >>> bridge("axyb", [("a", "x"), ("x", "y"), ("y", "b"), ("a", "b")], {"a", "b"})
    [('a', 'b')]
    """
    before = _before(nodes, edges)
    nearest: dict[N, dict[N, None]] = {}  # the kept nodes that lead to a node through dropped ones only
    for node in TopologicalSorter(before).static_order():
        nearest[node] = {}
        for source in before[node]:
            nearest[node] |= {source: None} if source in kept else nearest[source]
    return [(source, node) for node in before if node in kept for source in nearest[node]]


def _before(nodes: Iterable[N], edges: Iterable[tuple[N, N]]) -> Mapping[N, dict[N, None]]:
    before: dict[N, dict[N, None]] = {node: {} for node in nodes}
    for source, target in edges:
        before[target][source] = None
    return before


def request(number: int, workflow: str, prompt: str, times: dict[str, float], configs: Any = None) -> dict[str, Any]:
    """A request row for an imported workflow."""
    return {
        "request_id": f"req_{number:04d}",
        "timestamp": START,
        "workflow_id": workflow,
        "input_data": {"user_prompt": prompt},
        "node_configs": configs or {},
        "node_execution_times": times,
    }
