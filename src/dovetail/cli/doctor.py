"""`dovetail doctor`: which optional parts are usable here, in which version, and if not, why and what to do."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.client import HTTPConnection
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec

from dovetail.cli.common import Format, print_json, print_table
from dovetail.version import __version__

_TIMEOUT_S = 60  # a cold import of torch from a slow disk takes tens of seconds
_DOCKER_TIMEOUT_S = 5


class NotUsableError(Exception):
    """A probe's answer that a part cannot be used, and why."""


def _pip(extra: str) -> str:
    return f"pip install 'dovetail[{extra}]'"


class Backend(NamedTuple):
    """An optional part. The probe gives its version or raises `NotUsableError`; only it knows how to find out."""

    name: str
    used_for: str
    probe: Callable[[], str]
    install: str


class Probed(msgspec.Struct, frozen=True):
    """What `doctor` reports of one part."""

    name: str
    used_for: str
    usable: bool
    version: str | None
    why_not: str | None
    install: str


def doctor(*, format: Format = "table") -> None:
    """List the optional parts: which are usable, and why not.

    Example: dovetail doctor --format json

    Parameters
    ----------
    format
        table for people, json for programs.
    """
    with ThreadPoolExecutor() as threads:  # the slow probes wait for other processes
        findings = list(threads.map(examine, BACKENDS))
    about = {
        "dovetail": __version__,
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
    }
    if format == "json":
        print_json({**about, "parts": findings})
        return
    rows = [[f.name, f.usable, f.version, f.why_not, None if f.usable else f.install] for f in findings]
    title = f"dovetail {about['dovetail']}, Python {about['python']}, {about['platform']}"
    print_table(["part", "usable", "version", "why not", "to get it"], rows, title)


def examine(backend: Backend) -> Probed:
    """Probe one part; whatever goes wrong is the reason why it is not usable."""
    version: str | None = None
    why_not: str | None = None
    try:
        version = backend.probe()
    except NotUsableError as reason:
        why_not = str(reason)
    except Exception as error:
        why_not = f"the check failed: {error!r}"
    return Probed(backend.name, backend.used_for, why_not is None, version, why_not, backend.install)


def probe_package(distribution: str) -> str:
    """The installed version, from the package's metadata: an import may take seconds."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise NotUsableError(f"the Python package {distribution} is not installed") from None


def probe_cuda() -> str:
    """Torch is asked where it is installed, since it is what uses CUDA; the driver's own tool otherwise."""
    try:
        torch = probe_package("torch")
    except NotUsableError:
        return _driver()
    built_for, devices = _python("import torch; print(torch.version.cuda, torch.cuda.device_count())").split()
    if built_for == "None":
        raise NotUsableError(f"torch {torch} is built without CUDA")
    if devices == "0":
        driver = _driver()  # where the driver is missing too, that is the better reason
        raise NotUsableError(f"torch {torch} finds no device, although there is {driver}")
    return f"CUDA {built_for}, GPUs: {devices}"


def _driver() -> str:
    gpus = _output(_find("nvidia-smi"), "--query-gpu=driver_version,name", "--format=csv,noheader").splitlines()
    if not gpus:
        raise NotUsableError("the NVIDIA driver finds no GPU")
    return f"driver {gpus[0].split(',')[0]}, GPUs: {len(gpus)}"


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def probe_docker() -> str:
    """The engine must answer where the SDK would look for it, and the SDK must be there."""
    address = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    url = urlsplit(address)
    connection: HTTPConnection
    if url.scheme == "unix":
        connection = _UnixConnection(url.path, _DOCKER_TIMEOUT_S)
    elif url.scheme in ("tcp", "http") and not os.environ.get("DOCKER_TLS_VERIFY"):
        connection = HTTPConnection(url.hostname or "localhost", url.port or 2375, timeout=_DOCKER_TIMEOUT_S)
    else:
        raise NotUsableError(f"only unix:// and plain tcp:// engines can be checked, not {address}")
    try:
        connection.request("GET", "/version")
        response = connection.getresponse()
        body = response.read()
    except OSError as error:
        raise NotUsableError(f"no engine answers at {address}: {error.strerror or error}") from None
    finally:
        connection.close()
    if response.status != 200:
        raise NotUsableError(f"the engine at {address} answers {response.status} {response.reason}")
    version = str(msgspec.json.decode(body)["Version"])
    try:
        probe_package("docker")
    except NotUsableError as reason:
        raise NotUsableError(f"engine {version} answers, but {reason}") from None
    return version


def probe_mpi() -> str:
    """The package must load its MPI library, which is not part of it, and ranks need a launcher."""
    version = probe_package("mpi4py")
    _find("mpiexec")
    library = _python(
        "import mpi4py; mpi4py.rc.initialize = False\n"
        "from mpi4py import MPI; print(MPI.Get_library_version().split('\\n')[0].split(',')[0])"
    )
    return f"mpi4py {version}, {' '.join(library.split())}"


def probe_chromium() -> str:
    answer = _output(_find("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"), "--version")
    return next((word for word in answer.split() if word[0].isdigit()), answer)


def _find(program: str, *others: str) -> str:
    """A program on the PATH or beside this Python, where packages of a virtual environment put theirs."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    for name in (program, *others):
        if found := shutil.which(name, path=path):
            return found
    raise NotUsableError(f"{program} is not on the PATH")


def _output(program: str, *arguments: str) -> str:
    """What a program prints; its last words if it fails."""
    name = Path(program).name
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotUsableError(f"{name} did not answer within {_TIMEOUT_S} s") from None
    if done.returncode:
        last_words = (done.stderr or done.stdout).strip().rpartition("\n")[2]
        raise NotUsableError(f"{name} fails with exit code {done.returncode}: {last_words}")
    return done.stdout.strip()


def _python(program: str) -> str:
    """Run in a Python of its own: a broken binary package may end the process that imports it."""
    return _output(sys.executable, "-c", program)


BACKENDS = (
    Backend("torch", "running models and measuring them", partial(probe_package, "torch"), _pip("torch")),
    Backend("CUDA", "NVIDIA GPUs", probe_cuda, f"an NVIDIA driver, and {_pip('torch')}"),
    Backend("transformers", "models from folders", partial(probe_package, "transformers"), _pip("models")),
    Backend("Starlette", "workflows on HTTP", partial(probe_package, "starlette"), _pip("web")),
    Backend("uvicorn", "workflows on HTTP", partial(probe_package, "uvicorn"), _pip("web")),
    Backend("Docker", "programs in containers", probe_docker, f"Docker Engine, and {_pip('docker')}"),
    Backend("Ray", "many machines", partial(probe_package, "ray"), _pip("ray")),
    Backend("MPI", "batches over ranks", probe_mpi, _pip("mpi")),
    Backend("Chromium", "tests of the pages", probe_chromium, "your system's package: apt-get install chromium"),
    Backend("matplotlib", "pictures", partial(probe_package, "matplotlib"), _pip("plot")),
    Backend("OR-Tools", "exact optima by CP-SAT", partial(probe_package, "ortools"), _pip("exact")),
)
