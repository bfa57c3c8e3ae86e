"""Sizes of weights from their names, and seconds from steps, frames and resolution.

Speed 1 is an NVIDIA A100; docs/workflow-comfyui.md has the formula, its sources, and how far off it is.
"""

from __future__ import annotations

import re
from typing import NamedTuple

PEAK_FLOPS = 312e12  # dense bf16 of an A100
TRANSFORMER, CONVOLUTION = 0.65, 0.2  # the share of the peak that is reached
PASS_S = 0.015  # the least that one pass takes: small networks wait for the CPU
OVERHEAD_S = 0.05  # of any node
TEXT_TOKENS = 512
STEPS = 20
_DEPTH_WIDTH = 0.035  # layers x width of a transformer, over the power 2/3 of its weights
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
_ENCODERS = (  # text and image encoders: what the name of a file is searched for, and billions of weights
    (r"umt5.?xxl", 5.7),
    (r"t5.?xxl|t5.?v1.?1.?xxl", 4.8),
    (r"byt5", 0.22),
    (r"llava.*vision", 0.32),
    (r"clip.?vision.?g|bigg", 1.84),
    (r"clip.?vision.?h|vit.?h.?14|image_encoder", 0.63),
    (r"clip.?vision|vit.?l.*336|clip.?vit.?large", 0.3),
    (r"sigclip|siglip", 0.43),
    (r"clip.?l(?![a-z])|vit.?l.?14", 0.12),
    (r"clip.?g(?![a-z])", 0.7),
    (r"llava.?llama.?3|llama.?3", 8.0),
    (r"mistral.?3.?small", 24.0),
    (r"qwen.?2.?5.?vl", 8.3),
)
_MODELS = (  # diffusion models, likewise; the first that fits
    (r"wan.?2.?2.*5b", ModelFamily(5.0, pixels=(32, 4), shape=_HD)),
    (r"(?<![a-z])wan(?![a-df-z])", ModelFamily(14.3, pixels=(16, 4), shape=_SD)),
    (r"hunyuan.?video.?1.?5", ModelFamily(8.3, pixels=(16, 4), shape=_HD)),
    (r"hunyuan.?dit", ModelFamily(1.5, 2.5)),
    (r"hunyuan.?3d|hy3d", ModelFamily(3.3)),
    (r"hunyuan|hyvid", ModelFamily(12.8, pixels=(16, 4), shape=(848, 480, 73))),
    (r"ltx", ModelFamily(2.0, pixels=(32, 8), shape=(768, 512, 97))),
    (r"mochi", ModelFamily(10.0, pixels=(16, 6), shape=(848, 480, 37))),
    (r"cosmos", ModelFamily(7.0, pixels=(16, 8), shape=(1280, 704, 121))),
    (r"cogvideo", ModelFamily(5.6, pixels=(16, 4), shape=(720, 480, 49))),
    (r"seedvr2", ModelFamily(7.0, pixels=(16, 4))),
    (r"svd|stable.?video", ModelFamily(1.5, share=0.5, shape=(1024, 576, 14))),
    (r"flux.?2", ModelFamily(32.0)),
    (r"flux", ModelFamily(11.9, 4.9)),
    (r"chroma", ModelFamily(8.9)),
    (r"qwen.?image|firered", ModelFamily(20.4)),
    (r"z.?image", ModelFamily(6.2)),
    (r"hidream", ModelFamily(17.1)),
    (r"omnigen2", ModelFamily(4.0)),
    (r"lumina|neta", ModelFamily(2.6)),
    (r"aura.?flow", ModelFamily(6.8)),
    (r"pixart", ModelFamily(0.6)),
    (r"sd.?3.?5.*large", ModelFamily(8.1, 5.6)),
    (r"sd.?3.?5", ModelFamily(2.5, 5.6)),
    (r"sd3", ModelFamily(2.0, 5.6)),
    (r"(cascade.*|^)stage.?b", ModelFamily(1.56, pixels=(64, 1))),
    (r"cascade|^stage.?c", ModelFamily(3.6, 0.7, pixels=(32, 1))),
    (r"ace.?step", ModelFamily(3.5)),
    (r"stable.?audio", ModelFamily(1.1)),
    (r"sd.?xl|xl(?![a-z])|pony|illustrious|noob|refiner", SDXL),
    (r"sd.?1|v1.?[45]|sd.?2|v2.?1", SD15),
)
_BILLIONS = re.compile(r"(?<![a-z\d.])[ae]?(?:(0\d)|(\d+(?:\.\d+)?|1_3))b(?![a-z\d])")
_BYTES = (  # of a weight, by what the name says; 16 bits where it says nothing, as ComfyUI loads them
    (r"fp32|f32", 4.0),
    (r"iq1|q1_", 0.22),
    (r"q2_", 0.38),
    (r"q3_", 0.49),
    (r"iq4|q4_", 0.6),
    (r"q5_", 0.71),
    (r"q6_", 0.82),
    (r"q8", 1.06),
    (r"nf4|fp4|int4|w4a|svdq", 0.56),
    (r"fp8|int8|e4m3|e5m2|8bit", 1.0),
)
_CONTROL_NET = 0.47  # of the weights of the model that it is for
_SMALL = {"vae": 0.33, "upscale_model": 0.07, "clip": 1.0, "clip_vision": 1.3, "other": 1.0}  # GB


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
    per_weight = next((size for pattern, size in _BYTES if re.search(pattern, plain)), 2.0)
    if role in ("vae", "upscale_model"):
        return Size(_SMALL[role], SDXL)
    if role in ("clip", "clip_vision", "other"):
        billions = next((count for pattern, count in _ENCODERS if re.search(pattern, plain)), None) or _told(plain)
        gb = _SMALL[role] if billions is None else billions * per_weight
        return Size(gb, ModelFamily(billions or gb / 2), "" if billions else f"taken as {gb:g} GB")
    found = next((family for pattern, family in _MODELS if re.search(pattern, plain)), None)
    assumed = ""
    if (told := _told(plain)) is not None:
        found = (found or ModelFamily(told))._replace(billions=told)
    if found is None:
        found, said = (SD15, "SD 1.5") if 0 < pixels <= 768 * 768 else (SDXL, "SDXL")
        assumed = f"taken as for {said}"
    if role == "control_net":
        found = found._replace(billions=found.billions * _CONTROL_NET)
    gb = found.billions * per_weight
    return Size(gb, found, assumed and f"{assumed}, {gb:.1f} GB")


def _told(name: str) -> float | None:
    """Billions of weights, where a name has them: 14B, A14B, 1_3B, 06b."""
    found = _BILLIONS.search(name)
    if found is None:
        return None
    return float(found[1]) / 10 or None if found[1] else float(found[2].replace("_", ".")) or None


def is_model(name: str) -> bool:
    """Does a file's name say that it is a diffusion model, and no encoder?"""
    plain = name.lower()
    return any(re.search(pattern, plain) for pattern, _ in _MODELS) and not any(
        re.search(pattern, plain) for pattern, _ in _ENCODERS
    )


def part_of(size: Size, role: str) -> Size:
    """What else a checkpoint has, at the same precision: its text encoders or its VAE."""
    if role == "vae":
        return Size(_SMALL["vae"], size.family)
    billions = size.family.text or _SMALL["clip"] / 2
    return Size(billions * size.gb / size.family.billions, ModelFamily(billions), size.assumed)


def step_s(family: ModelFamily, width: float, height: float, frames: float) -> float:
    """One pass of a diffusion model over a latent: its weights over all tokens, and attention between them."""
    side, of_frames = family.pixels
    tokens = max(1.0, width / side) * max(1.0, height / side) * (1 + max(0.0, frames - 1) / of_frames)
    weights = family.billions * 1e9
    flops: float = 2 * weights * tokens + 4 * _DEPTH_WIDTH * weights ** (2 / 3) * tokens**2
    return max(PASS_S, family.share * flops / (PEAK_FLOPS * TRANSFORMER))


def encode_s(weights: float, tokens: float = TEXT_TOKENS) -> float:
    return OVERHEAD_S + 2 * weights * tokens / (PEAK_FLOPS * TRANSFORMER)


def vae_s(pixels: float) -> float:
    return OVERHEAD_S + _VAE_FLOPS * pixels / (PEAK_FLOPS * CONVOLUTION)


def upscale_s(pixels: float) -> float:
    return OVERHEAD_S + _UPSCALE_FLOPS * pixels / (PEAK_FLOPS * CONVOLUTION)
