"""Training jobs over a cluster of unlike accelerators: shares of time by policy, carried out in rounds.

>>> from dovetail import cluster
>>> loaded = cluster.load(cluster.Scenario(cluster="a100=4", jobs=5))
>>> cluster.run(loaded.setup, loaded.policy("max_min_fairness_perf")).figures.completed
5
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

_PLACES = {
    "check": ("check_journal",),
    "inputs.scenario": ("Scenario", "load"),
    "policies.base": ("Allocation", "Policy", "Problem"),
    "rules": ("RoundRules",),
    "simulate": ("run",),
    "sweeps.compare": ("compare_policies",),
}
_MODULES = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Public names are imported when they are asked for: commands need few of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
