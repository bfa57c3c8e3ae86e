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
    "ClusterPlan": "sweeps.plan",
    "ClusterRun": "study",
    "DEFAULT": "inputs.choices",
    "JobStory": "narrate",
    "JournalMode": "inputs.choices",
    "LONGEST_QUEUE": "inputs.choices",
    "LoadedScenario": "inputs.scenario",
    "Minimise": "inputs.choices",
    "OnError": "inputs.choices",
    "Paid": "inputs.choices",
    "Policy": "policies.base",
    "Problem": "policies.base",
    "RoundRules": "rules",
    "Scenario": "inputs.scenario",
    "Sweep": "study",
    "SweepKind": "inputs.choices",
    "TraceKind": "inputs.choices",
    "Widths": "inputs.choices",
    "check_journal": "check",
    "compare": "study",
    "compare_sweeps": "study",
    "entity_shares": "sweeps.figures",
    "explain": "explain",
    "list_policies": "inputs.choices",
    "load": "inputs.scenario",
    "loads_between": "sweeps.grid",
    "plan": "sweeps.planning",
    "policy_times": "sweeps.figures",
    "read_results": "study",
    "relative_costs": "sweeps.figures",
    "round_lengths": "sweeps.figures",
    "run_cell": "sweeps.cell",
    "simulate": "study",
    "sweep": "study",
    "type_mixes": "sweeps.figures",
    "write_trace": "inputs.traces",
}
__all__ = [
    "CLOUDS",
    "DEFAULT",
    "LONGEST_QUEUE",
    "Allocation",
    "ClusterPlan",
    "ClusterRun",
    "JobStory",
    "JournalMode",
    "LoadedScenario",
    "Minimise",
    "OnError",
    "Paid",
    "Policy",
    "Problem",
    "RoundRules",
    "Scenario",
    "Sweep",
    "SweepKind",
    "TraceKind",
    "Widths",
    "check_journal",
    "compare",
    "compare_sweeps",
    "entity_shares",
    "explain",
    "list_policies",
    "load",
    "loads_between",
    "plan",
    "policy_times",
    "read_results",
    "relative_costs",
    "round_lengths",
    "run_cell",
    "simulate",
    "sweep",
    "type_mixes",
    "write_trace",
]

__getattr__, __dir__ = exports(__name__, _PLACES)
