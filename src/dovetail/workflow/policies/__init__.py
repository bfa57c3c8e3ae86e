"""Workflow policies, one per file. A policy is pure: it sees a `View` and says what to start next, where, and why.

The smallest policy is a `rank`: which of the ready nodes goes first. See docs/adding-a-policy.md.
"""

from __future__ import annotations

from dovetail.workflow.policies.base import ListPolicy, Place, Preload, Wait, WorkflowPolicy
from dovetail.workflow.policies.ready import Queue, ReadyNode
from dovetail.workflow.policies.view import View

__all__ = ["ListPolicy", "Place", "Preload", "Queue", "ReadyNode", "View", "Wait", "WorkflowPolicy"]
