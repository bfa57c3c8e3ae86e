"""What the workflow commands that read files share: which files, and how they are read."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import Parameter

from dovetail.cli.common import Pairs, pairs
from dovetail.workflow import Compat, Mode, OnError

if TYPE_CHECKING:
    from dovetail.workflow import WorkflowProblem


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class InputFlags:
    """Which files, and how they are read."""

    mode: Mode = "offline"
    "offline: everything arrives at time 0; online: by the timestamps."
    config: Path = Path("system_config.yaml")
    "Models, workflows, GPU types and costs: YAML or JSON, whatever the suffix."
    requests: Path = Path("workflow_requests.yaml")
    "The requests: YAML, JSON, or JSON lines for large sets."
    cost: Pairs | None = None
    "Cost rules over those of the configuration: --cost overlap=0.5 noise=0.1."
    compat: Compat | None = None
    "gswarm: read faulty files, price switches and order events as that scheduler did, to compare numbers."
    on_error: OnError = "fail"
    "A request that cannot run: fail stops before anything runs; reject counts it as rejected; skip leaves it out."
    rates: Path | None = None
    "A rate table: measured speeds and switch times."
    gpus_over_time: Path | None = None
    "How many of the GPUs are there when: {steps: [[0, 4], [3600, 6]], scale_up_s: 120}."

    @property
    def files(self) -> list[Path | None]:
        return [self.config, self.requests, self.rates, self.gpus_over_time]

    def how(self) -> dict[str, Any]:
        """All but the files of configuration and requests, as the level's functions take it."""
        rules = {"costs": pairs("--cost", self.cost), "rates": self.rates, "gpus_over_time": self.gpus_over_time}
        return {"mode": self.mode, "compat": self.compat, "on_error": self.on_error} | rules

    def load(self, gpus: str | None, **more: Any) -> WorkflowProblem:
        """Read the files, and print what their reader has to say."""
        from dovetail.workflow import load

        problem = load(self.config, self.requests, gpus=gpus, **self.how() | more)
        for note in problem.warnings():
            print(f"warning: {note}", file=sys.stderr)
        for text in problem.requests.skipped:
            print(f"skipped: {text}", file=sys.stderr)
        return problem


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class OnlineFlags(InputFlags):
    """The same for a question about arrivals."""

    mode: Mode = "online"
    "online by the timestamps, or offline: everything arrives at time 0."


INPUTS, ONLINE = InputFlags(), OnlineFlags()  # as they are if no flag is given
