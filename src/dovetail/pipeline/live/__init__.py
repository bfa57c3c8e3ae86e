"""A plan run for real: one process per stage, TCP between them, and another plan when a host dies or slows down."""

from dovetail.pipeline.live.hosts import HostSettings, read_hosts
from dovetail.pipeline.live.jobs import RunOptions
from dovetail.pipeline.live.run import RunResult, run_plan
from dovetail.pipeline.live.supervisor import Patience

__all__ = ["HostSettings", "Patience", "RunOptions", "RunResult", "read_hosts", "run_plan"]
