"""`parameters.json`: policies, and how a workload is drawn, as the older scheduler reads them."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Source
from dovetail.host.policies import Assignment, Planning, names

PARAMETERS = Path("parameters.json")


class Parameters(Struct, frozen=True, forbid_unknown_fields=True):
    """The older scheduler's parameters, all of its keys; what a key means stands in docs/host.md."""

    policy: str = "fcfs"
    assignment_policy: str = "strict"
    tf_version: str = "malleable"
    tf_model: str = ""
    tf_dockerimage: str = "tf_scheduler"
    number_containers: int = 8
    time_distribution: Literal["static", "normal"] = "static"
    time_gap: tuple[float, ...] = (0.0, 0.0)
    resources_distribution: Literal["static", "random"] = "static"
    resources_per_container: tuple[int, ...] = (1, 2)
    get_requests: Literal["create", "file"] = "file"
    requests_file: str = ""
    max_resources_per_container: int | None = None

    @property
    def malleable(self) -> bool:
        return self.tf_version != "original"


_SYNONYMS = {"prio": "priority", "round_robin": "rr"}


def read_parameters(source: Source) -> Parameters:
    """`parameters.json`, or a dict in its place, with `maleable` and `malleable` meaning the same."""
    if isinstance(source, Parameters):
        return source
    doc = Document.of(source, "parameters")
    if not isinstance(doc.data, dict):
        raise doc.error((), "expected keys and values")
    found = doc.convert(doc.data, Parameters)
    version = {"maleable": "malleable"}.get(found.tf_version, found.tf_version)
    if version not in ("malleable", "original"):
        raise doc.error(("tf_version",), f"found {version!r}, expected malleable (or maleable) or original")
    for key in ("number_containers", "max_resources_per_container"):
        value = getattr(found, key)
        if value is not None and value < 1:
            raise doc.error((key,), f"expected at least 1, found {value}")
    _check_pair(doc, "time_gap", found.time_gap, found.time_distribution == "normal", 0)
    _check_pair(
        doc, "resources_per_container", found.resources_per_container, found.resources_distribution == "random", 1
    )
    if (
        found.resources_distribution == "random"
        and found.resources_per_container[1] <= found.resources_per_container[0]
    ):
        raise doc.error(("resources_per_container",), "expected [least, one more than the most], the second larger")
    return msgspec.structs.replace(
        found,
        tf_version=version,
        policy=_word(doc, "policy", found.policy, names(Planning)),
        assignment_policy=_word(doc, "assignment_policy", found.assignment_policy, names(Assignment)),
    )


def _word(doc: Document, key: str, value: str, known: list[str]) -> str:
    word = value.strip().lower().replace("-", "_").replace(" ", "_")
    word = _SYNONYMS.get(word, word)
    if word not in known:
        raise doc.error((key,), f"found {value!r}{did_you_mean(word, known)}")
    return word


def _check_pair(doc: Document, key: str, values: tuple[Any, ...], both: bool, least: float) -> None:
    if len(values) < (2 if both else 1) or len(values) > 2:
        raise doc.error((key,), f"expected two numbers, found {list(values)}")
    if not all(isfinite(value) and value >= 0 for value in values) or values[0] < least:
        raise doc.error((key,), f"expected numbers from {least} on, found {list(values)}")


def requests_path(parameters: Parameters, path: Path) -> Path:
    """The request file that parameters name: in this folder, or beside them."""
    if not parameters.requests_file:
        raise InputError(f"{path}: requests_file: is missing; name the requests with --requests")
    named = Path(parameters.requests_file)
    beside = [path.parent / named, path.parent.parent / named]
    return next((place for place in (named, *beside) if place.is_file()), beside[0])
