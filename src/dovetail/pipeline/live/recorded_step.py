"""A decode step of a lane, recorded once and then replayed: a GPU is given one graph instead of a thousand kernels.

Python takes longer to launch a step's kernels than a GPU to run them. A recording has fixed places and sizes, so keys
and values are looked at in all the room that their cache has, and what is not of a sequence is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    Step = Callable[[], torch.Tensor]

_NEAR = 0.15  # of the values' root mean square: as far as rounding otherwise in many layers may be


class RecordedStep:
    """The step of a part of a model over a cache, from a step that it has just done: that one is done again, and what
    it gave must come out."""

    def __init__(
        self,
        part: Any,
        cache: Any,
        value: torch.Tensor,
        lengths: Sequence[int],
        expected: torch.Tensor,
        record: Callable[[Step], Step],
    ) -> None:
        import torch

        self._cache, self._rows = cache, len(lengths)
        self._keys = cache.layers[0].keys
        self._room = self._keys.shape[-2]
        device = value.device
        self._value = value.clone()
        # By row its position and the first column that is its own; and the column to come.
        self._places = torch.empty(2 * self._rows + 1, dtype=torch.int64, device=device)
        self._place(lengths)
        positions, before, at = self._places[: self._rows, None], self._places[self._rows : -1, None], self._places[-1:]
        columns = self._columns = torch.arange(self._room, device=device)  # a recording reads it, but does not hold it

        def step() -> torch.Tensor:
            mask = ((columns >= before) & (columns <= at))[:, None, None, :]
            options = dict(part.last_logits)
            if part.takes_positions:
                options["position_ids"] = positions
            with cache.in_place(at):
                found: torch.Tensor = part(self._value, cache, attention_mask=mask, **options)
            return found

        # What that step wrote stays: a recording may round otherwise, and so may other stages that do not record yet.
        written = [
            (kept, kept[:, :, max(lengths)].clone()) for each in cache.layers for kept in (each.keys, each.values)
        ]
        try:
            step()  # so that all kernels are loaded
            self._replay = record(step)
            found = self._replay()
        finally:
            for kept, column in written:
                kept[:, :, max(lengths)] = column
            cache.back_to(max(lengths) + 1)
        other = (found.double() - expected.double()).square().sum()
        self.same = bool(other <= _NEAR**2 * expected.double().square().sum())

    def fits(self, cache: Any, lengths: Sequence[int]) -> bool:
        """Whether nobody has come or gone, and there is room."""
        return cache.layers[0].keys is self._keys and len(lengths) == self._rows and max(lengths) < self._room

    def run(self, value: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        self._value.copy_(value)
        self._place(lengths)
        found = self._replay().clone()
        self._cache.back_to(max(lengths) + 1)
        return found

    def _place(self, lengths: Sequence[int]) -> None:
        import torch

        longest = max(lengths)
        self._places.copy_(torch.tensor([*lengths, *(longest - length for length in lengths), longest]))


def recordable(part: Any) -> bool:
    """Whether positions are told, and one mask will do for all blocks of a part: none looks back through a window, and
    none adds it to its weights, to which true and false would be 1 and 0."""
    config = part.model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if not (part.has_cache and part.takes_positions) or getattr(config, "_attn_implementation", "") != "sdpa":
        return False
    return kinds == {"full_attention"} and not getattr(config, "sliding_window", None)


def cuda_graph(step: Step) -> Step:
    """A step as a graph of the current stream."""
    import torch

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
        found = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return found

    return replay
