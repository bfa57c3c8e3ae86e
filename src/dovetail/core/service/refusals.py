"""Why a service does not take a request."""

from __future__ import annotations

from dovetail.core.errors import DovetailError, InputError


class BusyError(DovetailError):
    """Too much waits already: try again after so many seconds."""

    def __init__(self, why: str, retry_after_s: float) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class DrainingError(DovetailError):
    """The service takes no requests: it is about to end, or cannot keep them now."""


class ConflictError(InputError):
    """That name, or idempotency key, is of one with another content."""
