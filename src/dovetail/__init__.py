"""Dovetail fits machine-learning work to mixed hardware, in simulation and for real, with the same policy code.

The levels (`dovetail.workflow`, ...) and what reads the journals of them all are imported when they are asked for.

>>> import dovetail
>>> dovetail.cluster.Scenario(jobs=5).jobs
5
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dovetail.core.lazy import exports
from dovetail.version import __version__

if TYPE_CHECKING:
    from dovetail import cluster, dispatch, host, pipeline, workflow
    from dovetail.core.errors import DovetailError, InputError
    from dovetail.core.journal import open_journal
    from dovetail.core.loop.replay import replay_journal
    from dovetail.core.metrics import Metrics
    from dovetail.core.rates import RateTable
    from dovetail.core.registry import policy
    from dovetail.core.results.comparison import Comparison
    from dovetail.core.results.run import Run
    from dovetail.journals import check_journal, read_journal, write_report

_LEVELS = ("cluster", "dispatch", "host", "pipeline", "workflow")
_PUBLIC = {
    "Comparison": "core.results.comparison",
    "DovetailError": "core.errors",
    "InputError": "core.errors",
    "Metrics": "core.metrics",
    "RateTable": "core.rates",
    "Run": "core.results.run",
    "check_journal": "journals",
    "open_journal": "core.journal",
    "policy": "core.registry",
    "read_journal": "journals",
    "replay_journal": "core.loop.replay",
    "write_report": "journals",
}
__all__ = [
    "Comparison",
    "DovetailError",
    "InputError",
    "Metrics",
    "RateTable",
    "Run",
    "__version__",
    "check_journal",
    "cluster",
    "dispatch",
    "host",
    "open_journal",
    "pipeline",
    "policy",
    "read_journal",
    "replay_journal",
    "workflow",
    "write_report",
]

_find, _names = exports(__name__, _PUBLIC)


def __getattr__(name: str) -> Any:
    return import_module(f"{__name__}.{name}") if name in _LEVELS else _find(name)


def __dir__() -> list[str]:
    return [*_LEVELS, *_names()]
