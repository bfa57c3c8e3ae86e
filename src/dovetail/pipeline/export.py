"""A plan as what other engines run, and what of it they cannot take: PyTorch, llama.cpp, vLLM, exo.

The flags and interfaces are those of the versions named in `VERSIONS`, read in their sources.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Source, as_path
from dovetail.core.files.output import atomic_write, refuse_overwrite
from dovetail.pipeline.language.shape import language_model
from dovetail.pipeline.models.spec import ModelSpec, model_spec
from dovetail.pipeline.plan import Plan, read_plan

Engine = Literal["torch", "llama.cpp", "vllm", "exo"]
VERSIONS = {
    "torch": "torch.distributed.pipelining of PyTorch 2.13",
    "llama.cpp": "llama.cpp b10586",
    "vllm": "vLLM 0.26.1rc0 (a014e35)",
    "exo": "exo 1.0.71 (b5375f8)",
}
_RPC_PORT = 50052
_EXO_URL = "http://localhost:52415"


class Export(Struct, frozen=True):
    """What to run, for which version, and what of the plan is lost on the way."""

    to: Engine
    version: str
    text: str
    losses: list[str]


def export(
    plan: Plan | Source,
    *,
    to: Engine,
    model: str | None = None,
    config: Source | None = None,
    argument: Mapping[str, Any] | None = None,
    shape: Sequence[Sequence[int]] = (),
    input_dtype: str = "",
    weights: str | os.PathLike[str] | None = None,
    seed: int = 0,
    cut: Literal["auto", "sequential", "graph"] = "auto",
    out: str | os.PathLike[str] | None = None,
) -> Export:
    """A plan as a script or a command of another engine, with what is lost in translation.

    `model` is for `torch` what `dovetail pipeline run` takes (with the arguments that follow), for the others what the
    engine calls the model. These need a language model: a plan of `plan_generation`, or its `config`.

    >>> from dovetail.pipeline.plan import Stage
    >>> stages = [Stage(host=h, type="t", layers=layers, compute_s=1.0, send_s=0.0, send_bits=32, mem_mib=1.0,
    ...     mem_limit_mib=2.0, utilisation=1.0) for h, layers in (("a", (1, 3)), ("b", (4, 6)))]
    >>> made = Plan(model="m", objective="throughput", method="exact", batch_size=1, bottleneck_s=1.0, latency_s=2.0,
    ...     throughput_items_s=1.0, value=1.0, bound_s=1.0, optimal=True, binding="", stages=stages)
    >>> small = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2,
    ...     "intermediate_size": 8, "vocab_size": 8}
    >>> print(export(made, to="vllm", config=small).text)
    VLLM_PP_LAYER_PARTITION=2,2 vllm serve m --pipeline-parallel-size 2 --tensor-parallel-size 1
    """
    if to not in get_args(Engine):
        raise InputError(f"--to {to}: expected one of {', '.join(get_args(Engine))}{did_you_mean(str(to), VERSIONS)}")
    if out is not None:
        refuse_overwrite([as_path(out, "out")], _files(plan, config, weights, model))
    made = read_plan(plan)
    replicated = next((stage for stage in made.stages if stage.replicas), None)
    if replicated is not None:
        raise InputError(
            f"--to {to}: replicas taking turns at a stage ({' + '.join(replicated.hosts)}) are not known there"
        )
    losses = []
    if any(stage.send_bits != 32 for stage in made.stages[:-1]):
        losses.append("values are sent as they are, not narrower as planned")
    if to == "torch":
        if model is None:
            raise InputError("--to torch: expected --model, as of dovetail pipeline run")
        spec = model_spec(
            model, argument=argument, shape=shape, input_dtype=input_dtype, weights=weights, seed=seed, cut=cut
        )
        text = _torch(made, spec, losses)
    else:
        blocks = _blocks(made, config, to)
        text = {"llama.cpp": _llama_cpp, "vllm": _vllm, "exo": _exo}[to](made, blocks, model or made.model, losses)
    found = Export(to, VERSIONS[to], text, losses)
    if out is not None:
        atomic_write(as_path(out, "out"), text if text.endswith("\n") else f"{text}\n")
    return found


def _files(*given: Any) -> list[Path]:
    """What is read: files, and of the folder of a model its configuration."""
    paths = [Path(_without_name(each)) for each in given if isinstance(each, str | os.PathLike)]
    return [path / "config.json" if path.is_dir() else path for path in paths]


def _without_name(given: str | os.PathLike[str]) -> str:
    """The file or folder in what names a model: hf:FOLDER, FILE.py:NAME."""
    text = os.fspath(given).removeprefix("hf:")
    return text.rpartition(":")[0] if ".py:" in text else text


def _blocks(made: Plan, config: Source | None, to: str) -> list[int]:
    """How many blocks of a language model each stage has; the embedding goes with the first and the head with the last,
    as these engines have it."""
    layers = made.stages[-1].layers[1]
    if config is not None and language_model(config).layers != layers:
        known = language_model(config)
        raise InputError(f"--config: {known.name} has {known.layers} layers, the plan is for {layers}")
    if config is None and made.generation is None:
        raise InputError(f"--to {to} is for language models: expected a plan of plan-generation, or --config")
    counts = [min(last, layers - 1) - max(first, 2) + 1 for first, last in (stage.layers for stage in made.stages)]
    for stage, count in zip(made.stages, counts, strict=True):
        if count < 1:
            raise InputError(f"--to {to}: the stage on {stage.host} has no block; plan without --split-ends")
    return counts


def _widths(made: Plan) -> list[int]:
    return made.generation.widths if made.generation is not None else [1] * len(made.stages)


def _vllm(made: Plan, blocks: list[int], model: str, losses: list[str]) -> str:
    widths = _widths(made)
    if len(set(widths)) > 1:
        raise InputError(f"--to vllm: one tensor-parallel size is for all stages there; the plan has {widths}")
    words = [
        "vllm",
        "serve",
        model,
        "--pipeline-parallel-size",
        str(len(blocks)),
        "--tensor-parallel-size",
        str(widths[0]),
    ]
    told = made.generation
    if told is not None:
        words += ["--max-model-len", str(told.context), "--max-num-seqs", str(told.concurrency)]
        losses.append(f"the {told.groups} planned groups: vLLM fills its own batches, one for each stage at most")
        losses.append("the stage with the least room for keys and values sets how many contexts fit in all")
    hosts = ", ".join(stage.host for stage in made.stages)
    losses.append(f"hosts: ranks go to the devices in the order of the Ray or torchrun nodes; start them as {hosts}")
    return f"VLLM_PP_LAYER_PARTITION={','.join(map(str, blocks))} {shlex.join(words)}"


def _llama_cpp(made: Plan, blocks: list[int], model: str, losses: list[str]) -> str:
    if max(_widths(made)) > 1:
        raise InputError("--to llama.cpp: tensor-parallel groups inside a pipeline are not known there")
    # A share is of the blocks and the output, which comes last; llama.cpp's own rounding gives these back exactly.
    shares = [*blocks[:-1], blocks[-1] + 1]
    servers = [f"{stage.host}:{_RPC_PORT}" for stage in made.stages]
    words = ["llama-server", "-m", model, "--n-gpu-layers", str(sum(shares)), "--split-mode", "layer"]
    words += ["--rpc", ",".join(servers), "--device", ",".join(f"RPC{i}" for i in range(len(servers)))]
    words += ["--tensor-split", ",".join(map(str, shares))]
    told = made.generation
    if told is not None:
        words += ["--ctx-size", str(told.context * told.concurrency), "--parallel", str(told.concurrency)]
    if len(made.stages) > 1:
        losses.append(
            "stages work one after another: RPC devices have no asynchronous copies, so groups do not overlap"
        )
        losses.append("values pass from host to host by way of the main host, not over the planned links")
    losses.append("the embedding is computed on the main host's processor")
    losses.append("each server is taken to show one device; RPC is neither encrypted nor authenticated")
    start = f"ggml-rpc-server --host 0.0.0.0 --port {_RPC_PORT}"
    hosts = " ".join(", ".join(stage.host for stage in made.stages).split())
    return f"# on each of {hosts}: {start}\n{shlex.join(words)}"


def _exo(made: Plan, blocks: list[int], model: str, losses: list[str]) -> str:
    if max(_widths(made)) > 1:
        raise InputError("--to exo: tensor-parallel groups inside a pipeline are not known there")
    losses.append("the order of the nodes: exo chooses a ring; if it is not the plan's, the script changes nothing")
    losses.append("limits on context and concurrency, and groups: exo has none of them")
    shards, at = [], 0
    for stage, count in zip(made.stages, blocks, strict=True):
        shards.append((stage.host, at, at + count))
        at += count
    return _EXO_SCRIPT.format(model=model, url=_EXO_URL, shards=shards, version=VERSIONS["exo"])


_EXO_SCRIPT = '''"""Place a model on exo's nodes by a plan: python this_file.py. Made for {version}."""

import json
import urllib.parse
import urllib.request

URL = "{url}"
MODEL = {model!r}
SHARDS = {shards!r}  # node (its id or its friendly name), first block, the one after the last


def ask(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {{"Content-Type": "application/json"}})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


names = {{node: each.get("friendlyName", node) for node, each in ask("/state")["nodeIdentities"].items()}}
query = urllib.parse.urlencode({{"model_id": MODEL, "sharding": "Pipeline", "min_nodes": len(SHARDS)}})
instance = ask("/instance/placement?" + query)
(placed,) = instance.values()
shards = placed["shardAssignments"]
by_node = {{
    node: next(iter(shards["runnerToShard"][runner].values())) for node, runner in shards["nodeToRunner"].items()
}}
order = sorted(by_node, key=lambda node: by_node[node]["deviceRank"])
if len(order) != len(SHARDS) or any(host not in (node, names.get(node)) for node, (host, _, _) in zip(order, SHARDS)):
    chosen, wanted = [names.get(node, node) for node in order], [host for host, _, _ in SHARDS]
    raise SystemExit(f"exo would use {{chosen}}, the plan has {{wanted}}: nothing was changed")
for node, (_, first, last) in zip(order, SHARDS):
    by_node[node].update(startLayer=first, endLayer=last)
print(ask("/instance", {{"instance": instance}})["message"])
'''


def _torch(made: Plan, spec: ModelSpec, losses: list[str]) -> str:
    if max(_widths(made)) > 1:
        raise InputError("--to torch: tensor-parallel groups inside a pipeline are not written out")
    if Path(spec.source).suffix == ".onnx":
        raise InputError(f"--to torch: {spec.source} is run by onnxruntime, not by PyTorch")
    losses.append("planning again when a process dies or is slow, and the planned buffers between stages")
    losses.append("a short last microbatch: the batch is a multiple of the microbatches")
    if made.generation is not None:
        losses.append("keys and values: a pass is over whole sequences, as a prefill")
    spec = _from_anywhere(spec)
    given = ", ".join(f"{key}={getattr(spec, key)!r}" for key in spec.__struct_fields__)
    return _TORCH_SCRIPT.format(
        version=VERSIONS["torch"],
        count=len(made.stages),
        hosts=[stage.host for stage in made.stages],
        stages=[stage.layers for stage in made.stages],
        spec=given,
        dtype=made.problem.dtype if made.problem is not None else "torch.float32",
        size=made.batch_size,
    )


def _from_anywhere(spec: ModelSpec) -> ModelSpec:
    """The same model for a process in whatever folder."""
    source, weights = spec.source, spec.weights
    if source.startswith("hf:"):
        source = f"hf:{Path(source.removeprefix('hf:')).resolve()}"
    elif ".py:" in source:
        file, _, factory = source.rpartition(":")
        source = f"{Path(file).resolve()}:{factory}"
    return replace(spec, source=source, weights=weights and str(Path(weights).resolve()))


_TORCH_SCRIPT = '''"""A model in {count} stages, by a plan; with {version}.

    torchrun --nproc-per-node {count} this_file.py --input input.pt --output output.pt

Rank 0 is the first stage, and so on. On several machines give torchrun --nnodes, --node-rank and --rdzv-endpoint.
Input and output are tensors of torch.save with a row per item; without --input random ones are made.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec

HOSTS = {hosts!r}
STAGES = {stages!r}  # first and last layer of each
MODEL = ModelSpec({spec})
DTYPE = {dtype!r}
MICROBATCH = {size}


class Part(torch.nn.Module):
    def __init__(self, chain, layers, device):
        super().__init__()
        self.run = chain.part(*layers, device, DTYPE)

    def forward(self, *values):
        out = self.run(values[0] if len(values) == 1 else values)
        return tuple(each.clone() for each in out) if isinstance(out, tuple) else out.clone()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--input")
    parser.add_argument("--output")
    parser.add_argument("--microbatches", type=int, default=len(STAGES))
    parser.add_argument("--backend", default="nccl" if torch.cuda.is_available() else "gloo")
    given = parser.parse_args()
    device = f"cuda:{{os.environ['LOCAL_RANK']}}" if given.backend == "nccl" else "cpu"
    dist.init_process_group(given.backend)
    rank = dist.get_rank()
    if dist.get_world_size() != len(STAGES):
        raise SystemExit(f"expected {{len(STAGES)}} processes, one for each stage, found {{dist.get_world_size()}}")
    chain = load(MODEL)
    stage = PipelineStage(Part(chain, STAGES[rank], device), rank, len(STAGES), torch.device(device))
    values = ()
    if rank == 0:
        value = torch.load(given.input) if given.input else chain.inputs(MICROBATCH * given.microbatches, DTYPE)
        values = tuple(each.to(device) for each in (value if isinstance(value, tuple) else (value,)))
    with torch.no_grad():
        out = ScheduleGPipe(stage, given.microbatches).step(*values)
    if rank == len(STAGES) - 1 and given.output:
        torch.save(out, given.output)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
'''
