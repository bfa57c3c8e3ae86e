"""Programs in containers of a real engine, which the tests start for themselves."""

from __future__ import annotations

import gc
import os
import queue
import shutil
import signal
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from dovetail.core import cgroups
from dovetail.core.errors import DovetailError
from dovetail.host.live.executors import ExecutorError, Exit, ProgramLaunch
from dovetail.host.live.executors.docker import DockerExecutor, freeze
from tests.host.live import PATIENCE_S, Daemon, remove_containers, stands_still, until
from tests.leftovers import MARK

docker = pytest.importorskip("docker")

# The SDK leaves streams that it has read to the end to the garbage collector.
pytestmark = [
    pytest.mark.xdist_group("docker"),  # one engine for all
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"),
]

IMAGE = "dovetail-test:1"


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    """What the SDK left is collected here, where it is no fault, and not in whichever test comes next."""
    yield
    gc.collect()


class Engine:
    """A Docker engine with its own folders and socket, apart from any other on this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        words = ["dockerd", "--data-root", "data", "--exec-root", "exec", "--pidfile", "docker.pid"]
        words += ["--host", self.address, "--bridge", "none", "--iptables=false", "--ip6tables=false"]
        words = [str(self.folder / word) if word in ("data", "exec", "docker.pid") else word for word in words]
        lasting = {name: value for name, value in os.environ.items() if name != MARK}  # whichever test starts it again
        lasting["TMPDIR"] = str(self.folder)  # where it writes its stacks if it is slow to end
        with (self.folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(words, stdout=log, stderr=log, env=lasting, start_new_session=True)
        limit = time.monotonic() + PATIENCE_S
        while True:
            if self._process.poll() is not None or time.monotonic() > limit:
                told = (self.folder / "dockerd.log").read_text().splitlines()[-1:]
                self.stop()
                pytest.skip(f"no Docker engine can be started here: {''.join(told)[-200:]}")
            if self._answers():
                return
            time.sleep(0.2)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            try:
                line.connect(self.address.removeprefix("unix://"))
                line.sendall(b"GET /_ping HTTP/1.0\r\n\r\n")
                return b"200 OK" in line.recv(100)
            except OSError:
                return False

    def client(self) -> Any:
        return docker.DockerClient(self.address)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(PATIENCE_S)
            finally:
                self._end_what_is_left()

    def _end_what_is_left(self) -> None:
        """The engine, and what it has started: all of it names the engine's folder."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                if str(self.folder).encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                    os.kill(int(path.parent.name), signal.SIGKILL)

    def load_image(self) -> None:
        """An image of nothing but BusyBox."""
        shell = shutil.which("busybox")
        assert shell is not None
        tools = ("sh", "sleep", "echo", "cat", "grep", "ls", "wc", "true")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "image.tar"
            with tarfile.open(path, "w") as tar:
                tar.add(shell, "bin/busybox")
                for tool in tools:
                    link = tarfile.TarInfo(f"bin/{tool}")
                    link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                    tar.addfile(link)
            client = self.client()
            client.api.import_image_from_file(str(path), repository=IMAGE.partition(":")[0], tag="1")
            client.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if os.geteuid() != 0:
        pytest.skip("starting a Docker engine needs root")
    for program, package in (("dockerd", "docker.io"), ("busybox", "busybox-static")):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: apt-get install {package}")
    # A socket's address is short, so its folder must be.
    with tempfile.TemporaryDirectory(prefix="dt", ignore_cleanup_errors=True) as folder:
        engine = Engine(Path(folder))
        engine.start()
        try:
            engine.load_image()
            yield engine
        finally:
            engine.stop()


class Shop:
    """An executor over the engine, and its ends."""

    def __init__(self, folder: Path, engine: Engine) -> None:
        self.folder = folder
        self.engine = engine
        self.ends: queue.Queue[tuple[str, Exit]] = queue.Queue()
        self.executor = DockerExecutor(lambda run, end: self.ends.put((run, end)), "test", engine.address)

    def launch(self, run: str, *command: str, **more: Any) -> ProgramLaunch:
        fields: dict[str, Any] = {"cpus": (0,), "cwd": "", "image": IMAGE} | more
        return ProgramLaunch(
            run=run, command=command, folder=str(self.folder / run), log=str(self.folder / run), **fields
        )

    def start(self, run: str, *command: str, **more: Any) -> ProgramLaunch:
        (self.folder / "control").mkdir(exist_ok=True)
        launch = self.launch(f"{run}", *command, **more)
        launch = ProgramLaunch(
            **{name: getattr(launch, name) for name in launch.__struct_fields__} | {"log": self.log(run)}
        )
        self.executor.start(launch)
        return launch

    def log(self, run: str) -> str:
        return str(self.folder / f"{run}.log")

    def end(self) -> Exit:
        return self.ends.get(timeout=PATIENCE_S)[1]


@pytest.fixture
def shop(tmp_path: Path, engine: Engine) -> Iterator[Shop]:
    shop = Shop(tmp_path, engine)
    yield shop
    remove_containers(engine.address, "test")
    shop.executor.close()


def test_a_container_runs_apart_and_its_end_is_told(shop: Shop) -> None:
    words = (
        "echo $DOVETAIL_X; grep -E 'Cpus_allowed_list|NoNewPrivs|CapEff' /proc/self/status; ls /sys/class/net; exit 3"
    )
    launch = shop.start("a", "sh", "-c", words, env={"DOVETAIL_X": "here"})
    assert shop.end().code == 3
    told = Path(launch.log).read_text().split()
    assert told == ["here", "CapEff:", "0" * 16, "NoNewPrivs:", "1", "Cpus_allowed_list:", "0", "lo"]
    container = shop.executor._get("a")
    assert container.attrs["HostConfig"]["PidsLimit"] == 4096
    shop.executor.clean(launch)
    assert shop.executor.find(launch).state == "absent"


def test_a_weight_is_a_share_of_what_everybody_has(shop: Shop) -> None:
    assert shop.executor.lacks(["memory_mib", "cpu_quota"]) == ""
    if shop.executor.lacks(["io_weight"]):
        shop.start("a", "sleep", "1000", io_weight=50)
        assert shop.executor._ours("a").attrs["HostConfig"]["BlkioWeight"] == 0
        return
    shop.start("a", "sleep", "1000", io_weight=50)
    shop.start("b", "sleep", "1000")

    def weight(run: str) -> int:
        own = cgroups.own_groups(shop.executor._ours(run).attrs["State"]["Pid"])
        folder = cgroups.ROOT / "blkio" / own["blkio"] if "blkio" in own else cgroups.ROOT / own[""]
        names = ("blkio.bfq.weight", "blkio.weight", "io.bfq.weight", "io.weight")
        if not (files := [file for name in names if (file := folder / name).exists()]):
            pytest.skip("the kernel has no weights here")
        return int(files[0].read_text().split()[-1])

    assert weight("a") == pytest.approx(weight("b") / 2, rel=0.05)


def test_pause_resize_and_resume(shop: Shop) -> None:
    launch = shop.start("a", "sh", "-c", "while true; do true; done")
    shop.executor.pause("a")
    shop.executor.pause("a")
    assert shop.executor.find(launch).state == "paused"
    until(lambda: stands_still(lambda: shop.executor.usage("a")))
    before = shop.executor.usage("a")
    if len(os.sched_getaffinity(0)) > 1:
        shop.executor.resize("a", (0, 1))
        assert shop.executor.find(launch).cpus == {0, 1}
    shop.executor.resume("a")
    assert shop.executor.find(launch).state == "running"
    until(lambda: (now := shop.executor.usage("a")) and before and now.cpu_s > before.cpu_s)
    shop.executor.pause("a")
    shop.executor.stop("a", 0)
    assert shop.end().code == 137


class Reluctant:
    """A container that the runtime cannot freeze so many times."""

    def __init__(self, refusals: int, says: str) -> None:
        self.left, self._says = refusals, says

    def pause(self) -> None:
        if self.left:
            self.left -= 1
            raise docker.errors.APIError("500 Server Error", explanation=self._says)


@pytest.mark.parametrize(
    ("refusals", "says", "left"),
    [
        (3, "cannot pause: unable to freeze", 0),
        (100, "cannot pause: unable to freeze", 90),  # it is tried again later, with everything else
        (3, "no such container", 2),
    ],
)
def test_a_freeze_that_the_runtime_gives_up_is_tried_again(refusals: int, says: str, left: int) -> None:
    container = Reluctant(refusals, says)
    with pytest.raises(docker.errors.APIError) if left else nullcontext():
        freeze(container, docker.errors.APIError)
    assert container.left == left


def test_only_our_own_containers_are_touched(shop: Shop, engine: Engine) -> None:
    client = engine.client()
    other = client.containers.create(IMAGE, ["sleep", "1000"], name="dovetail-test-a", network_mode="none")
    unnamed = client.containers.create(IMAGE, ["sleep", "1000"], network_mode="none")
    try:
        for touch in (lambda: shop.start("a", "true"), lambda: shop.executor.stop("a")):
            with pytest.raises(ExecutorError, match="that is not ours"):
                touch()
        shop.executor.tidy(())
        assert {found.id for found in client.containers.list(all=True)} == {other.id, unnamed.id}
    finally:
        other.remove(force=True)
        unnamed.remove(force=True)
        client.close()


def test_a_missing_image_says_what_to_do(shop: Shop) -> None:
    with pytest.raises(ExecutorError, match="the engine has no image nothing:1: docker pull nothing:1"):
        shop.start("a", "true", image="nothing:1")


def test_an_engine_that_restarts_is_found_again(shop: Shop, engine: Engine) -> None:
    launch = shop.start("a", "sh", "-c", "echo begun; sleep 1000")
    until(lambda: Path(launch.log).exists() and Path(launch.log).read_text() == "begun\n")  # copied by a thread
    engine.stop()
    with pytest.raises(ExecutorError, match="the Docker engine does not answer"):
        shop.executor.pause("a")
    engine.start()
    assert shop.end().code != 0  # it ended with the engine, and that is told once the engine is back
    shop.start("b", "true")
    assert shop.end().good


def test_a_daemon_runs_containers_and_finds_them_after_a_kill(tmp_path: Path, engine: Engine) -> None:
    with Daemon(tmp_path / "state", docker=engine.address, options={"assign": "always_attend"}) as daemon:
        daemon.up()
        both = daemon.submit(
            "sh",
            "-c",
            "cd $DOVETAIL_CONTROL; echo $PWD; cat target.json; while [ ! -e go ]; do sleep 0.05; done; echo over",
            array=2,
            image=IMAGE,
            env={},
            cwd="",
        )
        with pytest.raises(DovetailError, match="the engine has no image nothing:1: docker pull nothing:1"):
            daemon.submit("true", image="nothing:1", env={}, cwd="")
        until(lambda: list(daemon.states().values())[:2] == ["running"] * 2)
        daemon.ask("pause", both[0])
        until(lambda: daemon.row(both[0])["actual"] == 0)
        daemon.kill()
        daemon.up()
        until(lambda: daemon.row(both[0])["state"] == "paused" and not daemon.row(both[0])["cpus"])
        daemon.ask("resume", both[0])
        for job in both:
            (daemon.folder / "runs" / f"{job}-1" / "control" / "go").touch()
        rows = daemon.wait()
        assert [rows[job]["state"] for job in both] == ["completed"] * 2
        assert [rows[job]["attempts"] for job in both] == [1, 1]
        for job in both:
            lines = daemon.log(job).splitlines()
            assert lines[0] == "/run/dovetail"
            assert lines[-1].endswith("over")


def test_a_pause_by_the_engines_own_tools_is_the_users(tmp_path: Path, engine: Engine) -> None:
    with Daemon(tmp_path / "state", docker=engine.address) as daemon:
        daemon.up()
        job = daemon.submit("sleep", "1000", image=IMAGE, env={}, cwd="")[0]
        client = engine.client()
        mine = {"label": f"dovetail.run={job}-1"}
        until(lambda: client.containers.list(filters=mine))
        (container,) = client.containers.list(filters=mine)
        freeze(container, docker.errors.APIError)  # which a busy machine refuses now and then
        until(lambda: daemon.row(job)["state"] == "paused" and not daemon.row(job)["actual"])
        other = daemon.submit("true", image=IMAGE, env={}, cwd="")[0]  # its core is free
        assert daemon.wait([other])[other]["state"] == "completed"
        container.unpause()
        until(lambda: daemon.row(job)["state"] == "running" and daemon.row(job)["actual"])
        client.close()
        daemon.cancel_all()


def test_the_log_of_a_second_attempt_follows_that_of_the_first(tmp_path: Path, engine: Engine) -> None:
    with Daemon(tmp_path / "state", docker=engine.address) as daemon:
        daemon.up()
        words = "[ $DOVETAIL_ATTEMPT = 2 ] && echo second && exit; echo this line is longer; exit 1"
        job = daemon.submit("sh", "-c", words, retries=1, image=IMAGE, env={}, cwd="")[0]
        assert daemon.wait()[job]["exit_codes"] == [1, 0]
        assert daemon.log(job) == "this line is longer\nsecond\n"
