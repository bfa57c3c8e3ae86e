"""`dovetail dispatch`: measure a function on devices, compare policies, and try them without hardware."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cyclopts import App

from dovetail.cli.common import Force, Format, Pairs, pairs, print_json, print_table, progress, value, whole_numbers
from dovetail.core.errors import InputError

app = App(name="dispatch", help="Spread one batch over the CPU and GPUs of a node.", help_format="plaintext")


def _target(function: str, batch: str | None, shape: str | None, dtype: str) -> tuple[Any, Any]:
    from dovetail.dispatch.target import load, random_batch

    made = load(function)
    if (batch is None) == (shape is None):
        raise InputError("expected either --batch or --shape, to say what the function is called with")
    if shape is not None:
        return made, random_batch(whole_numbers("--shape", shape), dtype)
    given = load(str(batch))
    return made, given() if callable(given) else given


@app.command
def tune(
    function: str,
    /,
    *,
    devices: str = "cpu",
    shape: str | None = None,
    dtype: str = "float32",
    batch: str | None = None,
    dim: int = 0,
    kind: str | None = None,
    out: Path | None = None,
    force: Force = False,
    format: Format = "table",
) -> int:
    """Find each device's best sub-batch size and its rate.

    Each device runs the batch by itself, in chunks that grow until larger ones gain nothing. What was found is kept for
    later runs of the same function on batches of the same form.

    Example: dovetail dispatch tune model.py:update --shape 100000,6 --devices cuda:0,cpu --out rates.json

    Parameters
    ----------
    function
        The function or module: file.py:name or package.module:name.
    devices
        Names with commas between them.
    shape
        The shape of a batch of random numbers.
    dtype
        Their type.
    batch
        Instead of a shape: a batch, or a function that makes one, as file.py:name.
    dim
        The dimension of the batch.
    kind
        What the function is called in the rate table; its name by default.
    out
        Write a rate table here, relative to the first device.
    force
        Replace what is there.
    format
        table or json.
    """
    from dovetail.dispatch.devices import resolve
    from dovetail.dispatch.measure import rates_of
    from dovetail.dispatch.measure import tune as tune_alone

    if out is not None and out.exists() and not force:
        raise InputError(f"--out {out}: exists; give --force to replace it")
    found = resolve([name for name in devices.split(",") if name])
    made, given = _target(function, batch, shape, dtype)
    measured = []
    with progress("tuning", total=len(found)) as done:
        for i, device in enumerate(found):
            measured.append(tune_alone(made, given, device, dim))
            done(i + 1)
    if out is not None:
        rates_of(kind or function.rpartition(":")[2], measured).write(out)
    if format == "json":
        print_json({"function": function, "devices": measured})
        return 0
    rows: list[list[object]] = [[m.device, m.hardware, m.size, round(m.rate), m.latency_s, m.settled] for m in measured]
    print_table(["device", "hardware", "best size", "items/s", "shortest call s", "settled"], rows)
    if out is not None:
        print(f"Written: {out}")
    return 0


@app.command
def bench(
    function: str,
    /,
    *,
    devices: str = "cpu",
    shape: str | None = None,
    dtype: str = "float32",
    batch: str | None = None,
    dim: int = 0,
    policies: str = "finish_together",
    repeats: int = 5,
    format: Format = "table",
) -> int:
    """Run a function on each device alone and on all together.

    Example: dovetail dispatch bench model.py:update --shape 100000,6 --devices cuda:0,cpu --policies guided,fixed

    Parameters
    ----------
    function
        The function or module: file.py:name or package.module:name.
    devices
        Names with commas between them.
    shape
        The shape of a batch of random numbers.
    dtype
        Their type.
    batch
        Instead of a shape: a batch, or a function that makes one, as file.py:name.
    dim
        The dimension of the batch.
    policies
        Names with commas between them.
    repeats
        Runs of each; the median counts.
    format
        table or json.
    """
    from dovetail.dispatch.devices import resolve
    from dovetail.dispatch.measure import together
    from dovetail.dispatch.measure import tune as tune_alone

    if repeats < 1:
        raise InputError(f"--repeats {repeats}: expected at least 1")
    found = resolve([name for name in devices.split(",") if name])
    made, given = _target(function, batch, shape, dtype)
    names = [name for name in policies.split(",") if name]
    with progress("measuring", total=len(found) + len(names)) as done:
        alone = []
        for i, device in enumerate(found):
            alone.append(tune_alone(made, given, device, dim))
            done(i + 1)
        runs = []
        for i, name in enumerate(names):
            runs.append(together(made, given, found, name, alone, repeats=repeats, dim=dim))
            done(len(found) + i + 1)
    if format == "json":
        print_json({"function": function, "alone": alone, "together": runs})
        return 0
    rows: list[list[object]] = [[f"{each.device} alone", round(each.rate), None, each.size] for each in alone]
    rows += [[run.policy, round(run.rate), round(100 * run.efficiency, 1), None] for run in runs]
    print_table(["", "items/s", "% of the sum", "size"], rows)
    return 0


@app.command
def simulate(
    curves: Path | None = None,
    /,
    *,
    model: str | None = None,
    items: int = 100_000,
    policy: str | None = None,
    option: Pairs | None = None,
    slower: Pairs | None = None,
    noise: float = 0.0,
    seed: int = 0,
    backup: bool = True,
    format: Format = "table",
) -> int:
    """Try policies on the curves of devices, without the devices.

    Example: dovetail dispatch simulate --model radret --items 1000000 --slower cpu=3 --noise 0.1

    Parameters
    ----------
    curves
        A YAML file: under `devices`, for each name, either `latency_s` and `rate`, or `points`: [size, seconds] pairs.
    model
        Instead of a file: one of NEML2's published models on a CPU and a GPU.
    items
        Items in the batch.
    policy
        One policy; by default all are compared.
    option
        NAME=VALUE of that policy.
    slower
        DEVICE=FACTOR: a device that is really slower than its curve says.
    noise
        How much the time of a chunk varies, as the sigma of a lognormal factor with mean 1.
    seed
        Of the noise.
    backup
        Whether an idle device redoes what the last one is late with.
    format
        table or json.
    """
    from dovetail.core import registry
    from dovetail.dispatch.inputs import at_best_size, sim_devices
    from dovetail.dispatch.simulate import simulate as simulate_run

    if items < 1 or not 0 <= noise < 10:
        raise InputError(f"expected --items >= 1 and --noise from 0 to 10, found {items} and {noise}")
    if option and policy is None:
        raise InputError("--option belongs to one policy; give --policy too")
    found = sim_devices(curves, model, {name: value(text) for name, text in pairs("--slower", slower).items()})
    options = {name: value(text) for name, text in pairs("--option", option).items()}
    peak = sum(device.curve.rate / device.slower for device in found)
    runs: list[dict[str, Any]] = []
    cases = [(name, name, found) for name in ([policy] if policy else registry.names("dispatch"))]
    cases += [] if policy else [(f"{device.name} alone", "finish_together", [device]) for device in found]
    for title, name, given in cases:
        sized = [at_best_size(device) for device in given] if name == "fixed" else given
        run = simulate_run(sized, items, name, options, noise=noise, seed=seed, backup=backup)
        efficiency = items / run.makespan_s / peak
        runs.append({"policy": title, "makespan_s": run.makespan_s, "efficiency": efficiency, "chunks": run.chunks})
    if format == "json":
        print_json({"items": items, "runs": runs})
        return 0
    print_table(
        ["policy", "makespan s", "% of the sum", "chunks"],
        [[run["policy"], run["makespan_s"], round(100 * run["efficiency"], 1), run["chunks"]] for run in runs],
    )
    return 0
