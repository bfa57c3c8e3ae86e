"""Policies by name: options, hints, and a third party's package that is really installed and really runs."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from dovetail.core import registry
from dovetail.core.errors import InputError
from dovetail.core.journal import Reader
from dovetail.core.policy_source import read_policies
from dovetail.core.registry import policy

ROOT = Path(__file__).parents[2]
LEVEL = "registry test"


@policy("patient", level=LEVEL)
class Patient:
    """Waits for a while.

    Further explanation.
    """

    def __init__(
        self, *, patience_s: float = 1.0, tries: int = 3, eager: bool = False, order: Literal["up", "down"] = "up"
    ) -> None:
        if patience_s < 0:
            raise ValueError(f"patience_s: expected seconds, found {patience_s}")
        self.options = (patience_s, tries, eager, order)


@policy("demanding", level=LEVEL)
def demanding(share: float, name="nobody") -> tuple[float, str]:  # type: ignore[no-untyped-def]
    return share, name


@policy("plain", level=LEVEL)
class Plain:
    pass


def create(name: str, /, **options: Any) -> Any:
    return registry.create(LEVEL, name, options)


# --- names and options ------------------------------------------------------------------------------


def test_policies_are_listed_by_level_in_order() -> None:
    assert registry.names(LEVEL) == ["demanding", "patient", "plain"]
    assert registry.names("no such level") == []


def test_a_promise_is_the_first_line_of_what_a_policy_says_about_itself() -> None:
    assert registry.promise(LEVEL, "patient") == "Waits for a while."
    assert registry.promise(LEVEL, "demanding") == ""


def test_options_are_those_of_the_constructor_and_have_its_defaults() -> None:
    options = registry.options_of(LEVEL, "patient")
    assert {name: parameter.default for name, parameter in options.items()} == {
        "patience_s": 1.0,
        "tries": 3,
        "eager": False,
        "order": "up",
    }
    assert registry.options_of(LEVEL, "plain") == {}


LEVELS = ["cluster", "dispatch", "host", "pipeline", "workflow"]
TRAITS = {"cluster": ["agnostic", "packs", "strict"], "workflow": ["plans_ahead"]}


@pytest.mark.parametrize("level", LEVELS)
def test_a_list_made_from_sources_says_what_the_policies_themselves_say(level: str) -> None:
    listed = registry.listing(level, TRAITS.get(level, []))
    assert [one.name for one in listed] == registry.names(level) != []
    for one in listed:
        options = registry.options_of(level, one.name)
        assert one.promise == registry.promise(level, one.name) != ""
        assert one.options == {k: "required" if p.default is p.empty else p.default for k, p in options.items()}
        if one.traits:
            made = registry.create(level, one.name)
            assert one.traits == {trait: getattr(made, trait) for trait in TRAITS[level]}


def test_a_list_of_policies_imports_none_of_them() -> None:
    program = """
import sys
from dovetail.core import registry
assert len(registry.listing("cluster", ["agnostic", "packs", "strict"])) > 20
print([name for name in sys.modules if name.startswith("dovetail.cluster.") or name == "numpy"])
registry.create("cluster", "fifo")
print([name for name in sys.modules if name.startswith("dovetail.cluster.policies.")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "['dovetail.cluster.policies.base', 'dovetail.cluster.policies.fifo']"]


def test_options_given_as_text_get_their_types() -> None:
    assert create("patient").options == (1.0, 3, False, "up")
    assert create("patient", patience_s="2.5", tries="7", eager="true", order="down").options == (2.5, 7, True, "down")
    assert create("patient", patience_s=2, eager=True).options == (2.0, 3, True, "up")
    assert create("demanding", share="0.5", name="somebody") == (0.5, "somebody")
    assert isinstance(create("plain"), Plain)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("patent", {}, f"no {LEVEL} policy is called 'patent'; did you mean 'patient'?"),
        ("zzz", {}, f"no {LEVEL} policy is called 'zzz'; known: demanding, patient, plain"),
        ("patient", {"patience": 1}, "policy patient has no option 'patience'; did you mean 'patience_s'?"),
        ("plain", {"speed": 1}, "policy plain has no option 'speed'"),
        ("patient", {"tries": "many"}, "policy patient, option tries='many': expected a whole number"),
        ("patient", {"tries": 2.5}, "policy patient, option tries=2.5: expected a whole number"),
        (
            "patient",
            {"order": "left"},
            "policy patient, option order='left': Invalid enum value 'left'; known: up, down",
        ),
        ("patient", {"patience_s": -1}, "policy patient: patience_s: expected seconds, found -1.0"),
        ("demanding", {}, "policy demanding needs the option 'share'"),
    ],
)
def test_a_wrong_name_or_option_is_bad_input(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        create(name, **options)
    assert str(caught.value) == message


@pytest.mark.parametrize("function", [registry.promise, registry.options_of])
def test_whatever_is_asked_of_an_unknown_policy_gets_the_hint(function: Callable[[str, str], object]) -> None:
    with pytest.raises(InputError, match="called 'patent'; did you mean 'patient'"):
        function(LEVEL, "patent")


def test_a_name_is_taken_once_per_level() -> None:
    with pytest.raises(InputError, match=f"{LEVEL} policy 'plain' is registered twice: "):
        policy("plain", level=LEVEL)(Patient)
    assert isinstance(create("plain"), Plain)
    policy("plain", level=LEVEL)(Plain)  # a module that is imported again
    policy("plain", level="another level of the test")(Patient)


# --- a third party's package ------------------------------------------------------------------------

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "dovetail-longest"
version = "1.0"

[project.entry-points."dovetail.policies"]
longest = "dovetail_longest"

[tool.hatch.build.targets.wheel]
packages = ["dovetail_longest"]
"""
LONGEST = '''\
"""The longest node first: a policy from elsewhere."""

from dovetail.core.registry import policy
from dovetail.workflow.policies import ListPolicy, ReadyNode, View


@policy("longest", level="workflow")
class Longest(ListPolicy):
    """The longest node goes first."""

    def __init__(self, *, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def rank(self, task: ReadyNode, view: View) -> float:
        return -task.size * self.factor
'''


def dovetail(site: Path, *args: object) -> subprocess.CompletedProcess[str]:
    """The command in a new process that also finds the packages of a folder."""
    program = [sys.executable, "-c", "from dovetail.cli import main; raise SystemExit(main())", *map(str, args)]
    environment = os.environ | {"PYTHONPATH": str(site)}
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


with_installed = pytest.mark.xdist_group("installed")  # once


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed a distribution with one policy."""
    pytest.importorskip("hatchling", reason="builds the third party's package")
    project, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "dovetail_longest").mkdir()
    (project / "dovetail_longest" / "__init__.py").write_text(LONGEST)
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(site), str(project)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return site


@with_installed
def test_an_installed_policy_is_listed_with_ours(installed: Path) -> None:
    listed = dovetail(installed, "workflow", "policies")
    assert (listed.returncode, listed.stderr) == (0, "")
    line = next(line for line in listed.stdout.splitlines() if line.split()[:1] == ["longest"])
    assert "The longest node goes first." in line
    assert "factor" in line
    assert "baseline" in listed.stdout


@with_installed
def test_an_installed_policy_runs_and_its_run_is_valid(installed: Path, tmp_path: Path) -> None:
    files = ["--config", ROOT / "examples/system_config.yaml", "--requests", ROOT / "examples/workflow_requests.yaml"]
    chosen = ["--policy", "longest", "--option", "factor=2.5"]
    done = dovetail(installed, "workflow", "run", "--gpus", 4, *files, *chosen, "--out", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    journal = tmp_path / "longest_journal.jsonl"
    assert Reader(journal).header.options == {"factor": "2.5"}
    assert dovetail(installed, "check", journal).stdout.startswith("PASS")


@with_installed
def test_an_option_of_an_installed_policy_is_checked_like_ours(installed: Path) -> None:
    files = ["--config", ROOT / "examples/system_config.yaml", "--requests", ROOT / "examples/workflow_requests.yaml"]
    done = dovetail(installed, "workflow", "run", "--gpus", 4, *files, "--policy", "longest", "--option", "faktor=1")
    assert done.returncode == 2
    assert done.stderr == "error: policy longest has no option 'faktor'; did you mean 'factor'?\n"


def provide(site: Path, name: str, module: str) -> None:
    """A distribution as an installer leaves it behind: a module, and the record of its entry point."""
    (site / f"{name}.py").write_text(module)
    record = site / f"{name}-1.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{name} = {name}\n")


def test_a_broken_plug_in_warns_and_does_not_break_the_others(tmp_path: Path) -> None:
    provide(tmp_path, "a_missing_import", "import no_such_module\n")
    provide(tmp_path, "b_exit", "raise SystemExit(9)\n")
    provide(tmp_path, "c_syntax", "def\n")
    provide(tmp_path, "d_taken_name", LONGEST.replace('"longest"', '"baseline"'))
    provide(tmp_path, "e_good", LONGEST)
    listed = dovetail(tmp_path, "workflow", "policies")
    assert listed.returncode == 0
    names = [line.split()[0] for line in listed.stdout.splitlines() if line.strip()]
    assert {"longest", "baseline", "dovetail"} <= set(names)
    for name, why in [
        ("a_missing_import", "No module named 'no_such_module'"),
        ("b_exit", "9"),
        ("c_syntax", "invalid syntax"),
        ("d_taken_name", "workflow policy 'baseline' is registered twice"),
    ]:
        assert f"policy plug-in {name} ({name}) does not load: {why}" in listed.stderr
    assert "Traceback" not in listed.stderr


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A file of a user's own policies."""
    path = tmp_path / "mine.py"
    path.write_text(
        "class Half:\n    'Half of it.'\n    def __init__(self, *, share: float = 0.5) -> None: self.share = share\n"
        "def third(): return Half(share=0.3)\n"
        "quarter = Half(share=0.25)\n"
    )
    return path


def test_a_policy_is_found_in_a_file_by_its_name(own: Path) -> None:
    shares = {name: registry.choose("host", f"{own}:{name}")[1].share for name in ("Half", "third", "quarter")}
    assert shares == {"Half": 0.5, "third": 0.3, "quarter": 0.25}
    assert registry.create("host", f"{own}:Half", {"share": "0.1"}).share == 0.1
    assert registry.promise("host", f"{own}:Half") == "Half of it."


def test_what_a_file_makes_can_be_pickled(own: Path) -> None:
    found = registry.choose("host", f"{own}:Half")[1]
    assert pickle.loads(pickle.dumps(found)).share == 0.5


def test_files_may_call_their_policies_alike(tmp_path: Path) -> None:
    head = f"from dovetail.core.registry import policy\n@policy('mine', level={LEVEL!r})\n"
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "mine.py").write_text(f"{head}class Mine: number = {number}\n")
    made = [registry.create(LEVEL, f"{tmp_path}/{number}/mine.py:Mine") for number in (1, 2)]
    assert [each.number for each in made] == [1, 2]
    assert [pickle.loads(pickle.dumps(each)).number for each in made] == [1, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("none.py:Half", "none.py: no such file"),
        ("mine.py:half", "mine.py: has no 'half'; did you mean 'Half'"),
        ("mine.py", "policy mine.py: expected which one in the file, as mine.py:NAME; it has Half"),
        ("broken.py:Half", "broken.py: does not load: ZeroDivisionError: division by zero"),
    ],
)
def test_what_a_file_does_not_have_is_told(own: Path, monkeypatch: pytest.MonkeyPatch, text: str, message: str) -> None:
    monkeypatch.chdir(own.parent)
    Path("broken.py").write_text("1 / 0")
    with pytest.raises(InputError, match=f"^{message}"):
        registry.choose("host", text)


class Needy:
    def __init__(self, what: int) -> None: ...


class Choosy:
    def __init__(self, *more: int, which: int) -> None: ...


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (None, "expected a host policy: a name, file.py:name, or one of your own; found None"),
        (7, "found 7"),
        (Needy, "policy Needy needs 'what': give an object of it"),
        (Choosy, "policy Choosy needs 'which'"),
    ],
)
def test_what_is_no_policy_is_refused(choice: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        registry.choose("host", choice)


def test_a_policy_of_ones_own_is_called_by_its_class() -> None:
    given = Needy(7)
    assert registry.choose("host", given) == ("Needy", given)
    with pytest.raises(InputError, match="has its options already; found what"):
        registry.choose("host", given, {"what": 3})


def test_an_example_in_a_docstring_is_no_policy(tmp_path: Path) -> None:
    source = '''"""Ours.

    @policy("example", level="host")
    def example(view): ...
"""
# policy("comment", level="host")
@policy("one", level="host")
class One:
    """As policy("two", level="host") does."""


three = policy("three", level="host")(One)
'''
    (tmp_path / "ours.py").write_text(source)
    assert list(read_policies("somewhere", [str(tmp_path)], "host")) == ["one", "three"]
