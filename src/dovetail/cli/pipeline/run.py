"""`dovetail pipeline run`: the stages of a plan for real."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dovetail.cli.common import (
    Flag,
    Format,
    Pairs,
    check_writable,
    pairs,
    print_json,
    print_table,
    progress,
    value,
    whole_numbers,
)
from dovetail.core.errors import InputError

if TYPE_CHECKING:
    from dovetail.pipeline.live import LiveResult

_Texts = Annotated[tuple[str, ...], Parameter(negative=())]


def run(
    plan: Path,
    /,
    *,
    model: str,
    shape: _Texts = (),
    argument: Pairs | None = None,
    input_dtype: str = "",
    weights: Path | None = None,
    seed: int = 0,
    cut: Literal["auto", "sequential", "graph"] = "auto",
    hosts: Path | None = None,
    on: Pairs | None = None,
    emulate: Flag = False,
    microbatches: int | None = None,
    input: Path | None = None,
    output: Path | None = None,
    engine: Literal["local", "ray"] = "local",
    address: str | None = None,
    buffers: int = 2,
    link_bits: int | None = None,
    clip: Flag = False,
    target_rate: float | None = None,
    shape_links: Flag = False,
    slow_factor: float = 1.5,
    heartbeat_s: float = 0.25,
    heartbeat_limit_s: float = 5.0,
    journal: Path | None = None,
    rates_out: Path | None = None,
    format: Format = "table",
) -> int:
    """Run a plan: one process per stage, on this machine or over a Ray cluster.

    Stages receive, compute and send side by side. When one dies, or slows down, the rest gets a new plan and goes on
    from the last microbatch that came out. Exit code 1 if no plan is left; what came out until then is kept.

    Every host of the plan is matched to a device that this machine has; for others say --on or --emulate.

    Example: dovetail pipeline run plan.json --model examples/pipeline/transformer.py:encoder --on all=cpu
    --journal run.jsonl

    Parameters
    ----------
    plan
        A plan as `dovetail pipeline plan --format json` prints it.
    model
        package.module:factory, file.py:factory, model.onnx or hf:CONFIG.
    shape
        Shape of an input without the batch dimension, as 3,224,224; once for each input. By default the model's own.
    argument
        Keyword arguments of the factory: --argument blocks=6 width=128.
    input_dtype
        Data type of the inputs if it is not the plan's, as torch.int64 for token ids.
    weights
        A file of weights.
    seed
        Of the weights, where there is no file.
    cut
        How the model is cut into layers; as it was when it was profiled.
    hosts
        What each host of the plan is: cores, threads, share, device, node.
    on
        What carries hosts of the plan that this machine does not have, by host, by type or for all: --on gpu-0=cpu.
    emulate
        Carry what this machine does not have with its processor, and call it an emulation everywhere.
    microbatches
        How many; 64 random ones, or those of the input file.
    input
        A .npy or .npz file with one row per item.
    output
        Write the outputs here, as .npy or .npz.
    engine
        local processes, or ray actors.
    address
        Of the Ray cluster; without it the one of this machine, or a new one.
    buffers
        Microbatches that may wait before a stage.
    link_bits
        Width of values between stages: 2 to 16, or 32 for as they are. By default as planned.
    clip
        Clip outliers before quantising.
    target_rate
        Items per second that links must carry: each sender chooses the widest values that do.
    shape_links
        Make links as slow as the plan assumes; to try a plan for slow links on one machine.
    slow_factor
        Plan again when a stage takes so many times as long as at first; 0 for never.
    heartbeat_s
        Time between two signs of life.
    heartbeat_limit_s
        Silence after which a stage is taken to be dead.
    journal
        Write the journal here, while the run goes on; `dovetail check` and `dovetail report` read it.
    rates_out
        Add the measured rate, links and start-up time to this table of rates.
    format
        table or json.
    """
    from dovetail.core.output import refuse_overwrite
    from dovetail.pipeline.live import Patience, RunOptions, read_hosts, run_plan
    from dovetail.pipeline.models.spec import ModelSpec, need_torch, torch_dtype
    from dovetail.pipeline.plan import read_plan

    given = read_plan(plan)
    need_torch("running a pipeline")
    refuse_overwrite([path for path in (journal, output, rates_out) if path], [plan, hosts, input, weights])
    check_writable(journal, output, rates_out)
    _positive("--heartbeat-s", heartbeat_s)
    _positive("--heartbeat-limit-s", heartbeat_limit_s)
    if slow_factor and not slow_factor > 1:
        raise InputError(f"--slow-factor {slow_factor:g}: expected more than 1, or 0 for never")
    classes = given.problem.classes if given.problem else []
    known = {host for device in classes for host in device.hosts} or {
        host for stage in given.stages for host in (stage.host, *stage.replicas)
    }
    settings = read_hosts(hosts, known, engine == "local") if hosts else {}
    spec = ModelSpec(
        source=model,
        arguments={name: value(text) for name, text in pairs("--argument", argument).items()},
        shapes=tuple(whole_numbers("--shape", text) for text in shape),
        input_dtype=input_dtype and str(torch_dtype(input_dtype)),
        weights=str(weights) if weights else None,
        seed=seed,
        cut=cut,
    )
    options = RunOptions(
        buffers=buffers,
        link_bits=link_bits,
        clip=clip,
        target_items_s=target_rate,
        shape_links=shape_links,
        heartbeat_s=heartbeat_s,
        patience=Patience(heartbeat_limit_s=heartbeat_limit_s, slow_factor=slow_factor),
    )
    inputs = None
    if input is not None:
        from dovetail.pipeline.live.arrays import read_inputs

        inputs = read_inputs(input, given.batch_size, given.problem.dtype if given.problem else "torch.float32")
    outputs: list[Any] = []
    try:
        total = microbatches or (len(inputs) if inputs is not None else 64)
        with _ended_politely(), progress("running", total) as done:
            outcome = run_plan(
                given,
                spec,
                microbatches=microbatches,
                inputs=inputs,
                hosts=settings,
                on=pairs("--on", on, verbatim=True),
                emulate=emulate,
                engine=engine,
                address=address,
                options=options,
                journal=journal,
                deliver=(lambda _, value: outputs.append(value)) if output else None,
                watch=done,
                notice=lambda text: print(text, file=sys.stderr, flush=True),
            )
    finally:
        if output is not None and outputs:
            from dovetail.pipeline.live.arrays import write_outputs

            write_outputs(output, outputs)
            print(f"{len(outputs)} microbatches written to {output}", file=sys.stderr)
    if rates_out is not None:
        from dovetail.pipeline.export import add_rates

        add_rates(rates_out, outcome.rates)
    _show(outcome, journal, format)
    return 0


@contextmanager
def _ended_politely() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: results and journal are kept."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # only there signals can be caught
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _positive(flag: str, value: float) -> None:
    if not 0 < value < float("inf"):
        raise InputError(f"{flag} {value:g}: expected a positive number")


def _show(outcome: LiveResult, journal: Path | None, format: str) -> None:
    if format == "json":
        print_json(
            {name: getattr(outcome, name) for name in outcome.__struct_fields__ if name not in ("outputs", "rates")}
        )
        return
    columns = ["host", "layers", "predicted compute s", "compute s", "predicted send s", "send s", "bits", "use %"]
    rows = [
        [
            " + ".join([stage.host, *stage.replicas]),
            f"{stage.layers[0]}-{stage.layers[1]}",
            stage.predicted_compute_s,
            stage.compute_s,
            stage.predicted_send_s,
            stage.send_s,
            stage.send_bits,
            round(100 * stage.utilisation, 1),
        ]
        for stage in outcome.stages
    ]
    print_table(columns, rows)
    print(f"\n{outcome.completed} microbatches ({outcome.items} items) in {outcome.elapsed_s:.3f} s")
    print(f"throughput {outcome.throughput_items_s:.3f} items/s overall", end="")
    if outcome.steady_items_s is not None:
        print(f", {outcome.steady_items_s:.3f} when filled", end="")
    if outcome.difference_percent is not None:
        print(f"; predicted {outcome.predicted_items_s:.3f} ({outcome.difference_percent:+.1f} %)", end="")
    elif outcome.as_planned:
        print(f"; predicted {outcome.predicted_items_s:.3f}", end="")
    print()
    for change in outcome.changes:
        print(f"new plan after {change.at_s:.3f} s: {change.why}")
    if journal is not None:
        print(f"Journal written to {journal}")
    print(f"Ran on {_hardware(outcome)}")


def _hardware(outcome: LiveResult) -> str:
    """Who carried which hosts, and whether that is what the plan was made for."""
    carried: dict[str, list[str]] = {}
    for host, hardware in outcome.hardware.items():
        carried.setdefault(hardware, []).append(host)
    told = "; ".join(f"{hardware} ({', '.join(hosts)})" for hardware, hosts in carried.items())
    if outcome.as_planned:
        return told
    return f"{told}, not on what the plan was made for: it predicts {outcome.predicted_items_s:.3f} items/s there"
