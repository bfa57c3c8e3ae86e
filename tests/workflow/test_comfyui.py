"""ComfyUI workflows become valid configurations in which everything left keeps its order."""

from __future__ import annotations

import json
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.generate import generate
from dovetail.workflow.inputs.importers.comfyui import CATEGORIES, LOADERS, TYPES, import_comfyui
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
}


def ui(graph: Drawn = GRAPH) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = []
    links: list[list[Any]] = []
    for number, kind, values, inputs in graph:
        entries = []
        for slot, (name, source, source_slot, type_) in enumerate(inputs):
            links.append([len(links) + 1, source, source_slot, number, slot, type_])
            entries.append({"name": name, "type": type_, "link": len(links)})
        nodes.append({"id": number, "type": kind, "widgets_values": values, "inputs": entries, "outputs": []})
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
    assert row["node_execution_times"]["ksampler_3"] == 3.0


def test_figures_are_those_of_the_category(tmp_path: Path) -> None:
    system = validated(import_comfyui([write(tmp_path, ui())]), tmp_path)
    sampler, encoder, decoder = (system.models[f"sd_xl_1_0{part}"] for part in ("", "_clip", "_vae"))
    assert (sampler.memory_gb, sampler.inference_time_mean, sampler.inference_time_std) == (8, 3, 0.8)
    assert (encoder.memory_gb, encoder.inference_time_mean, encoder.inference_time_std) == (2, 0.5, 0.1)
    assert (decoder.memory_gb, decoder.inference_time_mean, decoder.inference_time_std) == (4, 1, 0.3)
    assert sampler.load_time_seconds == 8 / 16 + 2
    assert sampler.config == {"steps": [20], "cfg": [7.5]}


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


def test_separate_weights_are_separate_models(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "UNETLoader", ["flux1-dev.safetensors", "default"], []),
        (2, "DualCLIPLoader", ["t5xxl_fp16.safetensors", "clip_l.safetensors", "flux"], []),
        (3, "VAELoader", ["ae.safetensors"], []),
        (4, "CLIPTextEncode", ["a cat"], [("clip", 2, 0, "CLIP")]),
        (5, "FluxGuidance", [3.5], [("conditioning", 4, 0, "CONDITIONING")]),
        (6, "BasicGuider", [], [("model", 1, 0, "MODEL"), ("conditioning", 5, 0, "CONDITIONING")]),
        (7, "SamplerCustomAdvanced", [], [("noise", 9, 0, "NOISE"), ("guider", 6, 0, "GUIDER")]),
        (8, "VAEDecode", [], [("samples", 7, 0, "LATENT"), ("vae", 3, 0, "VAE")]),
        (9, "RandomNoise", [123, "fixed"], []),
    ]
    found = import_comfyui([write(tmp_path, ui(graph))])
    validated(found, tmp_path)
    assert models_of(found) == {
        "cliptextencode_4": "t5xxl_fp16_clip_l",
        "fluxguidance_5": "flux1_dev",  # no weights of its own: those of the sampler it steers
        "basicguider_6": "flux1_dev",
        "samplercustomadvanced_7": "flux1_dev",
        "vaedecode_8": "ae",
    }
    assert found.config["models"]["flux1_dev"]["type"] == "image_generation"


def test_weights_that_make_videos_are_a_video_model(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "UNETLoader", ["hunyuan.safetensors"], []),
        (2, "HunyuanVideoSampler", [], [("model", 1, 0, "MODEL")]),
    ]
    system = validated(import_comfyui([write(tmp_path, ui(graph))]), tmp_path)
    assert (system.models["hunyuan"].type, system.models["hunyuan"].memory_gb) == ("video_generation", 16)


def test_control_nets_and_upscalers_run_their_own_weights(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "ControlNetLoader", ["canny.pth"], []),
        (2, "VAELoader", ["ae.safetensors"], []),
        (3, "ControlNetApplyAdvanced", [1.0], [("vae", 2, 0, "VAE"), ("control_net", 1, 0, "CONTROL_NET")]),
        (4, "UpscaleModelLoader", ["4x.pth"], []),
        (5, "ImageUpscaleWithModel", [], [("upscale_model", 4, 0, "UPSCALE_MODEL"), ("image", 3, 0, "IMAGE")]),
    ]
    found = import_comfyui([write(tmp_path, ui(graph))])
    validated(found, tmp_path)
    assert models_of(found) == {"controlnetapplyadvanced_3": "canny", "imageupscalewithmodel_5": "4x"}


def test_weights_come_through_reroutes_and_named_wires(tmp_path: Path) -> None:
    graph: Drawn = [
        (1, "CheckpointLoaderSimple", ["base.ckpt"], []),
        (2, "Reroute", [], [("", 1, 0, "*")]),
        (3, "SetNode", ["wire"], [("MODEL", 2, 0, "*")]),
        (4, "GetNode", ["wire"], []),
        (5, "KSampler", [], [("model", 4, 0, "MODEL")]),
    ]
    found = import_comfyui([write(tmp_path, ui(graph))], keep_loaders=True)
    assert models_of(found)["ksampler_5"] == "base"
    assert edges_of(found) == {("checkpointloadersimple_1", "ksampler_5")}


def test_a_sampler_without_weights_runs_a_model_of_its_category(tmp_path: Path) -> None:
    found = import_comfyui([write(tmp_path, {"1": {"class_type": "KSamplerAdvanced", "inputs": {}}})])
    validated(found, tmp_path)
    assert models_of(found) == {"ksampleradvanced_1": "image_generation"}


def test_muted_and_bypassed_nodes_are_left_out(tmp_path: Path) -> None:
    data = ui()
    data["nodes"][2]["mode"] = 4
    data["nodes"][6]["mode"] = 2
    found = import_comfyui([write(tmp_path, data)])
    assert set(models_of(found)) == {"cliptextencode_6", "ksampler_3"}
    assert {"CLIPTextEncode (bypassed)", "VAEDecode (muted)"} <= set(found.dropped)


def test_a_subgraph_is_named_and_bridged(tmp_path: Path) -> None:
    data = ui([(1, "CLIPTextEncode", ["x"], []), (2, "f00-ba7", [], [("c", 1, 0, "CONDITIONING")])])
    data["nodes"].append({"id": 3, "type": "VAEDecode"})
    data["links"].append(
        {"id": 9, "origin_id": 2, "origin_slot": 0, "target_id": 3, "target_slot": 0, "type": "LATENT"}
    )
    data["definitions"] = {"subgraphs": [{"id": "f00-ba7", "name": "Sampling", "nodes": []}]}
    found = import_comfyui([write(tmp_path, data)])
    assert edges_of(found) == {("cliptextencode_1", "vaedecode_3")}
    assert found.dropped == {"Sampling": 1}
    assert "subgraphs not looked into" in found.notes[-1]


def test_every_known_type_has_figures(tmp_path: Path) -> None:
    graph: Drawn = [(i, kind, [], []) for i, kind in enumerate([*TYPES, *LOADERS])]
    found = import_comfyui([write(tmp_path, ui(graph))], keep_utility=True, keep_loaders=True)
    system = validated(found, tmp_path)
    assert not found.dropped
    assert len(system.workflows["flow"].nodes) == len(TYPES) + len(LOADERS)
    assert {one.type for one in system.models.values()} == set(CATEGORIES)


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
    kinds = {i: "VAEDecode" if i in kept else random.choice(["SaveImage", "LoraLoader", "SomethingNew"]) for i in nodes}
    inputs: dict[int, list[tuple[str, int, int, str]]] = {i: [] for i in nodes}
    for source, target in sorted(edges):
        inputs[target].append((f"in{source}", source, 0, "IMAGE"))
    shuffled = random.sample(list(nodes), len(nodes))
    graph: Drawn = [(i, kinds[i], [], inputs[i]) for i in shuffled]
    found = import_comfyui([write(folder, api(graph) if as_api else ui(graph))])
    validated(found, folder)
    order = {(int(s.rsplit("_", 1)[1]), int(t.rsplit("_", 1)[1])) for s, t in edges_of(found)}
    expected = {(s, t) for s, t in closure(nodes, edges) if s in kept and t in kept}
    assert closure(nodes, order) == expected
    assert sum(found.dropped.values()) == len(nodes) - len(kept)


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
    return {"nodes": [{"id": 1, "type": "VAEDecode"}, {"id": 2, "type": "VAEEncode"}], "links": links}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (_broken_ui([[5, 1, 0, 7, 0, "IMAGE"]]), r"links\.0: link 5 \(1 -> 7\): there is no node 7"),
        (_broken_ui([[5, 1, 0]]), r"links\.0: expected \[link, from node, .*\], found \[5, 1, 0\]"),
        (_broken_ui([[4, 1, 0, 2, 0], None]), r"links\.1: expected .* found None"),
        (
            _broken_ui([[5, 1, 0, 2, 0, "IMAGE"], [6, 2, 0, 1, 0, "IMAGE"]]),
            r"links\.\d: link [56] \((1 -> 2|2 -> 1)\) closes a cycle: (1 -> 2 -> 1|2 -> 1 -> 2)",
        ),
        (_broken_ui([[5, 2, 0, 2, 0, "IMAGE"]]), r"links\.0: link 5 \(2 -> 2\) closes a cycle: 2 -> 2"),
        ({"nodes": [{"id": 1, "type": "VAEDecode"}] * 2}, r"nodes\.1\.id: node 1 is defined twice"),
        ({"nodes": [{"id": 1}]}, r"nodes\.0: missing key `type`"),
        (
            {"nodes": [{"id": 1, "type": "VAEDecode", "inputs": [{"name": "vae", "link": 3}]}], "links": []},
            r"nodes\.0\.inputs\.0: input 'vae' of node 1 comes from link 3, which is not in links",
        ),
        ({"nodes": [], "links": {}}, r"links: expected a list, found dict"),
        ({"nodes": [{"id": 1, "type": "SaveImage"}]}, r"expected nodes of types that run on a GPU, found SaveImage"),
        ({"1": {"class_type": "VAEDecode", "inputs": {"vae": ["9", 0]}}}, r"1\.inputs\.vae: link .* no node 9"),
        (
            {
                "1": {"class_type": "VAEDecode", "inputs": {"a": ["2", 0]}},
                "2": {"class_type": "VAEDecode", "inputs": {"b": ["1", 0]}},
            },
            r"\d\.inputs\.[ab]: link \['\d', 0\] .* closes a cycle",
        ),
        ({"models": {}}, r"not a ComfyUI workflow: expected nodes and links, or a prompt in API format"),
        ([], r"not a ComfyUI workflow"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"bad\.json.*{message}"):
        import_comfyui([write(tmp_path, data, "bad.json")])


def test_an_error_names_the_line(tmp_path: Path) -> None:
    file = write(tmp_path, _broken_ui([[5, 1, 0, 7, 0, "IMAGE"]]), "bad.json")
    line = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if text.strip() == "[")
    with pytest.raises(InputError, match=rf"bad\.json:{line}: links\.0"):
        import_comfyui([file])
