"""What the workflow commands that read files share: which files, and how they are read."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from cyclopts import Parameter

from dovetail.cli.common import Flag, Pairs, pairs
from dovetail.core.errors import InputError
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

    def load(self, gpus: str | None, no_requests: bool = False, **more: Any) -> WorkflowProblem:
        """Read the files, and print what their reader has to say; if there may be `no_requests`, without theirs."""
        from dovetail.workflow import load

        requests: Any = [] if no_requests and not self.requests.exists() else self.requests
        problem = load(self.config, requests, gpus=gpus, **self.how() | more)
        if requests and problem.requests.total == 0:
            print(f"warning: {self.requests}: there are no requests", file=sys.stderr)
        for note in problem.warnings():
            print(f"warning: {note}", file=sys.stderr)
        for text in problem.requests.skipped:
            print(f"skipped: {text}", file=sys.stderr)
        return problem


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LiveFlags:
    """How models are called for real."""

    live: Flag = False
    "Call models: each is loaded from its source, and outputs flow from node to node. --simulate true is its old name."
    speed: float = 1.0
    "With --live: let requests arrive so many times as fast."
    engine: Literal["local", "ray"] | None = None
    "With --live: processes of this machine, or actors of a Ray cluster."
    address: str | None = None
    "Of the Ray cluster; without it a private one on this machine."
    device: Literal["auto", "cpu", "cuda"] = "auto"
    "With --live: GPUs are CUDA's, or the processor works for them; auto: CUDA's where models run here and need them."
    url: str | None = None
    "With --live: send the requests to the service at this URL, or of this folder, in the place of running them here."
    token_file: Path | None = None
    "The file of that service's token; without it the service's folder or DOVETAIL_TOKEN has it."

    def refuse(self) -> None:
        """What is said of live runs is for them alone."""
        for name in ("speed", "engine", "address", "device", "url", "token_file"):
            if getattr(self, name) != getattr(NOT_LIVE, name):
                raise InputError(f"--{name.replace('_', '-')} is for --live")


INPUTS, NOT_LIVE = InputFlags(), LiveFlags()  # as they are if no flag is given
