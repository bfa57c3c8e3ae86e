"""The host level: programs on the cores of one machine. What most users need is here, and is imported when it is used.

from dovetail import host

workload = host.Workload.of(host.read_requests(Path("requests_file.txt")), cores=16)
outcome = host.record(workload, host.HostOptions(plan="rr", assign="max_prop"), Path("run.jsonl"))
report = host.check_journal(Path("run.jsonl"))
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Assignment": "policies",
    "HostOptions": "options",
    "HostOutcome": "simulate",
    "MachineView": "policies",
    "Planning": "policies",
    "Program": "policies",
    "Workload": "simulate",
    "check_journal": "check",
    "connect": "live.client",
    "curve": "curves",
    "read_parameters": "inputs.parameters",
    "read_requests": "inputs.requests",
    "record": "simulate",
    "run": "simulate",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)


def __dir__() -> list[str]:
    return __all__
