"""One rank of test_dispatch_mpi.py: does every case with the others, and writes what it found to a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dovetail.dispatch.compat.mpi import SimpleMPIScheduler  # noqa: E402
from dovetail.dispatch.inputs.devices import NodeDevice as Device  # noqa: E402
from dovetail.dispatch.live.mpi import agreed, communicator  # noqa: E402

WORLD: Any = None  # set by main: who only reads this module must not start MPI
OTHERS: Any = None  # for barriers inside of functions: the scheduler must not notice them
THREE = [Device(name, where="cpu") for name in ("a", "b", "c")]
ROWS = 50


def error_of(function: Callable[[], Any]) -> str:
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Square:
    """Meets the other ranks at its first call, so that each has at least one chunk; counts its rows."""

    def __init__(self) -> None:
        self.rows = 0

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        if not self.rows:
            OTHERS.Barrier()
        self.rows += len(batch["x"])
        return {"squares": batch["x"] ** 2 * batch["scale"], "scale": batch["scale"]}


def batch() -> dict[str, Any]:
    return {"x": torch.arange(float(ROWS), dtype=torch.float64), "scale": torch.tensor([2.0], dtype=torch.float64)}


def assignment() -> dict[str, Any]:
    pair = WORLD.Split(color=int(WORLD.rank == 2), key=WORLD.rank)
    return {
        "unique": SimpleMPIScheduler(devices=THREE).device().name,
        "round_robin": SimpleMPIScheduler(devices=THREE[:2], more_ranks="round_robin").device().name,
        "more": error_of(SimpleMPIScheduler(devices=THREE[:2]).device),
        "fewer": error_of(SimpleMPIScheduler(devices=[*THREE, "cpu"], fewer_ranks="error").device),
        "idle": SimpleMPIScheduler(devices=[*THREE, "cpu"]).device().name,
        "sizes": SimpleMPIScheduler(devices=THREE, sub_batch_sizes=[1, 2, 3]).device().size,
        "part": SimpleMPIScheduler(devices=THREE[:2]).device(pair).name,
        "one has none": error_of(SimpleMPIScheduler(devices=["cpu", THREE[1], "cuda:7"]).device),
    }


def whole_batch() -> dict[str, Any]:
    scheduler = SimpleMPIScheduler(devices=THREE, sub_batch_sizes=[4])
    square = Square()
    everywhere = scheduler.run(square, batch(), cache=False)
    expected = {"squares": batch()["x"] ** 2 * 2, "scale": batch()["scale"]}
    at_root = scheduler.run(Square(), batch() if WORLD.rank == 1 else None, root=2, cache=False)
    total = scheduler.run(lambda x: x.sum(), batch()["x"], reduce=lambda sums: float(sum(sums)), cache=False)
    tuned = SimpleMPIScheduler(devices=THREE, sub_batch_sizes=[0]).run(torch.sqrt, batch()["x"], cache=False)
    return {
        "rows": square.rows,
        "equal": all(torch.equal(everywhere[key], expected[key]) for key in expected),
        "root": at_root if at_root is None else torch.equal(at_root["squares"], expected["squares"]),
        "total": total,
        "shares": torch.equal(tuned, batch()["x"].sqrt()),
        "empty": list(scheduler.run(torch.sqrt, torch.zeros(0, 3), cache=False).shape),
        "own batch": scheduler.dispatcher(torch.sqrt, cache=False).run(torch.full((9,), 4.0)).sum().item(),
        "two batches": error_of(lambda: scheduler.run(Square(), batch() if WORLD.rank else None, cache=False)),
    }


def failures() -> dict[str, Any]:
    scheduler = SimpleMPIScheduler(devices=THREE, sub_batch_sizes=[4])
    met: list[int] = []

    def broken(x: Any, everywhere: bool = False) -> Any:
        if not met:
            met.append(1)
            OTHERS.Barrier()  # the rank that fails has certainly taken a range
        if everywhere or WORLD.rank == 1:
            raise ValueError("no")
        return x + 1

    x = batch()["x"]
    moved = scheduler.run(broken, x, cache=False)
    return {
        "moved": torch.equal(moved, x + 1),
        "all": error_of(lambda: scheduler.run(lambda x: broken(x, everywhere=True), x, cache=False)),
        "agreed": error_of(lambda: agreed(WORLD, lambda: 1 // WORLD.rank)),
        "after": torch.equal(scheduler.run(torch.sqrt, x, cache=False), x.sqrt()),
    }


def main(folder: str) -> None:
    global WORLD, OTHERS
    WORLD = communicator()
    OTHERS = WORLD.Dup()
    found = {"assignment": assignment(), "batch": whole_batch(), "failures": failures()}
    Path(folder, f"{WORLD.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
