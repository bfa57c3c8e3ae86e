"""Training jobs over a cluster of unlike accelerators: shares of time by policy, carried out in rounds.

>>> from dovetail import cluster
>>> jobs = cluster.load(cluster={"a100": 4, "l4": 8}, jobs=20)
>>> run = cluster.simulate(jobs, "max_min_fairness_perf")
>>> run.figures.completed, run.check().valid
(20, True)
>>> cluster.compare(jobs, ["fifo", "max_min_fairness_perf"]).best("avg_jct_s")["policy"]
'max_min_fairness_perf'
"""

from typing import TYPE_CHECKING

from dovetail.core.lazy import exports

if TYPE_CHECKING:
    from dovetail.cluster.check import check_journal
    from dovetail.cluster.explain import explain
    from dovetail.cluster.inputs.choices import (
        CLOUDS,
        DEFAULT,
        LONGEST_QUEUE,
        JournalMode,
        Minimise,
        OnError,
        Paid,
        SweepKind,
        TraceKind,
        Widths,
    )
    from dovetail.cluster.inputs.scenario import LoadedScenario, Scenario, load
    from dovetail.cluster.inputs.traces import write_trace
    from dovetail.cluster.live.as_it_was import LiveWorkload, live_workload
    from dovetail.cluster.live.client import ClusterClient, connect
    from dovetail.cluster.live.jobs import JobStatus
    from dovetail.cluster.live.replay import ClusterReplay, check_replay, replay_trace
    from dovetail.cluster.live.serve import ServedCluster, serve
    from dovetail.cluster.live.specs import JobsFile, JobSpec, job_spec, read_jobs
    from dovetail.cluster.live.training.callbacks import lightning_callback, trainer_callback
    from dovetail.cluster.live.training.elastic_batches import ElasticBatches
    from dovetail.cluster.live.training.iterator import LeaseIterator
    from dovetail.cluster.live.training.lease import CheckpointRefusedError, TrainingLease
    from dovetail.cluster.narrate import JobStory
    from dovetail.cluster.policies.base import Allocation, Policy, Problem
    from dovetail.cluster.rules import RoundRules
    from dovetail.cluster.study import (
        ClusterRun,
        Sweep,
        compare,
        compare_sweeps,
        read_results,
        simulate,
        sweep,
    )
    from dovetail.cluster.sweeps.cell import run_cell
    from dovetail.cluster.sweeps.figures import (
        entity_shares,
        policy_times,
        relative_costs,
        round_lengths,
        type_mixes,
    )
    from dovetail.cluster.sweeps.grid import loads_between
    from dovetail.cluster.sweeps.plan import ClusterPlan
    from dovetail.cluster.sweeps.planning import plan

_PLACES = {
    "Allocation": "policies.base",
    "CLOUDS": "inputs.choices",
    "CheckpointRefusedError": "live.training.lease",
    "ClusterClient": "live.client",
    "ClusterPlan": "sweeps.plan",
    "ClusterReplay": "live.replay",
    "ClusterRun": "study",
    "DEFAULT": "inputs.choices",
    "ElasticBatches": "live.training.elastic_batches",
    "JobSpec": "live.specs",
    "JobsFile": "live.specs",
    "JobStatus": "live.jobs",
    "JobStory": "narrate",
    "JournalMode": "inputs.choices",
    "LONGEST_QUEUE": "inputs.choices",
    "LeaseIterator": "live.training.iterator",
    "LiveWorkload": "live.as_it_was",
    "LoadedScenario": "inputs.scenario",
    "Minimise": "inputs.choices",
    "OnError": "inputs.choices",
    "Paid": "inputs.choices",
    "Policy": "policies.base",
    "Problem": "policies.base",
    "RoundRules": "rules",
    "Scenario": "inputs.scenario",
    "ServedCluster": "live.serve",
    "Sweep": "study",
    "SweepKind": "inputs.choices",
    "TraceKind": "inputs.choices",
    "TrainingLease": "live.training.lease",
    "Widths": "inputs.choices",
    "check_journal": "check",
    "check_replay": "live.replay",
    "compare": "study",
    "compare_sweeps": "study",
    "connect": "live.client",
    "entity_shares": "sweeps.figures",
    "explain": "explain",
    "job_spec": "live.specs",
    "lightning_callback": "live.training.callbacks",
    "list_policies": "inputs.choices",
    "live_workload": "live.as_it_was",
    "load": "inputs.scenario",
    "loads_between": "sweeps.grid",
    "plan": "sweeps.planning",
    "policy_times": "sweeps.figures",
    "read_jobs": "live.specs",
    "read_results": "study",
    "relative_costs": "sweeps.figures",
    "replay_trace": "live.replay",
    "round_lengths": "sweeps.figures",
    "run_cell": "sweeps.cell",
    "serve": "live.serve",
    "simulate": "study",
    "sweep": "study",
    "trainer_callback": "live.training.callbacks",
    "type_mixes": "sweeps.figures",
    "write_trace": "inputs.traces",
}
__all__ = [
    "CLOUDS",
    "DEFAULT",
    "LONGEST_QUEUE",
    "Allocation",
    "CheckpointRefusedError",
    "ClusterClient",
    "ClusterPlan",
    "ClusterReplay",
    "ClusterRun",
    "ElasticBatches",
    "JobSpec",
    "JobStatus",
    "JobStory",
    "JobsFile",
    "JournalMode",
    "LeaseIterator",
    "LiveWorkload",
    "LoadedScenario",
    "Minimise",
    "OnError",
    "Paid",
    "Policy",
    "Problem",
    "RoundRules",
    "Scenario",
    "ServedCluster",
    "Sweep",
    "SweepKind",
    "TraceKind",
    "TrainingLease",
    "Widths",
    "check_journal",
    "check_replay",
    "compare",
    "compare_sweeps",
    "connect",
    "entity_shares",
    "explain",
    "job_spec",
    "lightning_callback",
    "list_policies",
    "live_workload",
    "load",
    "loads_between",
    "plan",
    "policy_times",
    "read_jobs",
    "read_results",
    "relative_costs",
    "replay_trace",
    "round_lengths",
    "run_cell",
    "serve",
    "simulate",
    "sweep",
    "trainer_callback",
    "type_mixes",
    "write_trace",
]

__getattr__, __dir__ = exports(__name__, _PLACES)
