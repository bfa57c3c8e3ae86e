"""`dovetail examples`: every file of examples/, and none of them over a file of the user's."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from dovetail.cli import main
from dovetail.cli.examples import example_folder, example_names

ROOT = Path(__file__).parents[2]


def test_all_files_are_copied_as_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    to = tmp_path / "deep" / "examples"
    assert main(["examples", "copy", str(to), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)["files"]
    names = list(example_names(example_folder()))
    assert told == [str(to / name) for name in names]
    assert Path("cluster/jobs.csv") in names
    for name in names:
        assert (to / name).read_bytes() == (ROOT / "examples" / name).read_bytes()
    assert main(["examples", "copy", str(to)]) == 0  # again: nothing differs


def test_files_of_the_user_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "system_config.yaml"
    mine.write_text("mine")
    assert main(["examples", "copy", str(tmp_path)]) == 2
    assert f"{mine}: exists and differs" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["system_config.yaml"]
    assert main(["examples", "copy", str(tmp_path), "--force"]) == 0
    assert mine.read_text() != "mine"
    assert main(["examples", "copy", str(mine)]) == 2
    mine.unlink()
    mine.mkdir()
    for force in ([], ["--force"]):
        capsys.readouterr()
        assert main(["examples", "copy", str(tmp_path), *force]) == 2
        assert f"{mine}: is a folder; expected a file" in capsys.readouterr().err


def test_the_list_and_what_the_wheel_holds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["examples", "list", "--format", "json"]) == 0
    assert "host/requests_file.txt" in json.loads(capsys.readouterr().out)
    assert main(["examples", "list"]) == 0
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert built["force-include"] == {"examples": "dovetail/example_files"}
