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
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
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


def matching_tests(path: Path) -> list[str]:
    """The tests of a module, the nearest first: its doctests, tests of its name, its package's, runs of its level."""
    package = path.relative_to(PACKAGE).parts[0]
    name = path.parent.name if path.stem == "__init__" else path.stem
    folder = Path("tests") / package
    named = sorted(str(test.relative_to(ROOT)) for test in (ROOT / folder).glob(f"test_*{name}*.py"))
    wider = [f"tests/{kind}/test_{package}.py" for kind in ("properties", "golden")]
    return [str(path), *named, str(folder), *(test for test in wider if (ROOT / test).exists())]


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
            "PYTHONPATH": str(self.folder / "src"),
        }
        quiet = subprocess.DEVNULL
        started = subprocess.Popen(
            command, cwd=self.folder, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True
        )
        try:
            return "survived" if started.wait(time_limit_s) == 0 else "killed"
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            _end_group(started)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a test run and whatever it started: a mutant may leave anything behind."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


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
    parser.add_argument(
        "--patience", type=float, default=5.0, help="give up after so many times the usual time"
    )
    parser.add_argument("--tests", nargs="+", help="these tests, in the place of the matching ones")
    given = parser.parse_args()
    every = [each for path in sources(given.of) for each in mutants(path, (ROOT / path).read_text())]
    drawn = random.Random(given.seed).sample(every, min(given.count, len(every)))
    print(f"{len(drawn)} of {len(every)} mutants of {', '.join(given.of)}, seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="dovetail-mutants-") as scratch:
        idle: SimpleQueue[Copy] = SimpleQueue()
        for number in range(given.jobs):
            idle.put(Copy(Path(scratch) / str(number)))

        limit_s = {}
        for path in {mutant.path.parts[2]: mutant.path for mutant in drawn}.values():
            began = time.monotonic()
            tree = idle.get()
            if tree.test(given.tests or matching_tests(path), 3600.0) != "survived":
                sys.exit(f"the tests of {path.parts[2]} fail without any mutant")
            idle.put(tree)
            limit_s[path.parts[2]] = given.patience * (time.monotonic() - began) + 30.0

        def judge(mutant: Mutant) -> Verdict:
            tree = idle.get()
            tree.write(mutant.path, mutant.after)
            try:
                return tree.test(given.tests or matching_tests(mutant.path), limit_s[mutant.path.parts[2]])
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
