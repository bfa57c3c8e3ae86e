"""What each level calls the things that a journal names neutrally, and which of its closing figures are shown."""

from __future__ import annotations

from typing import Literal, NamedTuple

Unit = Literal["s", "share", "count", "number"]


class Claim(NamedTuple):
    """A figure of a journal's closing summary: its key there, its name, and what it counts in."""

    key: str
    name: str
    unit: Unit = "number"


class Words(NamedTuple):
    job: str = "job"
    jobs: str = "jobs"
    task: str = "task"
    tasks: str = "tasks"
    kind: str = "kind"
    kinds: str = "kinds"
    type: str = "type of job"
    device: str = "device"
    devices: str = "devices"
    setup: str = "set-up"  # empty where there is no such thing
    setups: str = "set-ups"
    response: str = "response"  # the time from arrival to completion
    waiting: str = "tasks"  # what waits
    claims: tuple[Claim, ...] = ()


_WORDS = {
    "workflow": Words(
        job="request",
        jobs="requests",
        task="node",
        tasks="nodes",
        kind="model",
        kinds="models",
        type="workflow",
        device="GPU",
        devices="GPUs",
        setup="switch",
        setups="switches",
        waiting="nodes",
    ),
    "pipeline": Words(
        job="microbatch",
        jobs="microbatches",
        task="pass",
        tasks="passes",
        kind="stage or link",
        kinds="stages and links",
        type="plan",
        device="device or link",
        devices="devices and links",
        setup="",
        setups="",
        waiting="passes",
    ),
    "cluster": Words(
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
    ),
    "dispatch": Words(
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
        claims=(
            Claim("completed", "chunks done", "count"),
            Claim("rejected", "chunks failed or done elsewhere first", "count"),
            Claim("makespan_s", "makespan", "s"),
            Claim("bound_makespan_s", "no makespan below", "s"),
            Claim("utilisation", "utilisation", "share"),
        ),
    ),
    "host": Words(
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
        claims=(
            Claim("arrived", "programs", "count"),
            Claim("completed", "completed", "count"),
            Claim("rejected", "rejected", "count"),
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
    ),
}


def words_for(level: str) -> Words:
    """The words of a level; neutral ones if it has none.

    >>> words_for("cluster").tasks, words_for("mine").tasks
    ('leases', 'tasks')
    """
    return _WORDS.get(level, Words())
