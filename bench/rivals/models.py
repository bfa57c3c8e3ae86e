"""The models of `bench.workflow_rivals`, the same for all who serve them. Needs nothing but torch, so that a rival's
own environment can import it.

A model is two layers (512-1024-512) on one thread. Loading it builds them and waits 0.25 s, as if weights were brought;
a call is a forward pass over a batch of 32 and 15 ms in which a device would work, for one call at a time.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

BATCH = 32
LOAD_S, CALL_S = 0.25, 0.015


def build(name: str) -> Any:
    """Without the wait, and counted: one line for each load of whoever does it."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(sum(map(ord, name)))
    with Path(os.environ["RIVAL_LOADS"]).open("a") as log:
        log.write(f"{os.getpid()} {name}\n")
    return torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512)).eval()


def call(model: Any, seed: int) -> float:
    import torch

    with torch.inference_mode():
        return float(model(torch.full((BATCH, 512), seed / 1000)).sum())


def make(served: Any) -> Any:
    """For Dovetail's workers and for FIFO swapping: `source: models.py:make`."""
    model = build(served.name)
    time.sleep(LOAD_S)

    def answer(inputs: dict[str, Any]) -> dict[str, Any]:
        time.sleep(CALL_S)
        return {"sum": call(model, inputs["seed"])}

    return answer
