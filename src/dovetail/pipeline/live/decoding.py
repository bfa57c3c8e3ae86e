"""A stage's side of generation: its layers of a language model, with the keys and values of what was read so far.

Sequences that are decoded together form a lane. A prompt is read alone and then joins its lane; every other step reads
one token of each sequence of a lane. What is done is told by the data host with every microbatch, so that all stages
keep the same sequences, and none of them decides anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dovetail.pipeline.live.recorded_step import RecordedStep, cuda_graph, recordable
from dovetail.pipeline.live.sampling import TokenSampler, TokenSampling

if TYPE_CHECKING:
    import torch

_WARM_UP = 16  # tokens of a prompt that is read before all others
_OFTEN = 2  # steps of the same sequences before one is recorded


class DecodeStep(Struct, frozen=True, array_like=True):
    """What to do with a microbatch of tokens."""

    lane: int
    lengths: list[int]  # tokens that the caches hold of each sequence of the lane that goes on
    keep: list[int] | None = None  # which those are, where some were ended by the step before
    joins: bool = False  # a prompt, which becomes the last sequence of the lane
    seed: int = 0  # by which whoever joins draws its tokens, if they are drawn
    drawn: int = 0  # how many it has, from before a stage's death


class StageDecoder:
    """The layers of one stage, and its part of the caches of all lanes. One thread calls it.

    Where steps can be recorded (`record`; on a GPU they are), those of a lane are once nobody has come or gone for a
    while, and replayed until somebody does.
    """

    def __init__(
        self,
        part: Any,
        device: str,
        sampling: TokenSampling | None = None,
        record: Callable[[Any], Any] | None = None,
    ) -> None:
        import torch

        self._sampler = TokenSampler(sampling) if sampling is not None and part.is_last else None
        self._part, self._device = part, torch.device(device)
        self._lanes: dict[int, Any] = {}
        self._record = record or (cuda_graph if self._device.type == "cuda" else None)
        if not recordable(part):
            self._record = None
        self._alike: dict[int, tuple[Any, int]] = {}  # by lane: its keys, and for how many steps they were these
        self._recorded: dict[int, RecordedStep] = {}

    def warm_up(self) -> None:
        """Read a prompt and decode a token, and forget them: a GPU loads its libraries and kernels by that."""
        import torch

        model = self._part.model
        width = () if self._part.is_first else (model.config.get_text_config(decoder=True).hidden_size,)
        dtype = next(model.parameters()).dtype if width else torch.int64
        prompt = torch.zeros((1, _WARM_UP, *width), dtype=dtype, device=self._device)
        with torch.inference_mode():
            self._read(prompt, DecodeStep(0, [], joins=True))
            self._step(prompt[:, :1], DecodeStep(0, [_WARM_UP]))
        self._lanes.clear()

    def run(self, value: Any, step: DecodeStep | None) -> torch.Tensor:
        """Hidden values for the next stage, or from the last one a token for each sequence."""
        import torch

        assert step is not None
        with torch.inference_mode():
            self._forget(step)
            step_of = self._step if self._record is None else self._replayed
            out: torch.Tensor = self._read(value, step) if step.joins else step_of(value, step)
            if not self._part.is_last:
                return out
            return self._tokens(out[:, -1].float(), step)

    def _tokens(self, logits: torch.Tensor, step: DecodeStep) -> torch.Tensor:
        if self._sampler is None:
            return logits.argmax(-1)
        if step.joins:
            return self._sampler.join(step.lane, logits, step.seed, step.drawn)
        return self._sampler.step(step.lane, logits)

    def _forget(self, step: DecodeStep) -> None:
        if step.keep is not None and self._sampler is not None:
            self._sampler.keep(step.lane, step.keep)
        if step.keep is None or step.lane not in self._lanes:
            return
        if step.keep:
            self._lanes[step.lane].keep(step.keep, max(step.lengths))
        else:
            del self._lanes[step.lane]
            self._recorded.pop(step.lane, None)
            self._alike.pop(step.lane, None)

    def _read(self, prompt: torch.Tensor, step: DecodeStep) -> Any:
        from dovetail.core.service.key_value_cache import SequenceCache

        if not self._part.has_cache:
            return self._part(prompt, **self._part.last_logits)
        cache = SequenceCache()
        out = self._part(prompt, cache, **self._part.last_logits)
        if step.lane in self._lanes:
            self._lanes[step.lane].join(cache)
        else:
            self._lanes[step.lane] = cache
        return out

    def _step(self, tokens: torch.Tensor, step: DecodeStep) -> Any:
        import torch

        from dovetail.core.service.key_value_cache import lengths_mask

        given: dict[str, Any] = dict(self._part.last_logits)
        if self._part.takes_positions:
            given["position_ids"] = torch.tensor(step.lengths, device=self._device)[:, None]
        if not self._part.has_cache:
            return self._part(tokens, **given)
        mask = lengths_mask(step.lengths, self._device)
        return self._part(tokens, self._lanes[step.lane], attention_mask=mask, **given)

    def _replayed(self, tokens: torch.Tensor, step: DecodeStep) -> Any:
        """A step by its recording, if there is one; recorded, once it has been done often enough."""
        cache, recorded = self._lanes[step.lane], self._recorded.get(step.lane)
        if recorded is not None:
            if recorded.fits(cache, step.lengths):
                return recorded.run(tokens, step.lengths)
            del self._recorded[step.lane]
        out = self._step(tokens, step)
        keys = cache.layers[0].keys
        before, times = self._alike.get(step.lane, (None, 0))
        times = times + 1 if before is keys else 1
        self._alike[step.lane] = (keys, times)
        if times == _OFTEN and max(step.lengths) + 1 < keys.shape[-2]:
            self._try_to_record(tokens, step, out)
        return out

    def _try_to_record(self, tokens: torch.Tensor, step: DecodeStep, out: torch.Tensor) -> None:
        """Record a step that was just done. A model that cannot be recorded, or gives something else then, goes on
        without."""
        assert self._record is not None
        cache = self._lanes[step.lane]
        recorded: RecordedStep | None
        try:
            recorded = RecordedStep(self._part, cache, tokens, step.lengths, out, self._record)
        except Exception:  # whatever a model's code does that a recording cannot hold
            recorded = None
        if recorded is not None and recorded.same:
            self._recorded[step.lane] = recorded
        else:
            self._record = None
            self._recorded.clear()
            self._alike.clear()
