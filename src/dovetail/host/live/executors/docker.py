"""Programs in containers, through the Docker SDK and a real engine.

Every container carries this daemon's label, and only containers with it are ever looked at or touched. A container has
no network, no capabilities, and gains no privileges. Its name is made of the attempt's, so the engine itself refuses a
second one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from dovetail.core import cgroups
from dovetail.core.cgroups import cpu_list, parse_cpus
from dovetail.core.errors import MissingExtraError
from dovetail.host.live.executors import (
    GRACE_S,
    TOO_MUCH_MEMORY,
    Ended,
    ExecutorError,
    Exit,
    FoundAttempt,
    NotNowError,
    Paused,
    ProgramLaunch,
    Usage,
    proc,
)

OWNER, RUN = "dovetail.host", "dovetail.run"  # labels
CONTROL_FOLDER = "/run/dovetail"  # where a container sees its control folder
_LOG_BEGIN = "log-begin"  # a file with the length of the log before the attempt
_RETRY_S = 1.0
_MOST_PROCESSES = 4096  # of a container, its threads among them: one that forks for ever must not fill the machine
_FREEZES = 10
_STATES: dict[str, Any] = {"running": "running", "restarting": "running", "paused": "paused", "created": "absent"}


class DockerExecutor:
    """Runs programs as containers of the engine at `address`; by default the one that the environment names."""

    def __init__(
        self, ended: Ended, owner: str, address: str | None = None, paused: Paused = lambda run, paused: None
    ) -> None:
        try:
            import docker
        except ImportError:
            raise MissingExtraError("docker", "docker", "running programs in containers") from None
        self._docker = docker
        self._errors = docker.errors
        self._owner = owner
        self._address = address
        self._engine: Any = None
        self._ended, self._paused = ended, paused
        self._followed: dict[str, ProgramLaunch] = {}
        self._lock = threading.Lock()
        self._making = threading.Lock()
        self._closing = threading.Event()
        self._stream: Any = None
        self._watcher = threading.Thread(target=self._watch, name="container ends", daemon=True)
        self._watcher.start()

    @property
    def _client(self) -> Any:
        """The engine; only an engine that answers can be talked to, so it is asked for when it is needed."""
        with self._making:  # the watcher asks too, and a second one would be closed by nobody
            if self._engine is None:
                self._engine = self._docker.DockerClient(self._address) if self._address else self._docker.from_env()
            return self._engine

    def reach(self, image: str = "") -> None:
        """Raise an error unless an engine answers, and has the image."""
        try:
            self._client.ping()
            if image:
                self._client.images.get(image)
        except self._errors.ImageNotFound:
            raise _no_image(image) from None
        except (self._errors.DockerException, OSError) as error:
            where = self._address or "the default address"
            raise ExecutorError(f"no Docker engine answers at {where}: {error}") from error

    # --- starting and finding again -----------------------------------------------------------------

    def start_soon(self, launch: ProgramLaunch, started: Callable[[bool], None]) -> bool:
        return False  # the engine is waited for

    def replace_stuck(self) -> None:
        pass

    def start(self, launch: ProgramLaunch) -> None:
        found = self.find(launch)
        if found.exit is not None:
            self._end(launch.run, found.exit)
        if found.state != "absent":
            return
        with self._asking(launch.run, "start"):
            container = self._get(launch.run) or self._create(launch)
            with self._lock:
                self._followed[launch.run] = launch
            try:
                container.start()
            except self._errors.APIError as error:
                with self._lock:
                    del self._followed[launch.run]
                container.remove(force=True)
                raise ExecutorError(f"cannot start {launch.run}: {error.explanation or error}") from error
        self._copy_log(launch)
        self._look(launch.run)  # it may have ended before its end was listened for

    def _create(self, launch: ProgramLaunch) -> Any:
        control = Path(launch.folder) / "control"
        control.mkdir(parents=True, exist_ok=True)
        before = Path(launch.log).stat().st_size if Path(launch.log).exists() else 0
        (Path(launch.folder) / _LOG_BEGIN).write_text(str(before))
        try:
            return self._client.containers.create(
                launch.image,
                list(launch.command) or None,
                name=self._name(launch.run),
                labels={OWNER: self._owner, RUN: launch.run},
                environment=launch.env,
                working_dir=launch.cwd or None,
                cpuset_cpus=cpu_list(launch.cpus),
                mem_limit=f"{launch.memory_mib}m" if launch.memory_mib else None,
                network_mode=None if launch.network else "none",
                security_opt=["no-new-privileges"],
                cap_drop=["ALL"],
                pids_limit=_MOST_PROCESSES,
                device_requests=[self._gpus(launch.gpus)] if launch.gpus else None,
                blkio_weight=None if launch.io_weight is None else cgroups.engine_weight(launch.io_weight),
                **_quota(launch.cpu_quota),
                volumes={str(control): {"bind": CONTROL_FOLDER, "mode": "rw"}},
            )
        except self._errors.ImageNotFound:
            raise _no_image(launch.image) from None

    def _gpus(self, gpus: Sequence[int]) -> Any:
        """What the engine's runtime lets a container see, numbered from 0 inside."""
        return self._docker.types.DeviceRequest(device_ids=[str(gpu) for gpu in gpus], capabilities=[["gpu"]])

    def lacks(self, limits: Collection[str]) -> str:
        if "nice" in limits:
            return "nice: a container has none; its share is its cores"
        if "io_weight" in limits and cgroups.engine_weight(100) is None:
            return "io_weight: an engine leaves it out where the kernel has no blkio.weight, as here"
        return ""

    def find(self, launch: ProgramLaunch) -> FoundAttempt:
        with self._asking(launch.run, "look for"):
            container = self._get(launch.run)
            if container is None:
                return FoundAttempt("absent")
            state = _STATES.get(container.status, "ended")
            if state == "ended":
                self._save_log(launch, container)
                return FoundAttempt("ended", self._outcome(container))
        if state != "absent":
            with self._lock:
                new = launch.run not in self._followed
                self._followed[launch.run] = launch
            if new:
                self._copy_log(launch)
        return FoundAttempt(state, cpus=parse_cpus(container.attrs["HostConfig"]["CpusetCpus"]))

    def _name(self, run: str) -> str:
        return f"dovetail-{self._owner}-{run}"

    def _get(self, run: str) -> Any:
        """Our container of an attempt; None if there is none. One of the same name that is not ours is an error."""
        try:
            container = self._client.containers.get(self._name(run))
        except self._errors.NotFound:
            return None
        if container.labels.get(OWNER) != self._owner:
            raise ExecutorError(f"there is a container {container.name} that is not ours; it stays untouched")
        return container

    @contextmanager
    def _asking(self, run: str, what: str) -> Iterator[None]:
        """Say what did not succeed; an engine that is gone is an error to try again after."""
        try:
            yield
        except self._errors.APIError as error:
            raise ExecutorError(f"cannot {what} {run}: {error.explanation or error}") from error
        except (self._errors.DockerException, OSError) as error:
            raise NotNowError(f"cannot {what} {run}: the Docker engine does not answer: {error}") from error

    # --- ends -------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Listen for ends and pauses. After an engine that went away comes back, look at all that is followed."""
        filters = {"label": f"{OWNER}={self._owner}", "event": ["die", "pause", "unpause"]}
        while not self._closing.is_set():
            try:
                since = int(time.time()) - 1
                for run in list(self._followed):
                    self._look(run)
                with closing(self._client.events(since=since, decode=True, filters=filters)) as self._stream:
                    if self._closing.is_set():  # while it was opened: nobody has closed it
                        return
                    for event in self._stream:
                        self._look(event["Actor"]["Attributes"].get(RUN, ""))
            except Exception:
                # Whatever broke the stream, the engine's word on each container is asked for again.
                self._closing.wait(_RETRY_S)

    def _look(self, run: str) -> None:
        """Tell of an end, once, and of whether it is paused."""
        launch = self._followed.get(run)
        if launch is None:
            return
        with self._asking(run, "look at"):
            container = self._get(run)
            if container is None:
                self._end(run, Exit(why="its container was removed by somebody else"))
            elif container.status not in _STATES:
                self._save_log(launch, container)
                self._end(run, self._outcome(container))
            elif container.status in ("running", "paused"):
                self._paused(run, container.status == "paused")

    def _end(self, run: str, outcome: Exit) -> None:
        with self._lock:
            self._followed.pop(run, None)
        self._ended(run, outcome)

    def _outcome(self, container: Any) -> Exit:
        state = container.attrs["State"]
        if state.get("OOMKilled"):
            return Exit(code=state["ExitCode"], why=TOO_MUCH_MEMORY)
        why = state.get("Error") or ""
        # The engine reports a signal as 128 more; a program may have chosen such a code itself, so it stays one.
        return Exit(code=state["ExitCode"], why=why)

    # --- changing what runs -------------------------------------------------------------------------------

    def _ours(self, run: str) -> Any:
        container = self._get(run)
        if container is None:
            raise ExecutorError(f"{run} does not run")
        return container

    def pause(self, run: str) -> None:
        with self._asking(run, "pause"):
            container = self._ours(run)
            if container.status != "paused":
                freeze(container, self._errors.APIError)

    def resume(self, run: str) -> None:
        with self._asking(run, "resume"):
            container = self._ours(run)
            if container.status == "paused":
                container.unpause()

    def resize(self, run: str, cpus: Sequence[int]) -> None:
        with self._asking(run, "resize"):
            self._ours(run).update(cpuset_cpus=cpu_list(cpus))

    def stop(self, run: str, grace_s: float = GRACE_S) -> None:
        with self._asking(run, "stop"):
            container = self._ours(run)
            if container.status == "paused":
                container.kill()
                with suppress(self._errors.APIError):
                    container.unpause()  # where the kernel keeps the signal back until then
            else:
                container.stop(timeout=max(1, round(grace_s)))
        self._look(run)

    # --- counting, logs and cleaning up ---------------------------------------------------------------------

    def usage(self, run: str) -> Usage | None:
        """From the kernel's own files: the engine takes a second to answer."""
        with suppress(ExecutorError, OSError, KeyError, StopIteration), self._asking(run, "look at"):
            pid = self._ours(run).attrs["State"]["Pid"]
            groups = cgroups.groups_of(pid)
            members = [found for each in groups.processes() if (found := proc.read(each)) is not None]
            return replace(proc.use(members), cpu_s=groups.cpu_s())
        return None

    def _copy_log(self, launch: ProgramLaunch) -> None:
        threading.Thread(target=self._follow_log, args=(launch,), name=f"log {launch.run}", daemon=True).start()

    def _follow_log(self, launch: ProgramLaunch) -> None:
        """Copy the log as it grows, always from the attempt's beginning: what is there already is the same."""
        with suppress(Exception), open_log(launch) as file:
            container = self._get(launch.run)
            for piece in container.logs(stream=True, follow=True):
                file.write(piece)

    def _save_log(self, launch: ProgramLaunch, container: Any) -> None:
        with open_log(launch) as file:
            for piece in container.logs(stream=True, follow=False):
                file.write(piece)

    def clean(self, launch: ProgramLaunch) -> None:
        with self._asking(launch.run, "remove"), suppress(self._errors.NotFound):
            container = self._get(launch.run)
            if container is not None:
                container.remove(force=True)

    def is_clean(self, launch: ProgramLaunch) -> bool:
        return False

    def tidy(self, keep: Container[str]) -> None:
        filters = {"label": f"{OWNER}={self._owner}"}
        with self._asking("containers", "list"):
            for container in self._client.containers.list(all=True, filters=filters, ignore_removed=True):
                if container.labels.get(RUN) not in keep:
                    container.remove(force=True)

    def close(self) -> None:
        self._closing.set()
        with suppress(Exception):
            self._stream.close()
        self._watcher.join(timeout=5)
        if self._engine is not None:
            self._engine.close()


def _quota(cores: float | None) -> dict[str, int]:
    return {} if cores is None else {"cpu_period": cgroups.PERIOD_US, "cpu_quota": int(cores * cgroups.PERIOD_US)}


def _no_image(image: str) -> ExecutorError:
    return ExecutorError(f"the engine has no image {image}: docker pull {image}")


def freeze(container: Any, refusal: type[Exception]) -> None:
    """On a busy machine the engine's runtime gives up after a moment; the kernel gets there in the end."""
    for left in reversed(range(_FREEZES)):
        try:
            container.pause()
        except refusal as error:
            if not left or "freeze" not in str(error):
                raise
        else:
            return


def open_log(launch: ProgramLaunch) -> Any:
    """A log that is written again from where the attempt began, behind earlier ones, and never becomes shorter."""
    Path(launch.log).touch()
    file = open(launch.log, "r+b", buffering=0)  # noqa: SIM115  the caller closes it
    with suppress(FileNotFoundError, ValueError):
        file.seek(int((Path(launch.folder) / _LOG_BEGIN).read_text()))
    return file
