"""How long the layers of a language model take to read a prompt, and to decode tokens in a context: measured."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from itertools import count, pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.files.document import as_path, checked
from dovetail.pipeline.hardware import BUSY, check_device, device_name, placed_on
from dovetail.pipeline.language.hand_over import hand_over as measure_hand_over
from dovetail.pipeline.language.shape import LanguageModel, language_model
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import ModelSpec, full_dtype, model_spec, need_torch
from dovetail.pipeline.profile.convert import extend_device_type
from dovetail.pipeline.profile.measure import Effort, calm_rounds, rounds_of

if TYPE_CHECKING:
    import torch
    from torch import nn


class _Options(Struct):
    model_name: str | None
    prompt: int | list[int]
    context: int | list[int]
    sequences: int | list[int]
    dtype: str | None
    device: str
    threads: int | None
    cores: tuple[int, ...]
    warmup: int
    repeats: int
    seconds: float
    calm_s: float
    hand_over: bool
    to: str | None
    device_type: str | None
    memory_mb: float | None
    bandwidth_mbps: float | None


def profile_generation(
    model: str | ModelSpec,
    *,
    argument: Mapping[str, Any] | None = None,
    model_name: str | None = None,
    weights: str | os.PathLike[str] | None = None,
    seed: int = 0,
    prompt: int | Sequence[int] = 512,
    context: int | Sequence[int] = 4096,
    sequences: int | Sequence[int] = (1,),
    dtype: str | None = None,
    device: str = "cpu",
    threads: int | None = None,
    cores: Sequence[int] = (),
    warmup: int = 3,
    repeats: int = 7,
    seconds: float = 0.5,
    calm_s: float = 5.0,
    hand_over: bool = False,
    to: str | os.PathLike[str] | None = None,
    device_type: str | None = None,
    memory_mb: float | None = None,
    bandwidth_mbps: float | None = None,
    force: bool = False,
    progress: Callable[[float], None] = lambda _: None,
    notice: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Measure the layers of a language model: profiles for `device_types.yml`, as `load_generation` reads them.

    There is one for each prompt of so many tokens, and one for a token of each of so many sequences in contexts that
    are full, for every number of both. The whole model runs, round after round, and notes when each layer begins: what
    it does in every call besides its layers is `stage_s`, for a stage does it too. With `hand_over` short runs of a
    small model, in processes of their own, measure what is added by these: for each stage to `stage_s`, and what comes
    once in a step to the embedding. What other programs disturbed is marked `busy`. The dtype is the configuration's by
    default.

    The profiles are added to the file `to` under `device_type`, where that is named. The other arguments are those of
    `dovetail pipeline profile-generation`; `progress` is told how many are done.
    """
    asked = dict(locals())  # before there is anything else
    given = checked({name: asked[name] for name in _Options.__struct_fields__}, _Options)
    need_torch("profiling")
    import torch

    prompts, counts, contexts = (
        _several("prompt", given.prompt),
        _several("sequences", given.sequences),
        _several("context", given.context, least=2),
    )
    place = check_device(device)
    effort = Effort(warmup, repeats, max(200, repeats), seconds=seconds, calm_s=calm_s)
    kind = None if dtype is None else full_dtype(dtype)
    spec = model_spec(model, argument=argument, weights=weights, seed=seed)
    shape = _shape(spec, kind)
    kind, name = kind or shape.dtype, model_name or shape.name
    steps = [*(("prefill", tokens, 1) for tokens in prompts), *(("decode", c, n) for c in contexts for n in counts)]
    file = None if given.to is None else as_path(given.to, "to")
    if (file is None) != (device_type is None):
        raise InputError("--to and --device-type belong together")
    made: list[dict[str, Any]] = [
        {"phase": phase, "tokens": tokens, "batch_size": size, "dtype": kind, "time_s": []}
        for phase, tokens, size in steps
    ]

    def add(write: bool) -> None:
        if file is not None and device_type is not None:
            known = {"mem_mb": memory_mb, "bw_mbps": bandwidth_mbps}
            extend_device_type(file, device_type, {name: made}, force=force, write=write, **known)

    add(write=False)  # an error now, not after the measurement
    chain = load(spec)
    part = chain.decoder(1, len(chain.layers), device, kind)
    with placed_on(threads, cores), torch.inference_mode():
        for number, profile in enumerate(made):

            def tell(done: float, number: int = number) -> None:
                progress(number + min(done, 1.0))

            times, busy = _rounds(part, place, chain.id_limit, profile, effort, tell)
            *profile["time_s"], profile["stage_s"] = (_rounded(statistics.median(taken)) for taken in times)
            profile["device"] = device_name(device)
            if busy > BUSY:
                profile["busy"] = round(busy, 3)
                what = f"{profile['phase']}, {profile['tokens']} tokens, {profile['batch_size']} at once"
                notice(f"{what}: other programs took {100 * busy:.0f} % of the time, so the profile is marked busy")
    if hand_over:
        between = measure_hand_over(shape.hidden, kind, max(counts), device, threads, cores)
        for profile in made:
            profile["time_s"][0] = _rounded(profile["time_s"][0] + between.once_s)
            profile["stage_s"] = _rounded(profile["stage_s"] + between.stage_s)
    add(write=True)
    return made


def _rounded(seconds: float) -> float:
    return float(f"{seconds:.9g}")


def _rounds(
    part: Any,
    device: torch.device,
    id_limit: int,
    profile: Mapping[str, Any],
    effort: Effort,
    tell: Callable[[float], None],
) -> tuple[list[list[float]], float]:
    """Seconds of each layer for what a profile is of, and of a call besides; and how much others disturbed."""
    import torch

    random = torch.Generator().manual_seed(0)
    ids = torch.randint(id_limit, (profile["batch_size"], profile["tokens"]), generator=random).to(device)
    run = (_reader if profile["phase"] == "prefill" else _stepper)(part, ids)
    with LayerClock(part.model.get_input_embeddings(), part.blocks, device) as clock:
        times, busy = calm_rounds(lambda how, done: rounds_of(lambda: clock.times(run), how, done), effort, tell)
    if device.type == "cuda" and profile["phase"] == "decode":
        whole_s = _recorded_s(part, ids, effort)
        share = 1.0 if whole_s is None else whole_s / sum(map(statistics.median, times))
        times = [[share * seconds for seconds in taken] for taken in times]
    return times, busy


def _recorded_s(part: Any, ids: torch.Tensor, effort: Effort) -> float | None:
    """Seconds of a whole step as a stage on a GPU replays it; None if this model's cannot be recorded."""
    import torch

    from dovetail.core.service.key_value_cache import SequenceCache
    from dovetail.pipeline.live.recorded_step import RecordedStep, cuda_graph, recordable

    if not recordable(part):
        return None
    lengths, cache = [ids.shape[1] - 1] * len(ids), SequenceCache()
    with torch.cuda.stream(torch.cuda.Stream(ids.device)):  # type: ignore[no-untyped-call]
        part(ids[:, :-1], cache, **part.last_logits)
        expected = part(ids[:, -1:], cache, **part.last_logits)
        for layer in cache.layers:  # no more room than the context: a recorded step looks at all of it
            layer.keys, layer.values = (kept[:, :, : ids.shape[1]].clone() for kept in (layer.keys, layer.values))
        try:
            step = RecordedStep(part, cache, ids[:, -1:], lengths, expected, cuda_graph)
        except Exception:  # whatever a model's code does that a recording cannot hold
            return None

        def once() -> list[float]:
            begin_s = perf_counter()
            step.run(ids[:, -1:], lengths)[:, -1].float().argmax(-1).cpu()
            return [perf_counter() - begin_s]

        return statistics.median(rounds_of(once, effort)[0]) if step.same else None


def _several(name: str, given: int | Sequence[int], least: int = 1) -> list[int]:
    found = [given] if isinstance(given, int) else list(given)
    if min(found, default=0) < least:
        raise InputError(f"--{name}: expected {least} or more, found {min(found, default='none')}")
    return found


def _shape(spec: ModelSpec, dtype: str | None) -> LanguageModel:
    """What the planner of generation makes of the model's configuration: its name and dtype are the file's."""
    if not spec.source.startswith("hf:"):
        raise InputError(f"{spec.source}: only a language model of transformers (hf:) generates tokens")
    return language_model(spec.source.removeprefix("hf:"), dtype=dtype)


def _reader(part: Any, ids: torch.Tensor) -> Callable[[], object]:
    from dovetail.core.service.key_value_cache import SequenceCache

    return lambda: part(ids, SequenceCache(), **part.last_logits)


def _stepper(part: Any, ids: torch.Tensor) -> Callable[[], object]:
    """A token of each of these contexts with all before it in the cache: the last, then the one before it, and so on.
    In a run, too, every step has a length of its own, and kernels may have to be prepared for it."""
    import torch

    from dovetail.core.service.key_value_cache import SequenceCache

    past, cache = ids.shape[1] - 1, SequenceCache()
    part(ids[:, :past], cache, **part.last_logits)
    earlier = count()

    def step() -> object:
        at = max(past - next(earlier), 1)
        cache.back_to(at)
        options = dict(part.last_logits)
        if part.takes_positions:
            options["position_ids"] = torch.full((len(ids), 1), at, device=ids.device)
        return part(ids[:, at : at + 1], cache, **options)

    return step


class LayerClock:
    """Notes, while a whole model runs, when its embedding and each of its blocks begin, and when the last one ends.

    On a GPU by events among the kernels, so that nothing waits that would not: a kernel is launched while the one
    before it runs, as it is in a pipeline.
    """

    def __init__(self, embedding: nn.Module, blocks: nn.ModuleList, device: torch.device) -> None:
        self._device, self._cuda = device, device.type == "cuda"
        self._marks: list[Any] = []
        self._hooks = [module.register_forward_pre_hook(self._mark) for module in (embedding, *blocks)]
        self._hooks += [module.register_forward_hook(self._mark) for module in (embedding, blocks[-1])]

    def __enter__(self) -> LayerClock:
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def times(self, run: Callable[[], object]) -> list[float]:
        """Seconds of the embedding, of each block, of what follows them, and of all else before the blocks."""
        self._marks = []
        self._mark()
        run()
        self._mark()
        if self._cuda:
            self._marks[-1].synchronize()
        before, embedding, after, *others = (self._between(a, b) for a, b in pairwise(self._marks))
        return [embedding, *others, before + after]

    def _between(self, a: Any, b: Any) -> float:
        return float(a.elapsed_time(b) / 1000 if self._cuda else b - a)

    def _mark(self, *_: object) -> None:
        if not self._cuda:
            self._marks.append(perf_counter())
            return
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._marks.append(event)
