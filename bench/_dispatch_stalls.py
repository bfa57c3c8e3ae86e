"""Planted stalls and a busy machine: what later runs of fresh dispatchers cost, in CPU time of one plain call.

Called by `python -m bench.dispatch --stalls`. Two devices of one CPU and three functions. Stalls sleep in 1 to 8 calls,
one after the other, from a place drawn at random on; hogs keep all cores busy meanwhile. A plain call stands before
every run, so that both find the same memory free; the median of all of them is what runs are compared with.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from importlib import import_module
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch

from dovetail.dispatch import Dispatcher
from dovetail.dispatch.inputs.devices import NodeDevice as Device

RUNS = 8
STALL_S = 0.05


class Stalled:
    """A function, some of whose calls sleep."""

    def __init__(self, function: Callable[[Any], Any], first: int, count: int) -> None:
        self.function, self.calls, self.stalls = function, 0, range(first, first + count)

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls in self.stalls:
            time.sleep(STALL_S)
        return self.function(batch)


def _problems() -> dict[str, tuple[Callable[[Any], Any], Any]]:
    pandas = import_module("pandas")
    frame = pandas.DataFrame({"word": ["a word", "another"] * 200_000, "x": np.arange(400_000.0)})
    return {
        "torch, sin of 1,000,000": (torch.sin, torch.rand(1_000_000)),
        "numpy, 300,000 rows": (lambda x: np.sin(np.sqrt(x)), np.random.default_rng(1).random((300_000, 3))),
        "pandas, 400,000 rows": (lambda rows: rows.assign(word=rows.word.str.upper(), y=rows.x * 2), frame),
    }


def stalls(fresh: int = 4, seed: int = 1) -> dict[str, Any]:
    """CPU time of every run over one call, for fresh dispatchers: with stalls, beside hogs, and with both."""
    found: dict[str, Any] = {}
    for name, stalled, hogs in (("stalls", True, False), ("hogs", False, True), ("stalls and hogs", True, True)):
        random = Random(seed)
        busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range((os.cpu_count() or 1) * hogs)]
        for process in busy:
            process.start()
        try:
            for problem, (function, batch) in _problems().items():
                rows = [_session(function, batch, random, stalled) for _ in range(fresh)]
                worst = [max(ours[run] for ours, _ in rows) for run in range(RUNS)]
                plain = max(most for _, most in rows)
                found[f"{problem}; {name}"] = {"worst of each run": worst, "worst plain call": plain}
        finally:
            for process in busy:
                process.kill()
                process.join()
    found["worst of run 3 and later"] = max(max(row["worst of each run"][2:]) for row in found.values())
    return found


def _session(function: Callable[[Any], Any], batch: Any, random: Random, stalled: bool) -> tuple[list[float], float]:
    """The runs of one dispatcher, and the worst of the plain calls beside them, over their median."""
    called = Stalled(function, random.randint(1, 40), random.randint(1, 8) if stalled else 0)
    two = [Device("first", where="cpu"), Device("second", where="cpu")]
    plain, ours = [], []
    for _ in range(3):
        function(batch)
    with Dispatcher(called, two, cache=False) as dispatcher:
        for _ in range(RUNS):
            plain.append(_cpu_s(lambda: function(batch)))
            ours.append(_cpu_s(lambda: dispatcher.run(batch)))
    one_s = median(plain)
    return [round(each / one_s, 2) for each in ours], round(max(plain) / one_s, 2)


def _cpu_s(call: Callable[[], Any]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


def _spin() -> None:
    while True:
        pass
