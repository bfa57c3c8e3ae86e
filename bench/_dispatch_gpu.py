"""What a CUDA device does with a batch, in several ways and in one run; called by `python -m bench.dispatch --gpu`.

Four problems: an implicit update with a matrix for every item (336 bytes in, 48 out), an encoder of BERT-base's shape
in bfloat16, pictures that are only made smaller (the copies take longest), and a sine. Batches are held in ordinary
memory of the host, in pinned memory, or on the device. `limit` is the lesser of two rates: computing alone, with the
batch on the device, and copying alone, in and out at once, from and to pinned memory. Rates are medians, in thousands
of items per second.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from random import Random
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dovetail.dispatch import Dispatcher
from dovetail.dispatch.live.staging import pinned_pool

WARM = 14  # runs of a dispatcher, in which it finds sizes and ways
GPU = "cuda:0"
BOTH = ["cuda:0", "cpu"]


class GpuProblem(NamedTuple):
    """A function, a batch as a tuple of tensors, and sizes that a loop by hand may have."""

    function: Any
    batch: tuple[Tensor, ...]
    sizes: tuple[int, ...]


def newton(matrix: Tensor, x: Tensor) -> Tensor:
    """Solves s + A s^3 = x with six unknowns and a matrix for every item."""
    unit = torch.eye(6, dtype=x.dtype, device=x.device)
    s = x
    for _ in range(10):
        cubed = (matrix @ (s**3).unsqueeze(-1)).squeeze(-1)
        jacobian = unit + matrix * (3 * s**2).unsqueeze(-2)
        s = s - torch.linalg.solve_ex(jacobian, (s + cubed - x).unsqueeze(-1))[0].squeeze(-1)
    return s


def smaller(pictures: Tensor) -> Tensor:
    """Pictures of 512 x 512 bytes, made smaller and brought to mean 0 about."""
    return torch.nn.functional.avg_pool2d(pictures.half() / 127.5 - 1, 32)


class Encoder(torch.nn.Module):
    """BERT-base with random weights; tokens in, one vector for each text out."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        try:
            transformers: Any = import_module("transformers")
            self.model: Any = transformers.BertModel(transformers.BertConfig(), add_pooling_layer=False)
            self.made_by = f"transformers {transformers.__version__}"
        except ImportError:
            layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, activation="gelu", batch_first=True)
            stack = torch.nn.TransformerEncoder(layer, 12)
            self.model = torch.nn.Sequential(torch.nn.Embedding(30522, 768), stack)
            self.made_by = "torch.nn.TransformerEncoder"
        self.to(torch.bfloat16).eval()

    def forward(self, tokens: Tensor) -> Tensor:
        with torch.no_grad():
            found = self.model(tokens)
            hidden: Tensor = getattr(found, "last_hidden_state", found)
            return hidden.mean(1)


def problems(scale: float) -> dict[str, Callable[[], GpuProblem]]:
    """By name; each is made when its turn comes."""

    def n(items: int) -> int:
        return max(64, int(items * scale))

    def matrices() -> GpuProblem:
        half = torch.rand(n(1 << 20), 6, 6, dtype=torch.float64)
        batch = 0.02 * (half @ half.transpose(1, 2)), torch.rand(n(1 << 20), 6, dtype=torch.float64)
        return GpuProblem(newton, batch, (n(1 << 15), n(1 << 17), n(1 << 18), n(1 << 20)))

    def texts() -> GpuProblem:
        return GpuProblem(Encoder(), (torch.randint(0, 30000, (n(4096), 128)),), (64, 128, 256, 512))

    def pictures() -> GpuProblem:
        few = torch.randint(0, 255, (16, 3, 512, 512), dtype=torch.uint8)
        made = few.repeat(n(2048) // 16, 1, 1, 1)
        return GpuProblem(smaller, (made,), (n(64), n(128), n(256), n(2048)))

    return {"newton": matrices, "pictures": pictures, "bert": texts}


def gpu(repeats: int, scale: float = 1.0) -> dict[str, Any]:
    """Every way on every problem."""
    if not torch.cuda.is_available():
        return {"error": "no CUDA device"}
    found: dict[str, Any] = {"small": small()}
    for name, make in problems(scale).items():
        print(name, file=sys.stderr, flush=True)
        found[name] = _problem(make(), repeats)
        torch.cuda.empty_cache()
    rows = [row for row in found.values() if "ours over the limit" in row]
    for ratio in ("ours over the limit", "ours over one pinned call", "with the CPU over without"):
        found[f"{ratio}, least"] = min(row[ratio] for row in rows)
    pool = pinned_pool()
    found["pinned MiB"] = pool.made * pool.block_bytes >> 20
    return found


def _problem(problem: GpuProblem, repeats: int) -> dict[str, Any]:
    function = problem.function.to(GPU) if isinstance(problem.function, torch.nn.Module) else problem.function
    host = problem.batch
    pinned = tuple(part.pin_memory() for part in host)
    there = tuple(part.to(GPU) for part in host)
    expected = function(*there).cpu()
    row: dict[str, Any] = {"items": len(host[0]), "bytes in": _bytes(host), "bytes out": _bytes((expected,))}
    row |= {"made by": function.made_by} if isinstance(function, Encoder) else {}
    timing = Timing(len(host[0]), repeats, expected, row)
    timing.rate("direct", lambda: function(*(part.to(GPU) for part in host)).cpu())
    back, made = torch.empty_like(expected).pin_memory(), expected.to(GPU)
    by_hand: dict[str, Callable[[], Any]] = {
        "one pinned call": lambda: _pinned_call(function, pinned, back),
        "computing alone": lambda: function(*there),
        "copying alone": lambda: _copies(pinned, there, made, back),
    }
    for name, call in by_hand.items():
        timing.rate(name, call, check=name != "copying alone")
    sizes = problem.sizes
    timing.best("NEML2-style chunks", {size: partial(_loop, function, host, size, True) for size in sizes})
    timing.best("loop on the device", {size: partial(_loop, function, there, size) for size in sizes})
    alone, beside = "ours", "ours, with the CPU"
    turns = _ours({alone: GPU, beside: BOTH}, function, host, timing, repeats)
    row["with the CPU over without"] = round(median([turn[alone] / turn[beside] for turn in turns] or [0.0]), 3)
    turns = _ours({"ours, pinned": GPU}, function, pinned, timing, repeats, by_hand)
    _compare([{**turn, "ours": turn["ours, pinned"]} for turn in turns], timing)
    _ours({"ours, resident": GPU, "ours, resident, with the CPU": BOTH}, function, there, timing, repeats)
    _loaders(function, host, sizes[1], timing)  # last: to send a batch to processes moves it to shared memory
    limit = min(row["computing alone"], row["copying alone"])
    row["limit"] = limit
    row["ours, pageable, over the limit"] = round(row["ours"] / limit, 3)
    row["resident over the loop"] = round(row["ours, resident"] / row["loop on the device"], 3)
    return row


def _bytes(tensors: tuple[Tensor, ...]) -> int:
    return sum(part[0].numel() * part.element_size() for part in tensors)


class Timing:
    """Rates of ways to do one batch, each checked against the result that is expected."""

    def __init__(self, items: int, repeats: int, expected: Tensor, row: dict[str, Any]) -> None:
        self.items, self.repeats, self.expected, self.row = items, repeats, expected.float(), row

    def check(self, found: Tensor) -> None:
        off = (found.float().cpu() - self.expected).abs().max().item()
        if not off <= 0.05 * max(1.0, self.expected.abs().max().item()):
            raise AssertionError(f"another result: {off:g}")

    def seconds(self, call: Callable[[], Any], repeats: int = 0) -> list[float]:
        found = []
        for _ in range(repeats or self.repeats):
            torch.cuda.synchronize()
            begun = time.perf_counter()
            result = call()
            torch.cuda.synchronize()
            found.append(time.perf_counter() - begun)
            del result  # who wants a result keeps it: to give its memory back is not part of the call
        return found

    def rate(self, name: str, call: Callable[[], Any], check: bool = True) -> None:
        result = call()
        torch.cuda.synchronize()
        if check:
            self.check(result)
        del result
        self.tell(name, self.thousands(median(self.seconds(call))))

    def tell(self, name: str, value: Any) -> None:
        """A figure, which is printed at once: all of them take a while."""
        self.row[name] = value
        print("  ", name, value, file=sys.stderr, flush=True)

    def best(self, name: str, calls: dict[int, Callable[[], Any]], repeats: int = 3) -> None:
        rates = {}
        for size, call in calls.items():
            self.check(call())
            rates[size] = self.thousands(median(self.seconds(call, repeats)))
        if rates:
            self.tell(name, max(rates.values()))
            self.tell(f"{name}, by size", rates)

    def thousands(self, seconds: float) -> float:
        return round(self.items / seconds / 1e3, 2)


def _pinned_call(function: Any, pinned: tuple[Tensor, ...], back: Tensor) -> Tensor:
    back.copy_(function(*(part.to(GPU, non_blocking=True) for part in pinned)), non_blocking=True)
    torch.cuda.synchronize()
    return back


def _copies(pinned: tuple[Tensor, ...], there: tuple[Tensor, ...], result: Tensor, back: Tensor) -> None:
    """In and out at the same time."""
    out: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    out.wait_stream(torch.cuda.current_stream())
    for given, to in zip(pinned, there, strict=True):
        to.copy_(given, non_blocking=True)
    with torch.cuda.stream(out):
        back.copy_(result, non_blocking=True)
    torch.cuda.synchronize()


def _loop(function: Any, batch: tuple[Tensor, ...], size: int, moved: bool = False) -> Tensor:
    """Chunk by chunk, as one writes it by hand; `moved`: each is copied there and back, and waited for."""
    parts = []
    for at in range(0, len(batch[0]), size):
        work = [part[at : at + size] for part in batch]
        found = function(*(part.to(GPU) for part in work)) if moved else function(*work)
        parts.append(found.cpu() if moved else found)
    return torch.cat(parts)


class Chunks(Dataset[Any]):
    """A batch, of which every item is a chunk: nothing is put together row by row."""

    def __init__(self, batch: tuple[Tensor, ...], size: int) -> None:
        self.batch, self.size = batch, size

    def __len__(self) -> int:
        return -(-len(self.batch[0]) // self.size)

    def __getitem__(self, i: int) -> tuple[Tensor, ...]:
        return tuple(part[i * self.size : (i + 1) * self.size].clone() for part in self.batch)


def _loaders(function: Any, batch: tuple[Tensor, ...], size: int, timing: Timing) -> None:
    """Four worker processes, which send chunks to a thread that pins them."""
    loader: DataLoader[Any] = DataLoader(
        Chunks(batch, size),
        batch_size=None,
        num_workers=4,
        pin_memory=True,
        persistent_workers=True,
        multiprocessing_context="spawn",  # a forked process cannot use CUDA
    )

    def call() -> Tensor:
        return torch.cat([function(*(part.to(GPU, non_blocking=True) for part in work)).cpu() for work in loader])

    try:
        timing.best("DataLoader, pinned", {size: call}, repeats=2)
    except Exception as error:
        timing.tell("DataLoader, pinned: error", f"{type(error).__name__}: {error}")


def _ours(
    devices: dict[str, Any],
    function: Any,
    batch: tuple[Tensor, ...],
    timing: Timing,
    repeats: int,
    by_hand: dict[str, Callable[[], Any]] | None = None,
) -> list[dict[str, float]]:
    """Fresh dispatchers, which take turns in any order with each other and with what is done by hand: a card that is
    busy gets slower, and a host copies now faster, now slower. The seconds of every turn, once they know their way."""
    random = Random(1)
    try:
        with ExitStack() as stack:
            ours = {name: stack.enter_context(Dispatcher(function, on, cache=False)) for name, on in devices.items()}
            ways = {name: partial(dispatcher.run, *batch) for name, dispatcher in ours.items()}

            def turns(ways: Mapping[str, Callable[[], Any]], runs: int) -> list[dict[str, float]]:
                return [
                    {way: timing.seconds(ways[way], 1)[0] for way in random.sample(list(ways), len(ways))}
                    for _ in range(runs)
                ]

            first = turns(ways, WARM)
            for run in ways.values():
                timing.check(run())
            found = turns({**ways, **(by_hand or {})}, 8 * repeats + 1)
            for name, dispatcher in ours.items():
                seconds, report = [turn[name] for turn in found], dispatcher.report
                timing.tell(name, timing.thousands(median(seconds)))
                timing.tell(f"{name}: slowest run", timing.thousands(max(seconds)))
                timing.tell(f"{name}: first runs s", [round(turn[name], 4) for turn in first])
                timing.tell(f"{name}: way", report.way)
                chunks = sorted({each.stop - each.start for each in report.rows}, reverse=True)[:4]
                timing.tell(f"{name}: chunks", chunks)
            return found
    except Exception as error:
        traceback.print_exc()
        for name in devices:
            timing.tell(name, 0.0)
            timing.tell(f"{name}: error", f"{type(error).__name__}: {error}")
        return []


def _compare(turns: list[dict[str, float]], timing: Timing) -> None:
    if not turns:
        return
    limits = (max(turn["computing alone"], turn["copying alone"]) / turn["ours"] for turn in turns)
    calls = (turn["one pinned call"] / turn["ours"] for turn in turns)
    timing.tell("ours over the limit", round(median(limits), 3))
    timing.tell("ours over one pinned call", round(median(calls), 3))


def small() -> dict[str, Any]:
    """Microseconds over the direct call for small batches that are on the device, each waited for."""
    found = {}
    for rows in (10, 1_000, 100_000):
        x = torch.rand(rows, 8, device=GPU)
        for name, devices in (("", GPU), (", with the CPU", BOTH)):
            with Dispatcher(torch.sin, devices, cache=False) as dispatcher:
                for _ in range(WARM):
                    dispatcher.run(x)
                direct: list[float] = []
                ours: list[float] = []
                for _ in range(300):
                    for times, call in ((direct, torch.sin), (ours, dispatcher.run)):
                        torch.cuda.synchronize()
                        begun = time.perf_counter()
                        call(x)
                        torch.cuda.synchronize()
                        times.append(time.perf_counter() - begun)
            found[f"{rows} rows{name}"] = {
                "direct us": round(1e6 * median(direct), 1),
                "over it us": round(1e6 * (median(ours) - median(direct)), 1),
            }
    return found
