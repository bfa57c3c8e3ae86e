"""What a function is known by: what changes it changes the letters, and nothing else does."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dovetail.dispatch.inputs.target import load  # noqa: E402
from dovetail.dispatch.live.mapping.fingerprint import fingerprint  # noqa: E402


class Stack:
    def __init__(self, layers: list[Any]) -> None:
        self.layers = layers

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def chained(layers: list[Any]) -> Callable[[Any], Any]:
    first, second, third = layers
    return lambda x: third(second(first(x)))


@pytest.mark.parametrize("made", [Stack, chained, tuple, lambda layers: dict(enumerate(layers))])
@pytest.mark.parametrize("changed", range(3))
def test_each_of_several_modules_counts(made: Callable[[list[Any]], Any], changed: int) -> None:
    layers = [torch.nn.Linear(3, 3) for _ in range(3)]
    function = made(layers)
    before = fingerprint(function)
    assert fingerprint(function) == before
    with torch.no_grad():
        layers[changed].weight[1, 1] += 1
    assert fingerprint(function) != before


def test_which_of_two_values_is_met_again_counts() -> None:
    one, other = torch.zeros(2), torch.ones(2)
    assert fingerprint([one, other, one]) != fingerprint([one, other, other])


def test_equal_constants_may_be_one_object_or_two() -> None:
    one, other = tuple([1, 2]), tuple([1, 2])  # noqa: C409
    assert one is not other
    assert fingerprint([one, other]) == fingerprint([one, one])


def test_what_was_logged_before_does_not_count() -> None:
    logger = logging.getLogger("dovetail.tests.fingerprint")
    before = fingerprint(Stack([logger]))
    assert not logger.isEnabledFor(1)  # is kept in its cache
    logging.getLogger("dovetail.tests.fingerprint.another")
    assert fingerprint(Stack([logger])) == before


def test_a_value_in_itself_has_an_end() -> None:
    inside: list[Any] = [1]
    inside.append((inside, 2))
    assert fingerprint(inside) == fingerprint(inside)


BEFORE = """
import numpy as np
import torch

def helper(x):
    return 2 * x

class Base:
    def inherited(self, x):
        return x + 1

class Called(Base):
    by = 3

    def __call__(self, x):
        return self.inherited(self.other(x) * self.by * self.more)

    def other(self, x):
        return x - 1

    @property
    def more(self):
        return 5

class Inner(torch.nn.Module):
    def forward(self, x):
        return x * 7

class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Inner()

    def forward(self, x):
        return self.inner(x)

def nested(x):
    return list(map(lambda each: helper(each), x))

def naming(x):
    return Called()(x)

def closed(*given):
    return lambda x: given and x

"""


@pytest.mark.parametrize(
    ("made", "was", "becomes"),
    [
        ("nested", "2 * x", "11 * x"),
        ("Called()", "by = 3", "by = 11"),
        ("Called()", "x - 1", "x - 11"),
        ("Called()", "x + 1", "x + 11"),
        ("Called()", "return 5", "return 11"),
        ("naming", "x - 1", "x - 11"),
        ("Outer()", "x * 7", "x * 11"),
        ("closed(torch.float16)", "float16", "float32"),
        ("closed(np.int64(3))", "int64(3)", "int64(4)"),
        ("closed(torch.relu)", "relu", "tanh"),
        ("closed(np.exp)", "exp", "log"),
    ],
)
def test_what_a_function_comes_to_in_its_own_package(made: str, was: str, becomes: str) -> None:
    def found(text: str) -> str:
        place: dict[str, Any] = {"__name__": "mine"}
        exec(text, place)
        return fingerprint(place["made"])

    text = f"{BEFORE}made = {made}\n"
    assert text.count(was) == 1
    assert found(text) == found(text)
    assert found(text.replace(was, becomes)) != found(text)


def test_a_module_is_known_by_what_it_keeps_beside_its_weights() -> None:
    layer = torch.nn.Linear(2, 2)
    layer.register_buffer("late", torch.zeros(2), persistent=False)
    model, found = torch.nn.Sequential(layer), set()
    for change in (
        lambda: None,
        lambda: setattr(layer, "k", 2),
        lambda: setattr(layer, "k", 3),
        lambda: layer.late.add_(1),
        lambda: layer.register_forward_hook(lambda module, given, result: 2 * result),
    ):
        change()
        assert fingerprint(model) not in found
        found.add(fingerprint(model))
    assert len(found) == 5


@pytest.mark.parametrize(
    "text",
    [
        "import helper_of_{0}\n\ndef f(x):\n    return x * helper_of_{0}.k(x)\n",
        "import helper_of_{0} as h\n\ndef f(x):\n    return x * h.FACTOR\n",
        "from helper_of_{0} import k\n\ndef f(x):\n    return k(x)\n",
        "from helper_of_{0} import Scale\n\ndef f(x):\n    return Scale()(x)\n",
        "from helper_of_{0} import scaled as f\n",
    ],
)
def test_files_beside_it_count(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = (
        "FACTOR = 2\ndef k(x):\n    return FACTOR\n"
        "class Scale:\n    def __call__(self, x):\n        return x * FACTOR\n"
        "def scaled(x):\n    return Scale()(x)\n"
    )
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    found = []
    for factor in (2, 2, 3):
        name = tmp_path.name.replace("-", "_")
        (tmp_path / f"helper_of_{name}.py").write_text(helper.replace("FACTOR = 2", f"FACTOR = {factor}"))
        (tmp_path / "mine.py").write_text(text.format(name))
        sys.modules.pop(f"helper_of_{name}", None)
        monkeypatch.delitem(sys.modules, "mine", raising=False)
        importlib.invalidate_caches()
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        found.append(fingerprint(load(f"{tmp_path / 'mine.py'}:f")))
    sys.modules.pop(f"helper_of_{name}", None)
    assert found[0] == found[1] != found[2]


def test_a_script_is_known_by_its_code_and_weights() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(1)
        one = torch.jit.script(torch.nn.Linear(2, 2))
        other = torch.jit.script(torch.nn.Linear(2, 2))
        relu = torch.jit.script(torch.nn.ReLU())
        tanh = torch.jit.script(torch.nn.Tanh())
    assert fingerprint(one) == fingerprint(one) != fingerprint(other)
    assert fingerprint(relu) != fingerprint(tanh)
