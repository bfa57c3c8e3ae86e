"""How long the layers of a language model take to read a prompt, and to decode tokens in a context: measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from dovetail.core.errors import InputError
from dovetail.pipeline.hardware import BUSY, Disturbance, check_device, placed_on
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec, full_dtype, model_spec, need_torch, torch_dtype
from dovetail.pipeline.profile.measure import Effort, timed_rounds

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Value


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
    full. Layers run one by one, round after round, each with a cache of its own. What other programs disturbed is
    marked `busy`.
    """
    need_torch("profiling")
    import torch

    for name, count in (("prompt", prompt), ("context", context - 1), ("sequences", min(sequences, default=0))):
        if count < 1:
            raise InputError(f"{name}: expected more, found {count + (name == 'context')}")
    check_device(device)
    kind = full_dtype(dtype)
    chain = load(model_spec(model))
    parts = [chain.decoder(layer, layer, device, kind) for layer in range(1, len(chain.layers) + 1)]
    hidden = parts[0].model.config.get_text_config(decoder=True).hidden_size

    def value(part: Any, count: int, tokens: int) -> Any:
        if part.is_first:
            return torch.zeros(count, tokens, dtype=torch.int64, device=device)
        return torch.randn(count, tokens, hidden).to(device, torch_dtype(kind))

    def measured(phase: str, tokens: int, size: int, runs: list[Callable[[Value], Value]], new: int) -> dict[str, Any]:
        watch = Disturbance()
        times = timed_rounds(runs, [value(part, size, new) for part in parts], device, effort or Effort())
        seconds = [float(f"{statistics.median(taken):.9g}") for taken in times]
        found = {"phase": phase, "tokens": tokens, "batch_size": size, "dtype": kind, "time_s": seconds}
        return found | ({"busy": round(busy, 3)} if (busy := watch.share()) > BUSY else {})

    with placed_on(threads, cores), torch.inference_mode():
        found = [measured("prefill", prompt, 1, [_reader(part) for part in parts], prompt)]
        for size in sequences:
            runs = [_decoder(part, value(part, size, context - 1), context) for part in parts]
            found.append(measured("decode", context, size, runs, 1))
    return found


def _reader(part: Any) -> Callable[[Value], Value]:
    from dovetail.core.service.key_value_cache import SequenceCache

    last = {"logits_to_keep": 1} if part.is_last else {}

    def read(value: Any) -> Any:
        return part(value, SequenceCache(), **last) if part.has_cache else part(value, **last)

    return read


def _decoder(part: Any, past: Any, context: int) -> Callable[[Value], Value]:
    import torch

    from dovetail.core.service.key_value_cache import SequenceCache

    positions = torch.full((len(past), 1), context - 1, device=past.device)
    if not part.has_cache:
        return lambda value: part(value, position_ids=positions)
    cache = SequenceCache()
    part(past, cache)

    def step(value: Any) -> Any:
        cache.back_to(context - 1)
        return part(value, cache, position_ids=positions)

    return step
