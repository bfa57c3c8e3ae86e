"""Planted stalls and a busy machine: what later runs of fresh dispatchers cost, in CPU time of one plain call.

Called by `python -m bench.dispatch --stalls`. Two devices of one CPU and three functions. Stalls sleep in 1 to 8 calls,
one after the other, from a place drawn at random on; hogs keep all cores busy meanwhile. Every run stands between two
plain calls, and is compared with their mean. So is, in the next such place, one more plain call, which sleeps if the
run did: how far that is off is no doing of ours.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from random import Random
from statistics import median
from typing import Any

import numpy as np
import torch

from dovetail.dispatch import Dispatcher
from dovetail.dispatch.inputs.devices import NodeDevice as Device
from dovetail.dispatch.live.torch_threads import usable_cores

RUNS = 8
STALL_S = 0.05
MOST = 1.3  # times a plain call: what run 3 and later may cost
LATER = slice(2, None)


class Stalled:
    """A function, some of whose calls sleep."""

    def __init__(self, function: Callable[[Any], Any], first: int, count: int) -> None:
        self.function, self.calls, self.slept, self.stalls = function, 0, 0, range(first, first + count)

    def __call__(self, batch: Any) -> Any:
        self.calls += 1
        if self.calls in self.stalls:
            self.slept += 1
            time.sleep(STALL_S)
        return self.function(batch)

    def plain(self, batch: Any) -> Any:
        """A plain call in the place of a run, which sleeps if a call of that has slept."""
        if self.slept:
            self.slept = 0
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


def stalls(fresh: int = 8, seed: int = 1) -> dict[str, Any]:
    """CPU time of every run over one call, for fresh dispatchers: with stalls, beside hogs, and with both."""
    found: dict[str, Any] = {}
    ours: list[float] = []
    plain: list[float] = []
    for name, stalled, hogs in (("stalls", True, False), ("hogs", False, True), ("stalls and hogs", True, True)):
        random = Random(seed)
        busy = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(usable_cores() * hogs)]
        for process in busy:
            process.start()
        try:
            for problem, (function, batch) in _problems().items():
                sessions = [_session(function, batch, random, stalled) for _ in range(fresh)]
                runs, calls = [row for row, _, _ in sessions], [row for _, row, _ in sessions]
                ours += (mine := [each for row in runs for each in row[LATER]])
                plain += (theirs := [each for row in calls for each in row[LATER]])
                found[f"{problem}; {name}"] = {
                    "worst of each run": [max(row[i] for row in runs) for i in range(RUNS)],
                    "worst plain call": max(theirs),
                    "median of run 3 and later": round(median(mine), 3),
                    "median plain call": round(median(theirs), 3),
                    "over the limit": sum(each > MOST for each in mine),
                    "plain calls over the limit": sum(each > MOST for each in theirs),
                    "in chunks": sum(chunks for _, _, chunks in sessions),
                }
        finally:
            for process in busy:
                process.kill()
                process.join()
    found["run 3 and later"] = {
        "runs": len(ours),
        "worst": max(ours),
        "worst plain call": max(plain),
        "over the limit": sum(each > MOST for each in ours),
        "plain calls over the limit": sum(each > MOST for each in plain),
    }
    return found


def _session(
    function: Callable[[Any], Any], batch: Any, random: Random, stalled: bool
) -> tuple[list[float], list[float], int]:
    """The runs of one dispatcher and plain calls in such places, and how many of the later runs were done in chunks."""
    called = Stalled(function, random.randint(1, 40), random.randint(1, 8) if stalled else 0)
    two = [Device("first", where="cpu"), Device("second", where="cpu")]
    beside, placed, calls = [], [], []
    for _ in range(3):
        function(batch)
    with Dispatcher(called, two, cache=False) as dispatcher:
        for _ in range(RUNS):
            before = called.calls
            for way in (dispatcher.run, called.plain):
                beside.append(_cpu_s(lambda: function(batch)))
                placed.append(_cpu_s(lambda way=way: way(batch)))  # type: ignore[misc]
            calls.append(called.calls - before)
        beside.append(_cpu_s(lambda: function(batch)))
    ratios = [
        round(2 * one / (before + after), 2) for one, (before, after) in zip(placed, pairwise(beside), strict=True)
    ]
    return ratios[::2], ratios[1::2], sum(each > 1 for each in calls[LATER])


def _cpu_s(call: Callable[[], Any]) -> float:
    begun = time.process_time()
    call()
    return time.process_time() - begun


def _spin() -> None:
    while True:
        pass
