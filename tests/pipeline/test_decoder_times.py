"""Prefill and decode of a language model, measured layer by layer, as the planner of generation reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
from torch import nn

from dovetail import InputError, pipeline
from dovetail.pipeline.language import decoder_times
from dovetail.pipeline.models import decoder

CONFIGURATION: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "eos_token_id": None,
    "torch_dtype": "float32",
}


def test_from_a_model_to_a_plan_of_generation(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGURATION))
    found = pipeline.profile_generation(
        f"hf:{tmp_path}", prompt=8, context=16, sequences=(1, 4), warmup=0, repeats=2, seconds=0.001, calm_s=0
    )
    assert [(p["phase"], p["tokens"], p["batch_size"]) for p in found] == [
        ("prefill", 8, 1),
        ("decode", 16, 1),
        ("decode", 16, 4),
    ]
    assert all(len(p["time_s"]) == 4 and min(p["time_s"]) > 0 and p["stage_s"] > 0 for p in found)
    types = {"t": {"bw_Mbps": 1000, "mem_MB": 512, "model_profiles": {"m": found}}}
    load_of: dict[str, Any] = {"prompt": 8, "context": 16, "concurrency": 4}
    problem = pipeline.load_generation(CONFIGURATION, types, {"t": ["a", "b"]}, model_name="m", **load_of)
    plan = pipeline.plan_generation(problem)
    assert plan.generation is not None
    assert plan.generation.source == "measured"
    assert plan.generation.ttft_s == pytest.approx(sum(found[0]["time_s"]) + found[0]["stage_s"], rel=0.5)


def test_a_layer_takes_what_passes_until_the_next_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    embedding = nn.Linear(2, 2)
    now = iter([0.0, 16.0, 17.0, 49.0, 51.0, 55.0, 63.0])
    monkeypatch.setattr(decoder_times, "perf_counter", lambda: next(now))

    def run() -> None:
        value = embedding(torch.zeros(1, 2))
        for block in blocks:
            value = block(value)

    with decoder_times.LayerClock(embedding, blocks, torch.device("cpu")) as clock:
        assert clock.times(run) == [1.0, 2.0, 4.0, 8.0, 48.0]
    run()  # nothing is noted any more: there are no more times


def test_every_round_of_a_decode_has_a_length_of_its_own() -> None:
    """As in a run: what a kernel prepares for one length must not count for all."""
    seen: list[int] = []

    class Part:
        last_logits: ClassVar[dict[str, int]] = {}
        takes_positions = True

        def __call__(self, ids: Any, cache: Any, position_ids: Any = None) -> None:
            if position_ids is not None:
                seen.append(int(position_ids[0, 0]))
                assert ids.tolist() == [[seen[-1]]]

    step = decoder_times._stepper(Part(), torch.arange(6)[None])
    for _ in range(7):
        step()
    assert seen == [5, 4, 3, 2, 1, 1, 1]


def test_a_gpu_uses_no_attention_that_is_planned_for_every_length() -> None:
    backends: Any = torch.backends.cuda
    with decoder._attention(torch.device("cuda")):
        assert not backends.cudnn_sdp_enabled()
        assert backends.flash_sdp_enabled()


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"prompt": 0}, "--prompt: expected 1 or more, found 0"),
        ({"context": 1}, "--context: expected 2 or more, found 1"),
        ({"sequences": ()}, "--sequences: expected 1 or more, found none"),
        ({"dtype": "int8"}, "unknown dtype 'int8'"),
        ({"device": "gpu"}, "device 'gpu': expected cpu, cuda or cuda:N"),
    ],
)
def test_what_cannot_be_measured_is_told(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        pipeline.profile_generation("hf:nowhere", **asked)
