"""What this level calls the things that a journal names neutrally, and which of its closing figures a page shows."""

from __future__ import annotations

from dovetail.core.words import Claim, Words

WORDS = Words(
    job="chunk",
    jobs="chunks",
    task="call",
    tasks="calls",
    kind="attempt",
    kinds="attempts",
    type="attempt",
    setup="",
    setups="",
    response="turnaround",
    waiting="chunks",
    rejected="failed or done elsewhere first",
    parts=True,
    claims=(
        Claim("completed", "chunks done", "count"),
        Claim("rejected", "chunks failed or done elsewhere first", "count"),
        Claim("makespan_s", "makespan", "s"),
        Claim("bound_makespan_s", "no makespan below", "s"),
        Claim("utilisation", "utilisation", "share"),
    ),
)
