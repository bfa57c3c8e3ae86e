"""Programs on the cores of one machine: who runs, on which cores, and who is paused.

>>> from dovetail import host
>>> workload = host.load([{"threads": 8, "work": 900, "at_s": 10.0 * i} for i in range(6)], cores=16)
>>> run = host.simulate(workload, plan="fcfs", assign="max_prop")
>>> run.metrics["completed"], run.check().valid
(6, True)

A daemon of this machine is started by `up`, and talked to through what `connect` gives.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.core.lazy import exports

if TYPE_CHECKING:
    from dovetail.host.check import check_journal
    from dovetail.host.experiment import experiment
    from dovetail.host.inputs.jobs import ProgramJob, read_jobs
    from dovetail.host.inputs.workload import Workload, load
    from dovetail.host.live.client import Client, DaemonInfo, connect, log_path
    from dovetail.host.live.gpus import GpuStatus
    from dovetail.host.live.install import install, uninstall, unit_text
    from dovetail.host.live.measure import Measurement, measure
    from dovetail.host.live.recommend import Recommendation, recommend
    from dovetail.host.live.start import daemon_command, up
    from dovetail.host.live.status import LiveProgram
    from dovetail.host.metrics import ProgramFigures
    from dovetail.host.options import HostOptions, Scheduling
    from dovetail.host.policies import Assignment, MachineView, Planning, Program, policies
    from dovetail.host.simulate import HostRun, simulate

__all__ = [
    "Assignment",
    "Client",
    "DaemonInfo",
    "GpuStatus",
    "HostOptions",
    "HostRun",
    "LiveProgram",
    "MachineView",
    "Measurement",
    "Planning",
    "Program",
    "ProgramFigures",
    "ProgramJob",
    "Recommendation",
    "Scheduling",
    "Workload",
    "check_journal",
    "connect",
    "daemon_command",
    "experiment",
    "install",
    "load",
    "log_path",
    "measure",
    "policies",
    "read_jobs",
    "recommend",
    "simulate",
    "uninstall",
    "unit_text",
    "up",
]
__getattr__, __dir__ = exports(
    __name__,
    {
        "Assignment": "policies",
        "Client": "live.client",
        "DaemonInfo": "live.client",
        "GpuStatus": "live.gpus",
        "HostOptions": "options",
        "HostRun": "simulate",
        "LiveProgram": "live.status",
        "MachineView": "policies",
        "Measurement": "live.measure",
        "Planning": "policies",
        "Program": "policies",
        "ProgramFigures": "metrics",
        "ProgramJob": "inputs.jobs",
        "Recommendation": "live.recommend",
        "Scheduling": "options",
        "Workload": "inputs.workload",
        "check_journal": "check",
        "connect": "live.client",
        "daemon_command": "live.start",
        "experiment": "experiment",
        "install": "live.install",
        "load": "inputs.workload",
        "log_path": "live.client",
        "measure": "live.measure",
        "policies": "policies",
        "read_jobs": "inputs.jobs",
        "recommend": "live.recommend",
        "simulate": "simulate",
        "uninstall": "live.install",
        "unit_text": "live.install",
        "up": "live.start",
    },
)
