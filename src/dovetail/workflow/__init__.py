"""Nodes of many-model workflows on a pool of GPUs, where loading another model has a price.

>>> from pathlib import Path
>>> from dovetail import workflow
>>> problem = workflow.WorkflowProblem.read(
...     Path("examples/system_config.yaml"), Path("examples/workflow_requests.yaml"), gpus="4"
... )
>>> workflow.run(problem, "dovetail").figures.completed == len(problem.requests)
True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.core.lazy import exports

if TYPE_CHECKING:
    from dovetail.workflow.check import check_journal
    from dovetail.workflow.export import write_logs
    from dovetail.workflow.inputs.configuration import read_system
    from dovetail.workflow.inputs.generate import generate
    from dovetail.workflow.problem import WorkflowProblem
    from dovetail.workflow.simulate import WorkflowResult, record, run
    from dovetail.workflow.study import StudyCell, compare, fewest_gpus

__all__ = [
    "StudyCell",
    "WorkflowProblem",
    "WorkflowResult",
    "check_journal",
    "compare",
    "fewest_gpus",
    "generate",
    "read_system",
    "record",
    "run",
    "write_logs",
]
__getattr__, __dir__ = exports(
    __name__,
    {
        "StudyCell": "study",
        "WorkflowProblem": "problem",
        "WorkflowResult": "simulate",
        "check_journal": "check",
        "compare": "study",
        "fewest_gpus": "study",
        "generate": "inputs.generate",
        "read_system": "inputs.configuration",
        "record": "simulate",
        "run": "simulate",
        "write_logs": "export",
    },
)
