"""A Ray cluster of several nodes on this machine, also where it takes minutes to start."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

PATIENCE_S = 100.0  # for a node to be known
# Nobody looks at its pages or follows its logs, and it does not grow by itself: processes that need not start.
_LEAN = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
_TRIES = 3


def _patient(ask: Any) -> Any:
    """Ray gives a node half a minute to be known, which a busy machine needs for itself."""

    def until_known(*words: Any, **named: Any) -> Any:
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ask(*words, **named)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)

    return until_known


def add_nodes(cluster: Any, *nodes: dict[str, Any]) -> list[Any]:
    """Nodes that are part of the cluster when this returns."""
    from ray._private import services

    with warnings.catch_warnings(), patch.object(services, "get_node", _patient(services.get_node)):
        warnings.simplefilter("ignore")
        added = [cluster.add_node(wait=False, num_cpus=1, **node) for node in nodes]
        cluster.wait_for_nodes(timeout=PATIENCE_S)
    return added


def new_cluster(head: dict[str, Any]) -> Any:
    """A head alone. On a busy machine one may never come up, then another is tried."""
    from ray.cluster_utils import Cluster

    tries = _TRIES
    while True:
        made: Any = Cluster()
        try:
            add_nodes(made, {**_LEAN, **head})
            return made
        except Exception:
            made.shutdown()
            if not (tries := tries - 1):
                raise


@contextmanager
def ray_cluster(names: Sequence[str], **config: Any) -> Iterator[Any]:
    """A head and nodes with a resource of these names; this process is connected to it."""
    import ray

    made = new_cluster({"_system_config": config})
    try:
        add_nodes(made, *({"resources": {name: 1}} for name in names))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=made.address, log_to_driver=False)
            yield made
    finally:
        ray.shutdown()
        made.shutdown()
        gc.collect()  # what Ray left to the collector is a fault of nobody here, and would be one of the next test
