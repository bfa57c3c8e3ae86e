"""The doctor: real probes against a stand-in engine and stand-in programs, and the two formats."""

from __future__ import annotations

import json
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from importlib import metadata
from pathlib import Path
from socketserver import UnixStreamServer

import pytest

from dovetail.cli import doctor, main


def program(folder: Path, name: str, body: str) -> None:
    """Put a program on a PATH folder."""
    (folder / name).write_text(f"#!{sys.executable}\n{body}\n")
    (folder / name).chmod(0o755)


class Engine(BaseHTTPRequestHandler):
    """Answers as a Docker engine does."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/version" else 404)
        self.end_headers()
        self.wfile.write(b'{"Version": "27.1.0", "ApiVersion": "1.46"}')

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with UnixStreamServer(str(tmp_path / "docker.sock"), Engine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/docker.sock")
        yield
        server.shutdown()
        thread.join()


def test_json_tells_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"dovetail", "python", "platform", "parts"} == set(found)
    assert [part["name"] for part in found["parts"]] == [backend.name for backend in doctor.BACKENDS]
    for part in found["parts"]:
        assert part["usable"] == (part["why_not"] is None)
        assert part["usable"] == bool(part["version"])
        assert part["install"]


def test_the_table_has_a_line_for_each_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()[3:]
    assert [line.split()[0] for line in lines] == [backend.name for backend in doctor.BACKENDS]


def test_the_extras_it_names_exist() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = {backend.install.split("[")[1].split("]")[0] for backend in doctor.BACKENDS if "[" in backend.install}
    assert {"models", "web"} <= named
    assert named <= set(extras)


def test_a_package_is_judged_by_its_metadata() -> None:
    assert doctor.probe_package("msgspec") == metadata.version("msgspec")
    with pytest.raises(doctor.NotUsableError, match="no-such-package is not installed"):
        doctor.probe_package("no-such-package")


def test_a_probe_that_breaks_is_a_finding() -> None:
    def breaks() -> str:
        raise OSError("disk on fire")

    finding = doctor.examine(doctor.Backend("x", "nothing", breaks, "no way"))
    assert not finding.usable
    assert "disk on fire" in str(finding.why_not)


@pytest.mark.usefixtures("engine")
def test_docker_needs_the_engine_and_the_sdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # no package is to be found
    with pytest.raises(doctor.NotUsableError, match=r"engine 27\.1\.0 answers, but the Python package docker"):
        doctor.probe_docker()
    (tmp_path / "docker-7.0.dist-info").mkdir()
    (tmp_path / "docker-7.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: docker\nVersion: 7.0\n")
    assert doctor.probe_docker() == "27.1.0"


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("unix:///nowhere/docker.sock", "no engine answers at unix:///nowhere/docker.sock: No such file"),
        ("tcp://localhost:1", "no engine answers at tcp://localhost:1: Connection refused"),
        ("ssh://me@there", "can be checked, not ssh://me@there"),
    ],
)
def test_docker_without_an_engine(monkeypatch: pytest.MonkeyPatch, address: str, why: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    monkeypatch.delenv("DOCKER_TLS_VERIFY", raising=False)
    with pytest.raises(doctor.NotUsableError, match=why):
        doctor.probe_docker()


def test_chromium_is_asked_for_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    program(tmp_path, "chromium-browser", "print('Chromium 130.0.1 built on Debian')")
    assert doctor.probe_chromium() == "130.0.1"
    program(tmp_path, "chromium", "import sys; sys.exit('no libnss3.so')")
    with pytest.raises(doctor.NotUsableError, match=r"chromium fails with exit code 1: no libnss3\.so"):
        doctor.probe_chromium()


def test_the_driver_is_asked_where_torch_is_not_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])  # no package is to be found
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(doctor.NotUsableError, match="nvidia-smi is not on the PATH"):
        doctor.probe_cuda()
    program(tmp_path, "nvidia-smi", "print('550.54, NVIDIA L4')\nprint('550.54, NVIDIA L4')")
    assert doctor.probe_cuda() == "driver 550.54, GPUs: 2"


@pytest.mark.parametrize(
    ("built_for", "devices", "answer"),
    [(None, 0, "built without CUDA"), ("12.4", 0, "although there is driver 550.54, GPUs: 1"), ("12.4", 2, None)],
)
def test_torch_is_asked_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, built_for: str | None, devices: int, answer: str | None
) -> None:
    """A stand-in torch, found by the probe's own Python as a real one would be."""
    (tmp_path / "torch-2.9.dist-info").mkdir()
    (tmp_path / "torch-2.9.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.9\n")
    (tmp_path / "torch.py").write_text(
        f"class version: cuda = {built_for!r}\nclass cuda:\n    device_count = staticmethod(lambda: {devices})\n"
    )
    program(tmp_path, "nvidia-smi", "print('550.54, NVIDIA L4')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    if answer is None:
        assert doctor.probe_cuda() == "CUDA 12.4, GPUs: 2"
    else:
        with pytest.raises(doctor.NotUsableError, match=answer):
            doctor.probe_cuda()
