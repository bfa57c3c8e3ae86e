"""The live host without root: a daemon that belongs to `nobody` runs, binds, pauses and finds its programs again."""

from __future__ import annotations

import os
import pwd
import site
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from tests.host.live import Daemon, bound, until

ROOT = Path(__file__).parents[2]
CPUS = tuple(sorted(os.sched_getaffinity(0)))[:2]


def scenario(folder: Path) -> None:
    """Runs as the user in question."""
    assert os.geteuid() != 0
    with Daemon(folder / "state", cpus=CPUS, options={"assign": "always_attend"}) as daemon:
        daemon.up()
        script = "i=0; while [ ! -e go ]; do i=$((i+1)); echo $i; sleep 0.02; done"
        job = daemon.submit("sh", "-c", script, cores=len(CPUS), cwd=str(folder))[0]
        until(lambda: daemon.log(job))
        assert {os.stat(f"/proc/{p.pid}").st_uid for p in daemon.processes(job)} == {os.geteuid()}
        daemon.ask("resize", job, 1)
        until(lambda: len(bound(daemon.processes(job))) == 1 and daemon.row(job)["actual"] == 1)
        daemon.ask("pause", job)
        until(lambda: daemon.row(job)["actual"] == 0 and all(p.state == "T" for p in daemon.processes(job)))
        so_far = daemon.log(job)
        daemon.kill()
        daemon.up()
        until(lambda: daemon.row(job)["state"] == "paused")
        assert daemon.log(job) == so_far
        daemon.ask("resume", job)
        until(lambda: daemon.log(job) != so_far)
        (folder / "go").touch()
        stubborn = daemon.submit("sh", "-c", "trap '' TERM; echo up; sleep 1000", grace_s=0.1, cwd=str(folder))[0]
        until(lambda: daemon.log(stubborn))
        daemon.ask("cancel", stubborn)
        rows = daemon.wait()
        assert (rows[job]["state"], rows[job]["attempts"]) == ("completed", 1)
        assert (rows[stubborn]["state"], rows[stubborn]["exit"]) == ("cancelled", "signal 9")


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become somebody else; all other tests run without root here"
)
def test_a_user_without_rights() -> None:
    python, environment = _interpreter()
    user = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory(prefix="dovetail-") as folder:
        os.chown(folder, user.pw_uid, user.pw_gid)
        words = [python, "-c", f"from pathlib import Path; import {__name__} as test; test.scenario(Path({folder!r}))"]
        ran = _as_nobody(words, environment)
    assert ran.returncode == 0, ran.stderr


def _interpreter() -> tuple[str, dict[str, str]]:
    """A Python that nobody may run, and the variables with which it finds what this one does."""
    paths = [str(ROOT), str(ROOT / "src"), sysconfig.get_path("purelib"), *site.getsitepackages()]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, f"/usr/bin/{name}", f"/usr/local/bin/{name}"):
        if _as_nobody([python, "-c", f"import pytest, {__name__}"], environment).returncode == 0:
            return python, environment
    pytest.skip(f"nobody may run no {name} with these packages here")


def _as_nobody(words: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    user = pwd.getpwnam("nobody")
    try:
        return subprocess.run(
            words,
            user=user.pw_uid,
            group=user.pw_gid,
            extra_groups=[],
            env=environment,
            cwd="/",
            capture_output=True,
            text=True,
        )
    except OSError as error:
        return subprocess.CompletedProcess(words, 126, "", str(error))
