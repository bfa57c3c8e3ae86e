"""Generation, predicted and measured: a language model profiled, planned and run over unlike devices. Prints JSON.

    python -m bench.pipeline_generate           two processes on a core each, one with half of its time (as root)
    python -m bench.pipeline_generate --gpu     a 7B-shaped model over two unequal parts of one GPU's memory

The weights are random. Every process is profiled as it will run: prefill and decode, layer by layer. The plan is that
of most tokens per second; its prediction stands beside what came, and the tokens beside those of the plain model. On a
GPU both stages compute on the same device, so one group of requests is under way: then no stage waits for the other,
and a token takes the sum of both. There the tokens stand beside those of the same model in one stage, decoded in the
same group: a group of another size may round otherwise.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec

from bench import show
from bench.pipeline_live import loopback_mbps
from dovetail.core.cgroups import CpuShare
from dovetail.pipeline import load_generation, plan_generation, profile_generation
from dovetail.pipeline.live import run_plan
from dovetail.pipeline.live.hosts import HostSettings
from dovetail.pipeline.live.prompts import Prompts
from dovetail.pipeline.live.results import LiveResult
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec
from dovetail.pipeline.plan import Plan

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
SEED = 1
BEGIN_S = time.monotonic()


class Setting(NamedTuple):
    """A model, the devices that it is cut for, and what is asked of it."""

    config: dict[str, Any]
    hosts: dict[str, HostSettings]
    mib: dict[str, int]
    prompt: int
    tokens: int
    requests: int
    alike: bool = False  # all hosts are the same device

    @property
    def dtype(self) -> str:
        return f"torch.{self.config['torch_dtype']}"


def parts_of(device: str) -> dict[str, HostSettings]:
    return {"large": HostSettings(device=device), "small": HostSettings(device=device)}


SETTINGS = {
    "shares": Setting(SMALL, SHARES, {"whole": 4096, "half": 4096}, 64, 48, 6),
    # Both parts are needed for 13.5 GB of weights and the caches.
    "gpu": Setting(LARGE, parts_of("cuda:0"), {"large": 12_000, "small": 7_000}, 512, 256, 8, alike=True),
    "rehearsal": Setting(
        SMALL | {"torch_dtype": "bfloat16"}, parts_of("cpu"), {"large": 40, "small": 30}, 16, 8, 4, alike=True
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", nargs=2, metavar=("HOST", "FOLDER"), help="measure as this host, and print it")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--gpu", dest="name", action="store_const", const="gpu", help="a 7B-shaped model on one GPU")
    which.add_argument(
        "--rehearse", dest="name", action="store_const", const="rehearsal", help="what --gpu does, small, without one"
    )
    parser.add_argument("--runs", type=int, default=1, help="so many runs of the plan")
    arguments = parser.parse_args()
    name = arguments.name or "shares"
    if arguments.profile:
        host, folder = arguments.profile
        print(json.dumps(measure(Path(folder), SETTINGS[name], host)))
        return
    with tempfile.TemporaryDirectory() as folder:
        show(compare(Path(folder), name, arguments.runs))


def compare(folder: Path, name: str, runs: int) -> dict[str, Any]:
    setting = SETTINGS[name]
    config, hosts = setting.config, setting.hosts
    (folder / "config.json").write_text(json.dumps(config))
    if setting.alike:
        note("weights")
        write_weights(folder, setting)
    note("profiles")
    first = next(iter(hosts))
    profiles = {host: profile_as(host, folder, name) for host in ([first] if setting.alike else hosts)}
    profiles = {host: profiles.get(host, profiles[first]) for host in hosts}
    mbps = loopback_mbps()
    spec = spec_of(folder, setting)
    plan = planned(setting, profiles, mbps, setting.mib)
    generated = plan.generation
    assert generated is not None
    prompts = [
        [(31 * i + 7 * j) % config["vocab_size"] for j in range(setting.prompt)] for i in range(setting.requests)
    ]
    outcomes = []
    for number in range(runs):
        note(f"run {number + 1} of {runs}")
        outcomes.append(run(plan, spec, setting, prompts))
        note(f"{steady(outcomes[-1]):.3f} tokens/s, {generated.tokens_s:.3f} predicted")
    note("the tokens of the model in one piece")
    if setting.alike:
        enough = dict.fromkeys(hosts, 2 * sum(setting.mib.values()))
        alone = run(planned(setting, profiles, mbps, enough), spec, setting, prompts)
        expected, alone_s = alone.outputs, steady(alone)
    else:
        expected, alone_s = plain(spec, prompts, setting.tokens), None
    busy = {host: max(each.get("busy", 0.0) for each in found) for host, found in profiles.items()}
    rates = [steady(outcome) for outcome in outcomes]
    judged = next((outcome.cannot_be_judged for outcome in outcomes if outcome.cannot_be_judged), "")
    figures = outcomes[0].generation
    assert figures is not None
    return {
        "model": f"Llama, {config['num_hidden_layers']} blocks, {config['hidden_size']} wide, random weights",
        "hosts": {host: msgspec.to_builtins(settings) for host, settings in hosts.items()},
        "hardware": outcomes[0].hardware,
        "layers": {stage.host: list(stage.layers) for stage in plan.stages},
        "groups": generated.groups,
        "requests": setting.requests,
        "profiled_s": {
            host: {
                f"{each['phase']} {each['tokens']} x {each['batch_size']}": (sum(each["time_s"]), each["stage_s"])
                for each in found
            }
            for host, found in profiles.items()
        },
        "loopback_mbps": round(mbps),
        "predicted_tokens_s": round(generated.tokens_s, 3),
        "runs_tokens_s": [round(rate, 3) for rate in rates],
        "measured_tokens_s": round(median(rates), 3),
        "predicted_and_measured": [[round(generated.tokens_s, 3), round(rate, 3)] for rate in rates],
        "difference_percent": round(100 * (generated.tokens_s / median(rates) - 1), 2),
        "step_s": {"predicted": generated.step_s} | parts_of_a_step(outcomes[0]),
        "step_difference_percent": round(100 * (generated.step_s / (figures.step_s or 1.0) - 1), 2),
        "predicted_first_token_s": generated.ttft_s,
        "soonest_first_token_s": figures.soonest_first_token_s,
        "first_token_s": figures.first_token_s,
        "overall_tokens_s": round(figures.tokens_s, 3),
        "in_one_piece_tokens_s": alone_s,
        "tokens_are_the_model_s": all(outcome.outputs == expected for outcome in outcomes),
        "first_other_tokens": [first_other(outcome.outputs, expected) for outcome in outcomes],
        "busy_profiles": busy,
        "cannot_be_judged": judged or ("profiles were disturbed" if any(busy.values()) else ""),
    }


def note(what: str) -> None:
    """How far it is, on standard error."""
    print(f"{time.monotonic() - BEGIN_S:7.1f} s  {what}", file=sys.stderr, flush=True)


def spec_of(folder: Path, setting: Setting) -> ModelSpec:
    return ModelSpec(source=f"hf:{folder}", seed=SEED, weights=str(folder) if setting.alike else None)


def write_weights(folder: Path, setting: Setting) -> None:
    """Random weights in files of a layer each, made on the device: each stage then reads its own."""
    import torch
    from safetensors.torch import save_file

    device = next(iter(setting.hosts.values())).device or "cpu"
    random = torch.Generator(device).manual_seed(SEED)
    dtype = getattr(torch, setting.config["torch_dtype"])
    files: dict[str, str] = {}
    for at, tensors in enumerate(llama_tensors(setting.config)):
        made = {}
        for name, shape in tensors.items():
            empty = torch.empty(shape, dtype=dtype, device=device)
            made[name] = (empty.fill_(1) if len(shape) == 1 else empty.normal_(0, 0.02, generator=random)).cpu()
            files[name] = f"layer-{at}.safetensors"
        save_file(made, folder / f"layer-{at}.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))


def llama_tensors(config: dict[str, Any]) -> Iterator[dict[str, tuple[int, ...]]]:
    """The shapes of a Llama's tensors, layer by layer."""
    hidden, wide, vocabulary = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size"))
    yield {"model.embed_tokens.weight": (vocabulary, hidden)}
    for i in range(config["num_hidden_layers"]):
        block = {f"self_attn.{name}_proj": (hidden, hidden) for name in "qkvo"}
        block |= {"mlp.gate_proj": (wide, hidden), "mlp.up_proj": (wide, hidden), "mlp.down_proj": (hidden, wide)}
        norms = dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (hidden,))
        yield {f"model.layers.{i}.{name}.weight": shape for name, shape in (block | norms).items()}
    yield {"model.norm.weight": (hidden,), "lm_head.weight": (vocabulary, hidden)}


def planned(setting: Setting, profiles: dict[str, list[dict[str, Any]]], mbps: float, mib: dict[str, int]) -> Plan:
    """The plan of most tokens per second, with so much memory for each host."""
    types = {
        host: {"bw_Mbps": mbps, "mem_MB": mib[host], "model_profiles": {"model": profiles[host]}}
        for host in setting.hosts
    }
    problem = load_generation(
        setting.config,
        types,
        {host: [host] for host in setting.hosts},
        model_name="model",
        prompt=setting.prompt,
        context=setting.prompt + setting.tokens,
        concurrency=setting.requests,
    )
    return plan_generation(problem, groups=1 if setting.alike else None)


def run(plan: Plan, spec: ModelSpec, setting: Setting, prompts: list[list[int]]) -> LiveResult:
    given = Prompts(prompts, spec)
    return run_plan(plan, spec, hosts=setting.hosts, prompts=given, max_new_tokens=setting.tokens)


def steady(outcome: LiveResult) -> float:
    """Tokens per second while all requests were being decoded."""
    assert outcome.generation is not None
    assert outcome.generation.steady_tokens_s is not None
    return outcome.generation.steady_tokens_s


def parts_of_a_step(outcome: LiveResult) -> dict[str, Any]:
    """Where the time of a group's step goes: what stages and links took, and what was predicted of them."""
    stages = outcome.stages
    return {
        "median": outcome.generation and outcome.generation.step_s,
        "computing": {stage.host: stage.compute_s for stage in stages},
        "predicted_computing": {stage.host: stage.predicted_compute_s for stage in stages},
        "sending": {stage.host: stage.send_s for stage in stages},
    }


def first_other(found: list[list[int]], expected: list[list[int]]) -> list[int | None]:
    """Of every request, which token is the first that another run has otherwise."""
    return [
        next((at for at, (ours, theirs) in enumerate(zip(*pair, strict=False)) if ours != theirs), None)
        for pair in zip(found, expected, strict=True)
    ]


def profile_as(host: str, folder: Path, name: str) -> list[dict[str, Any]]:
    """The profile of a host, measured by a process that is confined as the host will be."""
    words = [sys.executable, "-m", "bench.pipeline_generate", "--profile", host, str(folder)]
    chosen = {"gpu": ["--gpu"], "rehearsal": ["--rehearse"]}.get(name, [])
    done = subprocess.run([*words, *chosen], stdout=subprocess.PIPE, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def measure(folder: Path, setting: Setting, host: str) -> list[dict[str, Any]]:
    settings = setting.hosts[host]
    found = profile_generation(
        spec_of(folder, setting),
        prompt=setting.prompt,
        context=setting.prompt + setting.tokens,
        sequences=sorted({1, setting.requests // 2, setting.requests}),
        dtype=setting.dtype,
        device=settings.device or "cpu",
        threads=settings.threads,
        cores=settings.cores,
        seconds=0.1,
        hand_over=True,
    )
    scale = 1.0 if settings.share is None else slowdown(settings.share)
    for profile in found:
        profile["time_s"] = [seconds * scale for seconds in profile["time_s"]]
    return found


def slowdown(share: float) -> float:
    """How many times as long a second of computing takes with a share of a core."""
    import os

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


def plain(spec: ModelSpec, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    """The tokens of the plain model's `generate`, for each prompt alone."""
    import torch

    chain = load(spec)
    whole = chain.decoder(1, len(chain.layers)).model
    found = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        made = whole.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False)
        found.append(made[0, len(prompt) :].tolist())
    return found


if __name__ == "__main__":
    main()
