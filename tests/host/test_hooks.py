"""What is run when a program has ended: what it says is kept, and nobody waits for what it leaves running."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.host.live import hooks
from dovetail.host.live.executors import proc
from dovetail.host.live.hooks import LOG, Hooks
from dovetail.host.live.specs import Spec
from dovetail.host.live.status import LiveProgram
from tests.waiting import PATIENCE_S, until


class Ended:
    """A program that has ended, and whose hook is run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "logs").mkdir()
        self._told: queue.Queue[str] = queue.Queue()
        self._hooks = Hooks(folder, self._told.put)

    def said(self, hook: str, cwd: str = "") -> str:
        """What the hook has said when it is over."""
        spec = Spec(command=("true",), hook=hook, cwd=cwd or str(self.folder), env={"PATH": "/usr/bin:/bin"})
        self._hooks.run(spec, LiveProgram(id="7", name="train", cores=1, state="failed", exit_codes=(3,)))
        assert self._told.get(timeout=PATIENCE_S) == "7"
        return (self.folder / "logs" / LOG).read_text()

    def close(self) -> None:
        self._hooks.close()


@pytest.fixture
def ended(tmp_path: Path) -> Iterator[Ended]:
    ended = Ended(tmp_path)
    yield ended
    ended.close()


def test_a_hook_knows_the_outcome_and_its_own_is_told(ended: Ended) -> None:
    assert ended.said("echo $DOVETAIL_STATE $DOVETAIL_EXIT_CODE; exit 2") == "failed 3\nhook of 7: exit code 2\n"


def test_a_folder_that_is_gone_is_no_trouble(ended: Ended) -> None:
    assert ended.said("pwd", cwd="/no/such/folder") == "/\n"


def test_a_hook_that_cannot_be_run_is_told_and_over(ended: Ended) -> None:
    assert ended.said("echo a\0b") == "hook of 7: embedded null byte\n"


def test_what_a_hook_leaves_running_is_not_waited_for(ended: Ended) -> None:
    assert ended.said("(until test -e go; do sleep 0.02; done; touch gone) & echo said") == "said\n"
    (ended.folder / "go").touch()
    until((ended.folder / "gone").exists)


def test_a_hook_that_takes_too_long_is_killed_with_its_group(ended: Ended, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a limit that is long enough for it to say whom it has started."""
    limit_s, said = 0.1, [""]
    while len(said) == 1:
        limit_s *= 2
        monkeypatch.setattr(hooks, "_LIMIT_S", limit_s)
        (ended.folder / "logs" / LOG).unlink(missing_ok=True)
        said = ended.said("sleep 1000 & echo $!; exec sleep 1000").splitlines()
    assert said[1] == f"hook of 7: killed after {limit_s:g} s"
    until(lambda: (found := proc.read(int(said[0]))) is None or found.dead)
