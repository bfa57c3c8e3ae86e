"""`dovetail pipeline run`: the stages of a plan for real."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

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
from dovetail.cli.complete import PYTHON_NAMES

_Texts = Annotated[tuple[str, ...], Parameter(negative=())]


def run(
    plan: Path,
    /,
    *,
    model: Annotated[str, PYTHON_NAMES],
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
    generate: Path | None = None,
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
        A file of weights, or of safetensors also an index or a folder: each stage reads its own.
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
        Write the outputs here, as .npy or .npz; what was generated as JSON.
    generate
        A file with a list of prompts, texts or lists of token ids: a language model goes on with each.
    max_new_tokens
        How many tokens at most for each prompt.
    in_flight
        Microbatches of tokens that are under way at a time; one more than there are stages, or as planned.
    temperature
        Draw tokens, from logits divided by this; without it the most likely token is taken.
    top_k
        Draw from so many of the most likely tokens; 0 for all.
    top_p
        Draw from the most likely tokens that together have this probability.
    sample_seed
        Of what the first prompt draws; the next one has the seed after it.
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
    from dovetail.pipeline import run as run_plan

    check_writable(journal, output, rates_out)
    with _ended_politely(), progress("running", _expected(microbatches, input, generate)) as done:
        outcome = run_plan(
            plan,
            model,
            shape=[whole_numbers("--shape", text) for text in shape],
            argument={name: value(text) for name, text in pairs("--argument", argument).items()},
            input_dtype=input_dtype,
            weights=weights,
            seed=seed,
            cut=cut,
            hosts=hosts,
            on=pairs("--on", on, verbatim=True),
            emulate=emulate,
            microbatches=microbatches,
            input=input,
            output=output,
            generate=generate,
            max_new_tokens=max_new_tokens,
            in_flight=in_flight,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            sample_seed=sample_seed,
            engine=engine,
            address=address,
            buffers=buffers,
            link_bits=link_bits,
            clip=clip,
            target_rate=target_rate,
            shape_links=shape_links,
            slow_factor=slow_factor,
            heartbeat_s=heartbeat_s,
            heartbeat_limit_s=heartbeat_limit_s,
            journal=journal if journal is not None else False,
            rates_out=rates_out,
            keep_outputs=False,
            progress=done,
            notice=lambda text: print(text, file=sys.stderr, flush=True),
        )
    _show(outcome.metrics, journal, format)
    return 0


def _expected(microbatches: int | None, input: Path | None, generate: Path | None) -> int | None:
    """How many microbatches will come out, if that is known."""
    return microbatches or (64 if input is None and generate is None else None)


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


def _show(found: dict[str, Any], journal: Path | None, format: str) -> None:
    if format == "json":
        print_json(found)
        return
    columns = ["host", "layers", "predicted compute s", "compute s", "predicted send s", "send s", "bits", "use %"]
    measured = ("predicted_compute_s", "compute_s", "predicted_send_s", "send_s", "send_bits")
    rows = [
        [
            " + ".join([stage["host"], *stage["replicas"]]),
            f"{stage['layers'][0]}-{stage['layers'][1]}",
            *(stage[key] for key in measured),
            round(100 * stage["utilisation"], 1),
        ]
        for stage in found["stages"]
    ]
    print_table(columns, rows)
    if found["generation"] is not None:
        _show_generation(found["generation"])
    unit = "items" if found["generation"] is None else "tokens"
    print(f"\n{found['completed']} microbatches ({found['items']} {unit}) in {found['elapsed_s']:.3f} s")
    print(f"throughput {found['throughput_items_s']:.3f} {unit}/s overall", end="")
    if found["steady_items_s"] is not None:
        print(f", {found['steady_items_s']:.3f} when filled", end="")
    if found["difference_percent"] is not None:
        print(f"; predicted {found['predicted_items_s']:.3f} ({found['difference_percent']:+.1f} %)", end="")
    elif found["as_planned"] and found["predicted_items_s"] is not None:
        print(f"; predicted {found['predicted_items_s']:.3f}", end="")
    print()
    if found["as_planned"] and found["cannot_be_judged"]:
        print(f"How far that is from the prediction cannot be judged: {found['cannot_be_judged']}")
    for change in found["changes"]:
        print(f"new plan after {change['at_s']:.3f} s: {change['why']}")
    if journal is not None:
        print(f"Journal written to {journal}")
    print(f"Ran on {_hardware(found)}")


def _show_generation(found: dict[str, Any]) -> None:
    print(f"\n{found['tokens']} tokens of {found['sequences']} sequences, {found['tokens_s']:.3f} tokens/s", end="")
    if found["steady_tokens_s"] is not None:
        print(f", {found['steady_tokens_s']:.3f} while all were decoded", end="")
    if found["predicted_tokens_s"] is not None:
        print(f"; predicted {found['predicted_tokens_s']:.3f}", end="")
    if found["first_token_s"] is not None:
        longest = f"{found['longest_first_token_s']:.3f} at most"
        print(f"; first token after {found['first_token_s']:.3f} s, {longest}", end="")
    print()


def _hardware(found: dict[str, Any]) -> str:
    """Who carried which hosts, and whether that is what the plan was made for."""
    carried: dict[str, list[str]] = {}
    for host, hardware in found["hardware"].items():
        carried.setdefault(hardware, []).append(host)
    told = "; ".join(f"{hardware} ({', '.join(hosts)})" for hardware, hosts in carried.items())
    if found["as_planned"]:
        return told
    unit, predicted = "items" if found["generation"] is None else "tokens", found["predicted_items_s"]
    predicts = "" if predicted is None else f": it predicts {predicted:.3f} {unit}/s there"
    return f"{told}, not on what the plan was made for{predicts}"
