"""The line to a daemon: one request, one answer; and all that can be asked of it."""

from __future__ import annotations

import os
import socket
import struct
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError, within
from dovetail.core.service.access import AnyPath, state_folder
from dovetail.host.live.gpus import GpuStatus
from dovetail.host.live.status import LiveProgram

if TYPE_CHECKING:
    from dovetail.core.files.document import Source
    from dovetail.core.rates import RateTable
    from dovetail.host.inputs.requests import Delays
    from dovetail.host.live.submission import EditWords
    from dovetail.host.program import GpuPause
    from dovetail.host.simulate import HostRun

SOCKET = "host.sock"
_LOOK_EVERY_S = 0.3
_LONGEST_WAIT_S = 30.0  # for one answer
_PIECE = 1 << 20  # bytes of a log
LivePrograms = list[LiveProgram]
Numbers = list[str]


def daemon_folder(given: AnyPath | None) -> Path:
    """Where a daemon keeps its state."""
    return state_folder("host", given, "folder")


def connect(folder: AnyPath | None = None) -> Client:
    """A line to the daemon whose state is in this folder, or in the usual one; close it, or use it as a context."""
    return Client(daemon_folder(folder))


class DaemonInfo(Struct, frozen=True):
    """A daemon as a whole; `programs` is how many are in each state, `trouble` what keeps it from deciding."""

    pid: int
    folder: str
    cpus: tuple[int, ...]
    options: dict[str, Any]
    steps: int
    programs: dict[str, int]
    paused_memory_mib: float
    trouble: str
    gpus: tuple[GpuStatus, ...] = ()


class PastEvent(Struct, frozen=True):
    """Something that happened to a program, or was decided about it and why, `t` seconds after the service began."""

    t: float
    what: str
    cores: tuple[int, ...] | None
    why: str


class Client:
    """A connection to the daemon of a folder. Programs are named by their numbers, whole arrays by theirs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._socket = socket.socket(socket.AF_UNIX)
        try:
            directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
            try:
                self._socket.connect(f"/proc/self/fd/{directory}/{SOCKET}")
            finally:
                os.close(directory)
        except OSError:
            self._socket.close()
            raise InputError(f"no daemon answers in {folder}: dovetail host up") from None
        self._file = self._socket.makefile("rb")
        _, user, _ = struct.unpack("3i", self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if user != os.geteuid():  # whoever it is would be told our environment, and what to run
            self.close()
            raise InputError(f"{folder}: its daemon is of user {user}; expected one of user {os.geteuid()}'s own")

    def ask(self, do: str, **words: Any) -> Any:
        """Send a request; gives its answer, or raises what the daemon says is wrong."""
        try:
            request = msgspec.json.encode({"do": do, **words})
        except UnicodeEncodeError as error:
            raise InputError(f"{do}: found {error.object!r}, expected text in UTF-8") from None
        try:
            self._socket.sendall(request + b"\n")
            line = self._file.readline()
        except OSError as error:
            raise DovetailError(f"the daemon went away: {error.strerror}") from error
        if not line:
            raise DovetailError("the daemon went away before it answered")
        reply = msgspec.json.decode(line)
        if "error" in reply:
            raise InputError(reply["error"]) if reply["code"] == 2 else DovetailError(reply["error"])
        return reply["ok"]

    def close(self) -> None:
        self._file.close()
        self._socket.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of the daemon in {self.folder}>"

    # --- looking ------------------------------------------------------------------------------------------------

    def about(self) -> DaemonInfo:
        """The daemon as a whole."""
        return msgspec.convert(self.ask("about"), DaemonInfo)

    def list(self, all: bool = False) -> LivePrograms:
        """The programs that are not ended, or all."""
        found = self._rows()
        return found if all else [program for program in found if not program.closed]

    def _rows(self, *names: str) -> LivePrograms:
        """The programs of these names, or all."""
        return msgspec.convert(self.ask("list", **({"jobs": names} if names else {})), LivePrograms)

    def status(self, program: str | int) -> LiveProgram:
        """One program: what was asked, what ought to be, what is, and why it waits."""
        rows = self._rows(str(program))
        if rows[0].id != str(program):
            raise InputError(f"{program} is an array: name one of {rows[0].id} to {rows[-1].id}")
        return rows[0]

    def past(self, program: str | int) -> Sequence[PastEvent]:
        """What happened to a program, and what was decided about it and why."""
        return msgspec.convert(self.ask("past", job=str(program)), tuple[PastEvent, ...])

    def wait(
        self,
        *programs: str | int,
        timeout: float | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> LivePrograms:
        """Wait until these have ended, or all; gives them as they are then. `progress` is told how many have."""
        limit = None if timeout is None else time.monotonic() + timeout
        names = [str(program) for program in programs]
        while True:
            within_s = _LONGEST_WAIT_S if progress is None else _LOOK_EVERY_S
            if limit is not None:
                within_s = min(within_s, max(limit - time.monotonic(), 0.0))
            ended, left = self.ask("wait", jobs=names, within_s=within_s)
            if progress is not None:
                progress(ended)
            if not left:
                rows = self._rows(*names)
                if not (left := [row.id for row in rows if not row.closed]):  # others may have come meanwhile
                    return rows
            if limit is not None and time.monotonic() > limit:
                raise DovetailError(f"program {left[0]} has not ended after {timeout:g} s")

    def logs(self, program: str | int, follow: bool = False, stderr: bool = False) -> Iterator[bytes]:
        """What a program has written, in pieces; with `follow` as it writes, until it has ended. With `stderr` what it
        has written there, if that is kept apart."""
        path, offset = log_path(str(program), self.folder, stderr), 0
        while True:
            now = self.status(program)  # asked before reading: what is written until then is read
            if path.exists():
                with path.open("rb") as file:
                    offset = file.seek(offset if offset <= path.stat().st_size else 0)  # it may have begun anew
                    while piece := file.read(_PIECE):
                        yield piece
                        offset += len(piece)
            elif not follow:
                raise InputError(f"program {program} has written nothing: it is {now.state}")
            if now.closed or not follow:
                return
            time.sleep(_LOOK_EVERY_S)

    def metrics(self, csv: AnyPath | None = None) -> dict[str, Any]:
        """Figures of the run so far: for the whole, and under `per_program` for each; those also as a CSV file."""
        return self._figures(self.list(all=True), csv)

    def _figures(self, programs: LivePrograms, csv: AnyPath | None = None) -> dict[str, Any]:
        from dovetail.core.files.output import atomic_write
        from dovetail.host.live.figures import COLUMNS, as_csv, figures

        rows = [program for program in programs if program.arrived_s is not None]
        if csv is not None:
            atomic_write(Path(csv), as_csv(rows))
        per_program = [{name: getattr(row, name) for name in COLUMNS} for row in rows]
        return figures(rows, len(self.about().cpus)) | {"per_program": per_program}

    def journal(self, path: AnyPath | None = None) -> HostRun:
        """What has happened so far as a recorded run, which can be drawn, checked and explained; written to a file, or
        to a temporary one."""
        from dovetail.core.results.run import JournalFile
        from dovetail.host.simulate import HostRun

        file = JournalFile(path)
        assert file.path is not None
        self.ask("journal", path=str(file.path.absolute()))
        return HostRun(file)

    def rates(self, path: AnyPath | None = None) -> RateTable:
        """What was measured of the programs, for other levels: speed-ups, steps per second, what a restart costs."""
        from dovetail.core.rates import RateTable

        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder, "rates.json") if path is None else Path(path)
            self.ask("rates", path=str(place.absolute()))
            return RateTable.read(place)

    # --- changing -----------------------------------------------------------------------------------------------

    def submit(
        self,
        *command: str,
        cores: int = 1,
        least: int = 1,
        most: int | None = None,
        name: str = "",
        image: str = "",
        network: bool = False,
        cwd: AnyPath | None = None,
        env: Mapping[str, str] | None = None,
        priority: int = 0,
        after: Sequence[str | int] = (),
        array: int | None = None,
        limit: float | None = None,
        grace: float = 5.0,
        retries: int = 0,
        memory_mib: int | None = None,
        work: float = 0.0,
        curve: str = "linear",
        rigid: bool = False,
        gpus: int = 0,
        gpu_mem: str | int | None = None,
        gpu_type: str = "",
        gpu_pause: GpuPause = "hold",
        cpu_quota: float | None = None,
        io_weight: int | None = None,
        nice: int | None = None,
        after_any: Sequence[str | int] = (),
        begin: str | datetime | None = None,
        delay: float | str | None = None,
        group: str = "",
        parallel: int | None = None,
        key: str = "",
        hook: str = "",
        stdin: AnyPath | None = None,
        split_stderr: bool = False,
        log_mib: int | None = None,
    ) -> Numbers:
        """Submit a program, or an array of them; gives their numbers at once.

        It runs in this folder with our environment variables and `env`, or in a container if an image is given.

        Parameters
        ----------
        cores, least, most
            Cores to ask for, the fewest that it can run on, the most that it can use.
        after, after_any
            Numbers of programs, or arrays, that must be completed before, or must have ended in whatever way.
        begin, delay
            When to start it at the earliest: a time ("22:00", "2026-12-01 08:00"), or seconds from now (also "1h30m").
        group, parallel
            The group that it belongs to, and how many of that may run at once from now on.
        key
            Submitted again with the same key it is the same program: nothing new is kept, and its numbers are given.
        hook
            A shell command that the daemon runs when it has ended, with the outcome in DOVETAIL_STATE,
            DOVETAIL_EXIT_CODE and others.
        stdin, split_stderr, log_mib
            A file to read as standard input; whether to keep its standard error apart; when to begin its log anew.
        array
            Submit so many; DOVETAIL_ARRAY_INDEX tells them apart.
        limit, grace
            Seconds that it may run, pauses not counted; seconds between asking it to end and ending it.
        work, curve
            Core-seconds that it takes, if that is known, and its speed-up, as `load` takes them.
        rigid
            Never change its cores while it runs.
        gpus, gpu_mem, gpu_type, gpu_pause
            GPUs to ask for; memory on each, as "20g" or in MiB, by default all of it; what they are called, as "a100";
            whether it holds them while it is paused, or lets others have them.
        cpu_quota, io_weight, nice
            Cores' worth of time that it may use; its weight among those who use a disk, where 100 is everybody's; its
            nice value.
        """
        words = {name: value for name, value in locals().items() if name not in ("self", "command", "array")}
        from dovetail.host.live.submission import program_spec

        spec = program_spec(command, **words)
        return list(self.ask("submit", spec=msgspec.to_builtins(spec), array=array))

    def submit_jobs(self, jobs: Source, key: str = "") -> dict[str, str]:
        """Submit all that a job file says, or a dict in its form, at once: all of it, or nothing. Gives the number of
        each by its name. With a `key`, submitted again, it is the same jobs."""
        from dovetail.host.inputs.jobs import read_jobs
        from dovetail.host.live.submission import program_spec

        found = read_jobs(jobs)
        places = {name: f"+{i}" for i, name in enumerate(found)}
        specs = []
        for job in found.values():
            words = job.words() | {
                n: [places.get(each, each) for each in getattr(job, n)] for n in ("after", "after_any")
            }
            specs.append(msgspec.to_builtins(program_spec(**words)))
        try:
            numbers: Numbers = self.ask("submit_all", specs=specs, key=key)
        except InputError as error:
            raise InputError(f"{jobs}: {error}" if isinstance(jobs, str | os.PathLike) else str(error)) from error
        return dict(zip(found, numbers, strict=True))

    def retry(self, *programs: str | int) -> dict[str, str]:
        """Let programs that failed, of these or of all, come once more; gives the new number of each."""
        return dict(self.ask("retry", jobs=[str(program) for program in programs]))

    def edit(self, program: str | int, *command: str, **changes: Unpack[EditWords]) -> Numbers:
        """Change a program that waits, or those of an array that do, with the words of `submit`; gives their numbers.
        What is not given stays as it is, and so does its place in the queue."""
        from dovetail.host.live.submission import changed_words

        found = changed_words({"command": command, **changes})
        if not found:
            raise InputError("edit: expected something to change")
        return list(self.ask("edit", job=str(program), changes=found))

    def clean(self, *programs: str | int, completed: bool = False) -> Numbers:
        """Forget programs that have ended, of these or all, or only those that were completed, and remove their logs;
        gives their numbers. The journal keeps what happened to them."""
        return list(self.ask("clean", jobs=[str(program) for program in programs], completed=completed))

    def group(self, name: str, parallel: int | None) -> None:
        """Let so many programs of a group run at once from now on, or all; who runs goes on."""
        self.ask("group", name=name, parallel=parallel)

    def _change(self, what: str, programs: Sequence[str | int], value: float | None = None) -> Numbers:
        if not programs:
            raise InputError(f"{what}: expected numbers of programs or arrays; `dovetail host list` has them")
        names = [str(program) for program in programs]
        return list(self.ask("ask", job=names[0] if len(names) == 1 else names, what=what, value=value))

    def pause(self, *programs: str | int) -> None:
        """Pause programs; they keep their memory and give up their cores."""
        self._change("pause", programs)

    def resume(self, *programs: str | int) -> None:
        """Let paused programs go on, when there are cores for them."""
        self._change("resume", programs)

    def cancel(self, *programs: str | int) -> None:
        """Cancel programs, whether they wait, run or are paused."""
        self._change("cancel", programs)

    def requeue(self, *programs: str | int) -> Numbers:
        """Put programs back into the queue, to begin again. What runs is ended first; what has ended comes once more,
        under a new number. Gives the numbers."""
        return self._change("requeue", programs)

    def resize(self, program: str | int, cores: int) -> None:
        """Change how many cores a program asks for."""
        self._change("resize", [program], cores)

    def priority(self, program: str | int, value: int) -> None:
        """Change how urgent a program is; 0 is the most urgent."""
        self._change("priority", [program], value)

    def run(
        self,
        requests: Source,
        *,
        command: str | Sequence[str] = "",
        delays: Delays = "before",
        speed: float = 1.0,
        progress: Callable[[int], None] | None = None,
        complain: Callable[[str], None] = lambda words: None,
    ) -> dict[str, Any]:
        """Let requests come as they say, and wait until all has ended; gives the figures, as `metrics` does.

        Each starts a container of its image, or the command, at its time, as wide as the machine at most; an update
        resizes what it names. `speed` lets the delays pass so many times as fast; `complain` hears what went wrong.
        """
        from dovetail.host.live.request_run import submit_requests

        cores = len(self.about().cpus)
        jobs = submit_requests(self.submit, self.resize, cores, requests, command, delays, speed, complain)
        return self._figures(self.wait(*jobs, progress=progress))

    def down(self, cancel: bool = False, within_s: float = 60.0) -> Numbers:
        """Stop the daemon; gives the programs that are left as they are. With `cancel` all are cancelled first, and the
        daemon goes on if they have not ended within so many seconds."""
        from dovetail.host.live.executors import proc

        within("within_s", within_s, "seconds, 0 or more")
        pid = self.about().pid
        if cancel:
            with suppress(InputError):  # one has ended meanwhile
                if open_ := [program.id for program in self.list() if not program.closed]:
                    self.cancel(*open_)
            try:
                self.wait(timeout=within_s)
            except DovetailError:
                left = [program.id for program in self.list()]
                few = f"{', '.join(left[:5])}{' and others' if left[5:] else ''}"
                raise DovetailError(
                    f"not ended within {within_s:g} s of being cancelled: {few}; the daemon goes on"
                ) from None
        left = [program.id for program in self.list()]
        self.ask("down")
        while (found := proc.read(pid)) is not None and not found.dead:
            time.sleep(0.02)
        return left


def log_path(program: str, folder: AnyPath | None = None, stderr: bool = False) -> Path:
    """The file that a program writes into, with or without a daemon."""
    return daemon_folder(folder) / "logs" / f"{program}.{'err' if stderr else 'log'}"
