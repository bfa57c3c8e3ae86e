"""What can be set of a live cluster: `live:` of its configuration, or flags of `cluster serve` by the same names.

All margins around a round are parts of its length, so that one setting fits rounds of seconds and of minutes.
"""

from __future__ import annotations

from math import isfinite
from typing import Literal

from msgspec import Struct

_MOST = 1e12


class ClusterSettings(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Margins and limits of a live cluster.

    With `spares`, the process of whoever would follow is up and waits where a job is about to end inside a round.
    Parts of a round: at `decide_at` of it the next one is decided, at `renew_at` of a lease a process asks for more. A
    process that has not ended `grace` after its lease gets SIGTERM, and `kill_after` later SIGKILL. Agents give a sign
    of life every `beat`, at most `most_beat_s`; one that is silent for `silence` is taken for lost.

    `failures` in a row without progress, and a job is given up. `job_mib` is what a job's folder may hold: beyond that
    its process is ended, which is a failure. `max_open` jobs may be open; of those that have ended, `keep_jobs` are
    remembered (their folders stay). A rate or a cost that was measured is told to the policy if it is new, or differs
    from what it knows by more than the part `learn_above`; each measurement counts `learn_weight` of the mean.
    A restart follows the journal from the last snapshot on, which is taken every `snapshot_lines` lines; one that finds
    nothing open, and more than `journal_lines` lines, begins a new journal.
    `durability`: what was accepted outlives the end of the process (`process`), or a power cut too (`power`).
    """

    decide_at: float = 0.5
    spares: bool = True
    renew_at: float = 0.75
    grace: float = 0.1
    kill_after: float = 0.1
    beat: float = 0.05
    most_beat_s: float = 2.0
    silence: float = 0.5
    failures: int = 5
    job_mib: float = 102_400.0
    max_open: int = 100_000
    keep_jobs: int = 100_000
    learn_above: float = 0.05
    learn_weight: float = 0.3
    snapshot_lines: int = 2_000
    journal_lines: int = 200_000
    durability: Literal["process", "power"] = "process"

    def beat_s(self, round_s: float) -> float:
        """Seconds between an agent's signs of life.

        >>> ClusterSettings().beat_s(10.0), ClusterSettings().beat_s(360.0)
        (0.5, 2.0)
        """
        return min(self.beat * round_s, self.most_beat_s)

    def problem(self) -> str | None:
        """What is wrong with these values, with the key, or None.

        >>> ClusterSettings(renew_at=1.5).problem()
        'renew_at: expected more than 0 and less than 1, found 1.5'
        """
        for name in ("renew_at", "beat", "learn_above", "learn_weight"):
            if not 0 < getattr(self, name) < 1:
                return f"{name}: expected more than 0 and less than 1, found {getattr(self, name)}"
        if not 0 < self.decide_at <= 1:
            return f"decide_at: expected more than 0 and at most 1, found {self.decide_at}"
        for name in ("grace", "kill_after"):
            if not 0 <= getattr(self, name) <= 1:
                return f"{name}: expected 0 to 1, found {getattr(self, name)}"
        if not (self.beat * 2 <= self.silence and isfinite(self.silence)):
            return f"silence: expected two beats ({2 * self.beat:g}) or more, found {self.silence}"
        for name in ("failures", "max_open", "keep_jobs", "snapshot_lines", "journal_lines"):
            if getattr(self, name) < 1:
                return f"{name}: expected 1 or more, found {getattr(self, name)}"
        for name in ("most_beat_s", "job_mib"):
            if not 0 < getattr(self, name) <= _MOST:
                return f"{name}: expected a positive number up to {_MOST:g}, found {getattr(self, name)}"
        return None
