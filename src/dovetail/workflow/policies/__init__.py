"""Workflow policies, one per file. A policy is pure: it sees a `View` and says what to start next, where, and why.

The smallest policy is a `rank`: which of the ready nodes goes first. See docs/adding-a-policy.md.
"""

from __future__ import annotations

from dovetail.workflow.policy import ListPolicy, Place, Policy, Wait
from dovetail.workflow.view import Queue, ReadyNode, View

__all__ = ["ListPolicy", "Place", "Policy", "Queue", "ReadyNode", "View", "Wait"]
