"""What users have submitted, and how the attempts to run it have ended; in the store before it is acted on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.service.store import Store
from dovetail.host.live.executors import Exit, ProgramLaunch
from dovetail.host.live.specs import Spec, array_environment, environment

_KIND = "program"
_LARGEST_ARRAY = 100_000


class Ends(Struct):
    """How the attempts of a program ended, and the processor time of them all."""

    exits: list[Exit] = []
    cpu_s: float = 0.0


class ProgramBook:
    """All programs of a service by number."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self._store = store
        self.specs: dict[str, Spec] = {}
        self.ends: dict[str, Ends] = {}
        for job, spec, ends in store.things(_KIND, Spec, Ends):
            self.specs[job] = spec
            self.ends[job] = ends or Ends()

    def add(self, spec: Spec, array: int | None) -> dict[str, Spec]:
        """Keep a program, or an array of them, under the next number."""
        if array is not None and not 1 <= array <= _LARGEST_ARRAY:
            raise InputError(f"array: found {array}, expected 1 to {_LARGEST_ARRAY}")
        spec = replace(spec, after=tuple(name for job in spec.after for name in self.named(job)))
        number = (self._store.get("number", int) or 0) + 1
        if array is None:
            added = {str(number): spec}
        else:
            added = {f"{number}.{i}": replace(spec, env=array_environment(spec.env, i, array)) for i in range(array)}
        with self._store.together():
            self._store.set("number", number)
            for job, each in added.items():
                self._store.put(_KIND, job, each)
        self.specs |= added
        self.ends |= {job: Ends() for job in added}
        return added

    def named(self, job: str) -> list[str]:
        """The programs that a number names: itself, or all of an array."""
        if job in self.specs:
            return [job]
        if members := [each for each in self.specs if each.partition(".")[0] == job and "." in each]:
            return members
        raise InputError(f"there is no program {job}{did_you_mean(job, self.specs)}")

    def log_of(self, job: str) -> Path:
        return self.folder / "logs" / f"{job}.log"

    def run_name(self, job: str) -> str:
        """The attempt that comes next, or is under way: the one after all that have ended."""
        return f"{job}-{len(self.ends[job].exits) + 1}"

    def launch(self, job: str, cpus: Sequence[int], gpus: Sequence[int] | None = None) -> ProgramLaunch:
        """All that it takes to start that attempt; `gpus` None: this machine has none to give."""
        spec, run = self.specs[job], self.run_name(job)
        folder, attempt = self.folder / "runs" / run, len(self.ends[job].exits) + 1
        return ProgramLaunch(
            run=run,
            command=spec.command,
            cpus=tuple(cpus),
            folder=str(folder),
            log=str(self.log_of(job)),
            cwd=spec.cwd,
            env=environment(spec, job, attempt, len(cpus), str(folder / "control"), gpus),
            image=spec.image,
            memory_mib=spec.memory_mib,
            network=spec.network,
            grace_s=spec.grace_s,
            gpus=tuple(gpus or ()),
            cpu_quota=spec.cpu_quota,
            io_weight=spec.io_weight,
            nice=spec.nice,
        )

    def note_end(self, job: str, outcome: Exit, cpu_s: float) -> None:
        """An attempt has ended. It is kept with the step that says so."""
        ends = self.ends[job]
        self.ends[job] = Ends([*ends.exits, outcome], ends.cpu_s + cpu_s)

    def keep_end(self, job: str) -> None:
        self._store.note(_KIND, job, self.ends[job])
