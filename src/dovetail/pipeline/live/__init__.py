"""A plan run for real: one process per stage, TCP between them, and another plan when a host dies or slows down."""

from dovetail.pipeline.live.hosts import HostSettings, read_hosts
from dovetail.pipeline.live.jobs import RunOptions
from dovetail.pipeline.live.results import LiveResult
from dovetail.pipeline.live.run import run_plan
from dovetail.pipeline.live.supervisor import Patience

__all__ = ["HostSettings", "LiveResult", "Patience", "RunOptions", "read_hosts", "run_plan"]
