"""Run a plan for real: every stage a process of its own, on hardware that is the planned one or is said to differ."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError
from dovetail.core.files.document import Source, as_path, checked
from dovetail.core.files.output import refuse_overwrite
from dovetail.core.results.run import JournalFile, JournalPath
from dovetail.pipeline.live.arrays import read_inputs, together, write_outputs
from dovetail.pipeline.live.carriers import carriers
from dovetail.pipeline.live.coordinator import Coordinator
from dovetail.pipeline.live.generation import TokenStream
from dovetail.pipeline.live.hosts import HostSettings, read_hosts
from dovetail.pipeline.live.jobs import MicrobatchStream, RunOptions
from dovetail.pipeline.live.journal import RunJournal
from dovetail.pipeline.live.local import LocalEngine, StageEngine
from dovetail.pipeline.live.prompts import Prompts, end_tokens
from dovetail.pipeline.live.results import LiveResult, ResultCounter, evaluate
from dovetail.pipeline.live.sampling import TokenSampling
from dovetail.pipeline.live.supervisor import Patience
from dovetail.pipeline.metrics import PipelineRun
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import Chain, ModelSpec, model_spec, need_torch
from dovetail.pipeline.plan import LINK_WIDTHS, Plan, flag, read_plan

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Value

_KEPT_BYTES = 256 << 20  # of random inputs


class _Asked(Struct):
    """What a user gives beside plan, model and files."""

    buffers: int
    link_bits: int | None
    clip: bool
    target_rate: float | None
    shape_links: bool
    slow_factor: float
    heartbeat_s: float
    heartbeat_limit_s: float
    microbatches: int | None
    on: dict[str, str] | None
    emulate: bool
    engine: str
    address: str | None
    max_new_tokens: int
    in_flight: int | None
    temperature: float | None
    top_k: int
    top_p: float
    sample_seed: int

    def options(self) -> RunOptions:
        for name in ("heartbeat_s", "heartbeat_limit_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"{flag(name)} {getattr(self, name):g}: expected a positive number")
        if self.engine not in ("local", "ray"):
            raise InputError(f"engine: expected local or ray, found {self.engine!r}")
        if self.slow_factor and not self.slow_factor > 1:
            raise InputError(f"--slow-factor {self.slow_factor:g}: expected more than 1, or 0 for never")
        if self.max_new_tokens < 1:
            raise InputError(f"--max-new-tokens {self.max_new_tokens}: expected at least 1")
        if self.in_flight is not None and self.in_flight < 1:
            raise InputError(f"--in-flight {self.in_flight}: expected at least 1")
        return RunOptions(
            buffers=self.buffers,
            link_bits=self.link_bits,
            clip=self.clip,
            target_items_s=self.target_rate,
            shape_links=self.shape_links,
            heartbeat_s=self.heartbeat_s,
            patience=Patience(heartbeat_limit_s=self.heartbeat_limit_s, slow_factor=self.slow_factor),
        )


def run(
    plan: Plan | Source,
    model: str | ModelSpec,
    *,
    shape: Sequence[Sequence[int]] = (),
    argument: Mapping[str, Any] | None = None,
    input_dtype: str = "",
    weights: str | os.PathLike[str] | None = None,
    seed: int = 0,
    cut: Literal["auto", "sequential", "graph"] = "auto",
    hosts: Source | None = None,
    on: Mapping[str, str] | None = None,
    emulate: bool = False,
    microbatches: int | None = None,
    input: Any = None,
    output: str | os.PathLike[str] | None = None,
    generate: Any = None,
    max_new_tokens: int = 32,
    in_flight: int | None = None,
    temperature: float | None = None,
    top_k: int = 0,
    top_p: float = 1.0,
    sample_seed: int = 0,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    buffers: int = 2,
    link_bits: int | None = None,
    clip: bool = False,
    target_rate: float | None = None,
    shape_links: bool = False,
    slow_factor: float = 1.5,
    heartbeat_s: float = 0.25,
    heartbeat_limit_s: float = 5.0,
    journal: JournalPath = None,
    rates_out: str | os.PathLike[str] | None = None,
    keep_outputs: bool = True,
    progress: Callable[[int], None] = lambda _: None,
    notice: Callable[[str], None] = lambda _: None,
) -> PipelineRun:
    """Run a plan for real: one process per stage, on this machine or over a Ray cluster, with what comes out in
    `outputs`.

    Every host of the plan is matched to a device that this machine has; `on` says what carries the others, by host, by
    type or for all (`on={"all": "cpu"}`), and `emulate` carries them with the processor. `input` is a .npy or .npz
    file, an array or tensor with one row per item, or a tuple of those; without it random microbatches are made. With
    `generate`, a list of prompts (texts, or lists of token ids) or a file with one, a language model goes on with each
    of them, by the most likely tokens or with a `temperature` by drawn ones, and `outputs` are the lists of tokens that
    follow.
    `hosts` is a file or a dict. The other arguments are those of `dovetail pipeline run`. `progress` is told how many
    microbatches have come out, `notice` when a plan begins or ends. What came out before an error is written to
    `output` all the same.
    """
    given = dict(locals())  # before there is anything else
    made = read_plan(plan)
    spec = model_spec(
        model, argument=argument, shape=shape, input_dtype=input_dtype, weights=weights, seed=seed, cut=cut
    )
    need_torch("running a pipeline")
    asked = checked({name: given[name] for name in _Asked.__struct_fields__}, _Asked)
    options, file = asked.options(), JournalFile(journal)
    sampling = TokenSampling.given(temperature, top_k, top_p, sample_seed)
    paths = {name: as_path(given[name], name) for name in ("output", "rates_out") if given[name] is not None}
    read = [Path(each) for each in (plan, hosts, input, weights, generate) if isinstance(each, str | os.PathLike)]
    refuse_overwrite([*([file.path] if file.path else []), *paths.values()], read)
    dtype = made.problem.dtype if made.problem else "torch.float32"
    if generate is not None and (input is not None or microbatches is not None):
        raise InputError("--generate: a prompt is the input; leave --input and --microbatches out")
    if generate is None and sampling is not None:
        raise InputError("--temperature: tokens are drawn only with --generate")
    inputs = None if input is None else read_inputs(input, made.batch_size, dtype)
    prompts = None if generate is None else Prompts(generate, spec)
    came: list[Any] = [] if prompts is None else [[] for _ in prompts.ids]
    keeps = keep_outputs or "output" in paths
    try:
        outcome = run_plan(
            made,
            spec,
            microbatches=microbatches,
            inputs=inputs,
            hosts=None if hosts is None else read_hosts(hosts, _known(made), engine == "local"),
            on=asked.on,
            emulate=emulate,
            engine=engine,
            address=address,
            options=options,
            journal=file.path,
            deliver=(lambda _, value: came.append(value)) if keeps and prompts is None else None,
            prompts=prompts,
            max_new_tokens=max_new_tokens,
            in_flight=in_flight,
            sampling=sampling,
            take_token=lambda number, token: came[number].append(token),
            watch=progress,
            notice=notice,
        )
    finally:
        if "output" in paths and prompts is not None and any(came):
            prompts.write(paths["output"], came)
            notice(f"{sum(map(len, came))} tokens written to {paths['output']}")
        elif "output" in paths and prompts is None and came:
            write_outputs(paths["output"], came)
            notice(f"{len(came)} microbatches written to {paths['output']}")
    if "rates_out" in paths:
        outcome.rates.add_to(paths["rates_out"])
    metrics = {name: getattr(outcome, name) for name in outcome.__struct_fields__ if name not in ("outputs", "rates")}
    others = {} if outcome.as_planned else outcome.hardware
    notes = [f"{host} ran on {hardware}: the plan was made for other hardware" for host, hardware in others.items()]
    outputs = came if prompts is not None else together(came) if came else None
    return PipelineRun(file, msgspec.to_builtins(metrics), notes, outcome.rates, outputs)


def run_plan(
    plan: Plan,
    model: ModelSpec,
    *,
    microbatches: int | None = None,
    inputs: Sequence[Value] | None = None,
    hosts: Mapping[str, HostSettings] | None = None,
    on: Mapping[str, str] | None = None,
    emulate: bool = False,
    engine: Literal["local", "ray"] | StageEngine = "local",
    address: str | None = None,
    options: RunOptions | None = None,
    journal: Path | None = None,
    deliver: Callable[[int, Value], None] | None = None,
    keep_outputs: bool = False,
    prompts: Prompts | None = None,
    max_new_tokens: int = 32,
    in_flight: int | None = None,
    sampling: TokenSampling | None = None,
    take_token: Callable[[int, int], None] = lambda number, token: None,
    watch: Callable[[int], None] = lambda _: None,
    notice: Callable[[str], None] = lambda _: None,
) -> LiveResult:
    """Send microbatches through the stages of a plan, each a process of its own, and measure.

    Every host of the plan needs a carrier: a device that is what the plan says, one that `hosts` or `on` (by host, type
    or `all`) names, or, with `emulate`, this machine's processor. `inputs` are values by microbatch; without them
    random ones are made, 64 unless `microbatches` says otherwise. `deliver` gets each result once and in order, on
    another thread; `watch` is told how many have come out, `notice` when a plan begins or ends. The journal is written
    while the run goes on.

    With `prompts` a language model generates: `max_new_tokens` for each at most, drawn with `sampling` if it is given,
    with `in_flight` microbatches under way (one more than there are stages). `take_token` is told of every token by the
    number of its prompt.
    """
    options, settings = options or RunOptions(), hosts or {}
    _check(plan, options, microbatches)
    if prompts is not None:  # a prompt and a token take unlike times, which tells nothing of the host
        calm = msgspec.structs.replace(options.patience, slow_factor=0.0)
        options = msgspec.structs.replace(options, patience=calm)
    need_torch("running a pipeline")
    total = min(microbatches or len(inputs), len(inputs)) if inputs is not None else microbatches or 64
    dtype = plan.problem.dtype if plan.problem else "torch.float32"
    kept: list[Any] = []
    items = 0

    def take(number: int, value: Value) -> None:
        nonlocal items
        items += len(value[0] if isinstance(value, tuple) else value)
        if deliver is not None:
            deliver(number, value)
        if keep_outputs:
            kept.append(value)

    with closing(_engine(engine, address)) as started:
        nodes = started.nodes({host: settings.get(host, HostSettings()).node for host in _known(plan)})
        carried = carriers(plan, settings, on or {}, emulate, started.devices(), nodes)
        work: MicrobatchStream | TokenStream
        if prompts is not None:
            lanes = in_flight or (plan.generation.groups if plan.generation else len(plan.stages) + 1)
            work = _token_stream(plan, model, dtype, prompts, max_new_tokens, lanes, sampling, take_token)
        else:
            work = MicrobatchStream(model, dtype, total, _inputs(plan, model, dtype, inputs, total), take)
        counter = ResultCounter()
        with closing(RunJournal(journal, plan, work.total, options, carried, [counter])) as witness:
            coordinator = Coordinator(plan, work, started, settings, carried, options, witness)
            coordinator.run(watch, notice)
    tokens = work if isinstance(work, TokenStream) else None
    if tokens is not None:
        total, items = coordinator.delivered, len(tokens.came_s)
    result = evaluate(counter, coordinator.plans, witness.ids, carried, total, items, coordinator.busy, tokens)
    result.outputs = kept if tokens is None else [sequence.tokens for sequence in tokens.sequences]
    return result


def _known(plan: Plan) -> list[str]:
    """All hosts that this plan, or another for the same problem, may use."""
    others = [host for c in plan.problem.classes for host in c.hosts] if plan.problem else []
    return list(dict.fromkeys([*plan.hosts, *others]))


def _check(plan: Plan, options: RunOptions, microbatches: int | None) -> None:
    if microbatches is not None and microbatches < 1:
        raise InputError(f"microbatches: expected at least 1, found {microbatches}")
    if options.buffers < 1:
        raise InputError(f"buffers: expected at least 1, found {options.buffers}")
    used = [options.link_bits] if options.link_bits else [stage.send_bits for stage in plan.stages[:-1]]
    for bits in used:
        if bits not in LINK_WIDTHS:
            raise InputError(f"link bits: expected 2 to 16, or 32 for values as they are; found {bits}")
    if options.target_items_s is not None and not options.target_items_s > 0:
        raise InputError(f"target rate: expected items per second, found {options.target_items_s:g}")
    if options.shape_links and plan.problem is None:
        raise InputError("shape links: the plan does not say how fast links are; make it again with this version")


def _token_stream(
    plan: Plan,
    model: ModelSpec,
    dtype: str,
    prompts: Prompts,
    max_new_tokens: int,
    lanes: int,
    sampling: TokenSampling | None,
    take: Callable[[int, int], None],
) -> TokenStream:
    """What generation feeds, for a language model that is the plan's and can go on with these prompts."""
    if any(stage.replicas for stage in plan.stages):
        raise InputError("generate: the plan has replicas of a stage, but the cache of a sequence is in one place")
    chain = _chain(plan, model)
    config = chain.decoder(1, 1).model.config
    prompts.check(config, max_new_tokens)
    ends = end_tokens(config)
    return TokenStream(
        model,
        dtype,
        prompts.ids,
        max_new_tokens=max_new_tokens,
        ends=ends,
        lanes=lanes,
        lane_size=plan.batch_size,
        sampling=sampling,
        take=take,
    )


def _chain(plan: Plan, model: ModelSpec) -> Chain:
    chain = load(model)
    layers = plan.stages[-1].layers[1]
    if len(chain.layers) != layers:
        raise InputError(f"{model.source}: has {len(chain.layers)} layers, but the plan is for {layers}")
    return chain


def _inputs(
    plan: Plan, model: ModelSpec, dtype: str, given: Sequence[Value] | None, total: int
) -> Callable[[int], Value]:
    """Microbatches by number, for a model that is the plan's."""
    chain = _chain(plan, model)
    if given is None:
        return _random_inputs(lambda seed: chain.inputs(plan.batch_size, dtype, seed=seed), total)
    found = [tuple(tensor.shape[1:]) for tensor in (given[0] if isinstance(given[0], tuple) else (given[0],))]
    if [len(shape) for shape in found] != [len(shape) for shape in chain.shapes]:
        raise InputError(f"inputs: {model.source} takes items of {list(chain.shapes)}, found {found}")
    return given.__getitem__


def _random_inputs(make: Callable[[int], Value], total: int) -> Callable[[int], Value]:
    """Made before the run, for that takes longer than many a stage; large microbatches come again after a while."""
    made = [make(0)]
    size = sum(t.numel() * t.element_size() for t in (made[0] if isinstance(made[0], tuple) else (made[0],)))
    made += map(make, range(1, min(total, max(2, _KEPT_BYTES // max(1, size)))))
    return lambda number: made[number % len(made)]


def _engine(engine: Literal["local", "ray"] | StageEngine, address: str | None) -> StageEngine:
    if not isinstance(engine, str):
        return engine
    if engine == "ray":
        from dovetail.pipeline.live.ray_engine import RayEngine

        return RayEngine(address)
    if address is not None:
        raise InputError("address: only the ray engine has one")
    return LocalEngine()
