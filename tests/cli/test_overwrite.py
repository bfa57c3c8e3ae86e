"""No command writes over what it reads, nor over a file that a person may have made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dovetail import cli
from dovetail.core.errors import InputError
from dovetail.core.files.output import refuse_overwrite

CONFIG: dict[str, Any] = {
    "models": {"llm": {"memory_gb": 8, "gpus_required": 1, "load_time_seconds": 10}},
    "workflows": {"one": {"nodes": [{"id": "a", "model": "llm"}]}},
}
REQUESTS = {"requests": [{"request_id": "r1", "workflow_id": "one", "node_execution_times": {"a": 4.0}}]}
COMFYUI = {
    "1": {"class_type": "CLIPTextEncode", "inputs": {"text": "a lighthouse", "clip": ["2", 0]}},
    "2": {"class_type": "CLIPLoader", "inputs": {"clip_name": "clip_l.safetensors"}},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "requests.json").write_text(json.dumps(REQUESTS))
    (tmp_path / "flow.json").write_text(json.dumps(COMFYUI))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def soft(new: Path, old: Path) -> None:
    new.symlink_to(old)


def hard(new: Path, old: Path) -> None:
    new.hardlink_to(old)


@pytest.mark.parametrize("link", [soft, hard])
def test_another_name_for_an_input_is_found(tmp_path: Path, link: Callable[[Path, Path], None]) -> None:
    given, other = tmp_path / "a", tmp_path / "b"
    given.write_text("kept")
    link(other, given)
    with pytest.raises(InputError, match=rf"^{other}: is the same file as the input {given}; "):
        refuse_overwrite([tmp_path / "c", other], [None, given])


def test_outputs_that_do_not_exist_yet_are_told_apart_by_their_place(tmp_path: Path) -> None:
    refuse_overwrite([tmp_path / "a", tmp_path / "b"], [tmp_path / "c"])
    with pytest.raises(InputError, match="which is written too"):
        refuse_overwrite([tmp_path / "a", tmp_path / "d" / ".." / "a"], [])


def test_a_device_can_be_read_and_written() -> None:
    null = Path("/dev/null")
    refuse_overwrite([null, null], [null])
    assert null.is_char_device()


@pytest.mark.parametrize(
    "words",
    [
        "workflow run --gpus 1 --config baseline_journal.jsonl --requests requests.json --policy baseline",
        "workflow run --gpus 1 --config config.json --requests baseline_execution_log.json --policy baseline",
        "workflow compare --gpus 1 --config config.json --requests compare.json --policy baseline --out .",
        "workflow generate --config config.json --out ./config.json",
        "workflow generate --config new.json --preset thrash --out new.json",
        "workflow import comfyui flow.json --out flow.json --force",
        "workflow import comfyui flow.json --out new.yaml --requests new.yaml",
        "workflow import wfcommons flow.json --out new.yaml --requests flow.json --force",
    ],
)
def test_an_input_stays_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    for name, given in (
        ("baseline_journal.jsonl", "config.json"),
        ("baseline_execution_log.json", "requests.json"),
        ("compare.json", "requests.json"),
    ):
        (folder / name).write_bytes((folder / given).read_bytes())
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert cli.main(words.split()) == 2
    assert "is the same file as" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_import_writes_over_files_only_by_force(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["workflow", "import", "comfyui", "flow.json", "--out", "new.yaml", "--requests", "requests.json"]
    before = (folder / "requests.json").read_bytes()
    assert cli.main(words) == 2
    assert "requests.json: exists already; --force writes over it" in capsys.readouterr().err
    assert (folder / "requests.json").read_bytes() == before
    assert not (folder / "new.yaml").exists()
    assert cli.main([*words, "--force"]) == 0
    assert (folder / "requests.json").read_bytes() != before


def test_imported_comfyui_requests_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = ["--out", "new.yaml", "--requests", "new.jsonl"]
    assert cli.main(["workflow", "import", "comfyui", "flow.json", *files]) == 0
    assert "Requests written to new.jsonl" in capsys.readouterr().out
    words = ["workflow", "validate", "--gpus", "1", "--config", "new.yaml", "--requests", "new.jsonl"]
    assert cli.main([*words, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["requests"] == 1


def test_a_demonstration_takes_an_empty_folder_or_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert cli.main(["demo", "--out", "."]) == 2
    assert "holds files that are not of a demonstration" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "new").mkdir()
    for _ in range(2):
        assert cli.main(["demo", "--out", "new"]) == 0
