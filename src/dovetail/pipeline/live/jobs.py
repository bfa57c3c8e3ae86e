"""From a plan to the job of each process: layers, connections, widths; and the options of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from dovetail.pipeline.inputs.problem import BYTES_PER_S
from dovetail.pipeline.live.quantise import RAW
from dovetail.pipeline.live.sampling import TokenSampling
from dovetail.pipeline.live.supervisor import Patience
from dovetail.pipeline.live.wire import Address, Hop, StageJob
from dovetail.pipeline.plan import Plan
from dovetail.pipeline.route import DATA_HOST

if TYPE_CHECKING:
    from dovetail.pipeline.live.decoding import DecodeStep
    from dovetail.pipeline.models.spec import ModelSpec, Value

_WIDTHS = (RAW, 16, 12, 10, 8, 6, 5, 4, 3, 2)


class RunOptions(Struct, frozen=True, kw_only=True):
    """How to run a plan. `link_bits` replaces the plan's widths; with a target rate each sender chooses its own."""

    buffers: int = 2
    link_bits: int | None = None
    clip: bool = False
    target_items_s: float | None = None
    shape_links: bool = False
    heartbeat_s: float = 0.25
    patience: Patience = Patience()


class FedWork(Protocol):
    """What is to be run: microbatches by number, from 0; and who takes what comes out."""

    model: ModelSpec
    dtype: str
    decodes: bool  # they are steps of generation
    sampling: TokenSampling | None  # how their tokens are drawn, if they are

    @property
    def total(self) -> int | None:
        """How many; None if it says itself when it is done."""
        ...

    @property
    def done(self) -> bool:
        """Whether everything came out, where it is not known how many microbatches that will be."""
        ...

    def inputs(self, number: int) -> tuple[Value, DecodeStep | None] | None:
        """A microbatch, once it can be made; None if there will be none."""
        ...

    def deliver(self, number: int, value: Value) -> None: ...
    def restart(self, generation: int) -> None:
        """The layout of this plan is about to be fed, from the first microbatch that has not been delivered."""
        ...

    def interrupt(self) -> None:
        """Nothing more is fed to it: whoever waits for inputs need not."""
        ...


class MicrobatchStream:
    """Microbatches that do not depend on each other, as many as were asked for."""

    decodes = done = False
    sampling: TokenSampling | None = None

    def __init__(
        self,
        model: ModelSpec,
        dtype: str,
        total: int,
        inputs: Callable[[int], Value],
        deliver: Callable[[int, Value], None],
    ) -> None:
        self.model, self.dtype, self.total = model, dtype, total
        self._inputs, self.deliver = inputs, deliver

    def inputs(self, number: int) -> tuple[Value, None] | None:
        return (self._inputs(number), None) if number < self.total else None

    def restart(self, generation: int) -> None:
        pass

    def interrupt(self) -> None:
        pass


def make_jobs(
    plan: Plan,
    generation: int,
    first: int,
    work: FedWork,
    addresses: Mapping[str, Address],
    options: RunOptions,
) -> dict[str, StageJob]:
    """The job of each host; `first` is the number of the first microbatch that is fed."""
    jobs = {}
    for x, stage in enumerate(plan.stages):
        here = stage.hosts
        last = x + 1 == len(plan.stages)
        after = [DATA_HOST] if last else plan.stages[x + 1].hosts
        target, adapts = options.target_items_s, options.target_items_s is not None and not last
        for place, host in enumerate(here):
            jobs[host] = StageJob(
                generation=generation,
                model=work.model,
                dtype=work.dtype,
                layers=stage.layers,
                place=place,
                replicas=len(here),
                senders=len(plan.stages[x - 1].hosts) if x else 1,
                hops=tuple(_hop(plan, host, other, addresses, options) for other in after),
                first=first,
                buffers=options.buffers,
                bits=RAW if last else options.link_bits or stage.send_bits,
                widths=_WIDTHS if adapts else (),
                budget_s=plan.batch_size / target * min(len(here), len(after)) if target and adapts else None,
                clip=options.clip,
                decodes=work.decodes,
                sampling=work.sampling,
            )
    return jobs


def first_hops(plan: Plan, addresses: Mapping[str, Address], options: RunOptions) -> list[Hop]:
    """Where the data host sends its microbatches."""
    return [_hop(plan, DATA_HOST, host, addresses, options) for host in plan.stages[0].hosts]


def _hop(plan: Plan, source: str, target: str, addresses: Mapping[str, Address], options: RunOptions) -> Hop:
    speed = link_speed(plan, source, target) if options.shape_links else None
    return Hop(addresses[target], *speed) if speed else Hop(addresses[target])


def link_speed(plan: Plan, source: str, target: str) -> tuple[float, float] | None:
    """Bytes per second and seconds of latency that a plan assumes between two hosts; None if it counts it as free."""
    problem = plan.problem
    if problem is None:
        return None
    at = {host: k for k, device in enumerate(problem.classes) for host in device.hosts}
    if DATA_HOST in (source, target):
        data_mbps = plan.constraints.data_mbps if plan.constraints else None
        device = problem.classes[at[target if source == DATA_HOST else source]]
        return None if data_mbps is None else (min(data_mbps, device.bw_mbps) * BYTES_PER_S, 0.0)
    u, v = at[source], at[target]
    latency_s = problem.link_s[u][v] if problem.link_s else 0.0
    if problem.link_mbps is not None:
        return problem.link_mbps[u][v] * BYTES_PER_S, latency_s
    return min(problem.classes[u].bw_mbps, problem.classes[v].bw_mbps) * BYTES_PER_S, latency_s
