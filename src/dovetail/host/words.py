"""What this level calls the things that a journal names neutrally, and which of its closing figures a page shows."""

from __future__ import annotations

from dovetail.core.words import Claim, Words

WORDS = Words(
    job="program",
    jobs="programs",
    task="run",
    tasks="runs",
    kind="image",
    kinds="images",
    type="image",
    device="core",
    devices="cores",
    setup="",
    setups="",
    response="turnaround",
    waiting="programs",
    rejected="failed, cancelled or rejected",
    claims=(
        Claim("arrived", "programs", "count"),
        Claim("completed", "completed", "count"),
        Claim("rejected", "failed, cancelled or rejected", "count"),
        Claim("makespan_s", "makespan", "s"),
        Claim("bound_makespan_s", "no makespan below", "s"),
        Claim("mean_first_run_s", "mean time to first run", "s"),
        Claim("mean_waiting_s", "mean waiting time, paused or queued", "s"),
        Claim("mean_service_s", "mean service time", "s"),
        Claim("mean_turnaround_s", "mean turnaround", "s"),
        Claim("core_use", "core use", "share"),
        Claim("throughput_per_h", "programs per hour"),
        Claim("resizes", "resizes", "count"),
        Claim("pauses", "pauses", "count"),
    ),
)
