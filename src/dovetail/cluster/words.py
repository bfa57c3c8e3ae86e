"""What this level calls the things that a journal names neutrally, and which of its closing figures a page shows."""

from __future__ import annotations

from dovetail.core.words import Claim, Words

WORDS = Words(
    job="job",
    jobs="jobs",
    task="lease",
    tasks="leases",
    kind="model",
    kinds="models",
    type="model",
    device="accelerator",
    devices="accelerators",
    setup="restart",
    setups="restarts",
    response="completion",
    waiting="jobs",
    claims=(
        Claim("jobs", "jobs measured", "count"),
        Claim("completed", "jobs completed", "count"),
        Claim("rejected", "jobs rejected", "count"),
        Claim("makespan_s", "makespan", "s"),
        Claim("bound_makespan_s", "no makespan below", "s"),
        Claim("avg_jct_s", "mean completion time", "s"),
        Claim("bound_avg_jct_s", "no mean completion time below", "s"),
        Claim("median_jct_s", "median completion time", "s"),
        Claim("p95_jct_s", "P95 completion time", "s"),
        Claim("avg_jct_low_s", "mean completion time, usual priority", "s"),
        Claim("avg_jct_high_s", "mean completion time, high priority", "s"),
        Claim("utilization", "utilisation", "share"),
        Claim("utilization_by_type", "utilisation", "share"),
        Claim("total_cost", "cost"),
        Claim("slo_jobs", "jobs with a deadline", "count"),
        Claim("slo_violations", "deadlines missed", "count"),
        Claim("rho_mean", "finish-time rho, mean"),
        Claim("rho_p95", "finish-time rho, P95"),
        Claim("rho_max", "finish-time rho, largest"),
        Claim("jain", "Jain's index of 1/rho"),
        Claim("envy", "pairs of jobs where one envies the other", "share"),
        Claim("leases", "leases", "count"),
    ),
)
