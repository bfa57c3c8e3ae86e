"""`dovetail dispatch`: measure a function on devices, compare policies, and try them without hardware."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from cyclopts import App

from dovetail.cli.common import (
    Force,
    Format,
    Pairs,
    atomic_write,
    check_writable,
    pairs,
    print_json,
    print_table,
    progress,
    value,
    whole_numbers,
)
from dovetail.core.errors import DovetailError, InputError
from dovetail.core.files import refuse_overwrite

app = App(name="dispatch", help="Spread one batch over the CPU and GPUs of a node.", help_format="plaintext")


def _target(function: str, batch: str | None, shape: str | None, dtype: str) -> tuple[Any, Any]:
    from dovetail.dispatch.inputs.target import load, random_batch

    made = load(function)
    if not callable(made) and not hasattr(made, "on"):
        raise InputError(f"{function}: expected a function or a module, found {type(made).__name__}")
    if (batch is None) == (shape is None):
        raise InputError("expected either --batch or --shape, to say what the function is called with")
    if shape is not None:
        return made, random_batch(whole_numbers("--shape", shape), dtype)
    given = load(str(batch))
    with _blamed(f"--batch {batch}"):
        given = given() if callable(given) else given
    if isinstance(given, str | int | float | Iterator):
        kind = type(given).__name__
        raise InputError(f"--batch {batch}: expected a tensor or a tree of tensors, to be run again; found {kind}")
    return made, given


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """An error of the user's own code is one line that says whose it is; --debug shows all of it."""
    try:
        yield
    except DovetailError:
        raise
    except Exception as error:
        first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
        where = "".join(f" ({note})" for note in getattr(first, "__notes__", ()))
        text = f"{type(first).__name__}: {first}".rstrip(": ")
        raise InputError(f"{what}: raised {text}{where}") from error


def _check_outputs(outputs: dict[str, Path | None], force: bool, *inputs: Path | None) -> None:
    """Before long work: whether its results have a place of their own to go to."""
    wanted = {flag: path for flag, path in outputs.items() if path is not None}
    refuse_overwrite(wanted.values(), inputs)
    for flag, path in wanted.items():
        if path.is_file() and not force:
            raise InputError(f"{flag} {path}: exists; give --force to replace it")
    check_writable(*wanted.values())


def _file_of(source: str | None) -> Path | None:
    """The file of `file.py:name`."""
    return Path(source.rpartition(":")[0]) if source and ".py:" in source else None


def _names(flag: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InputError(f"{flag} {text}: expected names with commas between them")
    return names


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
    types: str | None = None,
    out: Path | None = None,
    curves: Path | None = None,
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
    types
        What the devices are called in the rate table, with commas between them; their names by default.
    out
        Write a rate table here, relative to the first device.
    curves
        Write the measured curves here, for `dovetail dispatch simulate`.
    force
        Replace what is there.
    format
        table or json.
    """
    from dovetail.dispatch.inputs.devices import resolve
    from dovetail.dispatch.measure import curve_file, rates_of
    from dovetail.dispatch.measure import tune as tune_alone

    _check_outputs({"--out": out, "--curves": curves}, force, _file_of(function), _file_of(batch))
    found = resolve(_names("--devices", devices))
    called = _names("--types", types) if types is not None else [device.name for device in found]
    if len(set(called)) != len(found):
        raise InputError(f"--types {types}: expected {len(found)} different names, one for each device")
    made, given = _target(function, batch, shape, dtype)
    measured = []
    with _blamed(function), progress("tuning", total=len(found)) as done:
        for i, device in enumerate(found):
            measured.append(tune_alone(made, given, device, dim))
            done(i + 1)
    if out is not None:
        rates_of(kind or function.rpartition(":")[2], measured, called).write(out)
    if curves is not None:
        atomic_write(curves, curve_file(measured))
    if format == "json":
        print_json({"function": function, "devices": measured})
        return 0
    rows: list[list[object]] = [[m.device, m.hardware, m.size, round(m.rate), m.latency_s, m.settled] for m in measured]
    print_table(["device", "hardware", "best size", "items/s", "shortest call s", "settled"], rows)
    for path in filter(None, (out, curves)):
        print(f"Written: {path}")
    return 0


@app.command
def bench(
    function: str,
    /,
    *,
    devices: str | None = None,
    shape: str | None = None,
    dtype: str = "float32",
    batch: str | None = None,
    dim: int | None = None,
    policies: str | None = None,
    scheduler: str | None = None,
    name: str | None = None,
    option: Pairs | None = None,
    repeats: int = 5,
    journal: Path | None = None,
    force: Force = False,
    format: Format = "table",
) -> int:
    """Run a function on each device alone and on all together.

    Together they work under one or several policies, or as a scheduler says.

    Examples:

    dovetail dispatch bench model.py:update --shape 100000,6 --devices cuda:0,cpu --policies guided,fixed

    dovetail dispatch bench model.py:update --shape 100000,6 --scheduler schedulers.yml --name both --journal run.jsonl

    Parameters
    ----------
    function
        The function or module: file.py:name or package.module:name.
    devices
        Names with commas between them; cpu by default.
    shape
        The shape of a batch of random numbers.
    dtype
        Their type.
    batch
        Instead of a shape: a batch, or a function that makes one, as file.py:name.
    dim
        The dimension of the batch; 0 by default.
    policies
        Names with commas between them; finish_together by default.
    scheduler
        Instead of devices and policies: a YAML or JSON file of schedulers, or the type of one, such as SimpleScheduler.
    name
        Which scheduler of that file; not needed if it has one.
    option
        NAME=VALUE of the scheduler of that type, or of the one policy.
    repeats
        Runs of each; the median counts.
    journal
        Write the median run as a journal here, for `dovetail check` and `dovetail report`; for one policy or scheduler.
    force
        Replace a journal that is there.
    format
        table or json.
    """
    from dovetail.dispatch.inputs.devices import Device
    from dovetail.dispatch.measure import together
    from dovetail.dispatch.measure import tune as tune_alone

    if repeats < 1:
        raise InputError(f"--repeats {repeats}: expected at least 1")
    chosen = _names("--policies", policies or "finish_together")
    if journal is not None and len(chosen) > 1:
        raise InputError(f"--journal is of one run; found {len(chosen)} policies")
    sources = [_file_of(function), _file_of(batch), Path(scheduler) if scheduler else None]
    _check_outputs({"--journal": journal}, force, *sources)
    made, given = _target(function, batch, shape, dtype)
    with ExitStack() as stack:
        stack.enter_context(_blamed(function))
        if scheduler is not None:
            if devices is not None or policies is not None:
                raise InputError("--scheduler says which devices and policy; leave --devices and --policies out")
            label, dispatcher, backend = _by_scheduler(made, scheduler, name, option, dim, stack)
            dispatchers = [(label, dispatcher)]
        else:
            if name is not None:
                raise InputError("--name is of a scheduler; give --scheduler too")
            dispatchers, backend = _by_policies(made, devices or "cpu", chosen, option, dim, stack), "thread"
        found, alone, runs = dispatchers[0][1], [], []
        done = stack.enter_context(progress("measuring", total=len(found.devices) + len(dispatchers)))
        for i, device in enumerate(found.devices):
            plain = Device(device.name, device.place, slots=device.slots, threads=device.threads)
            alone.append(tune_alone(made, given, plain, found.dim, backend=backend))
            done(i + 1)
        for i, (label, dispatcher) in enumerate(dispatchers):
            runs.append(together(dispatcher, given, label, alone, repeats))
            done(len(found.devices) + i + 1)
    if journal is not None:
        runs[0].report.write_journal(journal)
    if format == "json":
        shown = [{key: getattr(run, key) for key in ("policy", "rate", "efficiency", "items")} for run in runs]
        print_json({"function": function, "alone": alone, "together": shown})
        return 0
    rows: list[list[object]] = [[f"{each.device} alone", round(each.rate), None, each.size] for each in alone]
    rows += [[run.policy, round(run.rate), round(100 * run.efficiency, 1), None] for run in runs]
    print_table(["", "items/s", "% of the sum", "size"], rows)
    if journal is not None:
        print(f"Journal written to {journal}")
    return 0


def _by_policies(
    function: Any, devices: str, policies: list[str], option: Pairs | None, dim: int | None, stack: ExitStack
) -> list[tuple[str, Any]]:
    from dovetail.dispatch import Dispatcher

    if option and len(policies) > 1:
        raise InputError(f"--option belongs to one policy; found {len(policies)}")
    options = {key: value(text) for key, text in pairs("--option", option).items()}
    names = _names("--devices", devices)
    made = [(name, Dispatcher(function, names, name, options=options, dim=dim or 0)) for name in policies]
    return [(name, stack.enter_context(dispatcher)) for name, dispatcher in made]


def _by_scheduler(
    function: Any, source: str, name: str | None, option: Pairs | None, dim: int | None, stack: ExitStack
) -> tuple[str, Any, str]:
    from dovetail.dispatch.compat.options import KINDS, read_scheduler, scheduler_from_flags

    if source in KINDS:
        if name is not None:
            raise InputError(f"--name {name}: is of a file; --scheduler {source} is a type")
        chosen = scheduler_from_flags(source, pairs("--option", option))
    elif option:
        raise InputError("--option belongs to a type of scheduler, or to one policy; a file has its options in itself")
    elif Path(source).suffix:
        chosen = read_scheduler(Path(source), name)
    else:
        raise InputError(f"--scheduler {source}: expected a .yml, .yaml or .json file, or one of {', '.join(KINDS)}")
    if hasattr(chosen.scheduler, "close"):
        stack.callback(chosen.scheduler.close)
    given = {} if dim is None else {"dim": dim}
    backend = chosen.run_options.get("backend", "thread")
    return name or chosen.type, stack.enter_context(chosen.dispatcher(function, **given)), backend


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
    journal: Path | None = None,
    force: Force = False,
    format: Format = "table",
) -> int:
    """Try policies on the curves of devices, without the devices.

    Examples:

    dovetail dispatch simulate --model radret --items 1000000 --slower cpu=3 --noise 0.1

    dovetail dispatch simulate curves.yml --policy guided --journal run.jsonl

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
    journal
        Write the run as a journal here, for `dovetail check` and `dovetail report`; for one policy.
    force
        Replace a journal that is there.
    format
        table or json.
    """
    from dovetail.core import registry
    from dovetail.dispatch.inputs.curve_files import sim_devices, with_size
    from dovetail.dispatch.recording import record_simulated as record
    from dovetail.dispatch.simulate import simulate as simulate_run

    if items < 1 or not 0 <= noise < 10:
        raise InputError(f"expected --items >= 1 and --noise from 0 to 10, found {items} and {noise}")
    if (option or journal) and policy is None:
        raise InputError(f"--{'option' if option else 'journal'} belongs to one policy; give --policy too")
    _check_outputs({"--journal": journal}, force, curves)
    found = sim_devices(curves, model, {name: value(text) for name, text in pairs("--slower", slower).items()})
    options = {name: value(text) for name, text in pairs("--option", option).items()}
    peak = sum(device.curve.rate / device.slower for device in found)
    runs: list[dict[str, Any]] = []
    cases = [(name, name, found) for name in ([policy] if policy else registry.names("dispatch"))]
    cases += [] if policy else [(f"{device.name} alone", "finish_together", [device]) for device in found]
    for title, name, given in cases:
        sized = [with_size(device, items // len(given)) for device in given] if name == "fixed" else given
        run = simulate_run(sized, items, name, options, noise=noise, seed=seed, backup=backup)
        if journal is not None:
            record(journal, sized, items, name, run, options, noise, seed)
        efficiency = items / run.makespan_s / peak
        runs.append({"policy": title, "makespan_s": run.makespan_s, "efficiency": efficiency, "chunks": run.chunks})
    if format == "json":
        print_json({"items": items, "runs": runs})
        return 0
    print_table(
        ["policy", "makespan s", "% of the sum", "chunks"],
        [[run["policy"], run["makespan_s"], round(100 * run["efficiency"], 1), run["chunks"]] for run in runs],
    )
    if journal is not None:
        print(f"Journal written to {journal}")
    return 0
