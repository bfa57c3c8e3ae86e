"""The back ends of docs/workflow-backends.md work as they stand there."""

from __future__ import annotations

import re
from pathlib import Path
from threading import Event

import pytest

from dovetail.workflow.live.backends import back_end_for
from dovetail.workflow.live.protocol import BackEndError, Memory, ModelCall, ServedModel

PAGE = (Path(__file__).parents[3] / "docs" / "workflow-backends.md").read_text()


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        (tmp_path / re.match(r"# (\w+\.py)", code).group(1)).write_text(code)  # type: ignore[union-attr]
    monkeypatch.chdir(tmp_path)


def test_a_function_that_yields(tmp_path: Path) -> None:
    back_end = back_end_for(ServedModel(name="m", source={"factory": "shout.py:make"}, options={"mark": "?"}))
    back_end.load(["cpu"])
    pieces: list[str] = []
    call = ModelCall(id="1", model="m", inputs={"prompt": "hello you"})
    answer = back_end.call(call, lambda text, _: pieces.append(text), Event())
    assert (answer.outputs, pieces) == ({"text": "HELLO? YOU? "}, ["HELLO? ", "YOU? "])
    with pytest.raises(BackEndError, match=r"unknown option 'max_tokns': m is a function .* did you mean 'max_tokens'"):
        back_end.call(ModelCall(id="2", model="m", inputs={}, options={"max_tokns": 1}), lambda *_: None, Event())


def test_a_back_end(tmp_path: Path) -> None:
    back_end = back_end_for(ServedModel(name="m", source={"factory": str(tmp_path / "counter.py:Counter")}))
    back_end.load(["cpu"])
    call = ModelCall(id="1", model="m", inputs={"prompt": "one two three"})
    answer = back_end.call(call, lambda *_: None, Event())
    assert (answer.outputs, answer.read, answer.written) == ({"text": "3"}, 3, 1)
    with pytest.raises(BackEndError, match="counts the words"):
        back_end.call(ModelCall(id="2", model="m", inputs={}), lambda *_: None, Event())
    assert back_end.memory() == Memory(1.0)
    back_end.unload(keep=True)
    back_end.load(["cpu"])
    back_end.unload(keep=False)
    assert back_end.status() == {"healthy": True}
