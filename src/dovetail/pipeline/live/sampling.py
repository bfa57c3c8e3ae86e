"""Tokens drawn by chance: as a library's own `generate` draws them for one prompt, from the same seed.

Every sequence has a generator of its own, so what it draws does not depend on its company. One that is read again after
a stage's death draws on where it was: a generator that has drawn as often is in the same state.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dovetail.core.errors import InputError

if TYPE_CHECKING:
    import torch

_LARGEST_SEED = 2**62


class TokenSampling(Struct, frozen=True, kw_only=True):
    """How to draw: from logits divided by a temperature, of the `top_k` most likely tokens (0: all), of these the most
    likely that together have a probability of `top_p`. The first prompt has this seed, the next ones those after it."""

    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    @classmethod
    def given(cls, temperature: float | None, top_k: int, top_p: float, seed: int) -> TokenSampling | None:
        """What a user asks for; None without a temperature, which is to take the most likely token."""
        if temperature is None:
            if top_k or top_p != 1.0:
                raise InputError("--top-k and --top-p: tokens are drawn only with a --temperature, such as 1")
            return None
        if not 0 < temperature < float("inf"):
            raise InputError(
                f"--temperature {temperature:g}: expected more than 0; leave it out for the likeliest token"
            )
        if top_k < 0:
            raise InputError(f"--top-k {top_k}: expected 1 or more, or 0 for all tokens")
        if not 0 < top_p <= 1:
            raise InputError(f"--top-p {top_p:g}: expected more than 0 and at most 1")
        if not 0 <= seed <= _LARGEST_SEED:
            raise InputError(f"--sample-seed {seed}: expected 0 to {_LARGEST_SEED}")
        return cls(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)


class TokenSampler:
    """Draws tokens for the sequences of all lanes, in the last stage."""

    def __init__(self, sampling: TokenSampling) -> None:
        library: Any = importlib.import_module("transformers")
        self._warp: list[Any] = []
        if sampling.temperature != 1.0:
            self._warp.append(library.TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            self._warp.append(library.TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1.0:
            self._warp.append(library.TopPLogitsWarper(sampling.top_p))
        self._lanes: dict[int, list[torch.Generator]] = {}

    def join(self, lane: int, logits: torch.Tensor, seed: int, drawn: int) -> torch.Tensor:
        """A token for a sequence that becomes the last of a lane, and has drawn so many before."""
        import torch

        generator = torch.Generator(logits.device).manual_seed(seed)
        even = torch.ones_like(logits)
        for _ in range(drawn):
            torch.multinomial(even, 1, generator=generator)
        self._lanes.setdefault(lane, []).append(generator)
        return self._draw(logits, [generator])

    def step(self, lane: int, logits: torch.Tensor) -> torch.Tensor:
        """A token for each sequence of a lane."""
        return self._draw(logits, self._lanes[lane])

    def keep(self, lane: int, rows: Sequence[int]) -> None:
        """Only these sequences are left in a lane."""
        self._lanes[lane] = [self._lanes[lane][row] for row in rows]

    def _draw(self, logits: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
        import torch

        found = []
        for row, generator in enumerate(generators):
            scores = logits[row : row + 1].clone()
            for warp in self._warp:
                scores = warp(None, scores)
            found.append(torch.multinomial(scores.softmax(-1), 1, generator=generator)[:, 0])
        return torch.cat(found)
