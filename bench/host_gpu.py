"""GPUs of a live host, on a real one: who has it when, what is told of it, and what sharing it brings. Prints JSON.

    python -m bench.host_gpu

Four small training programs on one GPU: first each has it alone, then all share it by declared memory; then one is
paused that holds it and one that releases it. What the management library counts on the GPU is looked at all the while.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench import show
from dovetail.host.check import check_journal
from tests.host.live import Daemon, until

PROGRAMS = 4
PATIENCE_S = 200.0


def train(steps: int) -> None:
    """The program: small layers, so that one program alone leaves most of the GPU idle."""
    import torch

    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).cuda()
    optimizer, batch = torch.optim.SGD(net.parameters(), lr=1e-3), torch.randn(256, 512, device="cuda")
    print("sees", os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), flush=True)
    for _ in range(steps):
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    print("trained", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=15_000)
    parser.add_argument("--train", action="store_true", help="be such a program")
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.steps)
        return
    command = (sys.executable, "-m", "bench.host_gpu", "--train", "--steps")
    here: dict[str, Any] = {"cwd": str(Path(__file__).parents[1])}
    with tempfile.TemporaryDirectory() as folder, Daemon(Path(folder) / "state", options={}) as daemon:
        daemon.up()
        train_for: Callable[..., list[str]] = lambda steps, **more: daemon.submit(*command, str(steps), **here, **more)  # noqa: E731
        daemon.wait(train_for(1, gpus=1), PATIENCE_S)  # reads what the others then find in memory
        about = daemon.ask_once("about")["gpus"]
        alone = measured(daemon, lambda: train_for(arguments.steps, gpus=1, array=PROGRAMS))
        shared = measured(daemon, lambda: train_for(arguments.steps, gpus=1, gpu_mem_mib=10_000, array=PROGRAMS))
        found = {
            "gpus": [{name: gpu[name] for name in ("number", "type", "memory_mib")} for gpu in about],
            "alone": alone,
            "shared": shared,
            "throughput_shared_over_alone": round(alone["seconds"] / shared["seconds"], 2),
            "paused": {pause: paused(daemon, train_for, pause) for pause in ("hold", "release")},
        }
        daemon.ask_once("journal", path=f"{folder}/run.jsonl")
        found["faults"] = check_journal(f"{folder}/run.jsonl").faults_by_code
    show(found)


def measured(daemon: Daemon, submit: Callable[[], list[str]]) -> dict[str, Any]:
    """All of an array: how long, how many at once on the GPU by the driver's count, and what was told of it."""
    began, most, told, own = time.monotonic(), 0, 0.0, 0.0
    jobs = submit()
    while any(daemon.row(job)["state"] not in ("completed", "failed") for job in jobs):
        gpu = daemon.ask_once("about")["gpus"][0]
        rows = daemon.rows()
        most = max(most, sum(rows[job]["gpu_memory_mib"] > 0 for job in jobs))
        told, own = max(told, gpu["use"] or 0.0), max(own, *(rows[job]["gpu_memory_mib"] for job in jobs))
        time.sleep(0.2)
    took_s = time.monotonic() - began
    return {
        "seconds": round(took_s, 1),
        "completed": sum(daemon.row(job)["state"] == "completed" for job in jobs),
        "saw_the_gpu_that_they_were_given": sum("sees 0 1\n" in daemon.log(job) for job in jobs),
        "most_programs_with_memory_there_at_once": most,
        "most_use": told,
        "most_memory_of_one_mib": round(own),
    }


def paused(daemon: Daemon, train_for: Callable[..., list[str]], pause: str) -> dict[str, Any]:
    """One that would train for long is paused; does another get the GPU, and does the first end well after that?"""
    (first,) = train_for(20_000, gpus=1, gpu_pause=pause)
    until(lambda: "sees" in daemon.log(first), PATIENCE_S)
    daemon.ask("pause", first)
    until(lambda: daemon.row(first)["state"] == "paused" and not daemon.row(first)["actual"], PATIENCE_S)
    (second,) = train_for(100, gpus=1)
    if pause == "hold":
        until(lambda: "GPU" in daemon.row(second)["why"], PATIENCE_S)
    else:
        daemon.wait([second], PATIENCE_S)
    while_paused = daemon.row(second)["state"]
    daemon.ask("resume", first)
    rows = daemon.wait([first, second], PATIENCE_S)
    ended = {"first": rows[first]["state"], "second": rows[second]["state"]}
    return {"second_while_first_was_paused": while_paused, **ended}


if __name__ == "__main__":
    main()
