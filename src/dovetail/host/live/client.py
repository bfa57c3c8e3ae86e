"""The line to a daemon: one request, one answer; and all that can be asked of it."""

from __future__ import annotations

import os
import shlex
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from dovetail.core.errors import DovetailError, InputError
from dovetail.core.service.access import AnyPath, state_folder
from dovetail.host.live.gpus import GpuStatus
from dovetail.host.live.status import LiveProgram, belongs

if TYPE_CHECKING:
    from dovetail.core.files import Source
    from dovetail.core.rates import RateTable
    from dovetail.host.inputs.requests import Delays
    from dovetail.host.program import GpuPause
    from dovetail.host.simulate import HostRun

SOCKET = "host.sock"
_LOOK_EVERY_S = 0.3
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

    def ask(self, do: str, **words: Any) -> Any:
        """Send a request; gives its answer, or raises what the daemon says is wrong."""
        try:
            self._socket.sendall(msgspec.json.encode({"do": do, **words}) + b"\n")
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
        found = msgspec.convert(self.ask("list"), LivePrograms)
        return found if all else [program for program in found if not program.closed]

    def status(self, program: str | int) -> LiveProgram:
        """One program: what was asked, what ought to be, what is, and why it waits."""
        rows = self.list(all=True)
        for row in rows:
            if row.id == str(program):
                return row
        if members := [row.id for row in rows if belongs(row.id, str(program))]:
            raise InputError(f"{program} is an array: name one of {members[0]} to {members[-1]}")
        raise InputError(f"there is no program {program}")

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
            rows = [row for row in self.list(all=True) if not names or any(belongs(row.id, name) for name in names)]
            if unknown := [name for name in names if not any(belongs(row.id, name) for row in rows)]:
                raise InputError(f"there is no program {unknown[0]}")
            left = [row.id for row in rows if not row.closed]
            if progress is not None:
                progress(len(rows) - len(left))
            if not left:
                return rows
            if limit is not None and time.monotonic() > limit:
                raise DovetailError(f"program {left[0]} has not ended after {timeout:g} s")
            time.sleep(_LOOK_EVERY_S)

    def logs(self, program: str | int, follow: bool = False) -> Iterator[bytes]:
        """What a program has written, in pieces; with `follow` as it writes, until it has ended."""
        path, offset = log_path(str(program), self.folder), 0
        while True:
            now = self.status(program)  # asked before reading: what is written until then is read
            if path.exists():
                with path.open("rb") as file:
                    file.seek(offset)
                    yield (piece := file.read())
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
        from dovetail.core.output import atomic_write
        from dovetail.host.live.figures import COLUMNS, as_csv, figures

        rows = [program for program in programs if program.arrived_s is not None]
        if csv is not None:
            atomic_write(Path(csv), as_csv(rows))
        per_program = [{name: getattr(row, name) for name in COLUMNS} for row in rows]
        return figures(rows, len(self.about().cpus)) | {"per_program": per_program}

    def journal(self, path: AnyPath | None = None) -> HostRun:
        """What has happened so far as a recorded run, which can be drawn, checked and explained; written to a file, or
        to a temporary one."""
        from dovetail.core.run import JournalFile
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
    ) -> Numbers:
        """Submit a program, or an array of them; gives their numbers at once.

        It runs in this folder with our environment variables and `env`, or in a container if an image is given.

        Parameters
        ----------
        cores, least, most
            Cores to ask for, the fewest that it can run on, the most that it can use.
        after
            Numbers of programs, or arrays, that must be completed before.
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
        from dovetail.core.files import checked
        from dovetail.host.gpus import parse_mib
        from dovetail.host.live.specs import Spec

        variables = checked(env or {}, dict[str, str], "env")
        spec = {
            "command": command,
            "cores": cores,
            "least": least,
            "most": most,
            "name": name,
            "image": image,
            "network": network,
            "cwd": str(Path(cwd).absolute()) if cwd is not None else "" if image else os.getcwd(),
            "env": variables if image else dict(os.environ) | variables,
            "priority": priority,
            "after": [str(each) for each in checked(after, list[str | int], "after")],
            "limit_s": limit,
            "grace_s": grace,
            "retries": retries,
            "memory_mib": memory_mib,
            "work_s": work,
            "curve": curve,
            "malleable": not rigid,
            "gpus": gpus,
            "gpu_mem_mib": None if gpu_mem is None else parse_mib(gpu_mem),
            "gpu_type": gpu_type,
            "gpu_pause": gpu_pause,
            "cpu_quota": cpu_quota,
            "io_weight": io_weight,
            "nice": nice,
        }
        numbers: Numbers = self.ask("submit", spec=msgspec.to_builtins(checked(spec, Spec)), array=array)
        return numbers

    def _change(self, what: str, programs: Sequence[str | int], value: float | None = None) -> None:
        if not programs:
            raise InputError(f"{what}: expected numbers of programs or arrays; `dovetail host list` has them")
        for program in programs:
            self.ask("ask", job=str(program), what=what, value=value)

    def pause(self, *programs: str | int) -> None:
        """Pause programs; they keep their memory and give up their cores."""
        self._change("pause", programs)

    def resume(self, *programs: str | int) -> None:
        """Let paused programs go on, when there are cores for them."""
        self._change("resume", programs)

    def cancel(self, *programs: str | int) -> None:
        """Cancel programs, whether they wait, run or are paused."""
        self._change("cancel", programs)

    def requeue(self, *programs: str | int) -> None:
        """End programs and put them back into the queue, to begin again."""
        self._change("requeue", programs)

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
        from dovetail.host.inputs.requests import read_requests

        if not isinstance(speed, int | float) or not 0 < speed < float("inf"):
            raise InputError(f"speed {speed}: expected a positive number")
        try:
            words = shlex.split(command) if isinstance(command, str) else list(command)
        except ValueError as error:
            raise InputError(f"command {command}: {error}") from None
        told, cores = read_requests(requests, delays), len(self.about().cpus)
        wide = next((request for request in told if request.threads > cores), None)
        if wide is not None:
            complain(f"{wide.line}: asks for {wide.threads} threads, {cores} are all there are")
        jobs: dict[str, str] = {}
        began = time.monotonic()
        for request in told:
            time.sleep(max(began + request.at_s / speed - time.monotonic(), 0.0))
            threads = min(request.threads, cores)
            if request.kind == "execution":
                jobs[request.id] = self.submit(
                    *words,
                    cores=threads,
                    name=request.id,
                    image="" if words else request.image,
                    env={"DOVETAIL_REQUEST": request.id},
                    priority=request.priority,
                    work=request.work or 0.0,
                )[0]
                continue
            try:
                self.resize(jobs[request.id], threads)
            except DovetailError as error:  # most often it has ended
                complain(f"{request.line}: {error}")
        return self._figures(self.wait(*jobs.values(), progress=progress))

    def down(self, cancel: bool = False, within_s: float = 60.0) -> Numbers:
        """Stop the daemon; gives the programs that are left as they are. With `cancel` all are cancelled first, and the
        daemon goes on if they have not ended within so many seconds."""
        from dovetail.host.live.executors import proc

        pid = self.about().pid
        if cancel:
            for program in self.list():
                try:
                    self.cancel(program.id)
                except InputError:
                    continue  # it has ended meanwhile
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


def log_path(program: str, folder: AnyPath | None = None) -> Path:
    """The file that a program writes into, with or without a daemon."""
    return daemon_folder(folder) / "logs" / f"{program}.log"
