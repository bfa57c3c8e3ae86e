"""A Ray cluster of several nodes on this machine, in a process apart from the tests' own: private, and quick to notice
what it loses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


class RayNodes:
    """Nodes by name. Whoever kills one waits for its end, or its workers would stay."""

    def __init__(self, **settings: str) -> None:
        from dovetail.core.service.ray_start import environment

        self._folder = tempfile.mkdtemp(prefix="dt", dir="/tmp")
        environ = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
        environ["RAY_TMPDIR"] = self._folder  # of which Ray's sockets need a short name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.ray_nodes"],
            cwd=ROOT,
            env={
                **environment(None, environ),
                "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
                "RAY_TMPDIR": self._folder,
                **settings,
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self.address: str = self._ask("start")
        except AssertionError:
            self.close()
            raise

    def add(self, *names: str, **resources: float) -> None:
        """Nodes that have these resources each; they are known when this returns."""
        self._ask("add", names, {name.replace("__", ":"): amount for name, amount in resources.items()})

    def kill(self, name: str) -> None:
        """SIGKILL, with no time for anything; when this returns the cluster has missed it."""
        self._ask("kill", name)

    def kill_head(self) -> None:
        self._ask("kill_head")

    def restart(self) -> None:
        """A new cluster at the old address, without nodes."""
        self._ask("restart")

    def _ask(self, verb: str, *words: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([verb, *words]) + "\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            if line.startswith("\0"):
                return json.loads(line[1:])
        raise AssertionError(f"the cluster's process has ended, asked to {verb}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def ray_nodes(**settings: str) -> Iterator[RayNodes]:
    nodes = RayNodes(**settings)
    try:
        yield nodes
    finally:
        nodes.close()


class _Cluster:
    """In the process of its own."""

    def __init__(self) -> None:
        self._nodes: dict[str, Any] = {}

    def start(self, port: int | None = None) -> str:
        from tests.ports import lasting_port
        from tests.ray_cluster import new_cluster

        self._cluster: Any = new_cluster({"gcs_server_port": port or lasting_port()})
        self._address = str(self._cluster.address)
        return self._address

    def add(self, names: list[str], resources: dict[str, float]) -> None:
        from tests.ray_cluster import add_nodes

        self._nodes.update(
            zip(names, add_nodes(self._cluster, *({"resources": resources} for _ in names)), strict=True)
        )

    def kill(self, name: str) -> None:
        from tests.ray_cluster import PATIENCE_S

        self._cluster.remove_node(self._nodes.pop(name), allow_graceful=False)
        self._cluster.wait_for_nodes(timeout=PATIENCE_S)

    def kill_head(self) -> None:
        self._cluster.head_node.kill_gcs_server()

    def restart(self) -> None:
        self._cluster.shutdown()
        self._nodes.clear()
        self.start(int(self._address.rpartition(":")[2]))

    def close(self) -> None:
        self._cluster.shutdown()


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray speaks
    cluster = _Cluster()
    try:
        for line in sys.stdin:
            verb, *words = json.loads(line)
            answers.write("\0" + json.dumps(getattr(cluster, verb)(*words)) + "\n")
            answers.flush()
    finally:
        cluster.close()


if __name__ == "__main__":
    main()
