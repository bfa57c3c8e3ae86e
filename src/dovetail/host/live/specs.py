"""What a user asks to be run, and the environment that it runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.events import Arrived
from dovetail.host import agent
from dovetail.host.inputs.program_rules import broken_rule
from dovetail.host.live.executors import GRACE_S
from dovetail.host.live.executors.docker import CONTROL_FOLDER
from dovetail.host.live.past_keys import CommandPlace
from dovetail.host.program import Ask, GpuPause

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
GIVEN = "DOVETAIL_GIVEN"  # which of a program's variables are not its own wish, with their values
_ATTEMPT, _ARRAY_INDEX, _ARRAY_SIZE = "DOVETAIL_ATTEMPT", "DOVETAIL_ARRAY_INDEX", "DOVETAIL_ARRAY_SIZE"
_WHO = frozenset((agent.PROGRAM, agent.FOLDER, _ATTEMPT, _ARRAY_INDEX, _ARRAY_SIZE, GIVEN))  # which no other one is
_WORDS = {"limit": "limit_s", "grace": "grace_s", "work": "work_s", "delay": "delay_s", "gpu_mem": "gpu_mem_mib"}

EDITABLE = frozenset(
    (
        "command",
        "cores",
        "least",
        "most",
        "name",
        "cwd",
        "env",
        "priority",
        "limit_s",
        "grace_s",
        "retries",
        "memory_mib",
        "begin",
        "delay_s",
        "group",
        "parallel",
        "hook",
        "log_mib",
    )
)


class Spec(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A program: what to run and how, and what the scheduler should know of it. With an image it runs in a container.

    `env` is the whole environment of a process, but only what is added to that of a container; in the store it is kept
    apart, under `env_name`, once for all that share it. `array` is its index and the size of its array. It begins after
    `delay_s`, or at `begin` by the clock of the system: at `begin_s` by the service's own. What is submitted again with
    the same `key` is the same program; `again_of` is the one that it does once more. `hook` is run when it has ended.
    """

    command: tuple[str, ...] = ()
    cores: int = 1
    least: int = 1
    most: int | None = None
    name: str = ""
    image: str = ""
    network: bool = False
    cwd: str = ""
    env: dict[str, str] = {}
    priority: int = 0
    after: tuple[str, ...] = ()
    limit_s: float | None = None
    grace_s: float = GRACE_S
    retries: int = 0
    memory_mib: int | None = None
    work_s: float = 0.0
    curve: str = "linear"
    malleable: bool = True
    gpus: int = 0
    gpu_mem_mib: int | None = None
    gpu_type: str = ""
    gpu_pause: GpuPause = "hold"
    cpu_quota: float | None = None
    io_weight: int | None = None
    nice: int | None = None
    env_name: str = ""
    array: tuple[int, int] | None = None
    after_any: tuple[str, ...] = ()
    begin: float | None = None
    delay_s: float = 0.0
    begin_s: float = 0.0
    group: str = ""
    parallel: int | None = None
    key: str = ""
    again_of: str = ""
    hook: str = ""
    stdin: str = ""
    split_stderr: bool = False
    log_mib: int | None = None

    @property
    def title(self) -> str:
        """What it is called: by its name, or by what it runs."""
        return self.name or os.path.basename(self.command[0] if self.command else self.image)

    def command_place(self) -> CommandPlace:
        """What it runs, and where."""
        return self.command, self.image, self.cwd

    def edited(self, changes: dict[str, Any]) -> Spec:
        """The same with other values; variables are added to its own. What it once said of its group's limit is not
        said again."""
        if unknown := changes.keys() - EDITABLE:
            name = min(unknown)
            raise InputError(
                f"{name} cannot be edited{did_you_mean(name, EDITABLE)}; {', '.join(sorted(EDITABLE))} can"
            )
        from dovetail.core.files.document import checked

        added = checked(changes.get("env", {}), dict[str, str], "env")
        values: dict[str, Any] = msgspec.structs.asdict(self) | {"parallel": None} | changes
        if "begin" in changes or "delay_s" in changes:  # one in the place of the other
            values |= {"begin": None, "delay_s": 0.0} | changes
        return checked(values | {"env": self.env | added}, Spec)

    def check(self, cores: int) -> None:
        """Refuse what can never run here."""
        found = msgspec.structs.asdict(self)
        broken = broken_rule(found | {word: found[name] for word, name in _WORDS.items()})
        if broken is not None:
            raise InputError(": ".join(broken))
        unusable = next((n for n, value in self.env.items() if not n or "=" in n or "\0" in n + value), None)
        for what, given, fine, expected in (
            ("command", list(self.command), self.command or self.image, "a program to run, or an image"),
            ("command", list(self.command), not any("\0" in word for word in self.command), "no null character"),
            ("cores", self.cores, self.cores <= cores, f"1 to {cores}, which is what there is"),
            ("env", unusable, unusable is None, "names without =, and no null character"),
            *((word, found[word], "\0" not in found[word], "no null character") for word in ("name", "hook", "group")),
            ("cwd", self.cwd, self.image or os.path.isdir(self.cwd), "a folder"),
            ("stdin", self.stdin, not self.stdin or os.path.isfile(self.stdin), "a file"),
        ):
            if not fine:
                raise InputError(f"{what}: found {given!r}, expected {expected}")

    def at(self, now: float, wall: float) -> Spec:
        """The same with its time to begin by the service's clock, which shows `now`."""
        wait_s = self.delay_s if self.begin is None else max(self.begin - wall, 0.0)
        return msgspec.structs.replace(self, begin_s=now + wait_s if wait_s else 0.0)

    def ask(self, cores: int) -> Ask:
        """What the scheduler is to know of it."""
        return Ask(
            cores=self.cores,
            least=self.least,
            most=None if self.most is None else min(self.most, cores),
            priority=self.priority,
            curve=self.curve,
            memory_mib=self.memory_mib or 0,
            after=self.after,
            limit_s=self.limit_s,
            retries=self.retries,
            malleable=self.malleable,
            gpus=self.gpus,
            gpu_mem_mib=self.gpu_mem_mib,
            gpu_type=self.gpu_type,
            gpu_pause=self.gpu_pause,
            after_any=self.after_any,
            begin_s=self.begin_s,
            group=self.group,
            parallel=self.parallel,
        )

    def facts(self, cores: int) -> dict[str, Any]:
        """The same as an event has it."""
        found: dict[str, Any] = msgspec.to_builtins(self.ask(cores))
        return found

    def arrival(self, job: str, cores: int) -> Arrived:
        """What the scheduler hears when it comes."""
        return Arrived(job, "program", (self.work_s,), facts=self.facts(cores))


def environment(
    spec: Spec, job: str, attempt: int, cores: int, control: str, gpus: Sequence[int] | None = None
) -> dict[str, str]:
    """A program's variables: as many threads as it has cores, which wait without spinning. Its own wish comes first,
    but for who it is and the GPUs that it asked for; where there are `gpus` and it asked for none, it sees none unless
    it says so.

    TensorFlow cannot change its threads later, but bears more of them than cores: it begins with its most.
    """
    ours = dict.fromkeys(_THREADS, str(cores))
    ours |= {
        "OMP_WAIT_POLICY": "PASSIVE",
        "TF_NUM_INTRAOP_THREADS": str(spec.most or spec.cores),
        "TF_NUM_INTEROP_THREADS": "1",
    }
    own = spec.env
    if gpus is not None and not spec.image:  # a container sees those that the engine gives it
        seen = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
        ours |= seen
        own = own | seen if gpus else own
    given = [f"{name}={value}" for name, value in ours.items() if name not in spec.env or spec.env[name] != own[name]]
    who = {agent.PROGRAM: job, agent.FOLDER: CONTROL_FOLDER if spec.image else control, _ATTEMPT: str(attempt)}
    if spec.array is not None:
        who |= {_ARRAY_INDEX: str(spec.array[0]), _ARRAY_SIZE: str(spec.array[1])}
    return ours | own | who | {GIVEN: " ".join(given)}


def without_given(env: Mapping[str, str]) -> dict[str, str]:
    """Variables for another program that is submitted with these: without what a program was given for itself alone,
    as its number, its control folder, its cores and its GPUs.

    >>> without_given(environment(Spec(env={"SEED": "7", "OMP_NUM_THREADS": "4"}), "3", 1, 2, "/runs/3-1/control"))
    {'OMP_NUM_THREADS': '4', 'SEED': '7'}
    """
    if GIVEN not in env:
        return dict(env)
    given = set(env[GIVEN].split())
    return {n: value for n, value in env.items() if n not in _WHO and f"{n}={value}" not in given}
