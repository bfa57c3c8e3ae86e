"""A live cluster as users have it: real agents and processes on this machine, through the client."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail import cluster
from dovetail.core.errors import InputError
from dovetail.core.service.log_lines import LogLines
from tests.waiting import until

ROOT = Path(__file__).parents[3]
RATES = {"a100": 200.0, "v100": 100.0, "k80": 50.0}
PACED = (
    sys.executable,
    "-m",
    "dovetail.testing.cluster.paced",
    "--rates",
    ",".join(f"{t}={r}" for t, r in RATES.items()),
)
SERVE = """import signal, sys
from dovetail import cluster
with cluster.serve(types={"k80": 1}, round_s=4.0, state=sys.argv[1], live={"silence": 2.0}) as served:
    print("up", flush=True)
    signal.pause()
"""


def paced(steps: int, **more: Any) -> dict[str, Any]:
    return {"command": [*PACED, "--steps", str(steps)], "steps": steps, "model": "lm"} | more


def quiet() -> LogLines:
    return LogLines(io.StringIO())


def test_jobs_on_unlike_types_take_turns_and_complete(tmp_path: Path) -> None:
    types = {"a100": 1, "v100": 1, "k80": 2}
    with cluster.serve(
        types=types, round_s=1.0, state=tmp_path, live={"silence": 5.0, "grace": 1.0}, log=quiet()
    ) as served:
        client = served.client()
        ids = [client.submit(paced(200 + 40 * i, name=f"n{i}")) for i in range(5)]
        ids.append(client.submit(paced(80, width=2, types=["k80"])))
        found = [client.wait(each) for each in ids]
        assert [each.state for each in found] == ["completed"] * 6
        assert [each.done for each in found] == [each.steps for each in found]
        learned = [each for each in client.about()["learned"] if (each["what"], each["width"]) == ("rate", 1)]
        assert {each["type"] for each in learned} <= set(RATES)
        for each in learned:
            assert each["value"] == pytest.approx(RATES[each["type"]], rel=0.3)
        assert any(each["what"] in ("cost", "cost ahead") for each in client.about()["learned"])
        names = [event.name for event in client.timeline(ids[0])]
        assert {"launch", "hello", "go", "first_step", "exit"} <= set(names)
        assert list(client.logs(ids[0], tail=1)) == ["step 200"]


def test_a_service_that_is_killed_finds_its_jobs_running(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(ROOT), str(ROOT / "src")])
    first = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert first.stdout is not None
    with first:
        assert first.stdout.readline() == "up\n"
        client = cluster.connect(tmp_path)
        one = client.submit(paced(100_000))
        until(lambda: client.status(one).done > 0)
        before = client.status(one)
        os.kill(first.pid, signal.SIGKILL)
    log = io.StringIO()
    with cluster.serve(
        round_s=4.0, types={"k80": 1}, state=tmp_path, live={"silence": 2.0}, log=LogLines(log)
    ) as served:
        client = served.client()
        until(lambda: client.status(one).done > before.done)
        found = client.status(one)
        launches = [event.epoch for event in client.timeline(one) if event.name == "launch"]
        assert launches == sorted(set(launches))
        assert found.failures == 0
        assert "new journal" not in log.getvalue()
        client.cancel(one)
        assert client.wait(one).state == "cancelled"


def test_one_that_ends_at_once_leaves_nothing(tmp_path: Path) -> None:
    with cluster.serve(types={"k80": 1}, round_s=2.0, state=tmp_path, log=quiet()) as served:
        assert served.client().nodes()[0].types == {"k80": 1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"types": {"k80": 0}}, "types: expected at least one"),
        ({"types": "k80=x"}, "expected a whole number"),
        ({"types": {"k80": 1}, "round_s": 0.0}, "round_s 0: expected seconds"),
        ({"types": {"k80": 1}, "live": {"renew_att": 0.5}}, "live.renew_att: unknown key"),
        ({"types": {"k80": 1}, "live": {"renew_at": 2.0}}, "live.renew_at: expected more than 0"),
        ({"types": {"k80": 1}, "policy": "fifoo"}, "fifoo"),
        ({"types": {"k80": 1}, "config": {"polcy": "fifo"}}, "polcy: unknown key 'polcy'; did you mean 'policy'"),
        ({"types": {"k80": 1}, "address": "127.0.0.1:1"}, "types: the nodes of the Ray cluster say"),
        ({"types": {"k80": 1}, "port": 99999}, "port 99999"),
    ],
)
def test_what_is_wrong_is_told_by_its_name(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        cluster.serve(state=tmp_path / "state", log=quiet(), **given)
