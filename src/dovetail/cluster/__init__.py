"""Training jobs over a cluster of unlike accelerators: shares of time by policy, carried out in rounds.

>>> from dovetail import cluster
>>> loaded = cluster.load(cluster.Scenario(cluster="a100=4", jobs=5))
>>> cluster.run(loaded.setup, loaded.policy("max_min_fairness_perf")).figures.completed
5
"""

from typing import TYPE_CHECKING

from dovetail.core.lazy import exports

if TYPE_CHECKING:
    from dovetail.cluster.check import check_journal
    from dovetail.cluster.inputs.scenario import Scenario, load
    from dovetail.cluster.policies.base import Allocation, Policy, Problem
    from dovetail.cluster.rules import RoundRules
    from dovetail.cluster.simulate import run
    from dovetail.cluster.sweeps.compare import compare_policies

__all__ = [
    "Allocation",
    "Policy",
    "Problem",
    "RoundRules",
    "Scenario",
    "check_journal",
    "compare_policies",
    "load",
    "run",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Allocation": "policies.base",
        "Policy": "policies.base",
        "Problem": "policies.base",
        "RoundRules": "rules",
        "Scenario": "inputs.scenario",
        "check_journal": "check",
        "compare_policies": "sweeps.compare",
        "load": "inputs.scenario",
        "run": "simulate",
    },
)
