"""Prediction against reality: a transformer profiled, planned and run over unlike devices. Prints JSON.

    python -m bench.pipeline_live              three processes with different shares of two cores (as root)
    python -m bench.pipeline_live --gpu        a GPU and a part of the CPU
    python -m bench.pipeline_live --pairs 10   the exact plan alone, each time with fresh profiles

Every process is a device of a type of its own. On the CPU it is pinned to cores, with a share of their time set by a
control group, and profiled in the same conditions as it will run in: while the other cores compute as well, for as
much of the time as their hosts have of them, for cores of one machine share memory, and may be two threads of one core.
The exact plan then runs against an equal split of
the layers and a split by parameters, in one go, and the predicted throughput is compared with the measured one.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from bench import show
from dovetail.core import registry
from dovetail.core.cgroups import CpuShare
from dovetail.pipeline.hardware import placed_on
from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.live import run_plan
from dovetail.pipeline.live.hosts import HostSettings
from dovetail.pipeline.live.jobs import RunOptions
from dovetail.pipeline.live.supervisor import Patience
from dovetail.pipeline.models.spec import ModelSpec
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan as plan_exactly
from dovetail.pipeline.profile.link_test import listen, measure_link, serve
from dovetail.pipeline.profile.measure import Effort, ProfileResult, profile_chain

MODEL = ModelSpec(source=f"{Path(__file__).parents[1] / 'examples/pipeline/transformer.py'}:encoder")
BATCH, GPU_BATCH = 8, 64  # items in a microbatch; a GPU needs more to be busy
SHARES = {
    "whole": HostSettings(cores=(0,), threads=1, share=0.9),
    "half": HostSettings(cores=(1,), threads=1, share=0.5),
    "third": HostSettings(cores=(1,), threads=1, share=0.3),
}
GPU = {"gpu": HostSettings(device="cuda:0", threads=2), "cpu": HostSettings(cores=tuple(range(4, 12)), threads=8)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microbatches", type=int, default=120)
    parser.add_argument("--profile", metavar="HOST", help="measure as this host, and print the profile")
    parser.add_argument("--beside", metavar="HOST", help="compute on this host's cores until the input ends")
    parser.add_argument("--gpu", action="store_true", help="a GPU and a part of the CPU")
    parser.add_argument("--pairs", type=int, help="so many fresh profiles, each with a run of the exact plan")
    arguments = parser.parse_args()
    hosts, batch = (GPU, GPU_BATCH) if arguments.gpu else (SHARES, BATCH)
    if arguments.profile:
        print(msgspec.json.encode(measure(hosts[arguments.profile], batch)).decode())
        return
    if arguments.beside:
        at = hosts[arguments.beside]
        shares = [each.share for each in hosts.values() if each.cores == at.cores]
        compute_on(at, batch, None if None in shares else min(sum(filter(None, shares)), 1.0 * len(at.cores)))
        return
    if arguments.pairs:
        show(pairs(hosts, batch, arguments.gpu, arguments.microbatches, arguments.pairs))
        return
    profiles = {host: profile_as(host, arguments.gpu) for host in hosts}
    mbps = loopback_mbps()
    problem = to_problem(profiles, batch, mbps)
    rows: dict[str, Any] = {}
    for method in ("exact", "equal", "parameter-proportional"):
        if method == "exact":  # what feeds the first stage and takes the results is on a link of the same speed
            found = plan_exactly(problem, "throughput", Constraints(data_mbps=mbps))
        else:
            found = registry.create("pipeline", method, {"pipeline": problem})
        assert isinstance(found, Plan), found
        rows[method] = run(found, hosts, arguments.microbatches)
    exact = rows["exact"]["measured_items_s"]
    result = {
        "model": f"transformer encoder, 12 blocks, 384 wide, 24 layers, microbatches of {batch}",
        "hosts": {host: msgspec.to_builtins(settings) for host, settings in hosts.items()},
        "devices": {host: found.device for host, found in profiles.items()},
        "loopback_mbps": round(mbps),
        "profiled_s": {host: round(found.whole_s, 4) for host, found in profiles.items()},
        "runs": rows,
        "predicted_and_measured": [[row["predicted_items_s"], row["measured_items_s"]] for row in rows.values()],
        "exact_over_equal": round(exact / rows["equal"]["measured_items_s"], 3),
        "exact_over_parameters": round(exact / rows["parameter-proportional"]["measured_items_s"], 3),
    }
    show(result)


def pairs(hosts: dict[str, HostSettings], batch: int, gpu: bool, microbatches: int, count: int) -> dict[str, Any]:
    """How often a prediction from fresh profiles is within a tenth of what a run then measures."""
    rows = []
    for _ in range(count):
        profiles = {host: profile_as(host, gpu) for host in hosts}
        mbps = loopback_mbps()
        found = plan_exactly(to_problem(profiles, batch, mbps), "throughput", Constraints(data_mbps=mbps))
        assert isinstance(found, Plan), found
        rows.append(run(found, hosts, microbatches))
        row = rows[-1]
        told = f"{row['difference_percent']:+.1f} % {row['cannot_be_judged']}"
        print(f"pair {len(rows)} of {count}: {told}", file=sys.stderr, flush=True)
    judged = [row["difference_percent"] for row in rows if not row["cannot_be_judged"]]
    return {"pairs": rows, "judged": len(judged), "within_a_tenth": sum(abs(value) <= 10 for value in judged)}


def profile_as(host: str, gpu: bool) -> ProfileResult:
    """The profile of a host, measured by a process that is confined as the host will be."""
    words = [sys.executable, "-m", "bench.pipeline_live", *(["--gpu"] if gpu else [])]
    with ExitStack() as others:
        for other in _elsewhere(host, GPU if gpu else SHARES):
            busy = others.enter_context(subprocess.Popen([*words, "--beside", other], stdin=subprocess.PIPE, stdout=-1))
            assert busy.stdout is not None
            busy.stdout.readline()
        done = subprocess.run([*words, "--profile", host], stdout=subprocess.PIPE, text=True, check=True)
    return msgspec.json.decode(done.stdout, type=ProfileResult)


def _elsewhere(host: str, hosts: dict[str, HostSettings]) -> list[str]:
    """Of each group of cores that is not the host's, the first that has it."""
    first: dict[tuple[int, ...], str] = {}
    for other, settings in hosts.items():
        first.setdefault(settings.cores, other)
    return [other for cores, other in first.items() if cores and cores != hosts[host].cores]


def compute_on(settings: HostSettings, batch: int, share: float | None) -> None:
    """Compute what the model's layers compute, until nobody is there any more who wants it; with as much of the cores
    as all hosts on them have together."""
    from dovetail.pipeline.models.load import load

    chain = load(MODEL)
    whole, value = chain.part(1, len(chain.layers)), chain.inputs(batch, "torch.float32", "cpu", 0)
    asked = threading.Thread(target=sys.stdin.read, daemon=True)
    asked.start()
    limit = None if share is None else CpuShare(os.getpid(), share)
    try:
        with placed_on(threads=settings.threads, cores=settings.cores):
            print("computes", flush=True)
            while asked.is_alive():
                whole(value)
    finally:
        if limit is not None:
            limit.release()


def measure(settings: HostSettings, batch: int) -> ProfileResult:
    from dovetail.pipeline.models.load import load

    chain = load(MODEL)
    with placed_on(threads=settings.threads, cores=settings.cores):
        return profile_chain(
            chain,
            batch,
            device=settings.device or "cpu",
            effort=Effort(least=15, seconds=0.3, calm_s=10.0),
            share=settings.share,
            scale_to_whole=True,
        )


def loopback_mbps() -> float:
    """How fast this machine talks to itself, by our own link test."""
    listener = listen()
    threading.Thread(target=serve, args=(listener,), kwargs={"clients": 1}, daemon=True).start()
    return measure_link(*listener.getsockname()[:2]).to_mbps


def to_problem(profiles: dict[str, ProfileResult], batch: int, mbps: float) -> Pipeline:
    """The planning problem."""
    first = next(iter(profiles.values()))
    values = [first.profile[0].shape_in, *(layer.shape_out for layer in first.profile)]
    counts = [sum(prod(shape) for shape in shapes) for shapes in values]
    classes = []
    for host, found in profiles.items():
        times = [layer.time_s for layer in found.profile]
        classes.append(DeviceClass(host, host, [host], mbps, 4096.0, times, measured_on=found.device, busy=found.busy))
    return Pipeline(
        model=first.model,
        layers=first.layers,
        mem_mib=[layer.memory_mib for layer in first.profile],
        cut_bytes=[4 * batch * count for count in counts],
        classes=classes,
        batch_size=batch,
        dtype="torch.float32",
    )


def run(plan: Plan, hosts: dict[str, HostSettings], microbatches: int) -> dict[str, Any]:
    options = RunOptions(patience=Patience(slow_factor=0.0))
    outcome = run_plan(plan, MODEL, microbatches=microbatches, hosts=hosts, options=options)
    assert outcome.completed == microbatches
    assert outcome.steady_items_s is not None
    return {
        "layers": {stage.host: list(stage.layers) for stage in plan.stages},
        "predicted_items_s": round(plan.throughput_items_s, 3),
        "measured_items_s": round(outcome.steady_items_s, 3),
        "difference_percent": round(100 * (plan.throughput_items_s / outcome.steady_items_s - 1), 2),
        "cannot_be_judged": outcome.cannot_be_judged,
        "stages": [
            {"host": stage.host, "predicted_s": round(stage.predicted_compute_s, 4), "median_s": stage.compute_s}
            for stage in outcome.stages
        ],
    }


if __name__ == "__main__":
    main()
