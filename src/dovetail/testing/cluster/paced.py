"""A training job that computes nothing: its steps take as long as they would on the accelerator that it was given.

    python -m dovetail.testing.cluster.paced --steps 1000 --rates a100=10,l4=4

It trains through `LeaseIterator`, so it is preempted, saves and goes on as a real one, and checks that it goes on where
it should. The type of its accelerator is DOVETAIL_DEVICE, its width DOVETAIL_WORLD_SIZE; who is beside it, its
agent says. Steps are those of the whole job, and rates are steps of the whole job per second. Its checkpoint tells
which lease did which of its steps; with `--trace` a file does so of all that it ever did.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from dovetail.cluster import LeaseIterator

_CATCH_UP_STEPS, _CATCH_UP_S = 5, 0.2  # an accelerator does not wait for a busy processor


def rate_on(
    place: Mapping[str, str],
    beside: str,
    rates: dict[str, float],
    packed: dict[str, float],
    widths: dict[str, float],
) -> float:
    """Steps per second on the accelerator that the environment names, beside a job of this model.

    >>> rates, packed = {"a100": 10.0}, {"a100": 7.0, "a100/lm": 4.0}
    >>> rate_on({"DOVETAIL_DEVICE": "a100"}, "", rates, packed, {})
    10.0
    >>> rate_on({"DOVETAIL_DEVICE": "a100", "DOVETAIL_WORLD_SIZE": "2"}, "lm", rates, packed, {"2": 1.5})
    6.0
    """
    device = place.get("DOVETAIL_DEVICE", next(iter(rates)))
    if device not in rates:
        raise SystemExit(f"--rates: no rate on {device!r}; given: {', '.join(rates)}")
    rate = rates[device]
    if beside:
        rate = packed.get(f"{device}/{beside}", packed.get(device, rate))
    return rate * widths.get(place.get("DOVETAIL_WORLD_SIZE", "1"), 1.0)


class PacedDevice:
    """Waits until a step is over; small delays of the machine are caught up with."""

    def __init__(self, noise: float = 0.0, seed: str = "") -> None:
        self._noise, self._seed = noise, seed
        self._due = time.monotonic()

    def step(self, number: int, rate: float) -> None:
        step_s = 1 / rate
        if self._noise:
            import random

            step_s *= max(0.05, random.Random(f"{self._seed}.{number}").gauss(1.0, self._noise))
        now = time.monotonic()
        self._due = max(self._due, now - max(_CATCH_UP_STEPS / rate, _CATCH_UP_S)) + step_s
        if self._due > now:
            time.sleep(self._due - now)


class BusyDevice:
    """Real work in place of waiting: so many MiB are hashed per step on the fastest type, and more on a slower one."""

    def __init__(self, mib: float, fastest: float) -> None:
        self._data = bytes(2**20)
        self._mib, self._fastest = mib, fastest
        self._debt = 0.0

    def step(self, number: int, rate: float) -> None:
        import hashlib

        self._debt += self._mib * self._fastest / rate
        while self._debt >= 1:
            hashlib.sha256(self._data).digest()
            self._debt -= 1


def main(words: list[str] | None = None) -> None:
    options = _parser().parse_args(words)
    rates = options.rates
    rate_on(os.environ, "", rates, {}, {})  # it is refused before a lease is asked for
    time.sleep(options.import_s)
    kept = _KeptSteps(options)
    batches = LeaseIterator(Endless(), options.checkpoint_dir, kept.load, lambda: kept.save(batches.steps))
    saved = batches.load_checkpoint()
    if saved != batches.steps:
        raise SystemExit(f"the checkpoint is of step {saved}, the lease of step {batches.steps}")
    if batches.lease.total_steps is None:
        batches.lease.total_steps = options.steps
    seed = f"{options.seed}.{os.environ.get('DOVETAIL_JOB', '')}"
    device: PacedDevice | BusyDevice = PacedDevice(options.noise, seed)
    if options.compute:
        device = BusyDevice(options.compute, max(rates.values()))
    trace = None if options.trace is None else os.open(options.trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for _ in batches:
        if trace is not None:
            os.write(trace, _traced(batches.steps))
        device.step(batches.steps, rate_on(os.environ, batches.beside, rates, options.packed, options.widths))
    if batches.lease.rank == 0:
        batches.save_checkpoint()
    print(f"step {batches.steps}", flush=True)


class Endless:
    """Batches of nothing."""

    def __iter__(self) -> Endless:
        return self

    def __next__(self) -> None:
        return None

    def resume_at(self, step: int) -> None:
        """Any step is as good as another."""


class _KeptSteps:
    """The checkpoint: how many steps, and which lease did them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._by: list[list[int]] = []  # epoch and its last step

    def load(self) -> int:
        time.sleep(self._options.load_s)
        with suppress(FileNotFoundError):
            self._by = json.loads(self._file.read_text())["by"]
        return self._by[-1][1] if self._by else 0

    def save(self, steps: int) -> None:
        time.sleep(self._options.save_s)
        epoch = int(os.environ.get("DOVETAIL_EPOCH", "0"))
        by = [*(each for each in self._by if each[0] != epoch), [epoch, steps]]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({"steps": steps, "at": time.time(), "by": by}))

    @property
    def _file(self) -> Path:
        return Path(os.environ.get("DOVETAIL_CHECKPOINT_DIR") or self._options.checkpoint_dir, "paced.json")


def _traced(step: int) -> bytes:
    """A step that begins: when, in which lease, by whom, which and on what."""
    names = ("DOVETAIL_EPOCH", "DOVETAIL_RANK", "DOVETAIL_DEVICE")
    epoch, rank, device = (os.environ.get(name, "0") for name in names)
    return f"{time.monotonic():.4f} {epoch} {rank} {step} {device}\n".encode()


def _numbers(text: str) -> dict[str, float]:
    """
    >>> _numbers("a100=10,l4=2.5")
    {'a100': 10.0, 'l4': 2.5}
    """
    return {name: float(number) for name, _, number in (part.partition("=") for part in text.split(",") if part)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m dovetail.testing.cluster.paced", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument
    add("--steps", type=int, required=True, help="steps of the whole job, unless its lease says so")
    add("--rates", type=_numbers, required=True, metavar="TYPE=STEPS_PER_S,...", help="alone on an accelerator")
    add("--packed", type=_numbers, default={}, metavar="TYPE[/MODEL]=STEPS_PER_S,...", help="beside another job")
    add("--widths", type=_numbers, default={}, metavar="WIDTH=FACTOR,...", help="on so many accelerators")
    add("--noise", type=float, default=0.0, help="standard deviation of a step's time, as a part of it")
    add("--seed", type=int, default=0)
    add("--import-s", type=float, default=0.0, help="seconds before the lease is asked for")
    add("--load-s", type=float, default=0.0)
    add("--save-s", type=float, default=0.0)
    add("--compute", type=float, default=0.0, metavar="MIB", help="hash so much per step in place of waiting")
    add("--checkpoint-dir", default="checkpoints")
    add("--trace", metavar="FILE", help="add a line for each step: when it began, epoch, rank, step, type")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
