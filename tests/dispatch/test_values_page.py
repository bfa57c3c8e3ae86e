"""The page about types: every example runs, where its packages are installed."""

from __future__ import annotations

import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

PAGE = Path(__file__).parents[2] / "docs" / "dispatch-values.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def told(block: str) -> list[str]:
    """What the page says that a block prints."""
    return [line.rpartition("# ")[2] for line in block.splitlines() if line.strip().startswith("print(")]


@pytest.mark.parametrize("i", range(len(BLOCKS)))
def test_the_example_runs(
    i: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    block = BLOCKS[i]
    for name in re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    if "aoti_compile" in block:
        pytest.skip("it compiles for a minute")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages
        exec(block, {"__name__": "example"})
    assert capsys.readouterr().out.splitlines() == told(block)
