"""What can be set of a live service: the configuration's `live:`, or flags of `workflow serve` by the same names."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from dovetail.workflow.choices import DEFAULT_LOST_RETRIES, DEFAULT_RETRIES
from dovetail.workflow.live.limits import LiveLimits
from dovetail.workflow.live.run_data import MOST_MIB

_MOST = 1e12


class LiveSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Limits of a live service.

    `max_queue` requests may wait, of which nothing has started yet; one that would have to wait longer than
    `max_wait_s` is turned away, and one that did is ended. `max_input_mib` is what a request may bring along,
    `max_values_mib` what its nodes may give with that.
    Results are kept until there are more than `keep_runs` ended runs, or `keep_mib` of them, or for `keep_s`.
    A call that fails is tried again `retries` times, one that is lost with the place where it runs `lost_retries`.
    `drain_s` is how long open runs may take when the service ends; what is open then goes on at the next start.
    `durability`: what was accepted outlives the end of the process (`process`), or a power cut too (`power`: every
    step waits for the disk). A segment of the journal ends at a quiet moment after `journal_lines` lines; `journal_mib`
    of segments are kept. `limits` are those of loads, calls and workers.
    """

    max_queue: int = 1000
    max_wait_s: float = 600.0
    max_input_mib: float = 64.0
    max_values_mib: float = MOST_MIB
    keep_runs: int = 10_000
    keep_mib: float = 1024.0
    keep_s: float = 86_400.0
    drain_s: float = 30.0
    durability: Literal["process", "power"] = "process"
    journal_lines: int = 50_000
    journal_mib: float = 1024.0
    retries: int = DEFAULT_RETRIES
    lost_retries: int = DEFAULT_LOST_RETRIES
    limits: LiveLimits = LiveLimits()

    def problem(self) -> str | None:
        """What is wrong with these values, with the key, or None."""
        for name in ("max_queue", "keep_runs", "journal_lines"):
            if getattr(self, name) < 1:
                return f"{name}: expected 1 or more, found {getattr(self, name)}"
        for name in ("max_wait_s", "max_input_mib", "max_values_mib", "keep_mib", "keep_s", "journal_mib"):
            if not 0 < getattr(self, name) <= _MOST:
                return f"{name}: expected a positive number up to {_MOST:g}, found {getattr(self, name)}"
        for name in ("drain_s", "retries", "lost_retries"):
            if not 0 <= getattr(self, name) <= _MOST:
                return f"{name}: expected 0 or more, found {getattr(self, name)}"
        wrong = self.limits.problem()
        return None if wrong is None else f"limits.{wrong}"
