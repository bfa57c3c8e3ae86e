"""Figures as data (ranges/*.toml): which command measures one, the range it must lie in, and where it is quoted."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

ROOT = Path(__file__).parents[1]
RANGES = Path(__file__).parent / "ranges"
MEASURED = Path(__file__).parent / "measured.json"
PAGE = ROOT / "docs" / "figures.md"
Need = Literal["golden", "traces", "gpu", "root", "idle", "torch", "browser"]
_NUMBER = r"(-?[\d,]*\.?\d+)"


class Measured(Struct, frozen=True, omit_defaults=True):
    """A value, and the machine that it was measured on; with the first of a run, what that predicted and measured."""

    value: float
    machine: str
    pairs: list[tuple[float, float]] = []


class Figure(Struct, frozen=True, forbid_unknown_fields=True):
    """One number in what a script prints, found by the keys `at`.

    `against` says what peer or limit it is to be read beside; `quoted` where it stands in the documents: the file, and
    the words around the number, which is `#`.
    """

    name: str
    at: list[str | int]
    least: float
    most: float
    unit: str
    against: str
    quoted: list[str] = []

    def measured(self, output: Any) -> Measured:
        value = output
        for key in self.at:
            value = value[key]
        return Measured(float(value), output["machine"])

    def with_pairs(self, output: Any) -> Measured:
        return msgspec.structs.replace(self.measured(output), pairs=output.get("predicted_and_measured", []))

    def range(self) -> str:
        return f"{self.least:g} to {self.most:g}" if self.least < self.most else f"{self.least:g}"

    def quotations(self) -> list[tuple[str, float | None]]:
        """Where it is quoted, and the number found there; None if the words are not there."""
        found = []
        for quotation in self.quoted:
            file, words = quotation.split(": ", 1)
            text = " ".join((ROOT / file).read_text().split())
            match = re.search(_NUMBER.join(re.escape(" ".join(part.split(" "))) for part in words.split("#")), text)
            found.append((quotation, float(match[1].replace(",", "")) if match else None))
        return found


class Run(Struct, frozen=True, forbid_unknown_fields=True):
    """One command and the figures that it prints. `tiny` is the same at a size that a test can afford.

    `steady` figures do not depend on what else the machine does: a test holds them to their ranges.
    """

    words: str
    minutes: float
    figure: list[Figure]
    tiny: str = ""
    needs: list[Need] = []
    steady: bool = False

    @property
    def script(self) -> str:
        return self.words.split()[0].removeprefix("bench.")


class RangeFile(Struct, frozen=True, forbid_unknown_fields=True):
    run: list[Run]


def load() -> list[Run]:
    """All runs, file by file."""
    files = [msgspec.toml.decode(path.read_bytes(), type=RangeFile) for path in sorted(RANGES.glob("*.toml"))]
    return [run for file in files for run in file.run]


def machine_lacks(run: Run, *, idle: bool = True) -> str:
    """Why a run cannot be done here, or nothing."""
    shared = ROOT / "../shared"
    has = {
        "golden": Path(os.environ.get("DOVETAIL_GOLDEN", shared / "golden")).is_dir(),
        "traces": Path(os.environ.get("DOVETAIL_TRACES", shared / "traces")).is_dir(),
        "gpu": Path("/dev/nvidia0").exists(),
        "root": os.geteuid() == 0,
        "idle": idle,
        "torch": importlib.util.find_spec("torch") is not None,
        "browser": bool(shutil.which("chromium")) and importlib.util.find_spec("playwright") is not None,
    }
    return ", ".join(f"needs {need}" for need in run.needs if not has[need])


def measure(words: str) -> Any:
    """What a script prints."""
    done = subprocess.run(
        [sys.executable, "-m", *words.split()], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout)


def read_measured() -> dict[str, Measured]:
    return msgspec.json.decode(MEASURED.read_bytes(), type=dict[str, Measured])


def write_measured(known: dict[str, Measured]) -> None:
    MEASURED.write_bytes(msgspec.json.format(msgspec.json.encode(known)) + b"\n")


def page(known: dict[str, Measured]) -> str:
    """docs/figures.md: every figure with its range and what to read it beside."""
    lines = [
        "# Figures",
        "",
        "Written by `make bench` from the measurements of `bench/`; the ranges, and where a figure is quoted, are in",
        "`bench/ranges/`. Times recorded for older systems are of another machine of the same kind: for orientation.",
        "",
    ]
    for run in load():
        needs = f", needs: {', '.join(run.needs)}" if run.needs else ""
        steady = "; the same on a busy machine, so a test holds the ranges" if run.steady else ""
        lines += [f"`python -m {run.words}` (about {run.minutes:g} min{needs}{steady})", ""]
        lines += ["| figure | measured | range | beside |", "|---|---|---|---|"]
        for figure in run.figure:
            value = f"{known[figure.name].value:g} {figure.unit}" if figure.name in known else "-"
            lines.append(f"| {figure.name} | {value} | {figure.range()} | {figure.against} |")
        machines = sorted({known[figure.name].machine for figure in run.figure if figure.name in known})
        lines += ["", *(f"Measured on {machine}." for machine in machines), ""]
    return "\n".join(lines)


def write_page(known: dict[str, Measured]) -> None:
    PAGE.write_text(page(known))
