"""Draw random mutants of the source, run the matching tests against each, and show those that no test noticed.

    python -m tools.mutate --of core solve workflow --count 60 --seed 1

Every mutant is one small change: a comparison, an operator, a condition, a constant, a returned value, or a statement
left out. It is made in a copy of the tree. A survivor is a gap in the tests, or its change makes no difference: readers
judge that.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Literal

ROOT = Path(__file__).parents[1]
PACKAGE = Path("src/dovetail")
Verdict = Literal["killed", "survived", "timeout"]

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


_NO_TESTS = 5  # pytest's exit code where nothing was collected
_PASSED_OVER = (ast.JoinedStr, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """A change of one file: what kind it is, and the text before and after."""

    path: Path
    line: int
    kind: str
    before: str
    after: str

    def diff(self) -> str:
        lines = difflib.unified_diff(self.before.splitlines(), self.after.splitlines(), lineterm="", n=1)
        return "\n".join(list(lines)[2:])


def mutants(path: Path, text: str) -> Iterator[Mutant]:
    """Every mutant of a file.

    >>> for mutant in mutants(Path("a.py"), "def f(x):\\n    return x + 1\\n"):
    ...     print(mutant.kind, "|", mutant.after.splitlines()[1].strip())
    return | return None
    operator | return (x - 1)
    constant | return x + 2
    """
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    raw = text.encode()
    for node in _nodes(ast.parse(text)):
        at = node.test if isinstance(node, ast.If | ast.While) else node
        for kind, changed in _changes(node):
            begin = starts[at.lineno - 1] + at.col_offset
            end = starts[(at.end_lineno or at.lineno) - 1] + (at.end_col_offset or 0)
            after = (raw[:begin] + changed.encode() + raw[end:]).decode()
            yield Mutant(path, at.lineno, kind, text, after)


def _nodes(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes that run: no annotations, no docstrings, nothing that only a type checker reads, no error messages."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list", "type_params", "type_comment"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, _PASSED_OVER):
                continue
            if isinstance(node, ast.keyword) and node.arg == "strict":  # says what holds, and changes nothing
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            if isinstance(node, ast.expr | ast.stmt):
                yield node
            if not isinstance(node, ast.Raise):
                yield from _nodes(node)


def _changes(node: ast.expr | ast.stmt) -> Iterator[tuple[str, str]]:
    """The kinds of change of a node, with the text in its place."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            changed.ops = [_COMPARISONS[type(operator)]()]
            yield "comparison", f"({ast.unparse(changed)})"
        case ast.BinOp(op=operator) if type(operator) in _OPERATORS and not _is_text(changed):
            changed.op = _OPERATORS[type(operator)]()
            yield "operator", f"({ast.unparse(changed)})"
        case ast.BoolOp(op=operator):
            changed.op = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield "boolean", f"({ast.unparse(changed)})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield "boolean", f"({ast.unparse(operand)})"
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield "operator", f"({ast.unparse(operand)})"
        case ast.Constant(value=bool(value)):
            yield "constant", str(not value)
        case ast.Constant(value=int(value)) | ast.Constant(value=float(value)):
            yield "constant", repr(value + 1)
        case ast.If(test=test) | ast.While(test=test) if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp):
            yield "condition", f"(not {ast.unparse(test)})"
        case ast.IfExp(test=test):
            changed.test = ast.UnaryOp(ast.Not(), test)
            yield "condition", f"({ast.unparse(changed)})"
        case ast.Return(value=value) if value is not None and not (
            isinstance(value, ast.Constant) and value.value is None
        ):
            yield "return", "return None"
        case ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
            changed.op = _OPERATORS[type(operator)]()
            yield "operator", ast.unparse(changed)
            yield "statement", "pass"
        case ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break() | ast.Delete() | ast.Raise():
            yield "statement", "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement", "pass"


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", 0), str)
        for side in (node.left, node.right)
    )


def near_tests(path: Path) -> list[str]:
    """A module's doctests, then the tests that are named after it, that import it or the package below its level's, and
    that import a module which does."""
    parts = [part for part in path.relative_to("src").with_suffix("").parts if part != "__init__"]
    places = [_imports_of([".".join(parts[:length]) for length in range(len(parts), 2, -1)])]
    level = ROOT / PACKAGE / parts[1]
    users = [each for each in sorted(level.rglob("*.py")) if places[0].search(each.read_text())]
    users = [each for each in users if each != level / "__init__.py"]  # which names everything
    places.append(_imports_of([_dotted(each.relative_to(ROOT)) for each in users]))

    def distance(test: Path) -> int:
        if parts[-1] in test.stem:
            return 0
        return next((i for i, place in enumerate(places, 1) if place.search(test.read_text())), 9)

    near = sorted((distance(test), test) for test in (ROOT / "tests" / parts[1]).glob("test_*.py"))
    return [str(path), *(str(test.relative_to(ROOT)) for far, test in near if far < 9)]


def _dotted(path: Path) -> str:
    return ".".join(part for part in path.relative_to("src").with_suffix("").parts if part != "__init__")


def _imports_of(modules: list[str]) -> re.Pattern[str]:
    """What the source of somebody has who imports one of them."""
    return re.compile(rf"\b({'|'.join(map(re.escape, modules))})\b") if modules else re.compile(r"(?!)")


def all_tests(path: Path) -> list[str]:
    """The other tests of a module's package, and its whole runs."""
    package = path.parts[2]
    tests = sorted((ROOT / "tests").glob(f"{package}/test_*.py"))
    tests += sorted((ROOT / "tests").glob("journals/test_*.py")) if package == "core" else []
    tests += sorted((ROOT / "tests").glob(f"[cegp]*/test_{package}*.py"))  # cli, e2e, golden, properties
    return [
        test for test in dict.fromkeys(str(test.relative_to(ROOT)) for test in tests) if test not in near_tests(path)
    ]


class Copy:
    """A copy of the tree in which one file at a time is changed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for name in listed.split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self._clock = 1_000_000_000  # a file of the same size and second would be taken from the byte-code cache

    def write(self, path: Path, text: str) -> None:
        (self.folder / path).write_text(text)
        self._clock += 2
        os.utime(self.folder / path, (self._clock, self._clock))

    def test(self, tests: list[str], time_limit_s: float) -> Verdict:
        """Run tests until the first failure."""
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
        shared = ROOT / "../shared"
        environment = {
            "DOVETAIL_GOLDEN": str(shared / "golden"),
            "DOVETAIL_TRACES": str(shared / "traces"),
            **os.environ,
            "DOVETAIL_UNSHRUNK": "1",
            "PYTHONPATH": str(self.folder / "src"),
        }
        quiet = subprocess.DEVNULL
        with _limited(command, self.folder, environment, quiet, time_limit_s) as started:
            try:
                code = started.wait(4 * time_limit_s)  # a busy machine gives less
                if -code in (signal.SIGXCPU, signal.SIGKILL):
                    return "timeout"
                return "survived" if code in (0, _NO_TESTS) else "killed"
            except subprocess.TimeoutExpired:
                return "timeout"


_running: dict[int, Path] = {}  # process groups, and the trees that they run in


@contextmanager
def _limited(
    command: list[str], folder: Path, environment: dict[str, str], output: int, cpu_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """A process that ends with the block, and all that it started: or if this process is ended, or at the latest by its
    CPU time. A mutant may loop for ever and leave anything behind."""
    command = ["sh", "-c", f'ulimit -t {round(cpu_s)}; exec "$@"', "sh", *command]
    started = subprocess.Popen(
        command, cwd=folder, env=environment, stdin=output, stdout=output, stderr=output, start_new_session=True
    )
    _running[started.pid] = folder
    try:
        yield started
    finally:
        _end(started.pid, folder)
        started.wait()
        del _running[started.pid]


def _end(group: int, folder: Path) -> None:
    """The group, and who left it: whoever was started from this tree has its path in the environment."""
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            if os.fsencode(folder / "src") in environment.read_bytes():
                os.kill(int(environment.parent.name), signal.SIGKILL)


def _interrupted(number: int, frame: object) -> None:
    for group, folder in list(_running.items()):
        _end(group, folder)
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(128 + number)


def sources(areas: list[str]) -> list[Path]:
    """The modules below these names: `core`, `host/policies`, `solve/lp.py`."""
    found = []
    for area in areas:
        at = ROOT / PACKAGE / area
        found += [at] if at.is_file() else sorted(at.rglob("*.py"))
        if not at.exists():
            sys.exit(f"{at}: there is no such module or package")
    return [path.relative_to(ROOT) for path in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--of", nargs="+", default=["core", "solve"], help="packages or modules below src/dovetail")
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--near", action="store_true", help="only the tests that are named after a module or import it")
    parser.add_argument("--trust", action="store_true", help="do not run the tests without a mutant first")
    parser.add_argument(
        "--time-limit-s", type=float, default=900.0, help="of processor time; past it, a mutant counts as killed"
    )
    given = parser.parse_args()
    for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _interrupted)
    every = [each for path in sources(given.of) for each in mutants(path, (ROOT / path).read_text())]
    drawn = random.Random(given.seed).sample(every, min(given.count, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants of {', '.join(given.of)}, seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="dovetail-mutants-") as scratch:
        idle: SimpleQueue[Copy] = SimpleQueue()
        for number in range(given.jobs):
            idle.put(Copy(Path(scratch) / str(number)))

        near = sorted({test for mutant in drawn for test in near_tests(mutant.path)})
        if not given.trust and Copy(Path(scratch) / "unchanged").test(near, 3600.0) != "survived":
            sys.exit("the tests fail without any mutant")

        def judge(mutant: Mutant) -> Verdict:
            tree = idle.get()
            tree.write(mutant.path, mutant.after)
            try:
                verdict = tree.test(near_tests(mutant.path), given.time_limit_s)
                if verdict == "survived" and not given.near and (others := all_tests(mutant.path)):
                    verdict = tree.test(others, given.time_limit_s)
                return verdict
            finally:
                tree.write(mutant.path, mutant.before)
                idle.put(tree)

        survivors = 0
        with ThreadPoolExecutor(given.jobs) as pool:
            for number, (mutant, verdict) in enumerate(zip(drawn, pool.map(judge, drawn), strict=True), 1):
                print(f"{number:4d} {verdict:8s} {mutant.kind:10s} {mutant.path}:{mutant.line}", flush=True)
                if verdict == "survived":
                    survivors += 1
                    print(mutant.diff(), flush=True)
    print(f"{len(drawn) - survivors} of {len(drawn)} killed, {survivors} survived")
    return 0


if __name__ == "__main__":
    sys.exit(main())
