"""Dovetail fits machine-learning work to mixed hardware, in simulation and for real, with the same policy code.

The levels (`dovetail.workflow`, ...) and what reads the journals of them all are imported when they are asked for.

>>> import dovetail
>>> dovetail.cluster.Scenario(jobs=5).jobs
5
"""

from importlib import import_module
from typing import Any

from dovetail.core.lazy import exports

__version__ = "0.1.0"

_LEVELS = ("cluster", "dispatch", "host", "pipeline", "workflow")
_PUBLIC = {
    "DovetailError": "core.errors",
    "Metrics": "core.metrics",
    "RateTable": "core.rates",
    "open_journal": "core.journal",
    "policy": "core.registry",
    "replay_journal": "core.replay",
}
__all__ = ["__version__", *_LEVELS, *_PUBLIC]

_find, _names = exports(__name__, _PUBLIC)


def __getattr__(name: str) -> Any:
    return import_module(f"{__name__}.{name}") if name in _LEVELS else _find(name)


def __dir__() -> list[str]:
    return [*_LEVELS, *_names()]
