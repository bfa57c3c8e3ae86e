"""What ComfyUI's node types take and give: by the types of their links, by the names of their inputs, or as taught."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from dovetail.core.errors import InputError
from dovetail.core.files.document import Document

ANY = "*"
WEIGHTS_FILE = re.compile(r"\.(safetensors|sft|ckpt|pt|pth|bin|gguf|onnx)$", re.IGNORECASE)
# What must be on a GPU to be used; packs have types of their own, which end alike (WANVIDEOMODEL, WANVAE).
_WEIGHTS = re.compile(
    r"(MODEL|VAE|CLIP|CLIP_VISION|CONTROL_NET|TEXT_?ENCODER|AUDIO_ENCODER|DETECTOR|GUIDER|PIPE|PIPE_LINE|CONTEXT|"
    r"IPADAPTER|INSIGHTFACE|GLIGEN|DIT|MODEL_PATCH)$"
)
# What is worked out without a GPU worth speaking of, from weights or not.
_PLAIN = frozenset({"INT", "FLOAT", "BOOLEAN", "COMBO", "CONDITIONING", "TEXT", "ASCII", "EMBEDS", "SIGMAS", "NOISE"})
_LIGHT = frozenset({"SIGMAS", "NOISE", "SAMPLER", "INT", "FLOAT", "BOOLEAN", "COMBO", "GUIDER", "LORA", "HOOKS"})
_MEDIA = re.compile(r"IMAGE|VIDEO|AUDIO|STRING|SVG|MASK|MESH|LATENT|FILE_3D|TASK_ID|MODEL_3D|^\*$")
_NAMED = (  # the API's prompts have no types: what an input is called says what it takes
    (r"clip_vision_output|.*_embeds?|embeds", "EMBEDS"),
    (r"clip_vision(_model)?", "CLIP_VISION"),
    (r"upscale_model", "UPSCALE_MODEL"),
    (r"style_model", "STYLE_MODEL"),
    (r"sam_model(_opt)?", "SAM_MODEL"),
    (r"(?:.*_)?model(_\w+)?", "MODEL"),
    (r"(?:.*_)?clip\d?|text_encoder|t5", "CLIP"),
    (r"(?:.*_)?vae\d?", "VAE"),
    (r"guider", "GUIDER"),
    (r"control_?net\d?", "CONTROL_NET"),
    (r"audio_encoder", "AUDIO_ENCODER"),
    (r"ipadapter", "IPADAPTER"),
    (r".*_detector(_opt)?", "DETECTOR"),
    (r"(?:.*_)?pipe|context", "PIPE"),
    (r"positive|negative|conditioning(_.*)?|cond", "CONDITIONING"),
    (r"samples\d?|latents?(_.*)?|.*_latents?", "LATENT"),
    (r"(?:.*_)?(images?|pixels)\d?", "IMAGE"),
    (r"(?:.*_)?masks?", "MASK"),
    (r"(?:.*_)?audio", "AUDIO"),
    (r"(?:.*_)?video", "VIDEO"),
    (r"sigmas", "SIGMAS"),
    (r"noise", "NOISE"),
    (r"sampler", "SAMPLER"),
)
_SIZE = ("width", "height", "length", "batch_size")
_WIDGETS = (  # values of the editor's nodes by position, where the file does not name them
    (r"KSampler$", ("seed", "steps", "cfg", "sampler_name", "scheduler", "denoise")),
    (r"KSamplerAdvanced$", ("add_noise", "noise_seed", "steps", "cfg", "", "", "start_at_step", "end_at_step")),
    (r"SamplerCustom$", ("add_noise", "noise_seed", "cfg")),
    (r"BasicScheduler$", ("scheduler", "steps", "denoise")),
    (r"\w*Scheduler$", ("steps",)),
    (r"CFGGuider$", ("cfg",)),
    (r"Empty\w*(Latent\w*Video|Video\w*Latent)\w*$|\w+To\w*Video\w*$", _SIZE),
    (r"Empty\w*Latent\w*$", ("width", "height", "batch_size")),
    (r"(Latent|Image)Scale$", ("", "width", "height")),
    (r"CLIPTextEncode$", ("text",)),
    (r"Primitive\w+$", ("value",)),
)
_OUTPUT = re.compile(
    r"save|preview|video_?combine|show ?(text|any)|display|compare|websocket|^Tripo\w+Node$", re.IGNORECASE
)
_LOADS = re.compile(r"load(?!image|video|audio)", re.IGNORECASE)
# Nodes of ComfyUI that call outside services begin with the service's name.
_CLOUD = re.compile(
    r"(Beeble|Bria|ByteDance|Claude|ElevenLabs|Flux[23]?(Pro|Max|Flex|Erase|VTO|Video|ImageTo|TextTo)\w*Node|FluxKontext(Pro|Max|"
    r"Multi)|Gemini|Grok|HappyHorse|HeyGen|HitPaw|Ideogram|Kling|Krea2\w+Node|Ltxv?Api|Luma[A-Z]|Magnific|Meshy|Minimax|"
    r"Moonvalley|OpenAI|OpenRouter|Pika|Pixverse|Quiver|Recraft|Reve[A-Z]|Rodin|Runway|Sonilo|Stability|Sync[A-Z]\w+Node|"
    r"Tencent|Topaz|Tripo(?!S)|Veo\d?[A-Z]|Vidu|Wavespeed)|\w+(Api|API)(Node)?$"
)


class NodeType(Struct, forbid_unknown_fields=True):
    """What a user tells of a node type. ComfyUI's own answer to `/object_info` has these keys too."""

    input: dict[str, dict[str, Any]] = field(default_factory=dict)  # required and optional: name: [type, ...]
    output: list[Any] = field(default_factory=list)
    output_node: bool = False
    api_node: bool = False
    gpu: bool | None = None  # does it work on a GPU? None: as its links say
    seconds: float | None = None


class NodeTypes:
    """Node types as taught by a file, else as their names and links tell.

    >>> types = NodeTypes()
    >>> types.takes("SomethingNew", "latent_image"), types.widgets("KSampler")[:2], types.cloud("KlingImage2VideoNode")
    ('LATENT', ('seed', 'steps'), True)
    """

    def __init__(self, path: Path | None = None) -> None:
        self._taught: dict[str, NodeType] = {}
        if path is None:
            return
        doc = Document.read(path)
        if not isinstance(doc.data, dict) or not doc.data:
            raise InputError(f"{path}: expected node types by name, found {type(doc.data).__name__}")
        for name, raw in doc.data.items():
            given = raw
            if isinstance(raw, dict) and "python_module" in raw:  # the server's own, which tells more than we read
                given = {key: value for key, value in raw.items() if key in NodeType.__struct_fields__}
            one = self._taught[str(name)] = doc.convert(given, NodeType, (name,))
            if one.seconds is not None and not 0 < one.seconds < float("inf"):
                raise doc.error((name, "seconds"), f"expected a number above 0, found {one.seconds!r}")
            for group, inputs in one.input.items():
                if group not in ("required", "optional", "hidden"):
                    raise doc.error((name, "input", group), f"expected required, optional or hidden, found {group!r}")
                for key, kind in inputs.items() if group != "hidden" else ():
                    if not isinstance(kind, str) and not (isinstance(kind, list) and kind):
                        raise doc.error((name, "input", group, key), f"expected a type or [type], found {kind!r}")

    def of(self, kind: str) -> NodeType | None:
        return self._taught.get(kind)

    def _inputs(self, kind: str) -> dict[str, str]:
        taught = self._taught.get(kind)
        groups = [] if taught is None else [taught.input.get(group, {}) for group in ("required", "optional")]
        return {
            name: given if isinstance(given, str) else given[0] if isinstance(given[0], str) else "COMBO"
            for group in groups
            for name, given in group.items()
        }

    def takes(self, kind: str, name: str) -> str:
        """The type of an input."""
        known = self._inputs(kind).get(name)
        if known is not None:
            return known
        plain = re.sub(r"[._]?\d+$", "", name.lower())
        return next((type_ for pattern, type_ in _NAMED if re.fullmatch(pattern, plain)), ANY)

    def outputs(self, kind: str) -> list[str] | None:
        taught = self._taught.get(kind)
        return None if taught is None else [one if isinstance(one, str) else "COMBO" for one in taught.output]

    def gives(self, kind: str, slot: int) -> str | None:
        outputs = self.outputs(kind)
        return outputs[slot] if outputs and slot < len(outputs) else None

    def widgets(self, kind: str) -> Sequence[str]:
        plain = ("INT", "FLOAT", "STRING", "BOOLEAN", "COMBO")
        taught = [name for name, type_ in self._inputs(kind).items() if type_ in plain]
        return taught or next((names for pattern, names in _WIDGETS if re.match(pattern, kind)), ())

    def shows(self, kind: str, outputs: Sequence[str] | None) -> bool:
        """Is it an output node? ComfyUI runs those and what they need, and nothing else."""
        taught = self._taught.get(kind)
        if taught is not None:
            return taught.output_node
        return bool(_OUTPUT.search(kind)) or (outputs is not None and not outputs)

    def cloud(self, kind: str) -> bool:
        """Does it call an outside service?"""
        taught = self._taught.get(kind)
        return taught.api_node if taught is not None else bool(_CLOUD.match(kind))


def is_weights(kind: str) -> bool:
    return bool(_WEIGHTS.search(kind.upper()))


def is_work(kind: str) -> bool:
    """Is it something that weights are run to get?"""
    return kind not in _LIGHT and not is_weights(kind)


def is_media(kind: str) -> bool:
    return bool(_MEDIA.search(kind))


def is_plain(kind: str) -> bool:
    return kind in _PLAIN


def names_weights(value: Any) -> bool:
    """Is it the name of a file of weights?"""
    return isinstance(value, str) and bool(WEIGHTS_FILE.search(value))


def loads(kind: str) -> bool:
    """Is a node of this type called a loader, of something other than a picture?"""
    return bool(_LOADS.search(kind))
