"""How a service was set up: cores, policies, executors. Kept in its store: its recorded steps only make sense so."""

from __future__ import annotations

import os
import platform
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.cgroups import cpu_list
from dovetail.core.errors import InputError
from dovetail.core.journal import Clock, Header, Recorded, Writer
from dovetail.core.loop.engine import Scheduler
from dovetail.core.metrics import Metrics, recount
from dovetail.core.service.access import own_folder
from dovetail.core.service.clock import LastingClock
from dovetail.core.service.store import Store
from dovetail.core.tasks import TaskGraph
from dovetail.host.live.gpus import find_gpus
from dovetail.host.live.past_keys import put_aside
from dovetail.host.metrics import Programs
from dovetail.host.options import HostOptions
from dovetail.host.program import CORE, program_graph
from dovetail.host.scheduler import make_scheduler
from dovetail.host.simulate import header

KIND = "program"
_MANY_STEPS = 50_000


class RequestedSettings(Struct, frozen=True, omit_defaults=True):
    """What a user said when the daemon was started; None is whatever it was before, or the default."""

    options: dict[str, Any] | None = None
    cpus: tuple[int, ...] | None = None
    groups: bool | None = None
    docker: str | None = None
    gpus: tuple[int, ...] | None = None


class HostSetup(Struct, frozen=True):
    """`epoch` is when the service first began, `cpus` the processor behind each core, `docker` the engine's address."""

    instance: str
    epoch: float
    cpus: tuple[int, ...]
    options: dict[str, Any]
    groups: bool = True
    docker: str = ""

    @property
    def cores(self) -> int:
        return len(self.cpus)

    @property
    def gpus(self) -> tuple[int, ...]:
        """The driver's number of each GPU."""
        return tuple(gpu.number or 0 for gpu in self.policies.gpus)

    @property
    def policies(self) -> HostOptions:
        return msgspec.convert(self.options, HostOptions)

    def graphs(self) -> dict[str, TaskGraph]:
        return {KIND: program_graph(KIND, self.cores)}

    def scheduler(self) -> Scheduler:
        return make_scheduler(self.cores, self.graphs(), self.policies)

    def header(self) -> Header:
        """The first line of this service's journal."""
        first = header(self.cores, self.graphs(), self.policies, "live", cpus=list(self.cpus), epoch=self.epoch)
        carried_by = {CORE: f"{_processor()}, processors {cpu_list(self.cpus)}"}
        return msgspec.structs.replace(first, clock=Clock("monotonic"), hardware=carried_by)


def _processor() -> str:
    """What the processors of this machine are called."""
    with suppress(OSError), open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def set_up(folder: Path, wish: RequestedSettings) -> tuple[HostSetup, Store]:
    """Open a service's store. One that was set up otherwise begins anew, if nothing of it is left to be done."""
    own_folder(folder)
    for part in ("runs", "logs"):
        (folder / part).mkdir(exist_ok=True, mode=0o700)
    store = Store(folder / "state.db")
    try:
        before = store.get("setup", HostSetup)
        setup = _wished(wish, before)
        other = before is not None and setup != before
        many = store.last_step() > _MANY_STEPS
        if before is not None and (other or many) and _begin_anew(folder, store, before, forced=other):
            setup = msgspec.structs.replace(setup, epoch=time.time())
            LastingClock(store, anew=True)
        store.set("setup", setup)
    except BaseException:
        store.close()
        raise
    return setup, store


def _wished(wish: RequestedSettings, before: HostSetup | None) -> HostSetup:
    anew = before is None or wish.options is not None
    if before is None:
        before = HostSetup(secrets.token_hex(4), time.time(), tuple(sorted(os.sched_getaffinity(0))), {})
    options = before.options if wish.options is None else wish.options
    if "memory_mib" not in options:
        options = options | {"memory_mib": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") >> 20}
    if anew or wish.gpus is not None:
        gpus = find_gpus(wish.gpus)
        options = {name: value for name, value in options.items() if name != "gpus"}
        options |= {"gpus": msgspec.to_builtins(list(gpus))} if gpus else {}
    if options.get("profile", "clean") != "clean":
        raise InputError(
            "profile: the older scheduler's decisions can be simulated only: it knew no pause and no cancel"
        )
    cpus = before.cpus if wish.cpus is None else wish.cpus
    _check_cpus(cpus)
    return HostSetup(
        before.instance,
        before.epoch,
        cpus,
        options,
        before.groups if wish.groups is None else wish.groups,
        before.docker if wish.docker is None else wish.docker,
    )


def _check_cpus(cpus: Sequence[int]) -> None:
    there = os.sched_getaffinity(0)
    if not cpus or len(set(cpus)) != len(cpus) or not there.issuperset(cpus):
        raise InputError(f"processors: found {list(cpus)}, expected some of {sorted(there)}, each once")


def _begin_anew(folder: Path, store: Store, before: HostSetup, forced: bool) -> bool:
    """Put the old journal aside, if all has ended. Recorded steps can only go on under the policies that decided them,
    and very many of them are not replayed for nothing."""
    known = Programs(before.cores)
    steps = list(store.steps())
    programs = [job for job, _, _ in store.things("program", dict, dict)]
    for step in steps:
        known.step(*step)
    if left := [row.program for row in known.open()] + [job for job in programs if job not in known.rows]:
        if not forced:
            return False
        raise InputError(
            f"{folder}: programs {', '.join(left[:5])} are not ended, and were decided on with other settings; "
            "start without settings to go on as before, or cancel them first"
        )
    aside = folder / f"journal-{time.strftime('%Y%m%d-%H%M%S', time.localtime(before.epoch))}.jsonl"
    write_journal(aside, before, steps, ended=True)
    with store.together():
        store.forget_steps()
        put_aside(store)
    return True


def write_journal(
    path: Path, setup: HostSetup, steps: Iterable[tuple[int, float, Sequence[Recorded]]], ended: bool
) -> int:
    """Kept steps as a journal, with its last line if all has ended; gives the number of steps."""
    header = setup.header()
    figures, programs = Metrics(header.pool), Programs(setup.cores)
    n, t = 0, 0.0
    with Writer(path, header) as writer:
        for n, t, events in steps:
            for observer in (writer, figures, programs):
                observer.step(n, t, events)
        if ended:
            writer.end(n + 1, t, recount(figures.figures()) | programs.totals().as_dict())
    return n
