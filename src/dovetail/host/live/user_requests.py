"""What users ask of a service: programs to keep, and changes of those that are there."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from dovetail.core.errors import DovetailError, InputError, did_you_mean
from dovetail.core.events import Asked
from dovetail.host.gpus import never_fits
from dovetail.host.live.service_state import ServiceState, state_of
from dovetail.host.live.specs import Spec

_ANSWER_LIMIT_S = 30.0
LIMITS = ("cpu_quota", "io_weight", "nice")  # of a program, which not every executor can keep
ASKS = {"pause": False, "resume": False, "resize": True, "priority": True, "cancel": False, "requeue": False}


class UserRequests(ServiceState):
    """Each returns when what was asked for is kept."""

    def submit(self, spec: Spec, array: int | None = None) -> list[str]:
        """Keep a program, or an array of them, and let it arrive; gives their numbers."""
        return self._submit([spec], array, spec.key)

    def submit_all(self, specs: list[Spec], key: str = "") -> list[str]:
        """Keep programs that may wait for each other (+0 in `after` is the first of them): all of them, or none."""
        return self._submit([replace(spec, key=key) for spec in specs], None, key)

    def _submit(self, specs: list[Spec], array: int | None, key: str) -> list[str]:
        for spec in specs:
            try:
                self._check(spec)
            except InputError as error:
                if len(specs) == 1:
                    raise
                raise InputError(f"{spec.title}: {error}") from error
        for image in {spec.image for spec in specs}:
            self._executors.get(image).reach(image)  # if there is no engine or no image, say so now
        now, wall = self.now(), time.time()
        with self._lock:
            if jobs := self._book.same(key, specs, array):
                return jobs
            added = self._book.add([spec.at(now, wall) for spec in specs], array)
            self._inbox.extend([each.arrival(job, self.setup.cores) for job, each in added.items()])
        return list(added)

    def _check(self, spec: Spec) -> None:
        """Refuse what can never run here."""
        spec.check(self.setup.cores)
        there = self.setup.policies.memory_mib
        if spec.memory_mib is not None and there is not None and spec.memory_mib > there:
            raise InputError(f"memory_mib: found {spec.memory_mib}, expected 1 to {there}, which is what there is")
        if never := never_fits(self.setup.policies.gpus, spec.ask(self.setup.cores)):
            raise InputError(f"gpus: {never}")
        limits = [name for name in LIMITS if getattr(spec, name) is not None]
        if lacks := self._executors.get(spec.image).lacks(limits):
            raise InputError(lacks)

    def retry(self, jobs: tuple[str, ...] = ()) -> dict[str, str]:
        """Let what failed come once more under new numbers: of these, or of all that were not tried again yet."""
        with self._lock:
            tried = {spec.again_of for spec in self._book.specs.values()}
            named = [each for job in jobs for each in self._book.named(job)]
            rows = self._status.rows
            failed = [each for each, row in rows.items() if row.status == "rejected" and (not jobs or each in named)]
            if jobs and not failed:
                raise InputError(f"{', '.join(jobs)}: has not failed; requeue begins programs again in whatever state")
            return self._again(job for job in failed if job not in tried or jobs)

    def _again(self, jobs: Iterable[str]) -> dict[str, str]:
        names = self._book.again(jobs)
        self._inbox.extend([self._book.specs[new].arrival(new, self.setup.cores) for new in names.values()])
        return names

    def edit(self, job: str, changes: dict[str, Any]) -> list[str]:
        """Change what a waiting program is, or all of an array that wait; gives those that were changed."""
        if "command" in changes and len(self._book.named(job)) > 1:
            raise InputError(f"{job} is an array: its programs differ by their index only")
        asked, now, wall = [], self.now(), time.time()
        for each in self._book.named(job):
            spec = self._book.specs[each].edited(changes)
            self._check(spec)
            if spec.begin is not None or not changes.keys().isdisjoint(("begin", "delay_s")):
                spec = spec.at(now, wall)  # the clock may have been set since it was submitted
            asked.append(Asked(each, "edit", facts=spec.facts(self.setup.cores)))
            self._edits[id(asked[-1])] = spec
        self._hear(asked, f"edit of {job}")
        kept = [event.job for event in asked if self._edits.pop(id(event), None) is None]
        if not kept:
            raise InputError(f"{job} does not wait any more; only waiting programs can be edited")
        return kept

    def clean(self, jobs: tuple[str, ...] = (), completed: bool = False) -> list[str]:
        """Forget programs that have ended, of these or all, or only those that were completed, and their logs. The
        journal keeps what happened to them."""
        with self._lock:
            named = {each for job in jobs for each in self._book.named(job)}
            gone = [
                job
                for job, row in self._status.rows.items()
                if row.closed_s is not None
                and (not jobs or job in named)
                and (not completed or row.status == "completed")
            ]
            self._book.forget(gone)
            if not jobs and not completed:
                self._book.forget_past_keys()
            for job in gone:
                del self._status.rows[job]
        return gone

    def group(self, name: str, parallel: int | None = None) -> None:
        """Let so many of a group run at once from now on, or all."""
        if parallel is not None and parallel < 1:
            raise InputError(f"parallel: found {parallel}, expected 1 or more")
        self._hear([Asked("", "group", facts={"group": name, "parallel": parallel})], f"limit of {name}")

    def ask(self, job: str | tuple[str, ...], what: str, value: float | None = None) -> list[str]:
        """Let the scheduler hear a request about a program, all of an array, or several of them at once, so that none
        of these starts because another has ended; returns when it is kept."""
        if what not in ASKS:
            raise InputError(f"cannot {what} a program{did_you_mean(what, ASKS)}")
        if ASKS[what] != (value is not None):
            raise InputError(f"{what}: expected {'a number' if ASKS[what] else 'no number'}, found {value}")
        if what == "resize" and value is not None and not 1 <= value <= self.setup.cores:
            raise InputError(f"resize: found {value:g} cores, expected 1 to {self.setup.cores}")
        if what == "priority" and value is not None and not value >= 0:
            raise InputError(f"priority: found {value:g}, expected 0 (most urgent) or more")
        names = [self._book.named(name) for name in ((job,) if isinstance(job, str) else job)]
        jobs = list(dict.fromkeys(each for members in names for each in members))
        closed = {each: row for each in jobs if (row := self._status.rows.get(each)) and row.closed_s is not None}
        open_ = [each for each in jobs if each not in closed]
        new: list[str] = []
        if closed and what == "requeue":
            with self._lock:
                new = list(self._again(closed).values())
        if what == "resize" and len(open_) == len(jobs) == 1 and self._is_rigid(jobs[0]):
            raise InputError(f"program {jobs[0]} is rigid: it keeps the cores that it started with")
        if open_:
            self._hear([Asked(each, what, value) for each in open_], f"{what} of {', '.join(open_[:5])}")
        if what != "requeue" and (late := [each[0] for each in names if len(each) == 1 and each[0] in closed]):
            raise InputError(f"program {late[0]} is {state_of(closed[late[0]])}; it cannot be changed any more")
        return [*new, *open_]

    def _hear(self, asked: Sequence[Asked], what: str) -> None:
        """Let the scheduler hear of something; returns when that is kept."""
        with self._seen:
            self._unseen.update(map(id, asked))
        self._inbox.extend(asked)
        with self._seen:
            if not self._seen.wait_for(lambda: self._unseen.isdisjoint(map(id, asked)), _ANSWER_LIMIT_S):
                raise DovetailError(self.trouble or f"{what} was not decided yet; it will be")

    def _is_rigid(self, job: str) -> bool:
        row = self._status.rows.get(job)
        return not self._book.specs[job].malleable and row is not None and row.status != "waiting"
