"""A service that kills itself at its n-th write, in the middle of it or around it.

Submits the same jobs each time, waits for all of them, and prints what came of them.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec

from dovetail.cluster.live.nodes import emulated_node
from dovetail.cluster.live.service import ClusterService
from dovetail.cluster.live.service_loop import ClusterLoop
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.rules import RoundRules
from dovetail.core.service.log_lines import LogLines
from dovetail.core.service.store import Store
from tests.cluster.live.carrier_double import CarrierDouble
from tests.killed import die_at

JOBS: dict[str, dict[str, Any]] = {
    f"job-{i}": {
        "command": ["train"],
        "steps": 60 + 40 * i,
        "model": f"m{i % 3}",
        "width": 1 + i % 2,
        "name": f"job-{i}",
    }
    for i in range(8)
}


def main(folder: str, n: str) -> None:
    die_at(int(n), (Store, "put"), (Store, "note"), (ClusterLoop, "_snapshot"))
    log = io.StringIO()
    with ClusterService(
        Path(folder),
        CarrierDouble,
        nodes=[emulated_node({"fast": 2, "slow": 2})],
        rules=RoundRules(round_s=0.1, restart_s=0.01),
        settings=ClusterSettings(snapshot_lines=15),
        log=LogLines(log),
    ) as service:
        jobs = {key: service.submit(job, key) for key, job in JOBS.items()}
        found = {key: (job, service.wait(job).state, service.status(job).done) for key, job in jobs.items()}
    print(msgspec.json.encode([found, log.getvalue()]).decode())
