"""ComfyUI workflows (the editor's files, the API's prompts, pictures with either inside) as a configuration.

Only what ComfyUI would run is counted: output nodes and what they need. A node is GPU work if it takes weights and
gives what weights are run for, by the types of its links; its model is whatever loads those weights. Everything else is
left out, and the order of the rest stays. Sizes and times are worked out from names and settings (`comfyui_figures`):
measure, and put your own in.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from dovetail.core.errors import InputError
from dovetail.core.files.document import as_path
from dovetail.workflow.inputs.costs import CostRules
from dovetail.workflow.inputs.importers import comfyui_figures as figures
from dovetail.workflow.inputs.importers.comfyui_files import ComfyGraph, ComfyLink, ComfyNode, read_graph
from dovetail.workflow.inputs.importers.comfyui_types import (
    ANY,
    WEIGHTS_FILE,
    NodeTypes,
    is_media,
    is_plain,
    is_weights,
    is_work,
    loads,
    names_weights,
)
from dovetail.workflow.inputs.importers.comfyui_values import ComfyValues
from dovetail.workflow.inputs.importers.common import Imported, Names, as_paths, bridge, request

UTILITY_S = 0.1
CLOUD_S = {"VIDEO": 120.0, "": 20.0}  # of outside services, by what they give: their queues decide, not we
_ROLES = {  # what weights are used as, in the order in which a node's own are looked for
    "model": ("image_generation", re.compile(r"^MODEL$|GUIDER$|PIPE$|PIPE_LINE$|CONTEXT$|DIT$|VIDEO_?MODEL$")),
    "control_net": ("control_net", re.compile("CONTROL")),
    "upscale_model": ("upscaling", re.compile("UPSCALE_MODEL$")),
    "clip": ("embedding", re.compile(r"CLIP$|ENCODER$")),
    "clip_vision": ("embedding", re.compile("CLIP_VISION$")),
    "other": ("image_processing", re.compile("^(?!.*VAE$)")),
    "vae": ("image_processing", re.compile("")),
}
_LATENT = 64  # pixels to a latent one
_FRAMES = ("length", "num_frames", "frames", "video_frames", "frame_count")
_SETTINGS = {
    "model": {"steps": "steps", "cfg": "cfg", "seed": "seed", "noise_seed": "seed"},
    "clip": {"text": "prompt"},
    "utility": {"width": "width", "height": "height"},
}


class Weights(NamedTuple):
    """What must be resident to run a node, and what it is used as: a checkpoint's VAE is not its diffusion model."""

    name: str
    role: str
    files: tuple[str, ...] = ()
    part: bool = False  # of a checkpoint that is known by another part


_UTILITY = Weights("utility", "utility")


def import_comfyui(
    paths: Sequence[str | os.PathLike[str]],
    *,
    types: str | os.PathLike[str] | None = None,
    keep_utility: bool = False,
    keep_loaders: bool = False,
) -> Imported:
    """Read workflows; files that load the same weights share a model.

    `types` is a file that teaches node types, such as a ComfyUI server's own `/object_info`. With `keep_utility`, nodes
    that need no GPU stay, on a model with `gpus_required` 0. With `keep_loaders`, loaders stay as nodes of 0.1 s on the
    model they load. A first load is priced as a switch on an empty GPU: memory / PCIe bandwidth + overhead, at the
    default prices.

    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "cat.json"
    >>> _ = file.write_text('''{"4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "sd15.ckpt"}},
    ...     "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a cat", "clip": ["4", 1]}},
    ...     "3": {"class_type": "KSampler", "inputs": {"model": ["4", 0], "positive": ["6", 0], "steps": 20}},
    ...     "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
    ...     "9": {"class_type": "SaveImage", "inputs": {"images": ["8", 0]}}}''')
    >>> found = import_comfyui([file])
    >>> [(node["id"], node["model"]) for node in found.config["workflows"]["cat"]["nodes"]]
    [('cliptextencode_6', 'sd15_clip'), ('ksampler_3', 'sd15'), ('vaedecode_8', 'sd15_vae')]
    >>> found.config["workflows"]["cat"]["edges"][0]
    {'from': 'cliptextencode_6', 'to': 'ksampler_3'}
    """
    taught = NodeTypes(None if types is None else as_path(types, "types"))
    files = [_File(read_graph(path, taught), taught, keep_utility, keep_loaders) for path in as_paths(paths)]
    models, workflows = _Models(), Names()
    for file in files:
        for node, weights in file.weights.items():
            models.use(weights, file.figures[node], file.settings(node))
    result = Imported({"models": models.config(), "workflows": {}})
    for number, file in enumerate(files, start=1):
        name = workflows.of(number, file.graph.path.stem)
        result.config["workflows"][name] = file.workflow(models)
        result.requests.append(file.request(number, name))
        result.notes += file.notes()
        for kind, count in file.dropped.items():
            result.dropped[kind] = result.dropped.get(kind, 0) + count
    return result


class NodeFigures(NamedTuple):
    type: str
    gb: float
    seconds: float
    gpus: int = 1


class _File:
    """One file's nodes that stay, the weights of each, and the order between them."""

    def __init__(self, graph: ComfyGraph, types: NodeTypes, keep_utility: bool, keep_loaders: bool) -> None:
        self.graph = graph = ComfyValues(graph).chosen()
        self.values = ComfyValues(graph)
        self.types = types
        self.said: dict[str, dict[str, None]] = {}  # what to know, and of what
        self.dropped: Counter[str] = Counter(graph.off)
        self.weights: dict[str, Weights] = {}
        self.kept_loaders: set[str] = set()
        run = self._run()
        for node in graph.nodes.values():
            if node.id not in run:
                self.dropped[node.type] += 1
                continue
            weights = self._weights(node)
            if weights is not None:
                self.weights[node.id] = weights
            elif self._is_cloud(node):
                self.weights[node.id] = Weights(f"cloud {node.type}", "cloud")
            elif self._is_loader(node):
                if keep_loaders:
                    self.weights[node.id] = self._named(node, 0, self._role(self._gives(node)[0]))
                    self.kept_loaders.add(node.id)
                else:
                    self._say("became models, not nodes", node.type)
            elif keep_utility and not self._passes_on(node):
                self.weights[node.id] = _UTILITY
            else:
                self.dropped[node.type] += 1
                self._say("left out, with the order of the rest kept", node.type)
        if not self.weights:
            found = ", ".join(sorted({node.type for node in graph.nodes.values()} | set(graph.off))) or "none"
            expected = "expected nodes that work on a GPU, with weights (MODEL, CLIP, VAE, ...) linked to them"
            hint = "--keep-utility keeps those that need no GPU, and --types tells which do"
            raise InputError(f"{graph.path}: {expected}, found {_shortened(found)}; {hint}")
        names = Names()
        self.pixels = self._least_pixels()
        self.figures = {node: self._figures(graph.nodes[node], weights) for node, weights in self.weights.items()}
        self.ids = {node: names.of(node, f"{graph.nodes[node].type}_{node}") for node in self.weights}
        self.edges = bridge(graph.nodes, [(link.source, link.target) for link in graph.links], self.ids)

    def _say(self, what: str, of: str) -> None:
        self.said.setdefault(what, {})[of] = None

    # --- what runs ---

    def _run(self) -> set[str]:
        """Output nodes and what they need; a node that lacks an input does not run, nor does what needs it."""
        graph = self.graph
        order = graph.order()
        cut: set[str] = set()
        for node in order:
            there = {_alike(link.input) for link in graph.into[node] if link.source not in cut}
            lost = [link.input for link in graph.into[node] if link.source in cut and not link.optional]
            lacks = [name for name in (*graph.nodes[node].lacks, *lost) if _alike(name) not in there]
            if lacks:
                cut.add(node)
                what = "cannot run, as they need an input from a muted node"
                self._say(what, f"{self._place(graph.nodes[node])} ({', '.join(lacks)})")
        run = {n for n, node in graph.nodes.items() if n not in cut and graph.into[n] and self._shows(node)}
        for node in reversed(order):
            if node in run:
                run |= {link.source for link in graph.into[node] if link.source not in cut}
        if not any(self._weights(graph.nodes[node]) or self._is_cloud(graph.nodes[node]) for node in run):
            self._say("no work leads to an output node, so ComfyUI would not run it; counted all the same", "the file")
            run = set(graph.nodes) - cut
        for kind in sorted({graph.nodes[node].type for node in order if node not in run and node not in cut}):
            self._say("lead to no output, so ComfyUI does not run them", kind)
        return run

    def _shows(self, node: ComfyNode) -> bool:
        return self.types.shows(node.type, node.outputs) and not any(map(is_weights, self._gives(node)))

    # --- what a node is ---

    def _gives(self, node: ComfyNode) -> list[str]:
        """The types that a node gives, as told, else as they are used."""
        used = {link.slot: link.type for link in self.graph.out[node.id] if link.type != ANY}
        told = dict(enumerate(node.outputs or ()))
        return [kind for slot, kind in sorted((told | used).items())] or []

    def _carries(self, link: ComfyLink) -> bool:
        """Does a link carry weights? Its type says so, or it is a type of its own that comes from a loader."""
        if is_weights(link.type):
            return True
        source = self.graph.nodes[link.source]
        own = link.type == ANY or not (is_media(link.type) or is_plain(link.type))
        return own and not self.graph.into[link.source] and (bool(_files(source)) or loads(source.type))

    def _taken(self, node: ComfyNode) -> list[ComfyLink]:
        return [link for link in self.graph.into[node.id] if self._carries(link)]

    def _weights(self, node: ComfyNode) -> Weights | None:
        """What a node runs on a GPU: None if it is not GPU work."""
        taught = self.types.of(node.type)
        taken, gives = self._taken(node), self._gives(node)
        if taught is not None and taught.gpu is not None:
            works = taught.gpu
        elif taken:
            unknown = node.outputs is None and not self._shows(node)  # a prompt does not say what nobody uses
            ends = not gives and (unknown or any(is_media(link.type) for link in self.graph.into[node.id]))
            works = any(is_work(kind) for kind in gives) or ends
            if all(
                self._role(link.type) == "vae" for link in taken
            ):  # without something to encode or decode, it is idle
                works = works and any(is_media(link.type) for link in self.graph.into[node.id])
        else:
            works = bool(_files(node)) and any(is_media(kind) for kind in gives) and not any(map(is_weights, gives))
        if not works:
            return None
        for role in _ROLES:
            link = next((link for link in taken if self._role(link.type) == role), None)
            if link is not None:
                return self._traced(link, role)
        role = "upscale_model" if re.search("upscal", node.type, re.IGNORECASE) else "other"
        return Weights("_".join(map(_stem, _files(node))) or node.type, role, tuple(_files(node)))

    def _traced(self, link: ComfyLink, role: str) -> Weights:
        """The weights that come over a link, however many nodes pass them on."""
        while True:
            before = self._taken(self.graph.nodes[link.source])
            alike = [one for one in before if one.type == link.type]
            if not alike and (link.type in (ANY, "GUIDER") or self._role(link.type) == "model"):
                alike = [one for one in before if self._role(one.type) == "model"]
            if not alike:
                break
            link = alike[0]
        return self._named(self.graph.nodes[link.source], link.slot, role)

    def _named(self, loader: ComfyNode, slot: int, role: str) -> Weights:
        files = _files(loader)
        texts = [value for value in loader.listed if isinstance(value, str) and value]
        name = "_".join(map(_stem, files)) or (_stem(texts[0]) if texts else loader.type)
        if not files and not texts:
            self._say("names no weights that can be read", loader.type)
        lent = role in ("clip", "vae") and role not in name.lower() and figures.is_model(name)
        return Weights(f"{name}_{role}" if slot or lent else name, role, tuple(files or [name]), bool(slot))

    @staticmethod
    def _role(kind: str) -> str:
        return next(role for role, (_, pattern) in _ROLES.items() if pattern.search(kind.upper()))

    def _is_cloud(self, node: ComfyNode) -> bool:
        return self.types.cloud(node.type) and any(map(is_media, self._gives(node)))

    def _is_loader(self, node: ComfyNode) -> bool:
        gives = self._gives(node)
        return bool(gives) and any(map(is_weights, gives)) and not self._taken(node)

    def _passes_on(self, node: ComfyNode) -> bool:
        gives = self._gives(node)
        return bool(gives) and all(map(is_weights, gives))

    # --- how long it takes ---

    def _shape(self, node: ComfyNode, family: figures.ModelFamily) -> tuple[float, float, float]:
        size = self.values.nearest(node, ("width",), ("height",))
        frames = self.values.nearest(node, _FRAMES)
        if size is None:
            size = [float(side) for side in family.shape[:2]]
            self._say(f"resolution not in the file, taken as {size[0]:g} x {size[1]:g}", self._place(node))
        if frames is None and family.shape[2] > 1:
            frames = [float(family.shape[2])]
            self._say(f"frames not in the file, taken as {frames[0]:g}", self._place(node))
        return size[0], size[1], frames[0] if frames else 1.0

    @staticmethod
    def _place(node: ComfyNode) -> str:
        return f"{node.type} {node.id}"

    def _taught_s(self, node: ComfyNode) -> float | None:
        taught = self.types.of(node.type)
        return None if taught is None else taught.seconds

    def _least_pixels(self) -> dict[tuple[str, ...], float]:
        """The smallest picture that weights are used for: first passes tell what they were made for."""
        least: dict[tuple[str, ...], float] = {}
        for node, weights in self.weights.items():
            size = self.values.nearest(self.graph.nodes[node], ("width",), ("height",))
            if size is not None:
                least[weights.files] = min(size[0] * size[1], least.get(weights.files, float("inf")))
        return least

    def _figures(self, node: ComfyNode, weights: Weights) -> NodeFigures:
        if weights.role == "utility":
            return NodeFigures("utility", 1.0, self._taught_s(node) or UTILITY_S, 0)
        if weights.role == "cloud":
            seconds = self._taught_s(node) or CLOUD_S["VIDEO" if "VIDEO" in self._gives(node) else ""]
            self._say("an outside service, without a GPU; its time is not known", f"{node.type} ({seconds:g} s)")
            return NodeFigures("cloud", 1.0, seconds, 0)
        size = self._size(weights)
        type_ = _ROLES[weights.role][0]
        told = UTILITY_S if node.id in self.kept_loaders else self._taught_s(node)
        seconds, frames = (told, 1.0) if told is not None else self._seconds(node, weights.role, size)
        if weights.role == "model" and (frames > 1 or size.family.shape[2] > 1):
            type_ = "video_generation"
        return NodeFigures(type_, size.gb, seconds)

    def _seconds(self, node: ComfyNode, role: str, size: figures.Size) -> tuple[float, float]:
        """How long a node takes, and how many frames it makes."""
        taken = [link.type for link in self.graph.into[node.id]]
        audio = "AUDIO" in taken or "AUDIO" in self._gives(node)
        if role in ("clip", "clip_vision", "other") or (role == "vae" and audio):
            if role in ("other", "vae"):
                self._say("time not known, counted as one pass of its weights", self._place(node))
            return figures.encode_s(size.weights), 1.0
        width, height, frames = self._shape(node, size.family)
        batch = (self.values.nearest(node, ("batch_size",)) or [1.0])[0]
        pixels = width * height * frames * batch
        if role == "vae":
            return figures.vae_s(pixels), frames
        if role == "upscale_model":
            return figures.upscale_s(pixels / (_LATENT if "LATENT" in taken else 1)), frames
        step_s = figures.step_s(size.family, width, height, frames)
        return figures.OVERHEAD_S + self._passes(node, role) * batch * step_s, frames

    def _size(self, weights: Weights) -> figures.Size:
        pixels = self.pixels.get(weights.files, 0.0)
        files = weights.files or (weights.name,)
        if weights.role == "clip":  # loaders of text encoders also name the model that they are for
            files = tuple(file for file in files if not figures.is_model(file)) or files[:1]
        sizes = [figures.size_of(file, "model" if weights.part else weights.role, pixels) for file in files]
        if weights.part:
            sizes = [figures.part_of(sizes[0], weights.role)]
        for size in sizes:
            if size.assumed:
                self._say(f"size not in its name, {size.assumed}", weights.name)
        largest = max(sizes, key=lambda size: size.gb)
        return largest._replace(gb=sum(size.gb for size in sizes))

    def _passes(self, node: ComfyNode, role: str) -> float:
        """How often the weights are run: each step, twice with a negative prompt that counts."""
        if role == "control_net":  # it runs in the sampler that its conditioning leads to
            after = next((n for n in self._after(node) if self._role_of(n) == "model"), None)
            return 1.0 if after is None else self._passes(after, "model")
        steps = self.values.nearest(node, ("steps",))
        if steps is None:
            self._say(f"steps not in the file, taken as {figures.STEPS}", self._place(node))
        first, last = (self.values.of(node, key) for key in ("start_at_step", "end_at_step"))
        count = steps[0] if steps else figures.STEPS
        if isinstance(first, int | float) and isinstance(last, int | float) and 0 <= first < last:
            count = max(1.0, min(last, count) - first)
        cfg = self.values.nearest(node, ("cfg",))
        negative = any(link.input == "negative" for link in self.graph.into[node.id])
        return count * (2.0 if (cfg[0] != 1 if cfg else negative) else 1.0)

    def _role_of(self, node: ComfyNode) -> str | None:
        weights = self._weights(node)
        return None if weights is None else weights.role

    def _after(self, node: ComfyNode) -> Iterator[ComfyNode]:
        """What a node leads to, the nearest first."""
        reached, seen = [node.id], {node.id}
        for at in reached:
            new = dict.fromkeys(link.target for link in self.graph.out[at] if link.target not in seen)
            seen.update(new)
            reached += new
        return (self.graph.nodes[at] for at in reached[1:])

    # --- what is written ---

    def workflow(self, models: _Models) -> dict[str, Any]:
        nodes = []
        before: dict[str, list[str]] = {}
        for source, target in self.edges:
            before.setdefault(target, []).append(self.ids[source])
        for node, weights in self.weights.items():
            made: dict[str, Any] = {
                "id": self.ids[node],
                "model": models.name(weights),
                "inputs": before.get(node, ["user_prompt"]),
                "outputs": [self.ids[node]],
            }
            settings = self.settings(node)
            nodes.append(made | ({"config_options": list(settings)} if settings else {}))
        edges = [{"from": self.ids[source], "to": self.ids[target]} for source, target in self.edges]
        return {"name": self.graph.path.stem, "nodes": nodes, "edges": edges}

    def settings(self, node: str) -> dict[str, Any]:
        """What of a node's values a request may set."""
        names = _SETTINGS.get(self.weights[node].role, {})
        found = [(ours, self.values.of(self.graph.nodes[node], theirs)) for theirs, ours in names.items()]
        return {ours: value for ours, value in found if isinstance(value, int | float | str)}

    def request(self, number: int, workflow: str) -> dict[str, Any]:
        """The request that the file stands for: its texts and settings, and how long each node takes."""
        times = {name: self.figures[node].seconds for node, name in self.ids.items()}
        configs = {name: self.settings(node) for node, name in self.ids.items()}
        texts = {node: str(text) for node in self.ids if (text := self.settings(node).get("prompt"))}
        positive = [
            texts[link.source] for link in self.graph.links if link.input == "positive" and link.source in texts
        ]
        prompt = next(iter([*positive, *texts.values()]), "")
        return request(number, workflow, prompt, times, {name: given for name, given in configs.items() if given})

    def notes(self) -> list[str]:
        path = self.graph.path
        said = [f"{path}: {what}: {_shortened(', '.join(of))}" for what, of in self.said.items()]
        return [*said, *(f"{path}: {note}" for note in self.graph.notes)]


def _alike(name: str) -> str:
    """Inputs of a switch are called alike (any_01, any_02), and one of them is enough."""
    return re.sub(r"\d+$", "", name)


def _files(node: ComfyNode) -> list[str]:
    """The weights that a node names."""
    return list(dict.fromkeys(value for value in node.listed if names_weights(value)))


def _stem(file: str) -> str:
    return PurePosixPath(WEIGHTS_FILE.sub("", file.replace("\\", "/"))).name


def _shortened(text: str) -> str:
    return text if len(text) <= 400 else f"{text[:400].rsplit(', ', 1)[0]}, ..."


class _Models:
    """The models that all files together need."""

    def __init__(self) -> None:
        self._names = Names()
        self._used: dict[tuple[str, str], list[NodeFigures]] = {}
        self._choices: dict[tuple[str, str], dict[str, list[Any]]] = {}

    def use(self, weights: Weights, given: NodeFigures, settings: Mapping[str, Any]) -> None:
        self._used.setdefault(weights[:2], []).append(given)
        choices = self._choices.setdefault(weights[:2], {})
        for option, value in settings.items():
            if option not in ("seed", "prompt") and value not in choices.setdefault(option, []):
                choices[option].append(value)

    def name(self, weights: Weights) -> str:
        return self._names.of(weights[:2], weights.name)

    def config(self) -> dict[str, Any]:
        costs = CostRules()
        made = {}
        for weights, used in self._used.items():
            largest = max(used, key=lambda one: (one.gb, one.type))
            mean = sum(one.seconds for one in used) / len(used)
            model: dict[str, Any] = {
                "name": weights[0],
                "type": largest.type,
                "memory_gb": round(largest.gb, 3),
                "gpus_required": largest.gpus,
                "load_time_seconds": round(largest.gb / costs.pcie_gb_s + costs.overhead_s, 3) if largest.gpus else 0.0,
                "inference_time_mean": mean,
                "inference_time_std": mean / 10,
            }
            choices = self._choices[weights]
            made[self._names.of(weights, weights[0])] = model | ({"config": choices} if choices else {})
        return made
