"""Generation, predicted and measured: a language model profiled, planned and run over unlike devices. Prints JSON.

    python -m bench.pipeline_generate           two processes on a core each, one with half of its time (as root)
    python -m bench.pipeline_generate --gpu     a 7B-shaped model over two unequal parts of one GPU's memory

The weights are random. Every process is profiled as it will run: prefill and decode, layer by layer. The plan is that
of most tokens per second; its prediction stands beside what came, and the tokens beside those of the plain model (not
on a GPU: there a batch may round otherwise). On a GPU both stages compute on the same device, so one group of requests
is under way: then no stage waits for the other, and a token takes the sum of both.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from bench import show
from bench.pipeline_live import loopback_mbps
from dovetail.core.cgroups import CpuShare
from dovetail.pipeline import load_generation, plan_generation, profile_generation
from dovetail.pipeline.live import run_plan
from dovetail.pipeline.live.hosts import HostSettings
from dovetail.pipeline.live.prompts import Prompts
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec
from dovetail.pipeline.profile.measure import Effort

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 4096,
    "max_position_embeddings": 1024,
    "eos_token_id": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}
LARGE: dict[str, Any] = SMALL | {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}
SHARES = {
    "whole": HostSettings(cores=(0,), threads=1, device="cpu"),
    "half": HostSettings(cores=(1,), threads=1, share=0.5, device="cpu"),
}
GPU = {"large": HostSettings(device="cuda:0"), "small": HostSettings(device="cuda:0")}
GPU_MIB = {"large": 12_000, "small": 7_000}  # both are needed for 13.5 GB of weights and the caches
PROMPT, TOKENS, REQUESTS = 64, 48, 6
SEED = 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", nargs=2, metavar=("HOST", "FOLDER"), help="measure as this host, and print it")
    parser.add_argument("--gpu", action="store_true", help="a 7B-shaped model on one GPU")
    arguments = parser.parse_args()
    if arguments.profile:
        host, folder = arguments.profile
        print(json.dumps(measure(Path(folder), (GPU if arguments.gpu else SHARES)[host], arguments.gpu)))
        return
    with tempfile.TemporaryDirectory() as folder:
        show(compare(Path(folder), arguments.gpu))


def compare(folder: Path, gpu: bool) -> dict[str, Any]:
    config, hosts = (LARGE, GPU) if gpu else (SMALL, SHARES)
    (folder / "config.json").write_text(json.dumps(config))
    profiles = {host: profile_as(host, folder, gpu) for host in (["large"] if gpu else hosts)}
    if gpu:
        profiles["small"] = profiles["large"]  # the same device
    mbps = loopback_mbps()
    types = {
        host: {
            "bw_Mbps": mbps,
            "mem_MB": GPU_MIB[host] if gpu else 4096,
            "model_profiles": {"model": profiles[host]},
        }
        for host in hosts
    }
    problem = load_generation(
        config,
        types,
        {host: [host] for host in hosts},
        model_name="model",
        prompt=PROMPT,
        context=PROMPT + TOKENS,
        concurrency=REQUESTS,
    )
    plan = plan_generation(problem, groups=1 if gpu else None)
    spec = ModelSpec(source=f"hf:{folder}", seed=SEED)
    prompts = [[(31 * i + 7 * j) % config["vocab_size"] for j in range(PROMPT)] for i in range(REQUESTS)]
    outcome = run_plan(plan, spec, hosts=hosts, prompts=Prompts(prompts, spec), max_new_tokens=TOKENS)
    figures = outcome.generation
    assert figures is not None
    assert plan.generation is not None
    busy = {host: max(each.get("busy", 0.0) for each in found) for host, found in profiles.items()}
    steady = figures.steady_tokens_s
    return {
        "model": f"Llama, {config['num_hidden_layers']} blocks, {config['hidden_size']} wide, random weights",
        "hosts": {host: msgspec.to_builtins(settings) for host, settings in hosts.items()},
        "layers": {stage.host: list(stage.layers) for stage in plan.stages},
        "groups": plan.generation.groups,
        "requests": REQUESTS,
        "predicted_tokens_s": round(plan.generation.tokens_s, 3),
        "measured_tokens_s": None if steady is None else round(steady, 3),
        "difference_percent": None if steady is None else round(100 * (plan.generation.tokens_s / steady - 1), 2),
        "predicted_first_token_s": plan.generation.ttft_s,
        "first_token_s": figures.first_token_s,
        "overall_tokens_s": round(figures.tokens_s, 3),
        "tokens_are_the_model_s": None if gpu else outcome.outputs == plain(spec, prompts),
        "busy_profiles": busy,
        "cannot_be_judged": outcome.cannot_be_judged or ("profiles were disturbed" if any(busy.values()) else ""),
    }


def profile_as(host: str, folder: Path, gpu: bool) -> list[dict[str, Any]]:
    """The profile of a host, measured by a process that is confined as the host will be."""
    words = [sys.executable, "-m", "bench.pipeline_generate", "--profile", host, str(folder)]
    done = subprocess.run([*words, *(["--gpu"] if gpu else [])], stdout=subprocess.PIPE, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def measure(folder: Path, settings: HostSettings, gpu: bool) -> list[dict[str, Any]]:
    found = profile_generation(
        ModelSpec(source=f"hf:{folder}", seed=SEED),
        prompt=PROMPT,
        context=PROMPT + TOKENS,
        sequences=(1, REQUESTS // 2, REQUESTS),
        dtype="torch.bfloat16" if gpu else "torch.float32",
        device=settings.device or "cpu",
        threads=settings.threads,
        cores=settings.cores,
        effort=Effort(least=7, seconds=0.1),
    )
    scale = 1.0 if settings.share is None else slowdown(settings.share)
    for profile in found:
        profile["time_s"] = [seconds * scale for seconds in profile["time_s"]]
    return found


def slowdown(share: float) -> float:
    """How many times as long a second of computing takes with a share of a core."""
    import os
    import time

    def spin(seconds: float) -> float:
        begin_s, cpu_s = time.monotonic(), time.process_time()
        while time.process_time() - cpu_s < seconds:
            pass
        return time.monotonic() - begin_s

    alone_s = spin(0.5)
    limit = CpuShare(os.getpid(), share)
    try:
        return spin(0.5) / alone_s
    finally:
        limit.release()


def plain(spec: ModelSpec, prompts: list[list[int]]) -> list[list[int]]:
    """The tokens of the plain model's `generate`, for each prompt alone."""
    import torch

    chain = load(spec)
    whole = chain.decoder(1, len(chain.layers)).model
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = whole.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False)
        found.append(made[0, len(prompt) :].tolist())
    return found


if __name__ == "__main__":
    main()
