"""The choices that a user has, as types: what commands and functions take."""

from __future__ import annotations

from typing import Literal

DEFAULT_POLICY = "dovetail"
Mode = Literal["offline", "online"]
OnError = Literal["fail", "reject", "skip"]  # what to do about a request that cannot run
Compat = Literal["gswarm"]
ArrivalPattern = Literal["poisson", "uniform", "bursty"]
FileFormat = Literal["json", "yaml", "jsonl"]
Target = Literal["makespan", "mean", "p99"]
