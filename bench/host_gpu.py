"""GPUs of a live host, on a real one: who has it when, what is told of it, and what sharing it brings. Prints JSON.

    python -m bench.host_gpu               two minutes; what it does is told on standard error as it goes
    python -m bench.host_gpu paused        only this of the two parts: sharing, paused
    python -m bench.host_gpu --rehearse    on the CPU, with a stand-in for the management library

Three small training programs on one GPU: first each has it alone, then all share it by declared memory; then one is
paused that holds it and one that releases it. What the management library counts on the GPU is looked at all the while.
Where something hangs it ends after --limit seconds, and says what it waited for and what every program had come to.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from bench import show
from dovetail.core.errors import DovetailError
from dovetail.host.check import check_journal
from tests.host.live import CLOSED, Daemon

HERE = Path(__file__).parents[1]
PROGRAMS = 3
_LAST_WORDS = 400  # characters of a log


def train(steps: int) -> None:
    """The program: small layers, so that one program alone leaves most of the GPU idle."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))).to(device)
    optimizer, batch = torch.optim.SGD(net.parameters(), lr=1e-3), torch.randn(256, 512, device=device)
    print("sees", os.environ["CUDA_VISIBLE_DEVICES"], torch.cuda.device_count(), flush=True)
    began = time.monotonic()
    for _ in range(steps):
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
    if device == "cuda":
        torch.cuda.synchronize()
    print("trained", time.monotonic() - began, flush=True)


class GpuRun:
    """A daemon whose programs train, and a time by which all must be done."""

    def __init__(self, daemon: Daemon, steps: int, limit_s: float) -> None:
        self._daemon, self._steps = daemon, steps
        self._began, self._limit_s = time.monotonic(), limit_s

    def tell(self, what: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s: {what}", file=sys.stderr, flush=True)

    def until(self, true: Callable[[], Any], what: str) -> None:
        """Wait for it; whoever waits too long says for what, and how things stand."""
        self.tell(what)
        while not true():
            if time.monotonic() > self._began + self._limit_s:
                stand = "\n".join(map(self._stands, self._daemon.rows().values()))
                log = (self._daemon.folder / "daemon.log").read_text()[-_LAST_WORDS:]
                raise DovetailError(f"after {self._limit_s:g} s in vain: {what}\n{stand}\nthe daemon said: {log}")
            time.sleep(0.1)

    def _stands(self, row: dict[str, Any]) -> str:
        words = {name: row[name] for name in ("state", "why", "exit", "actual", "cpu_s", "gpus")}
        return f"{row['id']}: {words}, it said: {self._daemon.log(row['id'])[-_LAST_WORDS:]!r}"

    def train(self, steps: int = 0, **more: Any) -> list[str]:
        words = (sys.executable, "-m", "bench.host_gpu", "--train", "--steps", str(steps or self._steps))
        return self._daemon.submit(*words, cwd=str(HERE), **more)

    def wait(self, jobs: list[str], what: str) -> dict[str, dict[str, Any]]:
        def ended() -> bool:
            rows = self._daemon.rows()
            return all(rows[job]["state"] in CLOSED for job in jobs)

        self.until(ended, what)
        return self._daemon.rows()

    def sharing(self) -> dict[str, Any]:
        alone = self.measured("each alone", gpus=1)
        shared = self.measured("all at once, by memory", gpus=1, gpu_mem_mib=10_000)
        ratio = round(alone["seconds"] / shared["seconds"], 2)
        return {"alone": alone, "shared": shared, "throughput_shared_over_alone": ratio}

    def measured(self, what: str, **ask: Any) -> dict[str, Any]:
        """All of an array: how long, how many at once on the GPU by the driver's count, and what was told of it."""
        began, seen = time.monotonic(), []
        jobs = self.train(array=PROGRAMS, **ask)

        def ended() -> bool:
            (gpu, *_), rows = self._daemon.ask_once("about")["gpus"], self._daemon.rows()
            held = [rows[job]["gpu_memory_mib"] for job in jobs]
            seen.append((len(gpu["programs"]), sum(map(bool, held)), gpu["use"] or 0, gpu["used_mib"] or 0, max(held)))
            return all(rows[job]["state"] in CLOSED for job in jobs)

        self.until(ended, what)
        took_s, rows = time.monotonic() - began, self._daemon.rows()
        given, there, use, used_mib, own_mib = map(max, zip(*seen, strict=True))
        logs = [self._daemon.log(job) for job in jobs]
        found = {
            "seconds": round(took_s, 1),
            "training_s_of_one": round(median(float(log.split()[-1]) for log in logs if "trained" in log), 2),
            "completed": sum(rows[job]["state"] == "completed" for job in jobs),
            "saw_only_the_gpu_that_they_were_given": sum(log.startswith("sees 0 1\n") for log in logs),
            "most_programs_on_it_at_once": given,
            "most_with_memory_there_at_once_by_the_driver": there,
            "most_use": use,
            "most_memory_in_use_mib": round(used_mib),
            "most_memory_of_one_program_mib": round(own_mib),
        }
        self.tell(json.dumps(found))
        return found

    def paused(self, pause: str) -> dict[str, Any]:
        """One that would train for long is paused; does another get the GPU, and does the first end well after that?"""
        (first,) = self.train(gpus=1, gpu_pause=pause)
        self.until(lambda: "sees" in self._daemon.log(first), f"{pause}: the first trains")
        self._daemon.ask("pause", first)

        def stopped() -> bool:
            row = self._daemon.row(first)
            return row["state"] == "paused" and not row["actual"]

        self.until(stopped, f"{pause}: the first stands still")
        (second,) = self.train(100, gpus=1)
        if pause == "hold":
            self.until(lambda: "GPU" in self._daemon.row(second)["why"], "hold: the second waits for the GPU")
        else:
            self.wait([second], "release: the second has ended meanwhile")
        while_paused = self._daemon.row(second)["state"]
        self._daemon.ask("resume", first)
        rows = self.wait([first, second], f"{pause}: both have ended")
        ended = {"first": rows[first]["state"], "second": rows[second]["state"]}
        return {"second_while_first_was_paused": while_paused, **ended}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="of sharing, paused; both by default")
    parser.add_argument("--steps", type=int, default=6_000, help="of each program")
    parser.add_argument("--limit", type=float, default=180.0, help="seconds until it gives up")
    parser.add_argument("--rehearse", action="store_true")
    parser.add_argument("--train", action="store_true", help="be such a program")
    arguments = parser.parse_args()
    parts = arguments.parts or ["sharing", "paused"]
    if arguments.train:
        train(arguments.steps)
        return 0
    with tempfile.TemporaryDirectory() as folder, Daemon(Path(folder) / "state", options={}) as daemon:
        env = _rehearsal(Path(folder)) if arguments.rehearse else {}
        daemon.up(wait=True, **env)
        run = GpuRun(daemon, arguments.steps, arguments.limit)
        if not (gpus := daemon.ask_once("about")["gpus"]):
            print("error: the daemon finds no GPU here", file=sys.stderr)
            return 1
        try:
            run.wait(run.train(1, gpus=1), "one step: what the others then find in memory")
            found: dict[str, Any] = {
                "gpus": [{name: gpu[name] for name in ("number", "type", "memory_mib")} for gpu in gpus]
            }
            if "sharing" in parts:
                found |= run.sharing()
            if "paused" in parts:
                found["paused"] = {pause: run.paused(pause) for pause in ("hold", "release")}
        except DovetailError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        daemon.ask_once("journal", path=f"{folder}/run.jsonl")
        found["faults"] = check_journal(f"{folder}/run.jsonl").faults_by_code
    show(found)
    return 0


def _rehearsal(folder: Path) -> dict[str, str]:
    """The environment of a daemon that sees a GPU which is not there."""
    (folder / "gpus.json").write_text(json.dumps([{"name": "rehearsed", "mib": 100_000, "use": 50}]))
    paths = os.environ.get("PYTHONPATH", "")
    return {"FAKE_GPUS": str(folder / "gpus.json"), "PYTHONPATH": f"{HERE / 'tests/host/fake_nvml'}:{paths}"}


if __name__ == "__main__":
    sys.exit(main())
