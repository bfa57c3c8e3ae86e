"""Real training jobs on one GPU, of which three "types" of accelerators are parts, beside their simulation.

    python -m bench.cluster_gpu
    python -m bench.cluster_gpu --policies fifo --jobs 4

Types are shares of the GPU's multiprocessors (CUDA MPS: 50, 25 and 12 %), which together do not ask for more than there
is. Where there is no MPS, a step is followed by a pause that makes the type as much slower. A step is one of
forward, backward and optimizer of a perceptron, with layers large enough to fill a share, or so small that it is the
launches that count. Rates are measured before, one kind after the other on all types at once, so that others are busy
meanwhile, as they will be. All of it takes about seven minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from math import inf
from pathlib import Path
from typing import Any

SHARES = {"half": 50, "quarter": 25, "eighth": 12}
ROUND_S = 25.0
MODELS = {"wide": (4096, 4096), "middle": (2048, 1024), "small": (256, 64)}  # width of layers, batch
MEASURE_S = 6.0  # for the rate of a kind on a type, of which the first quarter does not count
# Model, seconds alone on the largest share, seconds after the first job.
_JOBS = (
    ("wide", 20, 0),
    ("small", 24, 0),
    ("middle", 20, 0),
    ("wide", 15, 0),
    ("small", 16, 0),
    ("middle", 24, 8),
    ("wide", 16, 16),
    ("small", 20, 24),
    ("middle", 13, 32),
    ("wide", 10, 40),
    ("small", 15, 48),
    ("middle", 16, 56),
)


def train(model: str, steps: int, paced: bool, measure_s: float = inf) -> float:
    """The job itself; gives its rate, where it is to be measured for so many seconds."""
    device = os.environ.get("DOVETAIL_DEVICE", "half")
    if not paced:
        os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(SHARES[device])
    import torch

    from dovetail.cluster import LeaseIterator

    width, batch = MODELS[model]
    torch.manual_seed(0)
    layers = [torch.nn.Linear(width, width) for _ in range(4)]
    net = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    data = torch.randn(batch, width, device="cuda")
    path = Path(os.environ.get("DOVETAIL_CHECKPOINT_DIR", "."), "model.pt")

    def load() -> None:
        if path.exists():
            net.load_state_dict(torch.load(path, map_location="cuda"))

    def save() -> None:
        torch.save(net.state_dict(), path)

    class Endless:
        def __iter__(self) -> Endless:
            return self

        def __next__(self) -> Any:
            return data

        def resume_at(self, step: int) -> None:
            """Any step is as good as another."""

    batches = LeaseIterator(Endless(), path.parent, load, save)
    batches.load_checkpoint()
    if batches.lease.total_steps is None:
        batches.lease.total_steps = steps
    slower = SHARES["half"] / SHARES[device] - 1 if paced else 0.0
    first_s, first = time.monotonic() + measure_s / 4, 0
    for batch_ in batches:
        began = time.monotonic()
        if began < first_s:
            first = batches.steps
        elif began > first_s + 0.75 * measure_s:
            return (batches.steps - first) / (began - first_s)
        net(batch_).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        if slower:
            time.sleep(slower * (time.monotonic() - began))
    batches.save_checkpoint()
    return 0.0


def command(model: str, paced: bool) -> list[str]:
    return [sys.executable, str(Path(__file__).resolve()), "train", model] + ["--paced"] * paced


def measured(paced: bool) -> dict[str, dict[str, float]]:
    """Steps per second of kinds on types, without their starts."""
    words = [sys.executable, str(Path(__file__).resolve()), "rates"] + ["--paced"] * paced
    with tempfile.TemporaryDirectory() as folder:
        asked = {
            device: subprocess.Popen(
                words,
                env=os.environ | {"DOVETAIL_DEVICE": device, "DOVETAIL_CHECKPOINT_DIR": folder},
                stdout=subprocess.PIPE,
            )
            for device in SHARES
        }
        told = {device: process.communicate()[0] for device, process in asked.items()}
    failed = [device for device, process in asked.items() if process.returncode]
    if failed:
        raise SystemExit(f"rates on {failed[0]} could not be measured")
    rates = {device: json.loads(each) for device, each in told.items()}
    return {model: {device: rates[device][model] for device in SHARES} for model in MODELS}


def _mps() -> bool:
    """Start the daemon, if it is to be had."""
    if shutil.which("nvidia-cuda-mps-control") is None:
        return False
    return subprocess.run(["nvidia-cuda-mps-control", "-d"], check=False).returncode == 0


def live(folder: Path, policy: str, rates: dict[str, dict[str, float]], paced: bool, jobs: int) -> Path:
    """All jobs for real; gives the journal."""
    from dovetail import cluster

    with cluster.serve(types=dict.fromkeys(SHARES, 1), policy=policy, round_s=ROUND_S, state=folder) as served:
        began = time.monotonic()
        for model, seconds, at_s in _JOBS[:jobs]:
            time.sleep(max(began + at_s - time.monotonic(), 0.0))
            known, words = rates[model], command(model, paced)
            steps = round(known["half"] * seconds)
            given = {"command": words, "steps_flag": "--steps", "steps": steps, "model": model, "rates": known}
            served.service.submit(given)
        for each in served.service.jobs(limit=100):
            ended = served.service.wait(each.id)
            if ended.state != "completed":
                raise SystemExit(f"job {each.id} did not complete: {ended}")
        return served.service.journal()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", default="all", choices=("all", "train", "rates"))
    parser.add_argument("model", nargs="?", default="small")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--paced", action="store_true", help="pauses in the place of MPS")
    parser.add_argument("--policies", nargs="+", default=("fifo", "max_min_fairness_perf"))
    parser.add_argument("--jobs", type=int, default=len(_JOBS))
    parser.add_argument("--folder", type=Path, help="keep journals there")
    given = parser.parse_args()
    if given.part == "train":
        train(given.model, given.steps, given.paced)
        return
    if given.part == "rates":
        print(json.dumps({model: train(model, 10**9, given.paced, MEASURE_S) for model in MODELS}))
        return
    from bench import show
    from bench.cluster_live import compared

    paced = given.paced or not _mps()
    rates = measured(paced)
    print(json.dumps({"rates": rates, "paced": paced}), file=sys.stderr)
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        rows = {p: compared(live(folder / p, p, rates, paced, given.jobs)) for p in given.policies}
    off = {f: max(abs(row["live"][f] / row["simulated"][f] - 1) for row in rows.values()) for f in ("jct", "makespan")}
    show(
        {
            "mps": not paced,
            "shares": SHARES,
            "rates": rates,
            "off_at_most_percent": {k: 100 * v for k, v in off.items()},
            "predicted_and_measured": [
                [round(row[side][figure], 2) for side in ("simulated", "live")]
                for row in rows.values()
                for figure in off
            ],
            "policies": rows,
        }
    )


if __name__ == "__main__":
    main()
