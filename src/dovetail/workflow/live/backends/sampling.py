"""How the next token is chosen: what a call may ask for, and the choice itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch import Tensor

from dovetail.core.errors import did_you_mean
from dovetail.workflow.live.protocol import BackEndError


class Sampling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a call. `temperature` 0 takes the likeliest token; who gives a `seed` gets the same answer again."""

    max_tokens: int | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: list[str] | str = []
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False

    @property
    def plain(self) -> bool:
        """The likeliest token, whatever was written before."""
        return not self.temperature and not self.penalised

    @property
    def penalised(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty) or self.repetition_penalty != 1


def sampling_of(options: Mapping[str, Any]) -> Sampling:
    """What a call asks for; what is None is as if it were not there.

    >>> sampling_of({"temperature": 1, "top_p": None}).temperature
    1.0
    >>> sampling_of({"temprature": 1})
    Traceback (most recent call last):
    dovetail.workflow.live.protocol.BackEndError: unknown option 'temprature'; did you mean 'temperature'?
    """
    given = {name: value for name, value in options.items() if value is not None}
    known = Sampling.__struct_fields__
    for name in given:
        if name not in known:
            raise BackEndError(f"unknown option {name!r}{did_you_mean(name, known)}", "call")
    try:
        found = msgspec.convert(given, Sampling)
    except msgspec.ValidationError as error:
        raise BackEndError(f"options: {error}", "call") from None
    for name, right, expected in (
        ("max_tokens", found.max_tokens is None or found.max_tokens >= 1, "1 or more"),
        ("temperature", 0 <= found.temperature <= 100, "0 to 100"),
        ("top_p", 0 < found.top_p <= 1, "above 0, up to 1"),
        ("top_k", found.top_k >= 0, "0 (all tokens) or more"),
        ("repetition_penalty", 0 < found.repetition_penalty <= 100, "above 0, up to 100"),
        ("presence_penalty", abs(found.presence_penalty) <= 100, "-100 to 100"),
        ("frequency_penalty", abs(found.frequency_penalty) <= 100, "-100 to 100"),
    ):
        if not right:
            raise BackEndError(f"{name} is {getattr(found, name)}; expected {expected}", "call")
    return found


class TokenChoice:
    """Chooses the tokens of one call, one after the other. Its random numbers are its own: who else is in the batch
    does not change them."""

    def __init__(self, sampling: Sampling, prompt: list[int]) -> None:
        self.sampling = sampling
        self._prompt = prompt
        self._random: torch.Generator | None = None
        self._read: Tensor | None = None  # whether a token was read, and how often it was written
        self._written: Tensor | None = None

    def choose(self, logits: Tensor) -> Tensor:
        """A token, of the logits for all of them."""
        temperature, scores = self.sampling.temperature, logits.float()
        if self.sampling.penalised:
            scores = self._penalised(scores)
        token = self._drawn(scores / temperature) if temperature else scores.argmax()
        if self._written is not None:
            self._written[token] += 1
        return token

    def _drawn(self, scores: Tensor) -> Tensor:
        sampling = self.sampling
        if self._random is None:
            self._random = torch.Generator(scores.device)
            if sampling.seed is None:
                self._random.seed()
            else:
                self._random.manual_seed(sampling.seed % (1 << 63))
        if 0 < sampling.top_k < len(scores):
            scores = scores.masked_fill(scores < scores.topk(sampling.top_k).values[-1], -torch.inf)
        if sampling.top_p < 1:
            ordered, order = scores.sort(descending=True)
            shares = ordered.softmax(0)
            scores = scores.masked_fill(
                torch.empty_like(shares, dtype=torch.bool).scatter_(
                    0, order, shares.cumsum(0) - shares >= sampling.top_p
                ),
                -torch.inf,
            )
        return torch.multinomial(scores.softmax(0), 1, generator=self._random)[0]

    def _penalised(self, scores: Tensor) -> Tensor:
        sampling = self.sampling
        if self._read is None or self._written is None:
            self._written = torch.zeros_like(scores)
            self._read = torch.zeros_like(scores, dtype=torch.bool)
            self._read[self._prompt] = True
        written = self._written
        repeated = torch.where(scores > 0, scores / sampling.repetition_penalty, scores * sampling.repetition_penalty)
        scores = torch.where(self._read | (written > 0), repeated, scores)
        return scores - sampling.presence_penalty * (written > 0) - sampling.frequency_penalty * written
