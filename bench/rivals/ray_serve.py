"""Ray Serve with multiplexed models, as a rival: run by `bench.workflow_rivals` with an interpreter that has it.

Reads one JSON object from its input (workers, places, warm-up, trace), writes one: seconds of each request.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_AUTH_MODE="disabled")
sys.path.insert(0, str(Path(__file__).parent))
ray: Any = import_module("ray")
serve: Any = import_module("ray.serve")
models: Any = import_module("models")


def application(workers: int, places: int) -> Any:
    class Models:
        @serve.multiplexed(max_num_models_per_replica=places)  # type: ignore[untyped-decorator]
        async def get(self, name: str) -> Any:
            model = models.build(name)
            await asyncio.sleep(models.LOAD_S)  # others are answered meanwhile
            return model

        def __init__(self) -> None:
            self._device = asyncio.Lock()

        async def __call__(self, seed: int) -> float:
            model = await self.get(serve.get_multiplexed_model_id())
            async with self._device:
                await asyncio.sleep(models.CALL_S)
                return float(models.call(model, seed))

    deployment = serve.deployment(num_replicas=workers, max_ongoing_requests=64, ray_actor_options={"num_cpus": 0})
    return deployment(Models).bind()


async def replay(handle: Any, trace: list[tuple[float, str, int]]) -> list[float]:
    begun = time.monotonic()

    async def one(at_s: float, name: str, seed: int) -> float:
        await asyncio.sleep(begun + at_s - time.monotonic())
        await handle.options(multiplexed_model_id=name).remote(seed)
        return time.monotonic() - begun - at_s

    return list(await asyncio.gather(*(one(*request) for request in trace)))


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asked = json.load(sys.stdin)
    with tempfile.TemporaryDirectory(prefix="rv", dir="/tmp", ignore_cleanup_errors=True) as folder:
        ray.init(
            address="local",
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=folder,
            object_store_memory=80 << 20,
            runtime_env={"env_vars": {name: os.environ[name] for name in os.environ if name.startswith("RIVAL_")}},
        )
        serve.start(proxy_location="Disabled")
        handle = serve.run(application(asked["workers"], asked["places"]), name="rival", route_prefix=None)
        loads = Path(os.environ["RIVAL_LOADS"])
        asyncio.run(replay(handle, asked["warm_up"]))
        before = len(loads.read_text().splitlines())
        begun = time.monotonic()
        seconds = asyncio.run(replay(handle, asked["trace"]))
        whole_s = time.monotonic() - begun
        switches = len(loads.read_text().splitlines()) - before
        answers.write(json.dumps({"seconds": seconds, "whole_s": whole_s, "switches": switches}))
        answers.flush()
        serve.shutdown()
        ray.shutdown()


if __name__ == "__main__":
    main()
