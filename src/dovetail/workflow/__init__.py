"""Nodes of many-model workflows on a pool of GPUs, where loading another model has a price.

>>> from dovetail import workflow
>>> problem = workflow.load("examples/system_config.yaml", "examples/workflow_requests.yaml", gpus=4)
>>> found = workflow.run(problem, "dovetail")
>>> found.metrics["completed"] == len(problem.requests)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.core.lazy import exports

if TYPE_CHECKING:
    from dovetail.workflow.bounds import Bounds
    from dovetail.workflow.choices import (
        DEFAULT_POLICY,
        DEFAULT_RETRIES,
        REQUEST_LINES,
        ArrivalPattern,
        Compat,
        FileFormat,
        Mode,
        OnError,
        TraceFormat,
    )
    from dovetail.workflow.export import measurements, rates_of, requests_of, write_logs
    from dovetail.workflow.inputs.generate import GeneratedRequests, generate
    from dovetail.workflow.inputs.importers.calls import import_azure, import_burstgpt, import_jsonl, import_mooncake
    from dovetail.workflow.inputs.importers.comfyui import import_comfyui
    from dovetail.workflow.inputs.importers.common import Imported
    from dovetail.workflow.inputs.importers.opentelemetry import import_otel
    from dovetail.workflow.inputs.importers.traced import ImportedTrace
    from dovetail.workflow.inputs.importers.wfcommons import import_wfcommons
    from dovetail.workflow.inputs.synthetic import agents_system, synthetic_system, thrash_system
    from dovetail.workflow.inputs.write import write_config
    from dovetail.workflow.live.client import WorkflowClient, connect
    from dovetail.workflow.live.overview import Overview
    from dovetail.workflow.live.replay import TraceReplay, replay
    from dovetail.workflow.live.run import LiveWorkflowRun, check_live, run_live
    from dovetail.workflow.live.runs import RunEvent, RunResult, RunStatus
    from dovetail.workflow.live.serve import ServedWorkflows, serve
    from dovetail.workflow.optimise.exact import Exact, optimum
    from dovetail.workflow.plan_over_time import CapacityPlan, fewest_gpus_over_time
    from dovetail.workflow.problem import WorkflowProblem, bound, load
    from dovetail.workflow.simulate import WorkflowRun, run
    from dovetail.workflow.study import Capacity, WorkflowComparison, compare, fewest_gpus, list_policies

__all__ = [
    "DEFAULT_POLICY",
    "DEFAULT_RETRIES",
    "REQUEST_LINES",
    "ArrivalPattern",
    "Bounds",
    "Capacity",
    "CapacityPlan",
    "Compat",
    "Exact",
    "FileFormat",
    "GeneratedRequests",
    "Imported",
    "ImportedTrace",
    "LiveWorkflowRun",
    "Mode",
    "OnError",
    "Overview",
    "RunEvent",
    "RunResult",
    "RunStatus",
    "ServedWorkflows",
    "TraceFormat",
    "TraceReplay",
    "WorkflowClient",
    "WorkflowComparison",
    "WorkflowProblem",
    "WorkflowRun",
    "agents_system",
    "bound",
    "check_live",
    "compare",
    "connect",
    "fewest_gpus",
    "fewest_gpus_over_time",
    "generate",
    "import_azure",
    "import_burstgpt",
    "import_comfyui",
    "import_jsonl",
    "import_mooncake",
    "import_otel",
    "import_wfcommons",
    "list_policies",
    "load",
    "measurements",
    "optimum",
    "rates_of",
    "replay",
    "requests_of",
    "run",
    "run_live",
    "serve",
    "synthetic_system",
    "thrash_system",
    "write_config",
    "write_logs",
]
__getattr__, __dir__ = exports(
    __name__,
    {
        "ArrivalPattern": "choices",
        "Bounds": "bounds",
        "Capacity": "study",
        "CapacityPlan": "plan_over_time",
        "Compat": "choices",
        "DEFAULT_POLICY": "choices",
        "DEFAULT_RETRIES": "choices",
        "REQUEST_LINES": "choices",
        "Exact": "optimise.exact",
        "FileFormat": "choices",
        "GeneratedRequests": "inputs.generate",
        "Imported": "inputs.importers.common",
        "ImportedTrace": "inputs.importers.traced",
        "LiveWorkflowRun": "live.run",
        "Mode": "choices",
        "OnError": "choices",
        "Overview": "live.overview",
        "RunEvent": "live.runs",
        "RunResult": "live.runs",
        "RunStatus": "live.runs",
        "ServedWorkflows": "live.serve",
        "WorkflowClient": "live.client",
        "WorkflowComparison": "study",
        "WorkflowProblem": "problem",
        "WorkflowRun": "simulate",
        "agents_system": "inputs.synthetic",
        "bound": "problem",
        "check_live": "live.run",
        "compare": "study",
        "connect": "live.client",
        "fewest_gpus": "study",
        "fewest_gpus_over_time": "plan_over_time",
        "generate": "inputs.generate",
        "import_azure": "inputs.importers.calls",
        "import_burstgpt": "inputs.importers.calls",
        "import_comfyui": "inputs.importers.comfyui",
        "import_jsonl": "inputs.importers.calls",
        "import_mooncake": "inputs.importers.calls",
        "import_otel": "inputs.importers.opentelemetry",
        "import_wfcommons": "inputs.importers.wfcommons",
        "list_policies": "study",
        "load": "problem",
        "measurements": "export",
        "optimum": "optimise.exact",
        "TraceFormat": "choices",
        "TraceReplay": "live.replay",
        "replay": "live.replay",
        "rates_of": "export",
        "requests_of": "export",
        "run": "simulate",
        "serve": "live.serve",
        "run_live": "live.run",
        "synthetic_system": "inputs.synthetic",
        "thrash_system": "inputs.synthetic",
        "write_config": "inputs.write",
        "write_logs": "export",
    },
)
