"""How long the layers of a language model take to read a prompt, and to decode tokens in a context: measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from dovetail.core.errors import InputError
from dovetail.pipeline.hardware import BUSY, Disturbance, check_device, placed_on
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec, full_dtype, model_spec, need_torch
from dovetail.pipeline.profile.measure import Effort, rounds_of

if TYPE_CHECKING:
    import torch
    from torch import nn


def profile_generation(
    model: str | ModelSpec,
    *,
    prompt: int = 512,
    context: int = 4096,
    sequences: Sequence[int] = (1,),
    dtype: str = "torch.float32",
    device: str = "cpu",
    threads: int | None = None,
    cores: Sequence[int] = (),
    effort: Effort | None = None,
) -> list[dict[str, Any]]:
    """Measure the layers of a language model: profiles for `device_types.yml`, as `load_generation` reads them.

    One is of a prompt of so many tokens, the others of a token for each of so many sequences, in contexts that are
    full. The whole model runs, round after round, and notes when each layer begins: what it does once per call, before
    the first block, is told of the embedding. What other programs disturbed is marked `busy`.
    """
    need_torch("profiling")
    import torch

    for name, count in (("prompt", prompt), ("context", context - 1), ("sequences", min(sequences, default=0))):
        if count < 1:
            raise InputError(f"{name}: expected more, found {count + (name == 'context')}")
    place = check_device(device)
    kind = full_dtype(dtype)
    chain = load(model_spec(model))
    part = chain.decoder(1, len(chain.layers), device, kind)
    random = torch.Generator().manual_seed(0)

    def ids(count: int, tokens: int) -> torch.Tensor:
        return torch.randint(chain.id_limit, (count, tokens), generator=random).to(place)

    def measured(phase: str, tokens: int, size: int, run: Callable[[], object]) -> dict[str, Any]:
        watch = Disturbance()
        with LayerClock(part.blocks, place) as clock:
            times = rounds_of(lambda: clock.times(run), effort or Effort())
        seconds = [float(f"{statistics.median(taken):.9g}") for taken in times]
        found = {"phase": phase, "tokens": tokens, "batch_size": size, "dtype": kind, "time_s": seconds}
        return found | ({"busy": round(busy, 3)} if (busy := watch.share()) > BUSY else {})

    with placed_on(threads, cores), torch.inference_mode():
        found = [measured("prefill", prompt, 1, _reader(part, ids(1, prompt)))]
        for size in sequences:
            found.append(measured("decode", context, size, _stepper(part, ids(size, context))))  # noqa: PERF401
    return found


def _reader(part: Any, ids: torch.Tensor) -> Callable[[], object]:
    from dovetail.core.service.key_value_cache import SequenceCache

    return lambda: part(ids, SequenceCache(), **part.last_logits)


def _stepper(part: Any, ids: torch.Tensor) -> Callable[[], object]:
    """The last token of each of these contexts, with all before it in the cache."""
    import torch

    from dovetail.core.service.key_value_cache import SequenceCache

    past, cache = ids.shape[1] - 1, SequenceCache()
    options = dict(part.last_logits)
    if part.takes_positions:
        options["position_ids"] = torch.full((len(ids), 1), past, device=ids.device)
    part(ids[:, :past], cache, **part.last_logits)

    def step() -> object:
        cache.back_to(past)
        return part(ids[:, past:], cache, **options)

    return step


class LayerClock:
    """Notes, while a whole model runs, when each of its blocks begins and when the last one ends.

    On a GPU by events among the kernels, so that nothing waits that would not: a kernel is launched while the one
    before it runs, as it is in a pipeline.
    """

    def __init__(self, blocks: nn.ModuleList, device: torch.device) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._marks: list[Any] = []
        self._hooks = [block.register_forward_pre_hook(self._mark) for block in blocks]
        self._hooks.append(blocks[-1].register_forward_hook(self._mark))

    def __enter__(self) -> LayerClock:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def times(self, run: Callable[[], object]) -> list[float]:
        """Seconds of what is before the blocks, of each block, and of what follows them."""
        self._marks = []
        self._mark()
        run()
        self._mark()
        if self._cuda:
            self._marks[-1].synchronize()
            return [a.elapsed_time(b) / 1000 for a, b in pairwise(self._marks)]
        return [b - a for a, b in pairwise(self._marks)]

    def _mark(self, *_: object) -> None:
        if not self._cuda:
            self._marks.append(perf_counter())
            return
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._marks.append(event)
