"""The same batch in several ways, in one run: a plain call, two threads by hand, joblib, Dask, Ray Data, a dispatcher.

Five functions whose rows are independent of each other. Every way gives the whole result, which is compared with that
of the plain call. All ways are warm: pools are there and sizes were found. They take turns, so that what else the
machine does disturbs all alike. A ratio is the median over the turns of a way's rate by that of the plain call in the
same turn; CPU seconds are those of the process and of its ended or living children.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from dovetail.dispatch import Device, Dispatcher

WARM = 4  # runs of a dispatcher, which finds sizes in them, before it counts; of others one
_LEAST = 3  # turns, however long they take
TWO = 2  # threads, processes and devices
PEERS = ("joblib", "dask", "ray")
_TICK = os.sysconf("SC_CLK_TCK")


# -- five functions and a batch for each


def numpy_rows(x: np.ndarray[Any, Any]) -> Any:
    """Element by element, then a small product: numpy holds Python's lock for neither."""
    return np.sqrt(np.sin(x) ** 2 + np.exp(-x)) @ np.full((x.shape[1], 4), 0.25)


def torch_rows(x: torch.Tensor) -> torch.Tensor:
    """An implicit update as material models have it: a few Newton steps with six unknowns."""
    matrix = torch.full((6, 6), 0.1) + torch.eye(6)
    s = x
    for _ in range(4):
        jacobian = torch.eye(6) + matrix * (3 * s**2).unsqueeze(-2)
        s = s - torch.linalg.solve_ex(jacobian, (s + (s**3) @ matrix.T - x).unsqueeze(-1))[0].squeeze(-1)
    return s


def pandas_rows(frame: Any) -> Any:
    """Text, dates and numbers of a table: most of it holds Python's lock."""
    return frame.assign(
        word=frame["text"].str.upper().str.slice(0, 4),
        month=frame["at"].dt.month,
        score=(frame["x"] * 2 + 1).clip(0, 3).round(3),
    )


class Transformer:
    """A small encoder with random weights; tokens in, one vector for each text out."""

    def __init__(self) -> None:
        transformers: Any = import_module("transformers")
        torch.manual_seed(1)
        config = transformers.BertConfig(
            vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
        )
        self.model = transformers.BertModel(config, add_pooling_layer=False).eval()

    def __call__(self, tokens: Any) -> Any:
        with torch.inference_mode():
            return self.model(torch.as_tensor(tokens)).last_hidden_state.mean(1).clone()


def image_rows(files: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Decode JPEG and make it smaller."""
    from PIL import Image

    found = np.empty((len(files), 64, 64, 3), dtype=np.uint8)
    for i, file in enumerate(files):
        with Image.open(io.BytesIO(file)) as image:
            found[i] = np.asarray(image.convert("RGB").resize((64, 64)))
    return found


def _pictures(n: int) -> np.ndarray[Any, Any]:
    from PIL import Image

    made = np.empty(n, dtype=object)
    random = np.random.default_rng(1)
    kinds = []
    for _ in range(8):
        small = random.integers(0, 255, (24, 32, 3), dtype=np.uint8)
        with io.BytesIO() as file:
            Image.fromarray(small).resize((320, 240)).save(file, "jpeg")
            kinds.append(file.getvalue())
    made[:] = [kinds[i % 8] for i in range(n)]
    return made


def _frame(n: int) -> Any:
    pandas = import_module("pandas")
    random = np.random.default_rng(1)
    text = np.array([f"row {i} of some text" for i in range(1000)], dtype=object)
    at = pandas.Timestamp("2026-01-01") + pandas.to_timedelta(random.integers(0, 300, n), unit="D")
    return pandas.DataFrame({"text": text[random.integers(0, 1000, n)], "at": at, "x": random.random(n)})


class Problem(NamedTuple):
    """A function and its batch."""

    function: Any
    batch: Any


def problems(scale: float) -> dict[str, Callable[[], Problem]]:
    """By name; each is made when its turn comes."""

    def n(items: int) -> int:
        return max(64, int(items * scale))

    return {
        "numpy": lambda: Problem(numpy_rows, np.random.default_rng(1).random((n(400_000), 16))),
        "torch": lambda: Problem(torch_rows, torch.rand(n(100_000), 6)),
        "pandas": lambda: Problem(pandas_rows, _frame(n(1_000_000))),
        "transformer": lambda: Problem(Transformer(), torch.randint(0, 1000, (n(256), 32))),
        "images": lambda: Problem(image_rows, _pictures(n(200))),
    }


# -- ways to run a batch


def _parts(batch: Any, parts: int) -> list[Any]:
    cuts = [len(batch) * i // parts for i in range(parts + 1)]
    rows = batch.iloc if hasattr(batch, "iloc") else batch
    return [rows[a:b] for a, b in pairwise(cuts)]


def _joined(results: list[Any]) -> Any:
    if isinstance(results[0], torch.Tensor):
        return torch.cat(results)
    if isinstance(results[0], np.ndarray):
        return np.concatenate(results)
    return import_module("pandas").concat(results)


Way = Callable[[], Any]


def _by_hand(problem: Problem, stack: ExitStack) -> Way:
    from concurrent.futures import ThreadPoolExecutor

    pool = stack.enter_context(ThreadPoolExecutor(TWO))
    return lambda: _joined(list(pool.map(problem.function, _parts(problem.batch, TWO))))


def _joblib(backend: str, problem: Problem, stack: ExitStack) -> Way:
    joblib = import_module("joblib")
    pool = stack.enter_context(joblib.Parallel(n_jobs=TWO, backend=backend))
    call = joblib.delayed(problem.function)
    return lambda: _joined(pool(call(part) for part in _parts(problem.batch, 2 * TWO)))


def _dask(problem: Problem, stack: ExitStack) -> Way:
    dask = import_module("dask")
    call = dask.delayed(problem.function, pure=False)
    stack.enter_context(dask.config.set(scheduler="threads", num_workers=TWO))
    return lambda: _joined(dask.compute(*[call(part) for part in _parts(problem.batch, 2 * TWO)]))


def _ray_data(problem: Problem, stack: ExitStack) -> Way:
    """Blocks in Ray's store, batches as numpy or pandas, results brought back in order."""
    data = import_module("ray.data")
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    context.execution_options.preserve_order = True
    function, batch = problem.function, problem.batch
    frames = hasattr(batch, "iloc")
    made = type(batch) if isinstance(batch, torch.Tensor) else None

    def call(rows: Any) -> Any:
        if frames:
            return function(rows)
        work = torch.as_tensor(rows["data"]) if made is not None else rows["data"]
        return {"data": np.asarray(function(work))}

    def run() -> Any:
        pieces = _parts(batch, 2 * TWO)
        given = data.from_pandas(pieces) if frames else data.from_numpy([np.asarray(piece) for piece in pieces])
        done = given.map_batches(call, batch_size=None, batch_format="pandas" if frames else "numpy")
        if frames:
            return done.to_pandas()
        found = np.concatenate([block["data"] for block in done.iter_batches(batch_size=None, batch_format="numpy")])
        return torch.from_numpy(found) if made is not None else found

    return run


def _dispatcher(backend: str, problem: Problem, stack: ExitStack) -> Way:
    devices = [Device(f"cpu {i}", where="cpu") for i in range(TWO)]
    made = stack.enter_context(Dispatcher(problem.function, devices, backend=backend, cache=False))
    return lambda: made.run(problem.batch)


def _one_device(problem: Problem, stack: ExitStack) -> Way:
    made = stack.enter_context(Dispatcher(problem.function, "cpu", cache=False))
    return lambda: made.run(problem.batch)


WAYS: dict[str, Callable[[Problem, ExitStack], Way]] = {
    "plain call": lambda problem, stack: lambda: problem.function(problem.batch),
    "two threads by hand": _by_hand,
    "joblib threads": partial(_joblib, "threading"),
    "joblib processes": partial(_joblib, "loky"),
    "dask threads": _dask,
    "ray data": _ray_data,
    "dispatcher, one device": _one_device,
    "dispatcher, two threads": partial(_dispatcher, "thread"),
    "dispatcher, two processes": partial(_dispatcher, "process"),
}


# -- measuring


def cpu_seconds() -> float:
    """Of this process and of all below it, ended or not; Ray's are not below it."""
    children: dict[int, list[int]] = {}
    used: dict[int, float] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            words = stat.read_text().rpartition(")")[2].split()
            pid = int(stat.parent.name)
            children.setdefault(int(words[1]), []).append(pid)
            used[pid] = sum(map(int, words[11:15])) / _TICK
    total, left = 0.0, [os.getpid()]
    while left:
        pid = left.pop()
        total += used.get(pid, 0.0)
        left += children.get(pid, [])
    return total


def _same(found: Any, expected: Any) -> bool:
    if hasattr(expected, "equals"):
        return bool(found.reset_index(drop=True).equals(expected.reset_index(drop=True)))
    return np.allclose(np.asarray(found), np.asarray(expected), atol=1e-5)


def compare(problem: Problem, ways: list[str], repeats: int, limit_s: float) -> dict[str, Any]:
    """Seconds and CPU seconds of every way, and its rate over that of the plain call; fewer turns if they take long."""
    seconds: dict[str, list[float]] = {}
    used: dict[str, list[float]] = {}
    wrong: dict[str, str] = {}
    with ExitStack() as stack:
        ready: dict[str, Way] = {}
        expected = problem.function(problem.batch)
        for way in ways:
            try:
                run = WAYS[way](problem, stack)
                for _ in range(WARM if way.startswith("dispatcher") else 1):
                    found = run()
                if not _same(found, expected):
                    raise AssertionError("another result")
                ready[way] = run
            except Exception as error:
                wrong[way] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        ends_s = time.perf_counter() + limit_s
        for turn in range(repeats):
            if turn >= _LEAST and time.perf_counter() > ends_s:
                break
            for way, run in ready.items():
                before, begun = cpu_seconds(), time.perf_counter()
                run()
                seconds.setdefault(way, []).append(time.perf_counter() - begun)
                used.setdefault(way, []).append(cpu_seconds() - before)
    plain = seconds["plain call"]
    turns = len(plain)
    table: dict[str, Any] = {}
    for way, times in seconds.items():
        ratios = sorted(one / other for one, other in zip(plain, times, strict=True))
        table[way] = {
            "seconds": round(median(times), 4),
            "cpu seconds": round(median(used[way]), 3),
            "rate over the plain call": round(median(ratios), 3),
            "from": round(ratios[0], 3),
            "to": round(ratios[-1], 3),
        }
    ours = {way: row["rate over the plain call"] for way, row in table.items() if way.startswith("dispatcher")}
    theirs = {way: row["rate over the plain call"] for way, row in table.items() if way not in ours}
    first, other = max(theirs, key=lambda way: theirs[way]), max(ours, key=lambda way: ours[way])
    both = sorted(one / two for one, two in zip(seconds[first], seconds[other], strict=True))
    summary = {"fastest peer": first, "our fastest": other, "ours over the fastest peer": round(median(both), 3)}
    return {**summary, "turns": turns, "ways": table, **({"failed": wrong} if wrong else {})}


@contextmanager
def _ray() -> Iterator[None]:
    ray = import_module("ray")
    ray.init(num_cpus=TWO, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


def peers(
    repeats: int, scale: float = 1.0, only: Sequence[str] = (), leave_out: Sequence[str] = (), limit_s: float = 60.0
) -> dict[str, Any]:
    """All ways on all problems; a peer that is not installed is left out and named."""
    versions = {name: version(name) for name in ("numpy", "torch", "pandas", "transformers", "pillow")}
    missing = []
    for peer in PEERS:
        try:
            import_module("ray.data" if peer == "ray" else peer)
            versions[peer] = version(peer)
        except ImportError:
            missing.append(peer)
    left = [way for way in WAYS if way.split()[0] not in (*missing, *leave_out)]
    found: dict[str, Any] = {"versions": versions, "not installed": missing}
    with _ray() if "ray data" in left else ExitStack():
        for name, make in problems(scale).items():
            if not only or name in only:
                found[name] = compare(make(), left, repeats, limit_s)
                print(name, found[name], file=sys.stderr, flush=True)  # it takes a while
    rows = [row for row in found.values() if isinstance(row, dict) and "ways" in row]
    found["ours over the fastest peer, least"] = min(row["ours over the fastest peer"] for row in rows)
    found["functions where ours is ahead"] = sum(row["ours over the fastest peer"] > 1 for row in rows)
    return found
