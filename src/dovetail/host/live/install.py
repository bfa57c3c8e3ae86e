"""A unit for the user's service manager, so that the daemon is there after every login or start of the machine."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dovetail.core.errors import DovetailError
from dovetail.core.files.output import atomic_write
from dovetail.core.service.access import AnyPath

UNIT = "dovetail-host.service"
# Where things are, for who says so: a service manager does not know what is set in a shell.
_PLACES = ("DOVETAIL_HOST_STATE", "DOVETAIL_CONFIG", "XDG_STATE_HOME", "XDG_CONFIG_HOME")


def unit_path() -> Path:
    """Where systemd looks for a user's own units."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(base, "systemd", "user", UNIT)


def unit_text(folder: AnyPath | None = None) -> str:
    """The unit of the daemon whose state is in this folder, or in the usual one. Programs outlive it, as they outlive
    any daemon: only its own process is ended with it.

    >>> "-m dovetail host up --foreground --state /tmp/100%%\\n" in unit_text("/tmp/100%")
    True
    """
    command = [sys.executable, "-m", "dovetail", "host", "up", "--foreground"]
    command += [] if folder is None else ["--state", str(Path(folder).absolute())]
    words = shlex.join(command).replace("%", "%%").replace("$", "$$")
    places = "".join(_variable(name, os.environ[name]) for name in _PLACES if os.environ.get(name))
    return f"""\
[Unit]
Description=Dovetail: programs on the cores of this machine

[Service]
{places}ExecStart={words}
KillMode=process
Delegate=yes
Restart=on-failure
RestartSec=2

[Install]
WantedBy=default.target
"""


def _variable(name: str, path: str) -> str:
    r"""
    >>> print(_variable("DOVETAIL_CONFIG", '/a "b"/100%'), end="")
    Environment="DOVETAIL_CONFIG=/a \"b\"/100%%"
    """
    value = str(Path(path).absolute()).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'Environment="{name}={value}"\n'


def install(folder: AnyPath | None = None) -> list[str]:
    """Write the unit, and let systemd start it, now and at every login; gives what was done, a sentence each."""
    path = unit_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, unit_text(folder))
    return [f"{path} was written", *_systemctl(["daemon-reload"], ["enable", "--now", UNIT])]


def uninstall() -> list[str]:
    """Stop the daemon, whose programs run on, and remove the unit."""
    path = unit_path()
    if not path.exists():
        return [f"{path} is not there"]
    said = _systemctl(["disable", "--now", UNIT])
    path.unlink()
    return [*said, f"{path} was removed", *_systemctl(["daemon-reload"])]


def _systemctl(*requests: Sequence[str]) -> list[str]:
    """Ask the service manager; where there is none, say what to ask it."""
    lines = [["systemctl", "--user", *words] for words in requests]
    there = shutil.which("systemctl") and Path(os.environ.get("XDG_RUNTIME_DIR", "-"), "systemd").is_dir()
    if not there:
        return [f"no systemd runs for this user here; where one does: {shlex.join(line)}" for line in lines]
    for line in lines:
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DovetailError(f"{shlex.join(line)}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return [f"{shlex.join(line)}: done" for line in lines]
