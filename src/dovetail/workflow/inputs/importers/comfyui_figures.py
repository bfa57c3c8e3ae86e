"""Sizes of weights from their names, and seconds from steps, frames and resolution.

Speed 1 is an NVIDIA A100; docs/workflow-comfyui.md has the formula, its sources, and how far off it is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PEAK_FLOPS = 312e12  # dense bf16 of an A100
TRANSFORMER, CONVOLUTION = 0.5, 0.25  # the share of the peak that is reached
OVERHEAD_S = 0.05  # of any node
TEXT_TOKENS = 512
STEPS = 20
_LAYER_WIDTH = 80  # of a transformer: how much wider than deep, for the cost of attention
_VAE_FLOPS = 10e6  # per pixel and frame
_UPSCALE_FLOPS = 36e6  # per pixel and frame that goes in


class ModelFamily(NamedTuple):
    billions: float  # weights of the network that is run at each step
    text: float = 0.0  # of the text encoders that the same file has, in billions
    pixels: tuple[int, int] = (16, 1)  # of a side, and frames, to a token
    share: float = 1.0  # of the weights that a token meets: a U-Net works on fewer tokens the deeper it gets
    shape: tuple[int, int, int] = (1024, 1024, 1)  # width, height and frames where the workflow does not say


_HD = (1280, 720, 121)
_SD = (832, 480, 81)
SD15 = ModelFamily(0.86, 0.12, share=0.5, shape=(512, 512, 1))
SDXL = ModelFamily(2.57, 0.82, share=0.5)
_FAMILIES = (  # what the name of a file is searched for, in this order
    # text and image encoders
    (r"umt5.?xxl", ModelFamily(5.7)),
    (r"t5.?xxl|t5xxl|t5.?v1.?1.?xxl", ModelFamily(4.8)),
    (r"byt5", ModelFamily(0.22)),
    (r"clip.?l(?![a-z])|vit.?l.?14", ModelFamily(0.12)),
    (r"clip.?g(?![a-z])|bigg", ModelFamily(0.7)),
    (r"clip.?vision.?g", ModelFamily(1.8)),
    (r"sigclip|siglip", ModelFamily(0.43)),
    (r"clip.?vision|vit.?h.?14|image_encoder", ModelFamily(0.63)),
    (r"llava.?llama3|llama.?3", ModelFamily(8.0)),
    (r"mistral_3_small", ModelFamily(24.0)),
    (r"qwen.?2.5.?vl|qwen2?.?vl", ModelFamily(8.3)),
    # video
    (r"wan.?\d?.?\d.*1.?3b", ModelFamily(1.4, pixels=(16, 4), shape=_SD)),
    (r"wan.?2.?2.*5b", ModelFamily(5.0, pixels=(32, 4), shape=_HD)),
    (r"(?<![a-z])wan(?![a-df-z])", ModelFamily(14.3, pixels=(16, 4), shape=_SD)),
    (r"hunyuan.?video.?1.?5", ModelFamily(8.3, pixels=(16, 4), shape=_HD)),
    (r"hunyuan.?3d|hy3d", ModelFamily(3.3)),
    (r"hunyuan|hyvid", ModelFamily(12.8, pixels=(16, 4), shape=(848, 480, 73))),
    (r"ltx", ModelFamily(2.0, pixels=(32, 8), shape=(768, 512, 97))),
    (r"mochi", ModelFamily(10.0, pixels=(16, 6), shape=(848, 480, 37))),
    (r"cosmos", ModelFamily(7.0, pixels=(16, 8), shape=(1280, 704, 121))),
    (r"cogvideo", ModelFamily(5.0, pixels=(16, 4), shape=(720, 480, 49))),
    (r"seedvr2", ModelFamily(7.0, pixels=(16, 4))),
    (r"svd|stable.?video", ModelFamily(1.5, share=0.5, shape=(1024, 576, 14))),
    # images
    (r"flux.?2", ModelFamily(32.0)),
    (r"flux", ModelFamily(11.9, 4.9)),
    (r"chroma", ModelFamily(8.9)),
    (r"qwen.?image|firered", ModelFamily(20.4)),
    (r"z.?image|zit(?![a-z])", ModelFamily(6.2)),
    (r"hidream", ModelFamily(17.1)),
    (r"omnigen2", ModelFamily(4.0)),
    (r"lumina|neta", ModelFamily(2.6)),
    (r"aura.?flow", ModelFamily(6.8)),
    (r"pixart", ModelFamily(0.6)),
    (r"sd.?3.?5.*large", ModelFamily(8.1, 5.6)),
    (r"sd.?3.?5", ModelFamily(2.5, 5.6)),
    (r"sd3", ModelFamily(2.0, 5.6)),
    (r"stable.?cascade.*b", ModelFamily(1.6, pixels=(64, 1))),
    (r"cascade", ModelFamily(3.6, 0.7, pixels=(32, 1))),
    (r"ace.?step", ModelFamily(3.5)),
    (r"stable.?audio", ModelFamily(1.1)),
    (r"sd.?xl|xl(?![a-z])|pony|illustrious|noob|refiner", SDXL),
    (r"sd.?1|v1.?[45]|sd.?2|v2.?1|512|768", SD15),
)
_BILLIONS = re.compile(r"(?<![a-z\d.])a?(\d+(?:[._]\d+)?)b(?![a-z])")
_BYTES = (  # per weight, by what the name says; gguf: https://github.com/ggml-org/llama.cpp, tools/quantize
    (r"fp32|float32", 4.0),
    (r"(?<![a-z])iq1|q1_", 0.22),
    (r"q2_", 0.38),
    (r"q3_", 0.49),
    (r"iq4|q4_", 0.6),
    (r"q5_", 0.71),
    (r"q6_", 0.82),
    (r"q8", 1.06),
    (r"nf4|fp4|int4|w4a|svdq", 0.56),
    (r"fp8|int8|e4m3|e5m2|(?<![a-z\d])8bit", 1.0),
)
_SMALL = {"vae": 0.33, "upscale_model": 0.07, "control_net": 1.4, "other": 1.0, "clip": 1.0, "clip_vision": 1.3}  # GB


class Size(NamedTuple):
    """Of weights; `assumed` is what the name did not tell, in words."""

    gb: float
    family: ModelFamily
    assumed: str = ""

    @property
    def weights(self) -> float:
        return self.family.billions * 1e9


def size_of(name: str, role: str, pixels: float = 0.0) -> Size:
    """The size of weights from the name of their file; `pixels` of the picture tell SD 1.5 from SDXL where it does not.

    >>> round(size_of("wan2.1_t2v_14B_fp16.safetensors", "model").gb, 1)
    28.0
    >>> round(size_of("flux1-dev-Q4_K_S.gguf", "model").gb, 1)
    7.1
    """
    plain = name.lower()
    found = next((family for pattern, family in _FAMILIES if re.search(pattern, plain)), None)
    per_weight = next((size for pattern, size in _BYTES if re.search(pattern, plain)), 2.0)
    if role in ("vae", "upscale_model"):
        return Size(_SMALL[role], found or SDXL)
    told = _BILLIONS.search(plain)
    if told and role != "control_net":
        billions = float(told[1].replace("_", "."))
        family = (found or ModelFamily(billions))._replace(billions=billions)
        return Size(billions * per_weight, family)
    if found is None and role == "model":
        found = SD15 if 0 < pixels <= 768 * 768 else SDXL
        said = "SD 1.5" if found is SD15 else "SDXL"
        return Size(found.billions * per_weight, found, f"taken as {said}'s, {found.billions * per_weight:.1f} GB")
    if found is None or role == "control_net":
        gb = _SMALL.get(role, _SMALL["other"])
        return Size(gb, ModelFamily(gb / 2), "" if role == "clip" else f"taken as {gb:g} GB")
    return Size(found.billions * per_weight, found)


def part_of(size: Size, role: str) -> Size:
    """What else a checkpoint has: its text encoders or its VAE."""
    if role == "vae":
        return Size(_SMALL["vae"], size.family)
    billions = size.family.text or _SMALL["clip"] / 2
    return Size(billions * 2, ModelFamily(billions), size.assumed)


def step_s(family: ModelFamily, width: float, height: float, frames: float) -> float:
    """One pass of a diffusion model over a latent: its weights over all tokens, and attention between them."""
    side, of_frames = family.pixels
    tokens = max(1.0, width / side) * max(1.0, height / side) * (1 + max(0.0, frames - 1) / of_frames)
    weights = family.billions * 1e9
    wide: float = (weights * _LAYER_WIDTH / 12) ** (1 / 3)
    flops = 2 * weights * family.share * tokens + family.share * 4 * weights / (12 * wide) * tokens**2
    return flops / (PEAK_FLOPS * TRANSFORMER)


def encode_s(weights: float, tokens: float = TEXT_TOKENS) -> float:
    return OVERHEAD_S + 2 * weights * tokens / (PEAK_FLOPS * TRANSFORMER)


def vae_s(pixels: float) -> float:
    return OVERHEAD_S + _VAE_FLOPS * pixels / (PEAK_FLOPS * CONVOLUTION)


def upscale_s(pixels: float) -> float:
    return OVERHEAD_S + _UPSCALE_FLOPS * pixels / (PEAK_FLOPS * CONVOLUTION)
