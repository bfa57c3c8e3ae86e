"""What a step of generation takes between the processes that compute it: measured by short runs of a small model."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
from dovetail.pipeline.models.spec import ModelSpec
from dovetail.pipeline.plan import Constraints, Plan
from dovetail.pipeline.planner import plan

_BLOCKS = 2
_PROMPT, _TOKENS = 4, 64


class HandOver(NamedTuple):
    """Seconds of a step besides computing: once, from the last stage by way of the data host to the first, and for each
    stage, to take its values in and to hand them on."""

    once_s: float
    stage_s: float


def hand_over(
    width: int,
    dtype: str,
    sequences: int,
    device: str,
    threads: int | None = None,
    cores: Sequence[int] = (),
) -> HandOver:
    """Decode so many sequences of hidden values of this width in one process, then in two; of both, what is not
    computing tells what is once and what is for each stage."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": width,
        "intermediate_size": 64,
        "num_hidden_layers": _BLOCKS,
        "num_attention_heads": width // 64 if width % 64 == 0 else 1,
        "vocab_size": 64,
        "max_position_embeddings": _PROMPT + _TOKENS,
        "eos_token_id": None,
        "torch_dtype": dtype.removeprefix("torch."),
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        spec = ModelSpec(source=f"hf:{folder}")
        one, two = (_besides_s(spec, dtype, sequences, n, device, threads, tuple(cores)) for n in (1, 2))
    stage_s = max(two - one, 0.0)
    return HandOver(max(one - stage_s, 0.0), stage_s)


def _besides_s(
    spec: ModelSpec, dtype: str, sequences: int, stages: int, device: str, threads: int | None, cores: tuple[int, ...]
) -> float:
    """What a step takes in so many stages, less what these compute."""
    from dovetail.pipeline.live import run_plan
    from dovetail.pipeline.live.hosts import HostSettings
    from dovetail.pipeline.live.prompts import Prompts

    names = [f"stage {n + 1}" for n in range(stages)]
    layers = _BLOCKS + 2
    made = plan(
        Pipeline(
            model="small",
            layers=layers,
            mem_mib=[0.0] * layers,
            cut_bytes=[0] * (layers + 1),
            classes=[DeviceClass("stage", "stage", names, 1e6, 1e6, [1.0] * layers)],
            batch_size=sequences,
            dtype=dtype,
        ),
        "throughput",
        Constraints(first=names[0], last=names[-1]),
    )
    assert isinstance(made, Plan)
    settings = {name: HostSettings(device=device, threads=threads, cores=cores) for name in names}
    given = Prompts([[1] * _PROMPT] * sequences, spec)
    found = run_plan(made, spec, hosts=settings, prompts=given, max_new_tokens=_TOKENS, in_flight=1)
    figures = found.generation
    assert figures is not None
    assert figures.step_s is not None
    return figures.step_s - sum(stage.compute_s or 0.0 for stage in found.stages)
