"""The policies of the host level, one per file. A third party's register in the same way."""

from dovetail.host.policy import Assignment, Planning
from dovetail.host.program import Program
from dovetail.host.view import View

__all__ = ["Assignment", "Planning", "Program", "View"]
