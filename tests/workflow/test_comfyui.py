"""ComfyUI workflows become valid configurations in which everything left keeps its order."""

from __future__ import annotations

import json
import zlib
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.generate import generate
from dovetail.workflow.inputs.importers.comfyui import import_comfyui
from dovetail.workflow.inputs.importers.comfyui_figures import SD15, SDXL, part_of, size_of, step_s
from dovetail.workflow.inputs.importers.common import Imported, Names, bridge, find_cycle
from dovetail.workflow.inputs.requests import Requests
from dovetail.workflow.inputs.system import System

Edge = tuple[str, str]
Drawn = list[tuple[int, str, list[Any], list[tuple[str, int, int, str]]]]

# The usual text-to-image graph: number, type, values, inputs as (name, from, slot, type).
GRAPH: Drawn = [
    (4, "CheckpointLoaderSimple", ["sub/SD-XL 1.0.safetensors"], []),
    (10, "LoraLoader", ["style.safetensors", 1.0, 1.0], [("model", 4, 0, "MODEL"), ("clip", 4, 1, "CLIP")]),
    (7, "CLIPTextEncode", ["blurry"], [("clip", 10, 1, "CLIP")]),
    (6, "CLIPTextEncode", ["a lighthouse"], [("clip", 10, 1, "CLIP")]),
    (5, "EmptyLatentImage", [512, 768, 1], []),
    (
        3,
        "KSampler",
        [42, "fixed", 20, 7.5, "euler", "normal", 1.0],
        [
            ("model", 10, 0, "MODEL"),
            ("positive", 6, 0, "CONDITIONING"),
            ("negative", 7, 0, "CONDITIONING"),
            ("latent_image", 5, 0, "LATENT"),
        ],
    ),
    (8, "VAEDecode", [], [("samples", 3, 0, "LATENT"), ("vae", 4, 2, "VAE")]),
    (9, "SaveImage", ["comfyui"], [("images", 8, 0, "IMAGE")]),
]
_NAMED = {
    "CheckpointLoaderSimple": ["ckpt_name"],
    "LoraLoader": ["lora_name", "strength_model", "strength_clip"],
    "CLIPTextEncode": ["text"],
    "EmptyLatentImage": ["width", "height", "batch_size"],
    "KSampler": ["seed", "", "steps", "cfg", "sampler_name", "scheduler", "denoise"],
    "SaveImage": ["filename_prefix"],
    "UNETLoader": ["unet_name"],
    "PrimitiveBoolean": ["value"],
    "PrimitiveInt": ["value"],
    "PrimitiveFloat": ["value"],
    "ComfyMathExpression": ["expression"],
    "EmptyHunyuanLatentVideo": ["width", "height"],
}


def ui(graph: Drawn = GRAPH) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    links: list[list[Any]] = []
    given: dict[int, dict[int, str]] = {}
    for _, _, _, inputs in graph:
        for _, source, slot, type_ in inputs:
            given.setdefault(source, {})[slot] = type_
    for number, kind, values, inputs in graph:
        entries = []
        for slot, (name, source, source_slot, type_) in enumerate(inputs):
            links.append([len(links) + 1, source, source_slot, number, slot, type_])
            entries.append({"name": name, "type": type_, "link": len(links)})
        slots = given.get(number, {})
        outputs = [{"name": "", "type": slots.get(slot, "*")} for slot in range(max(slots, default=-1) + 1)]
        nodes.append({"id": number, "type": kind, "widgets_values": values, "inputs": entries, "outputs": outputs})
    return {"last_node_id": 99, "nodes": nodes, "links": links, "version": 0.4}


def api(graph: Drawn = GRAPH) -> dict[str, Any]:
    made = {}
    for number, kind, values, inputs in graph:
        given_values = {name: value for name, value in zip(_NAMED.get(kind, []), values, strict=False) if name}
        links = {name: [str(source), slot] for name, source, slot, _ in inputs}
        made[str(number)] = {"class_type": kind, "inputs": given_values | links}
    return made


def write(folder: Path, data: Any, name: str = "flow.json") -> Path:
    file = folder / name
    file.write_text(json.dumps(data, indent=1))
    return file


def validated(found: Imported, folder: Path) -> System:
    """Reads what was imported as a user would, and generates from it."""
    (folder / "config.json").write_text(json.dumps(found.config))
    (folder / "requests.json").write_text(json.dumps({"requests": found.requests}))
    system = read_system(folder / "config.json")
    read = Requests(folder / "requests.json", system)
    assert len(read) == len(found.requests)
    assert not read.warnings
    assert len(list(generate(system, requests=5, rate=1, seed=1))) == 5
    return system


def edges_of(found: Imported, workflow: str = "flow") -> set[Edge]:
    return {(edge["from"], edge["to"]) for edge in found.config["workflows"][workflow]["edges"]}


def models_of(found: Imported, workflow: str = "flow") -> dict[str, str]:
    return {node["id"]: node["model"] for node in found.config["workflows"][workflow]["nodes"]}


# --- the usual graph ----------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [ui(), api(), {"prompt": api()}], ids=["ui", "api", "posted"])
def test_both_formats_give_the_same_workflow(data: Any, tmp_path: Path) -> None:
    found = import_comfyui([write(tmp_path, data)])
    validated(found, tmp_path)
    assert models_of(found) == {
        "cliptextencode_7": "sd_xl_1_0_clip",
        "cliptextencode_6": "sd_xl_1_0_clip",
        "ksampler_3": "sd_xl_1_0",
        "vaedecode_8": "sd_xl_1_0_vae",
    }
    assert edges_of(found) == {
        ("cliptextencode_6", "ksampler_3"),
        ("cliptextencode_7", "ksampler_3"),
        ("ksampler_3", "vaedecode_8"),
    }
    assert found.dropped == {"LoraLoader": 1, "EmptyLatentImage": 1, "SaveImage": 1}
    (row,) = found.requests
    assert row["input_data"] == {"user_prompt": "a lighthouse"}
    assert row["node_configs"]["ksampler_3"] == {"seed": 42, "steps": 20, "cfg": 7.5}


def test_figures_follow_names_and_settings(tmp_path: Path) -> None:
    found = import_comfyui([write(tmp_path, ui())])
    system = validated(found, tmp_path)
    sampler, encoder, decoder = (system.models[f"sd_xl_1_0{part}"] for part in ("", "_clip", "_vae"))
    assert [one.type for one in (sampler, encoder, decoder)] == ["image_generation", "embedding", "image_processing"]
    assert [one.memory_gb for one in (sampler, encoder, decoder)] == [5.14, 1.64, 0.33]
    assert sampler.load_time_seconds == round(5.14 / 16 + 2, 3)
    assert sampler.config == {"steps": [20], "cfg": [7.5]}
    seconds = found.requests[0]["node_execution_times"]["ksampler_3"]
    assert seconds == pytest.approx(0.05 + 20 * 2 * step_s(SDXL, 512, 768, 1))  # steps, and a negative prompt
    assert (sampler.inference_time_mean, sampler.inference_time_std) == (seconds, seconds / 10)


def test_a_kept_loader_shares_the_model_of_its_sampler_and_comes_first(tmp_path: Path) -> None:
    found = import_comfyui([write(tmp_path, ui())], keep_loaders=True)
    validated(found, tmp_path)
    models = models_of(found)
    assert models["checkpointloadersimple_4"] == models["ksampler_3"] == "sd_xl_1_0"
    assert ("checkpointloadersimple_4", "ksampler_3") in edges_of(found)  # through the LoraLoader, which is dropped
    assert found.requests[0]["node_execution_times"]["checkpointloadersimple_4"] == 0.1


def test_kept_utilities_need_no_gpu(tmp_path: Path) -> None:
    found = import_comfyui([write(tmp_path, ui())], keep_utility=True)
    system = validated(found, tmp_path)
    assert found.dropped == {"LoraLoader": 1}
    assert {("emptylatentimage_5", "ksampler_3"), ("vaedecode_8", "saveimage_9")} <= edges_of(found)
    assert models_of(found)["saveimage_9"] == "utility"
    assert (system.models["utility"].gpus_required, system.models["utility"].load_time_seconds) == (0, 0)
    assert found.requests[0]["node_configs"]["emptylatentimage_5"] == {"width": 512, "height": 768}


def test_notes_tell_what_became_of_the_rest(tmp_path: Path) -> None:
    file = write(tmp_path, ui())
    assert import_comfyui([file]).notes == [
        f"{file}: became models, not nodes: CheckpointLoaderSimple",
        f"{file}: left out, with the order of the rest kept: LoraLoader, EmptyLatentImage, SaveImage",
    ]


# --- what is a model ----------------------------------------------------------------------------------


def test_several_files_share_models_and_each_is_a_workflow(tmp_path: Path) -> None:
    files = [write(tmp_path, ui(), "First One!.json"), write(tmp_path, api(), "second.json")]
    (tmp_path / "again").mkdir()
    files.append(write(tmp_path / "again", ui(), "second.json"))
    found = import_comfyui(files)
    validated(found, tmp_path)
    assert list(found.config["workflows"]) == ["first_one", "second", "second_2"]
    assert list(found.config["models"]) == ["sd_xl_1_0_clip", "sd_xl_1_0", "sd_xl_1_0_vae"]
    assert [row["request_id"] for row in found.requests] == ["req_0001", "req_0002", "req_0003"]
    assert found.dropped["SaveImage"] == 3


FLUX: Drawn = [
    (1, "UNETLoader", ["flux1-dev.safetensors", "default"], []),
    (2, "DualCLIPLoader", ["t5xxl_fp16.safetensors", "clip_l.safetensors", "flux"], []),
    (3, "VAELoader", ["ae.safetensors"], []),
    (4, "CLIPTextEncode", ["a cat"], [("clip", 2, 0, "CLIP")]),
    (5, "FluxGuidance", [3.5], [("conditioning", 4, 0, "CONDITIONING")]),
    (6, "BasicGuider", [], [("model", 1, 0, "MODEL"), ("conditioning", 5, 0, "CONDITIONING")]),
    (10, "BasicScheduler", ["simple", 28, 1.0], [("model", 1, 0, "MODEL")]),
    (11, "EmptySD3LatentImage", [1024, 512, 1], []),
    (
        7,
        "SamplerCustomAdvanced",
        [],
        [
            ("noise", 9, 0, "NOISE"),
            ("guider", 6, 0, "GUIDER"),
            ("sigmas", 10, 0, "SIGMAS"),
            ("latent_image", 11, 0, "LATENT"),
        ],
    ),
    (8, "VAEDecode", [], [("samples", 7, 0, "LATENT"), ("vae", 3, 0, "VAE")]),
    (9, "RandomNoise", [123, "fixed"], []),
    (12, "PreviewImage", [], [("images", 8, 0, "IMAGE")]),
]


def test_separate_weights_are_separate_models_and_what_only_prepares_is_left_out(tmp_path: Path) -> None:
    found = import_comfyui([write(tmp_path, ui(FLUX))])
    system = validated(found, tmp_path)
    assert models_of(found) == {
        "cliptextencode_4": "t5xxl_fp16_clip_l",
        "samplercustomadvanced_7": "flux1_dev",
        "vaedecode_8": "ae",
    }
    assert edges_of(found) == {
        ("cliptextencode_4", "samplercustomadvanced_7"),
        ("samplercustomadvanced_7", "vaedecode_8"),
    }
    assert system.models["t5xxl_fp16_clip_l"].memory_gb == pytest.approx(2 * (4.8 + 0.12))
    flux = size_of("flux1-dev", "model").family
    times = found.requests[0]["node_execution_times"]
    assert times["samplercustomadvanced_7"] == pytest.approx(0.05 + 28 * step_s(flux, 1024, 512, 1))  # one guider, once


def test_a_large_video_model_is_large(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "UNETLoader", ["wan2.1_t2v_14B_fp16.safetensors", "default"], []),
        (2, "EmptyHunyuanLatentVideo", [832, 480, 81, 1], []),
        (3, "KSampler", [1, "fixed", 30, 6.0], [("model", 1, 0, "MODEL"), ("latent_image", 2, 0, "LATENT")]),
        (4, "SaveLatent", [], [("samples", 3, 0, "LATENT")]),
    ]
    system = validated(import_comfyui([write(tmp_path, ui(graph))]), tmp_path)
    model = system.models["wan2_1_t2v_14b_fp16"]
    assert (model.type, model.memory_gb) == ("video_generation", 28)
    assert (model.inference_time_mean or 0) > 300


def test_control_nets_and_upscalers_run_their_own_weights(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "ControlNetLoader", ["canny.pth"], []),
        (2, "VAELoader", ["ae.safetensors"], []),
        (6, "CLIPLoader", ["clip_l.safetensors"], []),
        (7, "CLIPTextEncode", ["x"], [("clip", 6, 0, "CLIP")]),
        (
            3,
            "ControlNetApplyAdvanced",
            [1.0],
            [
                ("positive", 7, 0, "CONDITIONING"),
                ("vae", 2, 0, "VAE"),
                ("control_net", 1, 0, "CONTROL_NET"),
            ],
        ),
        (8, "UNETLoader", ["sdxl.safetensors"], []),
        (9, "KSampler", [0, "fixed", 10, 1.0], [("model", 8, 0, "MODEL"), ("positive", 3, 0, "CONDITIONING")]),
        (10, "VAEDecode", [], [("samples", 9, 0, "LATENT"), ("vae", 2, 0, "VAE")]),
        (4, "UpscaleModelLoader", ["4x.pth"], []),
        (5, "ImageUpscaleWithModel", [], [("upscale_model", 4, 0, "UPSCALE_MODEL"), ("image", 10, 0, "IMAGE")]),
        (11, "SaveImage", [], [("images", 5, 0, "IMAGE")]),
    ]
    found = import_comfyui([write(tmp_path, ui(graph))])
    validated(found, tmp_path)
    models = models_of(found)
    assert (models["controlnetapplyadvanced_3"], models["imageupscalewithmodel_5"]) == ("canny", "4x")


# --- what a node is -------------------------------------------------------------------------------------

OWN_TYPES: Drawn = [  # a pack with types of its own
    (1, "NewModelLoader", ["new_5B_fp8.safetensors"], []),
    (2, "NewTextLoader", ["t5xxl_fp8.safetensors"], []),
    (3, "NewEncode", ["a cat"], [("t5", 2, 0, "NEWTEXTENCODER")]),
    (4, "NewTorchCompile", [], [("model", 1, 0, "NEWVIDEOMODEL")]),
    (5, "NewSampler", [], [("model", 4, 0, "NEWVIDEOMODEL"), ("text_embeds", 3, 0, "NEWEMBEDS")]),
    (6, "NewVideoCombine", [], [("images", 5, 0, "IMAGE")]),
    (7, "NewArgs", [], []),
]


@pytest.mark.parametrize("form", [ui, api])
def test_a_pack_that_nobody_knows_is_understood_by_its_links(form: Any, tmp_path: Path) -> None:
    found = import_comfyui([write(tmp_path, form(OWN_TYPES))])
    system = validated(found, tmp_path)
    if form is ui:
        assert models_of(found) == {"newencode_3": "t5xxl_fp8", "newsampler_5": "new_5b_fp8"}
        assert system.models["new_5b_fp8"].memory_gb == 5
    else:  # without types and values, by the names of inputs
        assert set(models_of(found)) == {"newencode_3", "newsampler_5"}
    assert edges_of(found) == {("newencode_3", "newsampler_5")}


def test_a_node_with_weights_of_its_own_is_work(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "LoadImage", ["face.png"], []),
        (2, "SwapFaces", ["inswapper_128.onnx"], [("image", 1, 0, "IMAGE")]),
        (3, "SaveImage", [], [("images", 2, 0, "IMAGE")]),
    ]
    found = import_comfyui([write(tmp_path, ui(graph))])
    assert models_of(found) == {"swapfaces_2": "inswapper_128"}
    assert any("time not known, counted as one pass of its weights: SwapFaces 2" in note for note in found.notes)


def test_an_outside_service_takes_no_gpu(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "KlingTextToVideoNode", ["a cat"], []),
        (2, "SaveVideo", [], [("video", 1, 0, "VIDEO")]),
        (3, "GeminiImageNode", ["a dog"], []),
        (4, "SaveImage", [], [("images", 3, 0, "IMAGE")]),
    ]
    found = import_comfyui([write(tmp_path, ui(graph))])
    system = validated(found, tmp_path)
    assert {one.gpus_required for one in system.models.values()} == {0}
    assert {one.type for one in system.models.values()} == {"cloud"}
    service = "an outside service, without a GPU; its time is not known"
    assert found.notes[-1].endswith(f"{service}: KlingTextToVideoNode (120 s), GeminiImageNode (20 s)")


def test_what_is_not_in_the_file_is_said(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "UNETLoader", ["my own mix.safetensors"], []),
        (2, "NewSampler", [], [("model", 1, 0, "MODEL")]),
        (3, "SaveLatent", [], [("samples", 2, 0, "LATENT")]),
    ]
    notes = "\n".join(import_comfyui([write(tmp_path, ui(graph))]).notes)
    assert "size not in its name, taken as for SDXL, 5.1 GB: my own mix" in notes
    assert "resolution not in the file, taken as 1024 x 1024: NewSampler 2" in notes
    assert "steps not in the file, taken as 20: NewSampler 2" in notes


def test_a_vae_without_anything_to_encode_or_decode_is_idle(tmp_path: Path) -> None:
    graph: Drawn = [
        *GRAPH,
        (20, "EmptyLatentAudio", [], [("audio_vae", 4, 2, "VAE")]),
        (21, "SaveLatent", [], [("samples", 20, 0, "LATENT")]),
    ]
    assert "emptylatentaudio_20" not in models_of(import_comfyui([write(tmp_path, ui(graph))]))


def test_a_batch_takes_its_number_of_times_as_long(tmp_path: Path) -> None:
    one, three = (
        import_comfyui([write(tmp_path, ui([*GRAPH[:4], (5, "EmptyLatentImage", [512, 768, size], []), *GRAPH[5:]]))])
        for size in (1, 3)
    )
    times = [found.requests[0]["node_execution_times"]["ksampler_3"] - 0.05 for found in (one, three)]
    assert times[1] == pytest.approx(3 * times[0])


@pytest.mark.parametrize("turbo", [False, True])
@pytest.mark.parametrize("form", [ui, api])
def test_a_switch_runs_the_branch_it_takes_and_numbers_are_worked_out(form: Any, turbo: bool, tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "UNETLoader", ["wan2.2_t2v_14B_fp8.safetensors", "default"], []),
        (2, "UNETLoader", ["wan2.1_t2v_1.3B_fp16.safetensors", "default"], []),
        (3, "PrimitiveBoolean", [turbo], []),
        (4, "PrimitiveInt", [20], []),
        (5, "PrimitiveInt", [4], []),
        (
            6,
            "ComfySwitchNode",
            [],
            [("on_false", 1, 0, "MODEL"), ("on_true", 2, 0, "MODEL"), ("switch", 3, 0, "BOOLEAN")],
        ),
        (7, "ComfySwitchNode", [], [("on_false", 4, 0, "INT"), ("on_true", 5, 0, "INT"), ("switch", 3, 0, "BOOLEAN")]),
        (8, "PrimitiveFloat", [5.0], []),
        (9, "ComfyMathExpression", ["a * 16 + 1"], [("values.a", 8, 0, "FLOAT")]),
        (10, "EmptyHunyuanLatentVideo", [832, 480], [("length", 9, 0, "INT")]),
        (
            11,
            "KSampler",
            [1, "fixed", 3, 1.0],
            [("model", 6, 0, "MODEL"), ("latent_image", 10, 0, "LATENT"), ("steps", 7, 0, "INT")],
        ),
        (12, "SaveLatent", [], [("samples", 11, 0, "LATENT")]),
    ]
    found = import_comfyui([write(tmp_path, form(graph))])
    validated(found, tmp_path)
    name, steps = ("wan2_1_t2v_1_3b_fp16", 4) if turbo else ("wan2_2_t2v_14b_fp8", 20)
    assert models_of(found) == {"ksampler_11": name}
    family = size_of(name.replace("1_3b", "1.3b"), "model").family
    expected = 0.05 + steps * step_s(family, 832, 480, 81)
    assert found.requests[0]["node_execution_times"] == {"ksampler_11": pytest.approx(expected)}


# --- what the editor does before it sends a prompt ------------------------------------------------------


def test_weights_come_through_reroutes_and_named_wires(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "CheckpointLoaderSimple", ["base.ckpt"], []),
        (2, "Reroute", [], [("", 1, 0, "*")]),
        (3, "SetNode", ["wire"], [("MODEL", 2, 0, "*")]),
        (4, "GetNode", ["wire"], []),
        (5, "KSampler", [], [("model", 4, 0, "MODEL")]),
        (6, "SaveLatent", [], [("samples", 5, 0, "LATENT")]),
    ]
    found = import_comfyui([write(tmp_path, ui(graph))], keep_loaders=True)
    assert models_of(found)["ksampler_5"] == "base"
    assert edges_of(found) == {("checkpointloadersimple_1", "ksampler_5")}


def test_broadcast_wires_reach_what_is_not_connected(tmp_path: Path) -> None:
    data = ui(
        [
            (1, "CheckpointLoaderSimple", ["base.ckpt"], []),
            (2, "Anything Everywhere3", [], [("MODEL", 1, 0, "*"), ("VAE", 1, 2, "*")]),
            (3, "KSampler", [], []),
            (4, "VAEDecode", [], [("samples", 3, 0, "LATENT")]),
            (5, "SaveImage", [], [("images", 4, 0, "IMAGE")]),
        ]
    )
    data["nodes"][2]["inputs"] = [{"name": "model", "type": "MODEL", "link": None}]
    data["nodes"][3]["inputs"].append({"name": "vae", "type": "VAE", "link": None})
    found = import_comfyui([write(tmp_path, data)])
    assert models_of(found) == {"ksampler_3": "base", "vaedecode_4": "base_vae"}


def test_a_primitive_node_gives_its_value(tmp_path: Path) -> None:
    data = ui()
    data["nodes"].append({"id": 20, "type": "PrimitiveNode", "widgets_values": [33, "fixed"], "outputs": []})
    data["links"].append([99, 20, 0, 3, 4, "INT"])
    data["nodes"][5]["inputs"].append({"name": "steps", "type": "INT", "link": 99, "widget": {"name": "steps"}})
    row = import_comfyui([write(tmp_path, data)]).requests[0]
    assert row["node_configs"]["ksampler_3"]["steps"] == 33


def test_a_bypassed_node_passes_on_what_it_is_given(tmp_path: Path) -> None:
    data = ui()
    data["nodes"][1]["mode"] = 4  # the LoraLoader: MODEL and CLIP come from the checkpoint itself
    found = import_comfyui([write(tmp_path, data)], keep_loaders=True)
    assert models_of(found)["cliptextencode_6"] == "sd_xl_1_0_clip"
    assert ("checkpointloadersimple_4", "ksampler_3") in edges_of(found)
    assert found.dropped["LoraLoader (bypassed)"] == 1


def test_a_muted_node_takes_what_needs_it_with_it(tmp_path: Path) -> None:
    graph: Drawn = [
        *GRAPH,
        (20, "KSampler", [], [("model", 4, 0, "MODEL"), ("latent_image", 3, 0, "LATENT")]),
        (21, "VAEDecode", [], [("samples", 20, 0, "LATENT"), ("vae", 4, 2, "VAE")]),
        (22, "SaveImage", [], [("images", 21, 0, "IMAGE")]),
    ]
    data = ui(graph)
    data["nodes"][8]["mode"] = 2
    found = import_comfyui([write(tmp_path, data)])
    assert set(models_of(found)) == {"cliptextencode_6", "cliptextencode_7", "ksampler_3", "vaedecode_8"}
    assert found.dropped["KSampler (muted)"] == 1
    lost = "cannot run, as they need an input from a muted node: VAEDecode 21 (samples), SaveImage 22 (images)"
    assert any(note.endswith(lost) for note in found.notes)


def test_an_optional_input_or_one_of_several_may_be_muted(tmp_path: Path) -> None:
    data = ui([*GRAPH, (30, "LoadImage", ["x.png"], []), (31, "LoadImage", ["y.png"], [])])
    data["nodes"][-1]["mode"] = data["nodes"][-2]["mode"] = 2
    data["nodes"][5]["inputs"].append({"name": "hint", "type": "IMAGE", "link": 90, "shape": 7})
    data["nodes"][7]["inputs"] = [
        {"name": "any_01", "type": "*", "link": 91},
        {"name": "any_02", "type": "*", "link": data["nodes"][7]["inputs"][0]["link"]},
    ]
    data["links"] += [[90, 30, 0, 3, 4, "IMAGE"], [91, 31, 0, 9, 0, "IMAGE"]]
    assert "vaedecode_8" in models_of(import_comfyui([write(tmp_path, data)]))


def test_only_what_leads_to_an_output_is_counted(tmp_path: Path) -> None:
    graph: Drawn = [*GRAPH, (20, "VAEEncode", [], [("pixels", 8, 0, "IMAGE"), ("vae", 4, 2, "VAE")])]
    data = ui(graph)
    data["nodes"][-1]["outputs"] = [{"name": "LATENT", "type": "LATENT", "links": []}]
    for form in (data, api(graph)):
        found = import_comfyui([write(tmp_path, form)])
        assert "vaeencode_20" not in models_of(found)
        assert any(note.endswith("lead to no output, so ComfyUI does not run them: VAEEncode") for note in found.notes)


def test_a_file_without_an_output_is_counted_whole_and_says_so(tmp_path: Path) -> None:
    found = import_comfyui([write(tmp_path, api(GRAPH[:6]))])
    assert "ksampler_3" in models_of(found)
    assert "no work leads to an output node" in found.notes[0]


# --- subgraphs ------------------------------------------------------------------------------------------

OUTER, INNER = "0000-outer", "0000-inner"


def link(number: int, source: int, slot: int, target: int, target_slot: int, kind: str) -> dict[str, Any]:
    keys = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    return dict(zip(keys, (number, source, slot, target, target_slot, kind), strict=True))


def entry(name: str, kind: str, number: int | None, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "link": number} | more


def nested(steps: int = 12) -> dict[str, Any]:
    """Two nodes that stand for one subgraph, which has another inside: encode (inner), then sample."""
    inner = {
        "id": INNER,
        "name": "Encode",
        "inputs": [{"name": "clip", "type": "CLIP"}, {"name": "text", "type": "STRING"}],
        "outputs": [{"name": "CONDITIONING", "type": "CONDITIONING", "linkIds": [3]}],
        "nodes": [
            {
                "id": 1,
                "type": "CLIPTextEncode",
                "widgets_values": ["unset"],
                "inputs": [entry("clip", "CLIP", 1), entry("text", "STRING", 2, widget={"name": "text"})],
                "outputs": [{"name": "CONDITIONING", "type": "CONDITIONING"}],
            }
        ],
        "links": [
            link(1, -10, 0, 1, 0, "CLIP"),
            link(2, -10, 1, 1, 1, "STRING"),
            link(3, 1, 0, -20, 0, "CONDITIONING"),
        ],
    }
    outer = {
        "id": OUTER,
        "name": "Generate",
        "inputs": [{"name": "model", "type": "MODEL"}, {"name": "clip", "type": "CLIP"}, {"name": "text"}],
        "outputs": [{"name": "LATENT", "type": "LATENT", "linkIds": [7]}],
        "nodes": [
            {
                "id": 1,
                "type": INNER,
                "inputs": [entry("clip", "CLIP", 2), entry("text", "STRING", 3, widget={"name": "text"})],
                "outputs": [{"name": "CONDITIONING", "type": "CONDITIONING"}],
            },
            {
                "id": 2,
                "type": "KSampler",
                "widgets_values": [1, "fixed", steps, 1.0, "euler", "normal", 1.0],
                "inputs": [entry("model", "MODEL", 1), entry("positive", "CONDITIONING", 4)],
                "outputs": [{"name": "LATENT", "type": "LATENT"}],
            },
        ],
        "links": [
            link(1, -10, 0, 2, 0, "MODEL"),
            link(2, -10, 1, 1, 0, "CLIP"),
            link(3, -10, 2, 1, 1, "STRING"),
            link(4, 1, 0, 2, 1, "CONDITIONING"),
            link(7, 2, 0, -20, 0, "LATENT"),
        ],
    }

    def stands(number: int, text: str, first: int) -> dict[str, Any]:
        return {
            "id": number,
            "type": OUTER,
            "widgets_values": [text],
            "inputs": [  # not in the definition's order, and one of them with a value in the place of a link
                entry("text", "STRING", None, widget={"name": "text"}),
                entry("clip", "CLIP", first + 1),
                entry("model", "MODEL", first),
            ],
            "outputs": [{"name": "LATENT", "type": "LATENT"}],
        }

    data = ui(
        [(1, "CheckpointLoaderSimple", ["base_xl.ckpt"], []), (9, "SaveLatent", [], []), (8, "SaveLatent", [], [])]
    )
    data["nodes"][0]["outputs"] = [{"type": "MODEL"}, {"type": "CLIP"}, {"type": "VAE"}]
    data["nodes"] += [stands(2, "a cat", 1), stands(3, "a dog", 3)]
    data["nodes"][1]["inputs"] = [entry("samples", "LATENT", 5)]
    data["nodes"][2]["inputs"] = [entry("samples", "LATENT", 6)]
    data["links"] = [
        [1, 1, 0, 2, 2, "MODEL"],
        [2, 1, 1, 2, 1, "CLIP"],
        [3, 1, 0, 3, 2, "MODEL"],
        [4, 1, 1, 3, 1, "CLIP"],
        [5, 2, 0, 9, 0, "LATENT"],
        [6, 3, 0, 8, 0, "LATENT"],
    ]
    return data | {"definitions": {"subgraphs": [outer, inner]}}


def test_subgraphs_are_opened_where_they_are_used(tmp_path: Path) -> None:
    found = import_comfyui([write(tmp_path, nested())])
    validated(found, tmp_path)
    assert models_of(found) == {
        "cliptextencode_2_1_1": "base_xl_clip",
        "ksampler_2_2": "base_xl",
        "cliptextencode_3_1_1": "base_xl_clip",
        "ksampler_3_2": "base_xl",
    }
    assert edges_of(found) == {("cliptextencode_2_1_1", "ksampler_2_2"), ("cliptextencode_3_1_1", "ksampler_3_2")}
    configs = found.requests[0]["node_configs"]
    assert configs["cliptextencode_2_1_1"] == {"prompt": "a cat"}
    assert configs["cliptextencode_3_1_1"] == {"prompt": "a dog"}
    assert configs["ksampler_2_2"]["steps"] == 12


def test_a_muted_subgraph_is_not_opened(tmp_path: Path) -> None:
    data = nested()
    data["nodes"][3]["mode"] = 2
    assert set(models_of(import_comfyui([write(tmp_path, data)]))) == {"cliptextencode_3_1_1", "ksampler_3_2"}


def test_a_subgraph_that_contains_itself_is_refused(tmp_path: Path) -> None:
    data = nested()
    data["definitions"]["subgraphs"][1]["nodes"][0]["type"] = OUTER
    with pytest.raises(InputError, match=r"definitions\.subgraphs\.1\.nodes\.0: subgraph 'Generate' contains itself"):
        import_comfyui([write(tmp_path, data)])


def test_group_nodes_of_older_files_are_opened(tmp_path: Path) -> None:
    data = ui(
        [
            (1, "CheckpointLoaderSimple", ["base.ckpt"], []),
            (
                2,
                "workflow/sample and decode",
                [],
                [("model", 1, 0, "MODEL"), ("VAEDecode vae", 1, 2, "VAE")],
            ),
            (3, "SaveImage", [], [("images", 2, 0, "IMAGE")]),
        ]
    )
    inside = [
        {
            "type": "KSampler",
            "inputs": [entry("model", "MODEL", None), entry("steps", "INT", None, widget={"name": "steps"})],
            "outputs": [{"type": "LATENT"}],
        },
        {
            "type": "VAEDecode",
            "inputs": [entry("samples", "LATENT", None), entry("vae", "VAE", None)],
            "outputs": [{"type": "IMAGE"}],
        },
    ]
    group = {"nodes": inside, "links": [[None, 0, 0, 0, 1, "MODEL"], [0, 0, 1, 0, 3, "LATENT"]], "external": []}
    data["extra"] = {"groupNodes": {"sample and decode": group}}
    found = import_comfyui([write(tmp_path, data)])
    assert models_of(found) == {"ksampler_2_0": "base", "vaedecode_2_1": "base_vae"}
    assert edges_of(found) == {("ksampler_2_0", "vaedecode_2_1")}


# --- pictures and films ---------------------------------------------------------------------------------


def chunk(kind: bytes, body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + kind + body + b"\0\0\0\0"


def png(kind: bytes, name: bytes, text: bytes) -> bytes:
    middle = {b"tEXt": b"\0", b"zTXt": b"\0\0", b"iTXt": b"\0\0\0\0\0"}[kind]
    body = name + middle + (zlib.compress(text) if kind == b"zTXt" else text)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", b"\0" * 13) + chunk(kind, body) + chunk(b"IEND", b"")


def webp(name: bytes, text: bytes) -> bytes:
    exif = b"Exif\0\0MM\0*" + name + b":" + text + b"\0"
    return b"RIFF\0\0\0\0WEBPEXIF" + len(exif).to_bytes(4, "little") + exif


def mp4(name: bytes, text: bytes) -> bytes:
    data = (len(text) + 16).to_bytes(4, "big") + b"data\0\0\0\1\0\0\0\0" + text
    return b"\0\0\0\x18ftypisom" + b"\0" * 12 + b"mdta" + name + b"ilst" + data + b"mdat{"


def flac(name: bytes, text: bytes) -> bytes:
    comment = name + b"=" + text
    return b"fLaC\4\0\0\0" + len(comment).to_bytes(4, "little") + comment + b"\xff\xf8"


MEDIA: dict[str, Any] = {
    "a.png": partial(png, b"tEXt"),
    "b.png": partial(png, b"zTXt"),
    "c.png": partial(png, b"iTXt"),
    "d.webp": webp,
    "e.mp4": mp4,
    "f.flac": flac,
}


@pytest.mark.parametrize("file", MEDIA)
@pytest.mark.parametrize(("name", "form"), [(b"workflow", ui), (b"prompt", api)])
def test_the_workflow_in_a_picture_film_or_sound_is_read(file: str, name: bytes, form: Any, tmp_path: Path) -> None:
    path = tmp_path / file
    path.write_bytes(MEDIA[file](name, json.dumps(form()).replace("0.4", "NaN").encode()))
    assert set(models_of(import_comfyui([path]), path.stem)) == {
        "cliptextencode_7",
        "cliptextencode_6",
        "ksampler_3",
        "vaedecode_8",
    }


@pytest.mark.parametrize("file", MEDIA)
def test_a_picture_without_a_workflow_is_refused(file: str, tmp_path: Path) -> None:
    path = tmp_path / file
    for name, text, message in (
        (b"comment", b"{}", "no ComfyUI workflow in it"),
        (b"prompt", b'{"1": ', "the workflow in its metadata is not JSON"),
    ):
        if (name, file) == (b"comment", "e.mp4"):
            text = b"x"
        path.write_bytes(MEDIA[file](name, text))
        with pytest.raises(InputError, match=message):
            import_comfyui([path])


def test_another_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "film.webm").write_bytes(b"\x1a\x45\xdf\xa3" + b"\0" * 40)
    with pytest.raises(
        InputError, match=r"film\.webm: not a ComfyUI workflow: expected JSON, or a PNG, WebP, MP4 or FLAC"
    ):
        import_comfyui([tmp_path / "film.webm"])


# --- taught types ---------------------------------------------------------------------------------------


def teach(folder: Path, data: Any) -> Path:
    return write(folder, data, "types.json")


def test_types_can_be_taught(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "Alpha", ["hidden"], []),
        (2, "Beta", [], [("a", 1, 0, "*")]),
        (3, "Gamma", [], [("b", 2, 0, "*")]),
    ]
    file = write(tmp_path, api(graph))
    with pytest.raises(InputError, match="expected nodes that work on a GPU"):
        import_comfyui([file])
    server = {"python_module": "nodes", "display_name": "?", "output_node": False}
    types = {
        "Alpha": {"input": {"required": {"ckpt": [["x", "y"]]}}, "output": ["MODEL"]} | server,
        "Beta": {"input": {"required": {"a": ["MODEL"]}}, "output": ["LATENT"], "seconds": 7.5},
        "Gamma": {"input": {"required": {"b": "LATENT"}}, "output_node": True},
    }
    found = import_comfyui([file], types=teach(tmp_path, types))
    validated(found, tmp_path)
    assert set(models_of(found)) == {"beta_2"}
    assert found.requests[0]["node_execution_times"] == {"beta_2": 7.5}
    assert not any("not in the file" in note for note in found.notes)  # a time that is told need not be worked out
    types["Beta"] |= {"gpu": False, "api_node": True}
    found = import_comfyui([file], types=teach(tmp_path, types))
    assert found.config["models"]["cloud_beta"]["gpus_required"] == 0


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"types\.json: expected node types by name, found list"),
        ({}, r"expected node types by name"),
        ({"A": {"outputs": []}}, r"A\.outputs: unknown key 'outputs'; did you mean 'output'"),
        ({"A": {"seconds": 0}}, r"A\.seconds: expected a number above 0, found 0"),
        ({"A": {"seconds": "x"}}, r"A\.seconds: expected"),
        ({"A": {"gpu": 1}}, r"A\.gpu: expected bool"),
        ({"A": {"input": {"needed": {}}}}, r"A\.input\.needed: expected required, optional or hidden"),
        ({"A": {"input": {"required": {"x": 3}}}}, r"A\.input\.required\.x: expected a type or \[type\], found 3"),
    ],
)
def test_taught_types_are_checked(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        import_comfyui([write(tmp_path, ui())], types=teach(tmp_path, data))


# --- sizes and times ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "gb"),
    [
        ("wan2.1_t2v_14B_fp16.safetensors", 28.0),
        ("wan2.2_i2v_high_noise_14B_fp8_scaled.safetensors", 14.0),
        ("flux1-dev.safetensors", 23.8),
        ("flux1-dev-fp8.safetensors", 11.9),
        ("flux1-dev-Q4_K_S.gguf", 7.14),
        ("sd_xl_base_1.0.safetensors", 5.14),
        ("ltx-2-19b-dev-fp8.safetensors", 19.0),
        ("wan2.1_vace_1.3B_fp16.safetensors", 2.6),
        ("Wan2_1-T2V-1_3B_bf16.safetensors", 2.6),
    ],
)
def test_the_size_is_read_from_the_name(name: str, gb: float) -> None:
    assert size_of(name, "model").gb == pytest.approx(gb)
    assert not size_of(name, "model").assumed


@pytest.mark.parametrize(
    ("name", "role", "gb"),
    [
        ("umt5_xxl_fp8_e4m3fn_scaled.safetensors", "clip", 5.7),
        ("qwen_3_06b_base.safetensors", "clip", 1.2),
        ("gemma_3_12B_it.safetensors", "clip", 24.0),
        ("CLIP-ViT-bigG-14-laion2B-39B-b160k.safetensors", "clip_vision", 3.68),
        ("control_v11p_sd15_canny_fp16.safetensors", "control_net", 0.81),
        ("ae.safetensors", "vae", 0.33),
    ],
)
def test_encoders_and_control_nets_have_sizes_of_their_own(name: str, role: str, gb: float) -> None:
    assert size_of(name, role).gb == pytest.approx(gb, rel=0.01)


@given(st.text(), st.sampled_from(["model", "clip", "vae", "control_net", "upscale_model", "clip_vision", "other"]))
def test_every_name_has_a_size(name: str, role: str) -> None:
    size = size_of(name, role)
    assert 0 < size.gb < float("inf")
    assert part_of(size, "clip").gb > 0


@given(st.integers(64, 4096), st.integers(64, 4096), st.integers(1, 300))
def test_more_pixels_or_frames_never_take_less_time(width: int, height: int, frames: int) -> None:
    for family in (SD15, SDXL, size_of("wan_14B", "model").family):
        least = step_s(family, width, height, frames)
        assert 0 < least <= step_s(family, width + 64, height, frames)
        assert least <= step_s(family, width, height, frames + 4)


# --- order --------------------------------------------------------------------------------------------


def closure(nodes: range, edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    reach = set(edges)
    for middle, source, target in product(nodes, nodes, nodes):
        if (source, middle) in reach and (middle, target) in reach:
            reach.add((source, target))
    return reach


@st.composite
def graphs(draw: st.DrawFn) -> tuple[range, set[tuple[int, int]], set[int]]:
    nodes = range(draw(st.integers(1, 9)))
    pairs = [(i, j) for j in nodes for i in range(j)]
    edges = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    return nodes, edges, draw(st.sets(st.sampled_from(nodes), min_size=1))


@settings(deadline=None)
@given(graphs())
def test_bridging_keeps_exactly_the_order_of_what_stays(case: tuple[range, set[tuple[int, int]], set[int]]) -> None:
    nodes, edges, kept = case
    bridged = bridge(nodes, edges, kept)
    assert len(bridged) == len(set(bridged))
    expected = {(s, t) for s, t in closure(nodes, edges) if s in kept and t in kept}
    assert closure(nodes, set(bridged)) == expected


@settings(deadline=None)
@given(graphs(), st.booleans(), st.randoms(use_true_random=False))
def test_an_import_keeps_the_order_whatever_is_dropped(
    tmp_path_factory: pytest.TempPathFactory,
    case: tuple[range, set[tuple[int, int]], set[int]],
    as_api: bool,
    random: Any,
) -> None:
    nodes, edges, kept = case
    folder = tmp_path_factory.mktemp("order")
    kinds = {i: "VAEDecode" if i in kept else random.choice(["ImageBlur", "SomethingNew"]) for i in nodes}
    inputs: dict[int, list[tuple[str, int, int, str]]] = {i: [] for i in nodes}
    for i in kept:
        inputs[i] += [("vae", 98, 0, "VAE"), ("samples", 97, 0, "LATENT")]
    for source, target in sorted(edges):
        inputs[target].append((f"image{source}", source, 0, "IMAGE"))
    shuffled = random.sample(list(nodes), len(nodes))
    graph: Drawn = [(i, kinds[i], [], inputs[i]) for i in shuffled]
    graph.append((97, "EmptyLatentImage", [512, 512, 1], []))
    graph.append((98, "VAELoader", ["ae.safetensors"], []))
    graph.append((99, "SaveImage", [], [(f"image{i}", i, 0, "IMAGE") for i in nodes]))
    found = import_comfyui([write(folder, api(graph) if as_api else ui(graph))])
    validated(found, folder)
    order = {(int(s.rsplit("_", 1)[1]), int(t.rsplit("_", 1)[1])) for s, t in edges_of(found)}
    expected = {(s, t) for s, t in closure(nodes, edges) if s in kept and t in kept}
    assert closure(nodes, order) == expected
    assert sum(found.dropped.values()) == len(nodes) - len(kept) + 2


def test_names_are_unique_whatever_they_are_made_from() -> None:
    names = Names()
    given_names = [names.of(i, wanted) for i, wanted in enumerate(["a b", "a-b", "a_b_2", "A.B", "", "!"])]
    assert given_names == ["a_b", "a_b_2", "a_b_2_2", "a_b_3", "unnamed", "unnamed_2"]


@settings(deadline=None)
@given(st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_a_cycle_is_found_where_there_is_one(edges: set[tuple[int, int]]) -> None:
    ring = find_cycle(range(6), edges)
    has_cycle = any(s == t for s, t in closure(range(6), edges))
    assert (ring is not None) == has_cycle
    if ring:
        assert ring[0] == ring[-1]
        assert set(pairwise(ring)) <= edges


# --- refused ------------------------------------------------------------------------------------------


def _broken_ui(links: list[Any]) -> dict[str, Any]:
    decode, encode = ({"id": i, "type": kind} for i, kind in ((1, "VAEDecode"), (2, "VAEEncode")))
    return {"nodes": [decode, encode], "links": links}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_broken_ui([[5, 1, 0]]), r"links\.0: expected \[link, from node, .*\], found \[5, 1, 0\]"),
        (_broken_ui([[4, 1, 0, 2, 0], 3]), r"links\.1: expected .* found 3"),
        (
            _broken_ui([[5, 1, 0, 2, 0, "IMAGE"], [6, 2, 0, 1, 0, "IMAGE"]]),
            r"nodes\.\d\.inputs\.0: the link to .* closes a cycle: (1 -> 2 -> 1|2 -> 1 -> 2)",
        ),
        (_broken_ui([[5, 2, 0, 2, 0, "IMAGE"]]), r"nodes\.1\.inputs\.0: the link .* closes a cycle: 2 -> 2"),
        (
            ui(
                [
                    (1, "Reroute", [], [("", 2, 0, "*")]),
                    (2, "Reroute", [], [("", 1, 0, "*")]),
                    (3, "X", [], [("a", 1, 0, "*")]),
                ]
            ),
            r"nodes\.\d\.inputs\.0: input '' of node \d leads back to itself",
        ),
        ({"nodes": [{"id": 1, "type": "VAEDecode"}] * 2}, r"nodes\.1\.id: node 1 is defined twice"),
        ({"nodes": [{"id": 1}]}, r"nodes\.0: missing key `type`"),
        ({"nodes": [], "links": 3}, r"links: expected a list, found int"),
        (
            {"nodes": [{"id": 1, "type": "SaveImage"}]},
            r"expected nodes that work on a GPU, with .*, found SaveImage; --keep-utility",
        ),
        (
            {
                "1": {"class_type": "VAEDecode", "inputs": {"a": ["2", 0]}},
                "2": {"class_type": "VAEDecode", "inputs": {"b": ["1", 0]}},
            },
            r"\d\.inputs\.[ab]: the link .* closes a cycle",
        ),
        ({"models": {}}, r"not a ComfyUI workflow: expected nodes and links, or a prompt in API format"),
        ([], r"not a ComfyUI workflow"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"bad\.json.*{message}"):
        import_comfyui([write(tmp_path, data, "bad.json")])


def test_an_error_names_the_line(tmp_path: Path) -> None:
    file = write(tmp_path, _broken_ui([[5, 1, 0]]), "bad.json")
    line = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if text.strip() == "[")
    with pytest.raises(InputError, match=rf"bad\.json:{line}: links\.0"):
        import_comfyui([file])


def test_a_link_to_nowhere_is_a_note(tmp_path: Path) -> None:
    data = ui()
    data["links"] += [[50, 4, 0, 77, 0, "MODEL"], None]
    data["nodes"][5]["inputs"].append({"name": "hint", "type": "IMAGE", "link": 51})
    notes = import_comfyui([write(tmp_path, data)]).notes
    assert [note.split(": ", 1)[1] for note in notes if note.endswith(": left out")] == [
        "links.11: link 50 (4 -> 77): there is no node 77: left out",
        "nodes.5.inputs.4: input 'hint' of node 3 comes from link 51, which is not in links: left out",
    ]
    prompt = api()
    prompt["8"]["inputs"]["mask"] = ["78", 0]
    prompt["comment"] = "mine"
    notes = import_comfyui([write(tmp_path, prompt)]).notes
    assert notes[-2].endswith("comment: not a node: left out")
    assert notes[-1].endswith("8.inputs.mask: link ['78', 0]: there is no node 78: left out")


DAMAGE = ["null", "0", "-1", "7", "2.5", '""', '"x"', "[]", "{}", "[[]]", '{"id": 1}', "true", '["4", 0]']


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(["ui", "api", "nested"]), st.data())
def test_a_damaged_file_is_read_or_refused_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, form: str, data: st.DataObject
) -> None:
    forms: dict[str, Any] = {"ui": ui, "api": api, "nested": nested}
    whole = json.loads(json.dumps(forms[form]()))
    for _ in range(data.draw(st.integers(1, 4))):
        at: Any = whole
        parent: Any = None
        key: Any = None
        while isinstance(at, dict | list) and at and data.draw(st.integers(0, 9)):
            parent, key = at, data.draw(st.sampled_from(list(at) if isinstance(at, dict) else range(len(at))))
            at = parent[key]
        if parent is not None:
            parent[key] = json.loads(data.draw(st.sampled_from(DAMAGE)))
    file = write(tmp_path_factory.mktemp("damaged"), whole)
    try:
        found = import_comfyui([file])
    except InputError as error:
        said = str(error)
    else:
        validated(found, file.parent)
        said = "flow.json"
    assert "flow.json" in said
