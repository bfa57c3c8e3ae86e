"""What the workflow commands share: names of files, and what reading them has to say."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail.workflow import WorkflowProblem

CONFIG = Path("system_config.yaml")
REQUESTS = Path("workflow_requests.yaml")


def warn(problem: WorkflowProblem) -> None:
    for note in problem.warnings():
        print(f"warning: {note}", file=sys.stderr)
    for text in problem.requests.skipped:
        print(f"skipped: {text}", file=sys.stderr)
