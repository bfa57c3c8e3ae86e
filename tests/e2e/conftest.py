"""Fixtures of the end-to-end tests: a small model, plans for it, and what must come out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.models.spec import ModelSpec
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan

ROOT = Path(__file__).parents[2]


class SmallModel:
    """A transformer of three blocks (six layers), and problems for it."""

    layers = 6

    def __init__(self, width: int = 32, sequence: int = 16, batch_size: int = 2) -> None:
        self.batch_size = batch_size
        self.bytes = 4 * batch_size * sequence * width
        self.spec = ModelSpec(
            source=f"{ROOT / 'examples' / 'pipeline' / 'transformer.py'}:encoder",
            arguments={"blocks": 3, "width": width, "heads": 2, "sequence": sequence},
        )

    def problem(self, *hosts: str, seconds: float = 0.001, transfer_s: float = 0.001) -> Pipeline:
        """Equal hosts, layers of equal length, and links on which a microbatch takes so long."""
        mbps = self.bytes / transfer_s / (2**20 / 8)
        times = [seconds] * self.layers
        return Pipeline(
            model="small",
            layers=self.layers,
            mem_mib=[1.0] * self.layers,
            cut_bytes=[self.bytes] * (self.layers + 1),
            classes=[
                DeviceClass(name="t", type="t", hosts=list(hosts), bw_mbps=mbps, mem_mib=1000.0, time_s=times),
            ],
            batch_size=self.batch_size,
            dtype="torch.float32",
        )

    def plan(self, *hosts: str, seconds: float = 0.001, transfer_s: float = 0.001, **constraints: Any) -> Plan:
        found = plan(
            self.problem(*hosts, seconds=seconds, transfer_s=transfer_s), "throughput", Constraints(**constraints)
        )
        assert isinstance(found, Plan), found
        return found

    def expected(self, count: int) -> list[Any]:
        """What the model gives in one piece for the inputs that a run makes."""
        from dovetail.pipeline.models.load import load

        chain = load(self.spec)
        whole = chain.part(1, self.layers)
        return [whole(chain.inputs(self.batch_size, "torch.float32", seed=number)) for number in range(count)]

    def words(self) -> list[str]:
        """The model on a command line, and what carries the hosts."""
        arguments = [f"{name}={json.dumps(value)}" for name, value in self.spec.arguments.items()]
        return ["--model", self.spec.source, "--argument", *arguments, "--on", "all=cpu"]


@pytest.fixture(scope="session")
def small() -> SmallModel:
    pytest.importorskip("torch")
    return SmallModel()
