"""What users have submitted, and how the attempts to run it have ended; in the store before it is acted on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.service.store import Store
from dovetail.host.live.executors import Exit, ProgramLaunch
from dovetail.host.live.past_keys import ENDS, ENVIRONMENT, KEY, KIND, PastKey
from dovetail.host.live.specs import Spec, environment

_LARGEST_ARRAY = 100_000


class Ends(Struct, omit_defaults=True):
    """How the attempts of a program ended, and the processor time of them all; whether its hook was run after that."""

    exits: list[Exit] = []
    cpu_s: float = 0.0
    hooked: bool = False


class ProgramBook:
    """All programs of a service by number."""

    def __init__(self, folder: Path, store: Store) -> None:
        self._runs, self._logs = str(folder / "runs"), str(folder / "logs")
        self._store = store
        self.specs: dict[str, Spec] = {}
        self.ends: dict[str, Ends] = {}
        self._named: tuple[dict[str, str], str] = ({}, "")  # the last environment, and its name
        self._by_key: dict[str, list[str]] = {}
        self._past_keys = {key: past for key, past, _ in store.things(KEY, PastKey, dict)}
        self._environments = {name: env for name, env, _ in store.things(ENVIRONMENT, dict[str, str], dict)}
        self._unkept: list[str] = []  # environments that are in the store only if all that is kept with them is
        for job, spec, ends in store.things(KIND, Spec, Ends):
            env = self._environments.get(spec.env_name, {})  # of earlier versions, a full disk took some away
            self._enter(job, replace(spec, env=env) if spec.env_name else spec)
            self.ends[job] = ends or Ends()  # where earlier versions kept them
        self.ends |= {job: ends for job, ends, _ in store.things(ENDS, Ends, dict)}

    def _enter(self, job: str, spec: Spec) -> None:
        self.specs[job] = spec
        if spec.key:
            self._by_key.setdefault(spec.key, []).append(job)

    def add(self, specs: Sequence[Spec], array: int | None = None) -> dict[str, Spec]:
        """Keep programs under the next numbers, or one as an array of them. A number in `after` that begins with + is
        the place of another in the same list."""
        if array is not None and not 1 <= array <= _LARGEST_ARRAY:
            raise InputError(f"array: found {array}, expected 1 to {_LARGEST_ARRAY}")
        first = (self._store.get("number", int) or 0) + 1
        numbers = [str(first + i) for i in range(len(specs))]

        def all_of(names: Iterable[str]) -> tuple[str, ...]:
            wide = (
                numbers[int(name[1:]) : int(name[1:]) + 1] if name[0] == "+" else self.named(name) for name in names
            )
            return tuple(job for jobs in wide for job in jobs)

        added: dict[str, Spec] = {}
        for number, spec in zip(numbers, specs, strict=True):
            spec = replace(spec, after=all_of(spec.after), after_any=all_of(spec.after_any))
            if array is None:
                added[number] = spec
            else:
                added |= {f"{number}.{i}": replace(spec, array=(i, array)) for i in range(array)}
        self._keep(added, first + len(specs) - 1)
        return added

    def again(self, jobs: Iterable[str]) -> dict[str, str]:
        """Keep the same programs once more, under new numbers, by the old ones. Who waited for one of them waits for
        what takes its place; those of an array keep their indices."""
        last = self._store.get("number", int) or 0
        numbers: dict[str, int] = {}
        names: dict[str, str] = {}
        for job in jobs:
            base, dot, index = job.partition(".")
            names[job] = f"{numbers.setdefault(base, last + 1 + len(numbers))}{dot}{index}"
        added = {}
        for job, new in names.items():
            spec = self.specs[job]
            after, after_any = (tuple(names.get(each, each) for each in a) for a in (spec.after, spec.after_any))
            fresh = {"begin": None, "delay_s": 0.0, "begin_s": 0.0, "key": "", "again_of": job, "parallel": None}
            added[new] = replace(spec, after=after, after_any=after_any, **fresh)
        self._keep(added, last + len(numbers))
        return names

    def _keep(self, added: Mapping[str, Spec], last: int) -> None:
        with self.together():
            self._store.set("number", last)
            for job, spec in added.items():
                self.put(job, spec)
        for job, spec in added.items():
            self._enter(job, spec)
        self.ends |= {job: Ends() for job in added}

    @contextmanager
    def together(self) -> Iterator[None]:
        """All that is kept within is kept, or nothing of it, and nothing of it is then believed to be."""
        try:
            with self._store.together():
                yield
        except BaseException:
            for name in self._unkept:
                del self._environments[name]
            raise
        finally:
            self._unkept.clear()

    def put(self, job: str, spec: Spec) -> None:
        """Keep what a program is; its environment once for all that share it."""
        if spec.env is not self._named[0]:  # those of an array have one
            text = msgspec.json.encode(spec.env, order="deterministic") if spec.env else b""
            self._named = spec.env, sha256(text).hexdigest()[:16] if text else ""
        name = self._named[1]
        if name and name not in self._environments:
            self._environments[name] = spec.env
            self._unkept.append(name)
            self._store.put(ENVIRONMENT, name, spec.env)
        self._store.put(KIND, job, replace(spec, env={}, env_name=name))

    def same(self, key: str, specs: Sequence[Spec], array: int | None = None) -> list[str]:
        """The programs that were submitted with this key; a key means one thing only."""
        past = self._past_keys.get(key)
        jobs = past.jobs if past else self._by_key.get(key, []) if key else []
        places = past.places if past else [self.specs[job].command_place() for job in jobs]
        for job, place, spec in zip(jobs, places, specs, strict=False):  # those of an array are alike
            if spec.command_place() != place:
                raise InputError(f"key {key}: program {job} has it, and runs {list(place[0]) or place[1]}")
        asked = len(specs) if array is None else array
        if jobs and len(jobs) != asked:
            raise InputError(
                f"key {key}: found {asked} programs, expected the {len(jobs)} that have it, from {jobs[0]} on"
            )
        return jobs

    def forget_past_keys(self) -> None:
        with self._store.together():
            for key in self._past_keys:
                self._store.drop(KEY, key)
        self._past_keys.clear()

    def forget(self, jobs: Iterable[str]) -> None:
        """Programs that have ended, and what they have written, are not wanted any more. A key goes with the first."""
        gone = dict.fromkeys(jobs)
        keys = {self.specs[job].key for job in gone} - {""}
        left = [job for key in keys for job in self._by_key.get(key, ()) if job not in gone]
        self.specs |= {job: replace(self.specs[job], key="") for job in left}
        with self.together():
            for job in gone:
                self._store.drop(KIND, job)
                self._store.drop(ENDS, job)
            for job in left:
                self.put(job, self.specs[job])
        for job in gone:
            spec = self.specs.pop(job)
            del self.ends[job]
            if spec.key:
                self._by_key.pop(spec.key, None)
            for log in (self.log_of(job), self.log_of(job, errors=True)):
                for name in (log, f"{log}.1"):
                    Path(name).unlink(missing_ok=True)

    def named(self, job: str) -> list[str]:
        """The programs that a number names: itself, or all of an array."""
        if job in self.specs:
            return [job]
        if members := [each for each in list(self.specs) if each.partition(".")[0] == job and "." in each]:
            return members
        if any(job in (each, each.partition(".")[0]) for past in self._past_keys.values() for each in past.jobs):
            raise InputError(f"program {job} has ended, and was put aside when the daemon was given other settings")
        raise InputError(f"there is no program {job}{did_you_mean(job, self.specs)}")

    def log_of(self, job: str, errors: bool = False) -> str:
        return f"{self._logs}/{job}.{'err' if errors else 'log'}"

    def run_name(self, job: str) -> str:
        """The attempt that comes next, or is under way: the one after all that have ended."""
        return f"{job}-{len(self.ends[job].exits) + 1}"

    def launch(self, job: str, cpus: Sequence[int], gpus: Sequence[int] | None = None) -> ProgramLaunch:
        """All that it takes to start that attempt; `gpus` None: this machine has none to give."""
        spec, run = self.specs[job], self.run_name(job)
        folder, attempt = f"{self._runs}/{run}", len(self.ends[job].exits) + 1
        return ProgramLaunch(
            run=run,
            command=spec.command,
            cpus=tuple(cpus),
            folder=folder,
            log=self.log_of(job),
            cwd=spec.cwd,
            env=environment(spec, job, attempt, len(cpus), f"{folder}/control", gpus),
            image=spec.image,
            memory_mib=spec.memory_mib,
            network=spec.network,
            grace_s=spec.grace_s,
            gpus=tuple(gpus or ()),
            cpu_quota=spec.cpu_quota,
            io_weight=spec.io_weight,
            nice=spec.nice,
            stdin=spec.stdin,
            errors=self.log_of(job, errors=True) if spec.split_stderr else "",
        )

    def note_end(self, job: str, outcome: Exit, cpu_s: float) -> None:
        """An attempt has ended. It is kept with the step that says so."""
        ends = self.ends[job]
        self.ends[job] = Ends([*ends.exits, outcome], ends.cpu_s + cpu_s)

    def keep_end(self, job: str) -> None:
        """Not beside what it is, where the store would have to make room for it between others."""
        self._store.put(ENDS, job, self.ends[job])

    def note_hook(self, job: str) -> None:
        """Its hook was run."""
        if job in self.ends:  # it may have been cleaned away
            self.ends[job] = replace(self.ends[job], hooked=True)
            self.keep_end(job)
