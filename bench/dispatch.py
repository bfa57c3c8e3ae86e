"""What dispatching costs and what it gains. Prints JSON.

    python -m bench.dispatch --overhead     extra microseconds per sub-batch, per run, and of a direct call, on the CPU
    python -m bench.dispatch --emulated     three devices that sleep, real threads: % of the sum of the devices alone
    python -m bench.dispatch --simulated    policies on NEML2's published curves: % of the sum of the peak rates
    python -m bench.dispatch --stalls       CPU time of later runs over one call, with planted stalls and a busy machine
    python -m bench.dispatch --small        CPU time of small batches of four types over the plain call
    python -m bench.dispatch --gpu          four problems on a CUDA device and the CPU: by hand, at the limit, ours
    python -m bench.dispatch --peers        five functions: a plain call, threads by hand, joblib, Dask, Ray Data, ours

Without a flag, the first three. Times are the least of several runs, since whatever else a machine does only adds to
them; medians stand beside them where they matter.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from bench import show
from bench._dispatch_gpu import gpu
from bench._dispatch_peers import peers
from bench._dispatch_small import small
from bench._dispatch_stalls import stalls
from dovetail.core import registry
from dovetail.dispatch import Dispatcher
from dovetail.dispatch.inputs.curve_files import SimDevice
from dovetail.dispatch.inputs.curves import PUBLISHED
from dovetail.dispatch.simulate import run as simulate
from dovetail.testing.dispatch import THREE, Sleeper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("overhead", "emulated", "simulated", "stalls", "small", "gpu", "peers"):
        parser.add_argument(f"--{name}", action="store_true")
    parser.add_argument("--format", choices=["json", "table"], default="json", help="table: one line per figure")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--fresh", type=int, default=0, help="emulated: so many dispatchers, each with its own search")
    parser.add_argument("--scale", type=float, default=1.0, help="of the batches on a GPU and beside the peers")
    parser.add_argument("--only", nargs="+", default=[], help="peers: numpy, torch, pandas, transformer, images")
    parser.add_argument("--leave-out", nargs="+", default=[], help="peers: joblib, dask, ray")
    parser.add_argument("--limit", type=float, default=60.0, help="peers: seconds for a function; three turns at least")
    arguments = parser.parse_args()
    sections: dict[str, Callable[[], Any]] = {
        "overhead": lambda: overhead(arguments.repeats),
        "simulated": simulated,
        "emulated": lambda: (
            fresh(arguments.fresh, arguments.repeats) if arguments.fresh else emulated(arguments.repeats)
        ),
        "stalls": stalls,
        "small": small,
        "gpu": lambda: gpu(arguments.repeats, arguments.scale),
        "peers": lambda: peers(
            arguments.repeats, arguments.scale, arguments.only, arguments.leave_out, arguments.limit
        ),
    }
    chosen = [name for name in sections if getattr(arguments, name)] or ["overhead", "simulated", "emulated"]
    result: dict[str, Any] = {"torch": torch_version()}
    threads = torch.get_num_threads()
    for name in chosen:
        torch.set_num_threads(threads if name in ("gpu", "peers") else 1)
        try:
            result[name] = sections[name]()
        except Exception as error:
            traceback.print_exc()
            result[name] = {"error": f"{type(error).__name__}: {error}"}
    if "medians" in result.get("emulated", {}):
        result["emulated_medians"] = result["emulated"].pop("medians")
    if arguments.format == "json":
        show(result)
    else:
        print("\n".join(lines(result)))


def lines(result: Any, before: str = "") -> list[str]:
    """Every figure on a line of its own."""
    if not isinstance(result, dict):
        return [f"{before:48} {result}"]
    return [line for key, value in result.items() for line in lines(value, f"{before}.{key}".lstrip("."))]


def torch_version() -> str:
    return torch.__version__ + (f", {torch.cuda.get_device_name(0)}" if torch.cuda.is_available() else "")


def timed(call: Callable[[], Any], repeats: int, wait: Callable[[], None] = lambda: None) -> list[float]:
    seconds = []
    for _ in range(repeats):
        wait()
        begun = time.perf_counter()
        call()
        wait()
        seconds.append(time.perf_counter() - begun)
    return seconds


# -- what it costs


def overhead(repeats: int) -> dict[str, Any]:
    """Microseconds over bare calls on slices: one tensor in, one out, one CPU device, one thread of torch."""
    x = torch.rand(8192, 6, dtype=torch.float64)

    def function(part: Tensor) -> Tensor:
        return 2 * part + 1

    def extra(size: int, threads: bool, journal: Path | None) -> float:
        def bare() -> list[Tensor]:
            return [function(x.narrow(0, at, size)) for at in range(0, 8192, size)]

        with Dispatcher(function, "cpu", sizes=size, cache=False, journal=journal) as dispatcher:
            if threads:
                dispatcher.submit(x).result()  # from then on the worker has a thread of its own
            pairs = [(min(timed(bare, 5)), min(timed(lambda: dispatcher.run(x), 5))) for _ in range(4 * repeats)]
        return 1e6 * (min(run for _, run in pairs) - min(base for base, _ in pairs))

    found: dict[str, Any] = {}
    for name, threads, recorded in (
        ("calling thread", False, False),
        ("worker thread", True, False),
        ("calling thread, with a journal", False, True),
        ("worker thread, with a journal", True, True),
    ):
        with TemporaryDirectory() as folder:
            journal = Path(folder) / "run.jsonl" if recorded else None
            two, many = extra(4096, threads, journal), extra(128, threads, journal)
        per_chunk = (many - two) / (64 - 2)
        found[name] = {"per sub-batch us": round(per_chunk, 2), "fixed us": round(two - 2 * per_chunk, 1)}
    small = torch.rand(4, 6)
    with Dispatcher(function, "cpu", sizes=0, cache=False) as direct:
        base = min(timed(lambda: function(small), 5000))
        found["direct call us"] = round(1e6 * (min(timed(lambda: direct.run(small), 5000)) - base), 2)
    return found


# -- what it gains, without hardware


def simulated() -> dict[str, Any]:
    """Mean and worst % of the sum of peak rates over eight models on a CPU and a GPU; noise of 10 %."""
    cases = {"20000": (20_000, 1.0), "100000": (100_000, 1.0), "1000000": (1_000_000, 1.0)}
    cases |= {"1000000, CPU 3x slower": (1_000_000, 3.0), "100000, CPU 3x slower": (100_000, 3.0)}
    found: dict[str, Any] = {}
    for name in ["gpu alone", *registry.names("dispatch")]:
        found[name] = {}
        for case, (items, slower) in cases.items():
            by_model = [
                mean(_simulated(name, curves, items, slower, seed) for seed in range(10))
                for curves in PUBLISHED.values()
            ]
            found[name][case] = [round(100 * mean(by_model), 1), round(100 * min(by_model), 1)]
    return found


def _simulated(name: str, curves: Any, items: int, slower: float, seed: int) -> float:
    sized = name == "fixed"
    devices = [
        SimDevice("cuda", curves["cuda"].curve(), size=curves["cuda"].best if sized else None),
        SimDevice("cpu", curves["cpu"].curve(), slower, size=curves["cpu"].best if sized else None),
    ]
    peak = sum(device.curve.rate / device.slower for device in devices)
    if name == "gpu alone":
        return items / simulate(devices[:1], items, noise=0.1, seed=seed).makespan_s / peak
    return simulate(devices, items, name, noise=0.1, seed=seed).efficiency


def emulated(repeats: int) -> dict[str, Any]:
    """% of the sum of what each device reaches alone on the same batch in one call."""
    sleeper = Sleeper()
    best: dict[str, Any] = {}
    medians = {}
    with Dispatcher(sleeper, sleeper.devices, cache=False) as dispatcher:
        for _ in range(3):
            dispatcher.run(torch.zeros(400_000))  # sizes are found
        for items in (20_000, 100_000, 400_000):
            batch = torch.rand(items)
            alone = sum(device.alone(items) for device in THREE)
            rates = []
            for _ in range(repeats if items > 20_000 else 5 * repeats):
                found = dispatcher.run(batch)
                rates.append(dispatcher.report.rate / alone)
                assert torch.equal(found, 2 * batch)
            best[str(items)] = round(100 * max(rates), 1)
            medians[str(items)] = round(100 * median(rates), 1)
    return {**best, "medians": medians}


def fresh(count: int, repeats: int) -> dict[str, Any]:
    """The medians of several dispatchers: their own median, and the least."""
    found = [emulated(repeats)["medians"] for _ in range(count)]
    return {
        items: {"median": median(row[items] for row in found), "least": min(row[items] for row in found)}
        for items in found[0]
    }


if __name__ == "__main__":
    main()
