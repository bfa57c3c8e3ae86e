"""Language models by roofline beside published measurements: how far off, and with fitted shares. Prints JSON.

    python -m bench.pipeline_llm                     splitwise-sim's prompt and token times, plans for public shapes
    python -m bench.pipeline_llm --only plans

The measurements (Patel et al., Splitwise, ISCA 2024; splitwise-sim's perf_model.csv) are of vLLM on DGX A100 and H100:
Llama 2 70B on 2, 4 and 8 GPUs, BLOOM 176B on 8; a prompt time and a time per token for each length of prompt and number
of requests at once. Half of them, every other one, is for fitting; errors are told of the other half.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from bench import show
from dovetail.pipeline import load_generation, plan_generation
from dovetail.pipeline.language.calibrate import MeasuredStep, ReachedShares, calibrate
from dovetail.pipeline.language.costs import Step
from dovetail.pipeline.language.shape import LanguageModel, language_model
from dovetail.pipeline.profile.roofline import PEAKS

ROOT = Path(__file__).parents[1]
TRACES = Path(os.environ.get("DOVETAIL_TRACES", ROOT / "../shared/traces")).resolve() / "splitwise"
EXAMPLES = ROOT / "examples" / "pipeline"
TOKENS = 128  # rows with more end early, nobody says where
LINKS = {"a100": 300e9, "h100": 450e9}  # NVLink of a DGX, bytes per second in one direction
# From the models' public configurations.
LLAMA2_70B = {
    "model_type": "llama",
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 32000,
    "torch_dtype": "float16",
}
BLOOM = {
    "model_type": "bloom",
    "hidden_size": 14336,
    "n_layer": 70,
    "num_attention_heads": 112,
    "vocab_size": 250880,
    "torch_dtype": "float16",
}
MODELS = {"llama2-70b": LLAMA2_70B, "bloom-176b": BLOOM}
ALL = ReachedShares(compute_share=1.0, memory_share=1.0, layer_s=0.0, latency_s=0.0)
HALF = ReachedShares(compute_share=0.5, memory_share=0.5, layer_s=0.0, latency_s=0.0)
PLANS = {
    "Llama 3 8B on 2 L4": ("llama-3-8b", {"l4": 2}, (1,)),
    "Llama 3 70B on 4 A100": ("llama-3-70b", {"a100": 4}, (1, 2, 4)),
    "Llama 3 70B on 4 A100 and 2 H100": ("llama-3-70b", {"a100": 4, "h100": 2}, (1, 2, 4)),
    "Mixtral 8x7B on 2 H100": ("mixtral-8x7b", {"h100": 2}, (1, 2)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=("roofline", "plans"), default=("roofline", "plans"))
    only = parser.parse_args().only
    found: dict[str, Any] = {}
    if "roofline" in only and (TRACES / "perf_model.csv").exists():
        found["roofline"] = {device: beside(device) for device in LINKS}
    elif "roofline" in only:
        found["roofline"] = {"skipped": "no traces"}
    if "plans" in only:
        found["plans"] = {title: planned(*case) for title, case in PLANS.items()}
        found["unproven"] = sum(not row["optimal"] for rows in found["plans"].values() for row in rows.values())
    show(found)


def read(device: str) -> dict[str, list[MeasuredStep]]:
    """Prompt and token times, each the median of its repetitions, in the order of the file's keys."""
    rows: defaultdict[tuple[str, int, int, int], list[tuple[float, float]]] = defaultdict(list)
    with (TRACES / "perf_model.csv").open() as file:
        for row in csv.DictReader(file):
            if row["hardware"] == f"{device}-80gb" and int(row["token_size"]) == TOKENS:
                width, prompt, requests = (int(row[name]) for name in ("tensor_parallel", "prompt_size", "batch_size"))
                rows[row["model"], width, prompt, requests].append(
                    (float(row["prompt_time"]) / 1000, float(row["token_time"]) / 1000)
                )
    models: dict[str, LanguageModel] = {name: language_model(config, name=name) for name, config in MODELS.items()}
    steps: dict[str, list[MeasuredStep]] = {"prompt": [], "token": []}
    for (name, width, prompt, requests), times in sorted(rows.items()):
        if (name, width, requests) == ("llama2-70b", 2, 64):
            continue  # its prompts take an eighth of those of 32 requests, and all of it 9 times as long: not one batch
        prompt_s, token_s = (median(each) for each in zip(*times, strict=True))
        steps["prompt"].append(MeasuredStep(models[name], Step(prompt, 0, requests), width, prompt_s))
        steps["token"].append(MeasuredStep(models[name], Step(1, prompt + TOKENS // 2, requests), width, token_s))
    return steps


def beside(device: str) -> dict[str, Any]:
    """How far published figures, half of them, and fitted shares are from what was measured, on the half kept back."""
    steps, peak, link = read(device), PEAKS[device], LINKS[device]
    fitted = calibrate(peak, link, [of for each in steps.values() for of in each[::2]])
    ways = {"published": ALL, "half": HALF, "fitted": fitted}
    llama = [of for each in steps.values() for of in each if of.model.name == "llama2-70b"]
    bloom = [of for each in steps.values() for of in each if of.model.name == "bloom-176b"]
    return {
        "measured": {kind: len(each) for kind, each in steps.items()},
        "error %": {
            kind: {way: round(100 * shares.error(peak, link, each[1::2]), 1) for way, shares in ways.items()}
            for kind, each in steps.items()
        },
        "worst factor, fitted": {kind: round(worst(fitted, device, each[1::2]), 2) for kind, each in steps.items()},
        "of BLOOM, fitted to Llama, %": round(100 * calibrate(peak, link, llama).error(peak, link, bloom), 1),
        "shares": {key: float(f"{getattr(fitted, key):.3g}") for key in fitted.__struct_fields__},
    }


def worst(shares: ReachedShares, device: str, steps: list[MeasuredStep]) -> float:
    ratios = [shares.seconds(PEAKS[device], LINKS[device], of) / of.seconds for of in steps]
    return max(max(ratio, 1 / ratio) for ratio in ratios)


def planned(config: str, pool: dict[str, int], widths: tuple[int, ...]) -> dict[str, Any]:
    """The best plan for public shapes, with the rates of the example's device types: for one request, and for 16."""
    hosts = {kind: [f"{kind}-{i}" for i in range(count)] for kind, count in pool.items()}
    rows = {}
    for requests in (1, 16):
        problem = load_generation(
            EXAMPLES / f"{config}.json",
            EXAMPLES / "gpu_types.yml",
            hosts,
            prompt=1024,
            context=4096,
            concurrency=requests,
            tensor_parallel=widths,
            links={"links": [link for link in _links() if link["from"] in pool], "latency_s": 2e-5},
        )
        made = plan_generation(problem, time_limit_s=30.0)
        told = made.generation
        assert told is not None
        rows[str(requests)] = {
            "tokens/s": round(told.tokens_s, 1),
            "ttft ms": round(1000 * told.ttft_s, 1),
            "groups": told.groups,
            "stages": [f"{stage.type}: {stage.layers[0]} to {stage.layers[1]}" for stage in made.stages],
            "optimal": made.optimal,
        }
    return rows


def _links() -> list[dict[str, Any]]:
    import yaml

    links: list[dict[str, Any]] = yaml.safe_load((EXAMPLES / "gpu_links.yml").read_text())["links"]
    return links


if __name__ == "__main__":
    main()
