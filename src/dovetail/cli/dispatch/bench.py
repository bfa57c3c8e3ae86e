"""`dovetail dispatch bench`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.cli.common import Force, Format, Pairs, pairs, print_json, print_table, progress, value, whole_numbers
from dovetail.cli.dispatch.words import check_outputs, file_of, names
from dovetail.core.errors import InputError

if TYPE_CHECKING:
    from dovetail.dispatch.measure import Contender


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
    from dovetail.dispatch.inputs.target import blamed, function_and_batch
    from dovetail.dispatch.measure import bench as measure

    if repeats < 1:
        raise InputError(f"--repeats {repeats}: expected at least 1")
    chosen = names("--policies", policies or "finish_together")
    if journal is not None and len(chosen) > 1:
        raise InputError(f"--journal is of one run; found {len(chosen)} policies")
    sources = [file_of(function), file_of(batch), Path(scheduler) if scheduler else None]
    check_outputs({"--journal": journal}, force, *sources)
    sizes = whole_numbers("--shape", shape) if shape is not None else None
    made, given = function_and_batch(function, batch, sizes, dtype)
    with ExitStack() as stack, blamed(function):
        if scheduler is not None:
            if devices is not None or policies is not None:
                raise InputError("--scheduler says which devices and policy; leave --devices and --policies out")
            contenders = [_by_scheduler(made, scheduler, name, option, dim, stack)]
        else:
            if name is not None:
                raise InputError("--name is of a scheduler; give --scheduler too")
            contenders = _by_policies(made, devices or "cpu", chosen, option, dim, stack)
        done = stack.enter_context(progress("measuring", total=len(contenders[0].dispatcher.devices) + len(contenders)))
        alone, runs = measure(made, given, contenders, repeats, journal=journal, done=done)
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
) -> list[Contender]:
    from dovetail.dispatch import Dispatcher
    from dovetail.dispatch.measure import Contender

    if option and len(policies) > 1:
        raise InputError(f"--option belongs to one policy; found {len(policies)}")
    options = {key: value(text) for key, text in pairs("--option", option).items()}
    on = names("--devices", devices)
    made = [(name, Dispatcher(function, on, name, options=options, dim=dim or 0)) for name in policies]
    return [Contender(name, stack.enter_context(dispatcher)) for name, dispatcher in made]


def _by_scheduler(
    function: Any, source: str, name: str | None, option: Pairs | None, dim: int | None, stack: ExitStack
) -> Contender:
    from dovetail.dispatch.compat.options import KINDS, read_scheduler, scheduler_from_flags
    from dovetail.dispatch.measure import Contender

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
    return Contender(name or chosen.type, stack.enter_context(chosen.dispatcher(function, **given)), backend)
