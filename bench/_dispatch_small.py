"""What a run of a small batch costs over the plain call, once sizes are known: `python -m bench.dispatch --small`."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from statistics import median
from typing import Any

import numpy as np
import torch

from dovetail.dispatch import Dispatcher
from dovetail.dispatch.inputs.devices import NodeDevice as Device

WARM = 8  # runs before it counts
TURNS = 100


def _cases(n: int) -> dict[str, tuple[Callable[[Any], Any], Any]]:
    pandas, random = import_module("pandas"), np.random.default_rng(1)
    frame = pandas.DataFrame({"a": random.random(n), "b": random.random(n)})
    return {
        "tensor": (torch.sqrt, torch.rand(n, 3)),
        "ndarray": (np.sqrt, random.random((n, 3))),
        "DataFrame": (lambda rows: rows.assign(c=rows.a + rows.b), frame),
        "dict": (lambda x: {"y": x["t"] * 2, "z": x["a"] + 1}, {"t": torch.rand(n, 3), "a": random.random(n)}),
    }


def small() -> dict[str, Any]:
    """CPU microseconds of the plain call, and of a run on two devices over it: medians of calls that take turns."""
    two = [Device("first", where="cpu"), Device("second", where="cpu")]
    found: dict[str, Any] = {}
    for n in (10, 1_000, 100_000):
        for kind, (function, batch) in _cases(n).items():
            with Dispatcher(function, two, cache=False) as dispatcher:
                for _ in range(WARM):
                    dispatcher.run(batch)
                pairs = [(_us(function, batch), _us(dispatcher.run, batch)) for _ in range(TURNS)]
            plain, ours = median(one for one, _ in pairs), median(other for _, other in pairs)
            found[f"{kind} of {n:,}"] = {"plain us": round(plain, 1), "more us": round(ours - plain, 1)}
    return found


def _us(call: Callable[[Any], Any], batch: Any) -> float:
    begun = time.process_time()
    call(batch)
    return 1e6 * (time.process_time() - begun)
