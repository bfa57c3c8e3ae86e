"""The level's own rules over a run: prices, residents, durations, memory, bounds, and agreement with the input files.

They apply to journals and, through the same events, to execution logs (`compat/`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.core import check as core
from dovetail.core.files.document import Source
from dovetail.core.findings import Findings, Report, check_bounds, compare
from dovetail.core.journal import Reader
from dovetail.core.metrics import Figures, recount
from dovetail.workflow.check.examination import Examination, need_config

CODES = core.CODES | {
    "model": "a model that is not described, or not as wide as the nodes that use it",
    "run": "an expected run time that is not size / speed",
    "price": "a setup that does not cost what the residents of its GPUs make it cost",
    "token": "a first token that is missing, told twice, or at another time than its node has read",
    "window": "a node on GPUs that are not neighbours",
    "prefix": "blocks said to be cached that are not those that were there",
    "replaces": "a model said to be replaced that is not the one",
    "memory": "a model on a GPU that is too small for it",
    "off": "a node on a GPU that has gone, or has not come yet",
    "seen": "GPUs, a loaded model or tokens said to be seen where they cannot be",
    "cancel": "a request that was asked to be cancelled and was not, or not wholly, or was without being asked",
    "retry": "a node tried more often than was allowed",
    "admission": "a request turned away by a queue that was not full, or admitted to a full one",
    "quota": "a tenant that holds more GPUs than its quota",
    "turn": "a node started out of its tenant's turn",
    "bound": "a figure below its lower bound: no schedule can be that good",
    "config": "a model, a workflow or a GPU type that differs from the configuration file",
    "requests": "a request that differs from the file, is not in it, or is missing from the run",
    "row": "a row of an execution log that contradicts itself",
}


def check_journal(path: Path, config: Source | None = None, requests: Source | None = None, limit: int = 20) -> Report:
    """Check a journal of this level, and whether it is a run of these files, or of what stands in their place."""
    need_config(config, requests)
    reader, faults = Reader(path), Findings(limit)
    header = core.check_header(reader.header, path)
    run = Examination(path, header, faults)
    run.hold_to_rules(config, requests)
    figures, bounds = run.follow(core.read_steps(reader, faults), reader)
    if run.lower.claimed is not None:
        check_claims(run.lower.claimed, run.summary(figures, bounds), figures, faults)
        if run.gpus_on is not None:
            run.gpus_on.check_claim(run.lower.claimed.get("gpu_hours"))
    return run.report("journal", figures, bounds)


def check_claims(claimed: Mapping[str, Any], expected: Mapping[str, Any], figures: Figures, faults: Findings) -> None:
    """The keys of the summary that the core does not know, and those that may not be left out."""
    known = recount(figures)
    check_bounds(claimed, known, faults)
    compare(claimed, {k: v for k, v in expected.items() if isinstance(v, int | float) and k not in known}, faults)
    for key, parts in expected.items():
        if isinstance(parts, dict) and key in claimed:
            compare(_parts(key, claimed[key]), _parts(key, parts), faults)
    for key in ("policy", "mode"):
        if key in claimed and claimed[key] != expected[key]:
            faults.add("summary", key, f"found {claimed[key]!r}, expected {expected[key]!r}")
    for key in _CLAIMS:
        if key not in claimed:
            faults.add("summary", key, "is missing")


def _parts(key: str, parts: Any) -> dict[str, Any]:
    return {f"{key}.{name}": value for name, value in parts.items()} if isinstance(parts, dict) else {}


_CLAIMS = ("makespan_s", "switches", "switch_time_s", "avg_request_s", "p99_request_s", "completed", "rejected")
