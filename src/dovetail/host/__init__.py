"""The host level: programs on the cores of one machine. What most users need is here, and is imported when it is used.

from dovetail import host

workload = host.Workload.of(host.read_requests(Path("requests_file.txt")), cores=16)
outcome = host.record(workload, host.HostOptions(plan="rr", assign="max_prop"), Path("run.jsonl"))
report = host.check_journal(Path("run.jsonl"))
"""

from __future__ import annotations

from dovetail.core.lazy import exports

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
__getattr__, __dir__ = exports(__name__, _PUBLIC)
