"""Models of real size on one GPU: loads, calls, and a live run beside its simulation. Prints JSON.

    python -m bench.workflow_gpu --out gpu.json    about six minutes on an H200; 27 GB of disk
    python -m bench.workflow_gpu --tiny            the same on a processor, with tiny models

Weights are random, shapes are those of Qwen2.5 0.5B, 1.5B and 3B and Llama 3.1 8B, in bfloat16. Each is loaded from the
disk (its files dropped from the page cache before), from the page cache, and from host memory where it was kept; then
called alone, beside plain `generate` of transformers, and several at once. More models than fit into `--limit-mib` of
the GPU then serve a stream of requests under each policy, and the simulator runs the same requests with the rates that
were measured (`dovetail.testing.workflow.as_it_was`), and nine times more with times that are spread by 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from statistics import fmean, median
from threading import Event
from typing import Any

import torch

import dovetail
from bench import show
from dovetail import workflow
from dovetail.testing.workflow.as_it_was import simulations
from dovetail.testing.workflow.random_models import write_model
from dovetail.workflow.live.backends.torch_models import TorchBackEnd
from dovetail.workflow.live.protocol import ModelCall, OutOfMemoryError, ServedModel

SHAPES = ("0.5b", "1.5b", "3b", "8b")
AT_ONCE = (1, 2, 4, 8)
TINY: dict[str, dict[str, Any]] = {
    "0.5b": {"num_hidden_layers": 2},
    "1.5b": {"num_hidden_layers": 3},
    "3b": {"num_hidden_layers": 4, "hidden_size": 128},
    "8b": {"num_hidden_layers": 6, "hidden_size": 256},
}
MIB = 1 << 20
_GIB = {"0.5b": 0.92, "1.5b": 2.88, "3b": 5.75, "8b": 14.96}  # what a tiny one is taken for
_SPARE_GIB = 0.75  # for keys, values and what is computed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write it here too, part by part; journals of live runs beside it")
    parser.add_argument("--tiny", action="store_true", help="tiny models on the processor: only whether it works")
    parser.add_argument("--models", type=Path, help="folder for the models; a temporary one by default")
    parser.add_argument("--limit-mib", type=int, default=18_000, help="what all models may take of the GPU together")
    parser.add_argument("--requests", type=int, help="of each live run: 120, or 24 tiny ones")
    parser.add_argument("--policies", nargs="+", default=["dovetail", "srpt", "baseline"])
    parser.add_argument("--tokens", type=int, help="written by each measured call: 64, or 16 by a tiny one")
    given = parser.parse_args()
    given.requests = given.requests or (24 if given.tiny else 120)
    given.tokens = given.tokens or (16 if given.tiny else 64)
    found: dict[str, Any] = {"on": _machine(given.tiny), "limit_mib": given.limit_mib, "models": {}}
    with _folder(given.models) as folder:
        for part in (_write, _measure, _too_large, _live):
            began = time.perf_counter()
            try:
                part(found, folder, given)
            except Exception as error:  # what was measured so far is worth keeping
                found.setdefault("errors", {})[part.__name__] = f"{type(error).__name__}: {error}"
                print(f"{part.__name__} failed: {error}", file=sys.stderr, flush=True)
            found.setdefault("seconds", {})[part.__name__.strip("_")] = round(time.perf_counter() - began, 1)
            _keep(found, given)
    show(found)
    if "errors" in found:
        raise SystemExit(1)


def _keep(found: dict[str, Any], given: argparse.Namespace) -> None:
    if given.out is not None:
        given.out.write_text(json.dumps(found, indent=1, default=float))


@contextmanager
def _folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="dovetail-models-") as folder:
        yield Path(folder)


def _machine(tiny: bool) -> dict[str, Any]:
    import transformers

    about = {"torch": torch.__version__, "transformers": transformers.__version__, "cores": os.cpu_count()}
    if not tiny:
        about["gpu"] = torch.cuda.get_device_name()
        about["gpu_mib"] = torch.cuda.get_device_properties(0).total_memory // MIB
    return about


def _write(found: dict[str, Any], folder: Path, given: argparse.Namespace) -> None:
    for shape in SHAPES:
        began = time.perf_counter()
        path = folder / shape
        if not (path / "tokenizer_config.json").is_file():
            shutil.rmtree(path, ignore_errors=True)
            more = TINY[shape] if given.tiny else {}
            write_model(path, "tiny" if given.tiny else shape, dtype=torch.bfloat16, spread=0.05, **more)
        size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
        found["models"][shape] = {"gb": size / 1e9, "written_s": time.perf_counter() - began}
        _say(f"{shape}: {size / 1e9:.2f} GB written in {time.perf_counter() - began:.1f} s")


# --- loads and calls of each model ---------------------------------------------------------------------


def _measure(found: dict[str, Any], folder: Path, given: argparse.Namespace) -> None:
    device = "cpu" if given.tiny else "cuda:0"
    _warm_up(folder, device)
    for shape in SHAPES:
        about = found["models"][shape]
        model = ServedModel(name=shape, source={"path": str(folder / shape)}, slots=max(AT_ONCE))
        about.update(_loads(TorchBackEnd(model), folder / shape, device))
        about.update(_calls(TorchBackEnd(model), device, given.tokens))
        _keep(found, given)
        _say(f"{shape}: {json.dumps({k: round(v, 4) for k, v in about.items() if isinstance(v, float)})}")
    found["least_of_generate"] = min(about["of_generate"] for about in found["models"].values())
    found["most_left_mib"] = max(about["left_mib"] for about in found["models"].values())
    if not given.tiny:
        torch.cuda.empty_cache()


def _warm_up(folder: Path, device: str) -> None:
    """Imports, the device's context and its libraries are no model's to pay for."""
    back_end = TorchBackEnd(ServedModel(name="w", source={"path": str(folder / SHAPES[0])}))
    back_end.load([device])
    _ask(back_end, 8, 4)
    back_end.unload(keep=False)


def _loads(back_end: TorchBackEnd, path: Path, device: str) -> dict[str, Any]:
    before = _allocated(device)
    drop_from_page_cache(path)
    found: dict[str, Any] = {"cold_load_s": _timed(lambda: back_end.load([device]))}
    found["device_mib"] = back_end.memory().device_mib
    found["drop_s"] = _timed(lambda: back_end.unload(keep=False))
    found["page_cache_load_s"] = _timed(lambda: back_end.load([device]))
    keeps, reloads = [], []
    for _ in range(4):
        keeps.append(_timed(lambda: back_end.unload(keep=True)))
        reloads.append(_timed(lambda: back_end.load([device])))
    found |= {"keep_s": median(keeps), "reload_s": median(reloads), "reloads_s": reloads}
    back_end.unload(keep=False)
    found["left_mib"] = (_allocated(device) - before) / MIB
    for name in ("cold_load", "page_cache_load", "reload"):
        found[f"{name}_gb_s"] = found["device_mib"] * MIB / 1e9 / found[f"{name}_s"]
    return found


def drop_from_page_cache(path: Path) -> None:
    for file in path.glob("*.safetensors"):
        with file.open("rb") as opened:
            os.fdatasync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _calls(back_end: TorchBackEnd, device: str, tokens: int) -> dict[str, Any]:
    back_end.load([device])
    try:
        _ask(back_end, 128, 8)
        found: dict[str, Any] = {}
        ours, theirs, firsts = [], [], []
        for _ in range(5):
            first_s, _, whole_s = _ask(back_end, 128, tokens)
            firsts.append(first_s)
            ours.append(tokens / whole_s)
            theirs.append(tokens / _generate(back_end, 128, tokens, device))
        found |= {"ttft_s": median(firsts), "alone_tokens_s": median(ours), "generate_tokens_s": median(theirs)}
        found["of_generate"] = found["alone_tokens_s"] / found["generate_tokens_s"]
        long = 448 if back_end._built.config.max_position_embeddings < 2048 else 1900
        short_s, long_s = (median(_ask(back_end, size, 2)[0] for _ in range(3)) for size in (64, long))
        found["prefill_tokens_s"] = max((long - 64) / max(long_s - short_s, 1e-9), 1.0) if long_s > short_s else 1e6
        found["at_once"] = {}
        for count in AT_ONCE:
            with ThreadPoolExecutor(count) as threads:
                began = time.perf_counter()
                asked = list(threads.map(lambda _: _ask(back_end, 128, tokens), range(count)))
                whole_s = time.perf_counter() - began
            each = median((tokens - 1) / rest_s for _, rest_s, _ in asked)
            found["at_once"][count] = {"tokens_s": count * tokens / whole_s, "each_tokens_s": each}
        return found
    finally:
        back_end.unload(keep=False)


def _ask(back_end: TorchBackEnd, read: int, write: int) -> tuple[float, float, float]:
    """Seconds to the first token, from there to the last, and in all."""
    times = [time.perf_counter()]
    call = ModelCall(
        id="x",
        model=back_end.model.name,
        inputs={"prompt": prompt_of(read)},
        options={"max_tokens": write, "ignore_eos": True},
        stream=True,
    )
    answer = back_end.call(call, lambda text, count: times.append(time.perf_counter()), Event())
    ended = time.perf_counter()
    assert (answer.read, answer.written) == (read, write), answer
    return times[1] - times[0], max(ended - times[1], 1e-9), ended - times[0]


def prompt_of(tokens: int) -> str:
    """A prompt of exactly so many tokens: characters that the small tokenizer never joins."""
    return "0" * tokens


def _generate(back_end: TorchBackEnd, read: int, write: int, device: str) -> float:
    model = back_end._built
    ids = torch.full((1, read), 20, device=device)
    began = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=write,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return time.perf_counter() - began


def _too_large(found: dict[str, Any], folder: Path, given: argparse.Namespace) -> None:
    """A model that does not fit is refused with sizes, leaves nothing behind, and a smaller one goes on."""
    if given.tiny:
        found["too_large"] = "only on a GPU"
        return
    before = _allocated("cuda:0")
    limits = {"memory_limit_mib": 8_000}
    large, small = (
        TorchBackEnd(ServedModel(name=shape, source={"path": str(folder / shape)}, options=limits))
        for shape in ("8b", "0.5b")
    )
    try:
        large.load(["cuda:0"])
        told = "it was loaded"
    except OutOfMemoryError as error:
        told = str(error)
    left = (_allocated("cuda:0") - before) / MIB
    small.load(["cuda:0"])
    _ask(small, 16, 4)
    small.unload(keep=False)
    torch.cuda.set_per_process_memory_fraction(1.0)
    found["too_large"] = {"told": told, "left_mib": left}


def _allocated(device: str) -> int:
    return torch.cuda.memory_allocated() if device != "cpu" else 0


def _timed(act: Callable[[], None]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# --- a live run beside its simulation --------------------------------------------------------------------


def _live(found: dict[str, Any], folder: Path, given: argparse.Namespace) -> None:
    """The same requests under each policy: for real, and simulated with what was measured of each model before;
    and what the run itself measured, simulated by a scheduler that learns as the live one did."""
    config, rows = _configuration(found, folder, given), _requests(found, given)
    (folder / "live.json").write_text(json.dumps(config))
    (folder / "requests.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    problem = workflow.load(folder / "live.json", folder / "requests.jsonl", mode="online")
    found["live"] = {}
    for policy in given.policies:
        journal = (
            folder / f"{policy}.jsonl" if given.out is None else given.out.with_name(f"{given.out.stem}-{policy}.jsonl")
        )
        journal.unlink(missing_ok=True)
        run = workflow.run_live(problem, policy, journal=journal, device="cpu" if given.tiny else "cuda")
        about: dict[str, Any] = {"live": _figures(run.metrics)}
        found["live"][policy] = about
        about["simulated"] = _figures(workflow.run(problem, policy).metrics)
        names = ("makespan_s", "avg_request_s", "p99_request_s", "switches")
        (seen,), spread = simulations(journal, 1, 0.0), simulations(journal)
        about["simulated_as_seen"] = {name: seen[name] for name in names}
        about["live_over_as_seen"] = {name: about["live"][name] / seen[name] for name in names[:3]}
        about["live_over_nine_spread"] = {
            name: about["live"][name] / fmean(run[name] for run in spread) for name in names[:3]
        }
        checked = dovetail.check_journal(journal)
        about |= {"valid": checked.valid, "faults": [repr(fault) for fault in checked.faults[:5]]}
        _keep(found, given)
        _say(f"{policy}: {json.dumps(about, default=float)}")


def _figures(metrics: Any) -> dict[str, Any]:
    names = ("completed", "rejected", "failures", "makespan_s", "avg_request_s", "median_request_s", "p99_request_s")
    more = ("avg_ttft_s", "p99_ttft_s", "avg_tpot_s", "output_tokens_per_s", "loads", "load_time_s", "switches")
    return {name: metrics.get(name) for name in names + more}


def _configuration(found: dict[str, Any], folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    models, switches = {}, []
    limit = {} if given.tiny else {"memory_limit_mib": given.limit_mib}
    for shape in SHAPES:
        about = found["models"][shape]
        alone = about["at_once"][1]["each_tokens_s"]
        curve = {n: min(one["each_tokens_s"] / alone, 1.0) for n, one in about["at_once"].items()}
        memory_gb = _GIB[shape] if given.tiny else about["device_mib"] / 1024
        models[shape] = {
            "source": {"path": str(folder / shape), "options": limit},
            "memory_gb": memory_gb + _SPARE_GIB,
            "gpus_required": 1,
            "load_time_seconds": about["page_cache_load_s"],
            "prefill_tokens_per_second": about["prefill_tokens_s"],
            "tokens_per_second": alone,
            "max_concurrency": max(AT_ONCE),
            "concurrency_curve": curve,
            "token_mean": 32,
            "input_token_mean": 128,
        }
        switches.append({"from": "host memory", "to": shape, "device": "gpu", "seconds": about["reload_s"]})
    workflows: dict[str, Any] = {f"ask-{shape}": {"nodes": [{"id": "answer", "model": shape}]} for shape in SHAPES}
    judge = {"id": "judge", "model": "8b", "prompt": prompt_of(64) + "{text}"}
    workflows["review"] = {
        "nodes": [{"id": "draft", "model": "1.5b"}, judge],
        "edges": [{"from": "draft", "to": "judge"}],
    }
    (folder / "rates.json").write_text(json.dumps({"switches": switches}))
    return {
        "models": models,
        "workflows": workflows,
        "gpu_types": {"gpu": {"memory_gb": given.limit_mib / 1024}},
        "gpus": 1,
        "costs": {"resident": "memory", "dram_gb": 100, "pcie_gb_s": 1e5, "ssd_gb_s": 1e5, "overhead_s": 0.1},
        "rates": "rates.json",
    }


def _requests(found: dict[str, Any], given: argparse.Namespace) -> list[dict[str, Any]]:
    """A Poisson stream that keeps two and a half calls busy at a time, if each were alone; seeded."""
    random = Random(14)
    rows: list[dict[str, Any]] = []
    at_s = 0.0
    for number in range(given.requests):
        name = random.choices([*(f"ask-{shape}" for shape in SHAPES), "review"], (4, 3, 3, 3, 2))[0]
        nodes = {"draft": "1.5b", "judge": "8b"} if name == "review" else {"answer": name.removeprefix("ask-")}
        written = {node: random.randint(16, 48) for node in nodes}
        alone_s = sum(written[node] / found["models"][model]["alone_tokens_s"] for node, model in nodes.items())
        at_s += random.expovariate(1.0) * alone_s / 2.5
        rows.append(
            {
                "request_id": f"r{number}",
                "workflow_id": name,
                "timestamp": at_s,
                "input_data": {"prompt": prompt_of(128)},
                "node_configs": {node: {"max_tokens": n, "ignore_eos": True} for node, n in written.items()},
                "node_tokens": {node: {"input": 128, "output": n} for node, n in written.items()},
            }
        )
    return rows


if __name__ == "__main__":
    main()
