"""Weights that layers share are counted once by every stage that holds them, from the profile to the plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail import pipeline
from dovetail.core.errors import InputError
from dovetail.pipeline.profile.convert import to_models
from dovetail.pipeline.profile.files import profile_of, read_profiles, write_profiles

PROFILE = {"batch_size": 8, "dtype": "torch.float32", "time_s": [0.1, 0.1, 0.1]}
MODEL = {"layers": 3, "mem_MB": [10, 2, 11], "parameters_in": 0, "parameters_out": [0]}


def problem(memory: list[float], **changes: Any) -> pipeline.Pipeline:
    kinds = {
        f"k{i}": {"bw_Mbps": 100, "mem_MB": mib, "model_profiles": {"m": [PROFILE]}} for i, mib in enumerate(memory)
    }
    return pipeline.load({"m": MODEL | changes}, kinds, {kind: [f"host-{kind}"] for kind in kinds})


TIED = [{"layers": [1, 3], "mem_MB": 9}]


def test_a_stage_that_holds_both_holds_them_once() -> None:
    with pytest.raises(pipeline.InfeasibleError, match=r"the layers need 23\.0, all devices have 15\.0"):
        pipeline.plan(problem([15]))
    (stage,) = pipeline.plan(problem([15], tied=TIED)).stages
    assert stage.mem_mib == 14
    with pytest.raises(pipeline.InfeasibleError, match=r"the layers need 14\.0, all devices have 13\.0"):
        pipeline.plan(problem([13], tied=TIED))


def test_two_stages_hold_them_twice_and_a_device_without_memory_none() -> None:
    made = pipeline.plan(problem([12.5, 0, 13.5], tied=TIED))
    assert sorted(stage.mem_mib for stage in made.stages) in ([11, 12], [10, 13])
    assert "host-k1" not in made.hosts


@pytest.mark.parametrize(
    ("tied", "message"),
    [
        ([{"layers": [1, 4], "mem_MB": 1}], r"expected two or more different layers from 1 to 3, found \[1, 4\]"),
        ([{"layers": [1, 1], "mem_MB": 1}], r"expected two or more different layers"),
        ([{"layers": [2], "mem_MB": 1}], r"expected two or more different layers"),
        ([{"layers": [1, 2], "mem_MB": 3}], r"expected 0 to 2, what its layers hold, found 3"),
        ([{"layers": [1, 2], "mem_MB": -1}], r"expected 0 to 2"),
        ([{"layers": [1, 2], "mem_mb": 1}], r"mem_mb"),
    ],
)
def test_tied_weights_must_be_held_by_their_layers(tied: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        problem([50], tied=tied)


@pytest.mark.filterwarnings("ignore")
def test_a_profile_says_what_layers_share(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "vocab_size": 512,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (result,) = pipeline.profile(f"hf:{tmp_path}", model_name="tiny", shape=[(8,)], batch_size=2, estimate_for="h200")
    (group,) = result.tied
    assert (group.layers, group.mib) == ([1, 4], 512 * 64 * 4 / 2**20)
    assert result.profile[-1].shape_out == ((8, 512),)  # the logits
    assert result.profile[-1].memory_mib > group.mib
    write_profiles(tmp_path / "profile.yml", [profile_of(result)])
    read = read_profiles(tmp_path / "profile.yml")
    to_models(read, tmp_path / "models.yml")
    written = yaml.safe_load((tmp_path / "models.yml").read_text())["tiny"]
    assert written["tied"] == [{"layers": [1, 4], "mem_MB": group.mib}]
    (one,) = pipeline.profile(f"hf:{tmp_path}", model_name="tiny", shape=[(8,)], batch_size=2, repeats=1, seconds=0.001)
    assert one.tied == result.tied
    assert [layer.memory_mib for layer in one.profile] == [layer.memory_mib for layer in result.profile]
