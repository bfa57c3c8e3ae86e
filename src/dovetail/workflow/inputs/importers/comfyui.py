"""ComfyUI workflows (the editor's files and the API's prompts) as a configuration: one workflow per file.

A node becomes a node of our workflow if its type is known to run on a GPU. What loads weights (`...Loader`) becomes the
model that its consumers share; what only passes things on, and types that are not known, is left out. Whatever is left
out, the order of the rest stays. Memory and times are typical figures by category: measure, and put your own in.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from dovetail.core.errors import InputError
from dovetail.workflow.inputs.costs import CostRules
from dovetail.workflow.inputs.importers.comfyui_files import ComfyGraph, ComfyLink, ComfyNode, read_graph
from dovetail.workflow.inputs.importers.common import Imported, Names, as_paths, bridge, request


class Category(NamedTuple):
    memory_gb: float
    mean_s: float
    std_s: float
    roles: tuple[str, ...] = ()  # the inputs that bring the weights it runs


CATEGORIES = {
    "embedding": Category(2.0, 0.5, 0.1, ("clip", "clip_vision")),
    "image_generation": Category(8.0, 3.0, 0.8, ("model", "guider")),
    "image_processing": Category(4.0, 1.0, 0.3, ("vae",)),
    "control_net": Category(6.0, 2.0, 0.5, ("control_net", "model")),
    "upscaling": Category(6.0, 4.0, 1.0, ("upscale_model",)),
    "video_generation": Category(16.0, 15.0, 3.0, ("model", "guider")),
    "utility": Category(1.0, 0.1, 0.05),
}
_RUNS = {
    "embedding": "CLIPTextEncode CLIPTextEncodeSDXL CLIPTextEncodeFlux CLIPTextEncodeSD3 CLIPVisionEncode",
    "image_generation": "KSampler KSamplerAdvanced SamplerCustom SamplerCustomAdvanced FluxGuidance workflow/FLUX",
    "image_processing": "VAEDecode VAEDecodeTiled VAEEncode VAEEncodeTiled VAEEncodeForInpaint",
    "control_net": "ControlNetApply ControlNetApplyAdvanced BasicGuider",
    "upscaling": "ImageUpscaleWithModel",
    "video_generation": "VideoLinearCFGGuidance HunyuanVideoSampler",
    "utility": "EmptyLatentImage EmptySD3LatentImage LoadImage SaveImage PreviewImage",
}
TYPES = {name: category for category, names in _RUNS.items() for name in names.split()}
LOADERS = {  # what a loader's own weights are
    "CheckpointLoaderSimple": "model",
    "UNETLoader": "model",
    "CLIPLoader": "clip",
    "DualCLIPLoader": "clip",
    "TripleCLIPLoader": "clip",
    "CLIPVisionLoader": "clip_vision",
    "VAELoader": "vae",
    "ControlNetLoader": "control_net",
    "UpscaleModelLoader": "upscale_model",
}
_OF_ROLE = {
    "model": "image_generation",
    "clip": "embedding",
    "clip_vision": "embedding",
    "vae": "image_processing",
    "control_net": "control_net",
    "upscale_model": "upscaling",
}
_PASSES_ON = ("Reroute", "GetNode", "SetNode")
_WEIGHTS_FILE = re.compile(r"\.(safetensors|sft|ckpt|pt|pth|bin|gguf|onnx)$", re.IGNORECASE)


class Weights(NamedTuple):
    """What must be resident to run a node, and what it is used as: a checkpoint's VAE is not its diffusion model."""

    name: str
    role: str


def import_comfyui(
    paths: Sequence[str | os.PathLike[str]], *, keep_utility: bool = False, keep_loaders: bool = False
) -> Imported:
    """Read workflows; files that load the same weights share a model.

    With `keep_utility`, nodes that need no GPU stay, on a model with `gpus_required` 0. With `keep_loaders`, loaders
    stay as nodes of 0.1 s on the model they load. A first load is priced as a switch on an empty GPU: memory / PCIe
    bandwidth + overhead, at the default prices.

    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "cat.json"
    >>> _ = file.write_text('''{"4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd15.ckpt"}},
    ...     "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["4", 1]}},
    ...     "3": {"class_type": "KSampler", "inputs": {"model": ["4", 0], "positive": ["6", 0], "steps": 20}}}''')
    >>> found = import_comfyui([file])
    >>> [(node["id"], node["model"]) for node in found.config["workflows"]["cat"]["nodes"]]
    [('cliptextencode_6', 'sd15_clip'), ('ksampler_3', 'sd15')]
    >>> found.config["workflows"]["cat"]["edges"]
    [{'from': 'cliptextencode_6', 'to': 'ksampler_3'}]
    """
    files = [_File(read_graph(path), keep_utility, keep_loaders) for path in as_paths(paths)]
    models, workflows = _Models(), Names()
    for file in files:
        for node, weights in file.weights.items():
            models.use(weights, _category(file.graph.nodes[node]), file.settings(node))
    result = Imported({"models": models.config(), "workflows": {}})
    for number, file in enumerate(files, start=1):
        name = workflows.of(number, file.graph.path.stem)
        result.config["workflows"][name] = file.workflow(models)
        result.requests.append(file.request(number, name))
        result.notes += file.notes()
        for kind, count in file.dropped.items():
            result.dropped[kind] = result.dropped.get(kind, 0) + count
    return result


def _category(node: ComfyNode) -> str:
    return _OF_ROLE[LOADERS[node.type]] if node.type in LOADERS else TYPES[node.type]


class _File:
    """One file's nodes that stay, the weights of each, and the order between them."""

    def __init__(self, graph: ComfyGraph, keep_utility: bool, keep_loaders: bool) -> None:
        self.graph = graph
        self.folded: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        kept = []
        for node in graph.nodes.values():
            runs = TYPES.get(node.type)
            if node.off:
                self.dropped[f"{node.type} ({node.off})"] += 1
            elif node.type in LOADERS and not keep_loaders:
                self.folded[node.type] += 1
            elif node.type in LOADERS or (runs and (runs != "utility" or keep_utility)):
                kept.append(node)
            else:
                self.dropped[graph.subgraphs.get(node.type, node.type)] += 1
        if not kept:
            found = ", ".join([*self.folded, *self.dropped]) or "none"
            raise InputError(f"{graph.path}: expected nodes of types that run on a GPU, found {found}")
        names = Names()
        self.ids = {node.id: names.of(node.id, f"{node.type}_{node.id}") for node in kept}
        self.edges = bridge(graph.nodes, [(link.source, link.target) for link in graph.links], self.ids)
        own = {node.id: self._own(node) for node in kept}
        self.weights = {node: weights or self._shared(node, own) for node, weights in own.items()}

    def _own(self, node: ComfyNode) -> Weights | None:
        """The weights that a node names, or is given by a loader, however many nodes pass them on."""
        category = _category(node)
        if category == "utility":
            return Weights(category, category)
        at, role = node, ""
        while (link := self._bringing(at, CATEGORIES[category].roles)) is not None:
            at = self.graph.nodes[link.source]
            role = link.role if link.role in _OF_ROLE else role
        name = _weights_name(at) or (at.type if role else None)
        if name is None:
            return None
        main = LOADERS.get(at.type, role)
        role = role or main or CATEGORIES[category].roles[0]
        return Weights(name if role == (main or role) else f"{name}_{role}", role)

    def _bringing(self, node: ComfyNode, roles: Iterable[str]) -> ComfyLink | None:
        links = self.graph.into[node.id]
        if node.type in _PASSES_ON:
            return links[0] if links else None
        return next((link for role in roles for link in links if link.role == role), None)

    def _shared(self, node: str, own: Mapping[str, Weights | None]) -> Weights:
        """A node without weights runs with those of the nearest node of its category: after it, else before it."""
        category = _category(self.graph.nodes[node])
        for edges in (self.edges, [(target, source) for source, target in self.edges]):
            reached = [node]
            for at in reached:
                reached += dict.fromkeys(t for s, t in edges if s == at and t not in reached)
            for found in reached[1:]:
                weights = own[found]
                if weights and _category(self.graph.nodes[found]) == category:
                    return weights
        return Weights(category, CATEGORIES[category].roles[0])

    def workflow(self, models: _Models) -> dict[str, Any]:
        nodes = []
        for node, weights in self.weights.items():
            made: dict[str, Any] = {
                "id": self.ids[node],
                "model": models.name(weights),
                "inputs": [self.ids[s] for s, t in self.edges if t == node] or ["user_prompt"],
                "outputs": [self.ids[node]],
            }
            settings = self.settings(node)
            nodes.append(made | ({"config_options": list(settings)} if settings else {}))
        edges = [{"from": self.ids[source], "to": self.ids[target]} for source, target in self.edges]
        return {"name": self.graph.path.stem, "nodes": nodes, "edges": edges}

    def settings(self, node: str) -> dict[str, Any]:
        """What of a node's values a request may set."""
        given = self.graph.nodes[node]
        if "Sampler" in given.type:
            names = {"steps": "steps", "cfg": "cfg", "seed": "seed", "noise_seed": "seed"}
        elif given.type.startswith("Empty"):
            names = {"width": "width", "height": "height"}
        else:
            names = {"text": "prompt"}
        return {ours: given.values[theirs] for theirs, ours in names.items() if theirs in given.values}

    def request(self, number: int, workflow: str) -> dict[str, Any]:
        """The request that the file stands for: its texts and settings, each node at its category's mean time."""
        times, configs = {}, {}
        for node, name in self.ids.items():
            kind = self.graph.nodes[node].type
            times[name] = CATEGORIES["utility" if kind in LOADERS else TYPES[kind]].mean_s
            configs[name] = self.settings(node)
        texts = {node: str(text) for node in self.ids if (text := self.settings(node).get("prompt"))}
        positive = [texts[link.source] for link in self.graph.links if link.role == "positive" and link.source in texts]
        prompt = next(iter([*positive, *texts.values()]), "")
        return request(number, workflow, prompt, times, {name: given for name, given in configs.items() if given})

    def notes(self) -> list[str]:
        path, inside = self.graph.path, self.graph.subgraphs
        unseen = sorted({inside[node.type] for node in self.graph.nodes.values() if node.type in inside})
        said = (
            ("became models, not nodes", self.folded),
            ("left out, with the order of the rest kept", self.dropped),
            ("subgraphs not looked into (an export in API format has their nodes)", unseen),
        )
        return [f"{path}: {what}: {', '.join(which)}" for what, which in said if which]


def _weights_name(node: ComfyNode) -> str | None:
    """The weights that a node names: the stem of the file, of all files if there are several."""
    found = [text for text in node.texts if _WEIGHTS_FILE.search(text)]
    if not found and node.type in LOADERS:
        found = node.texts[:1] or [node.type]
    return "_".join(PurePosixPath(_WEIGHTS_FILE.sub("", text.replace("\\", "/"))).name for text in found) or None


class _Models:
    """The models that all files together need."""

    def __init__(self) -> None:
        self._names = Names()
        self._categories: dict[Weights, str] = {}
        self._choices: dict[Weights, dict[str, list[Any]]] = {}

    def use(self, weights: Weights, category: str, settings: Mapping[str, Any]) -> None:
        """A model is of the largest category it is used for: weights that make videos are a video model's."""
        of_role = _OF_ROLE.get(weights.role, category)
        found = [self._categories.get(weights, of_role), *([category] if weights.role == "model" else [])]
        self._categories[weights] = max(found, key=lambda name: CATEGORIES[name].memory_gb)
        choices = self._choices.setdefault(weights, {})
        for option, value in settings.items():
            if option not in ("seed", "prompt") and value not in choices.setdefault(option, []):
                choices[option].append(value)

    def name(self, weights: Weights) -> str:
        return self._names.of(weights, weights.name)

    def config(self) -> dict[str, Any]:
        costs = CostRules()
        made = {}
        for weights, category in self._categories.items():
            figures = CATEGORIES[category]
            on_gpu = category != "utility"
            model: dict[str, Any] = {
                "name": weights.name,
                "type": category,
                "memory_gb": figures.memory_gb,
                "gpus_required": int(on_gpu),
                "load_time_seconds": figures.memory_gb / costs.pcie_gb_s + costs.overhead_s if on_gpu else 0.0,
                "inference_time_mean": figures.mean_s,
                "inference_time_std": figures.std_s,
            }
            choices = self._choices[weights]
            made[self.name(weights)] = model | ({"config": choices} if choices else {})
        return made
