"""Commands of a trace: their words without a shell, in the folder that was given, and nothing that leads out of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cluster.inputs.traces import read_trace
from dovetail.cluster.inputs.workload import Job, TrainingStart
from dovetail.cluster.live.trace_commands import command_job, confined
from dovetail.core.errors import InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a link that leads out of it."""
    made = tmp_path / "work loads"
    (made / "lm" / "deep").mkdir(parents=True)
    (made / "away").symlink_to(tmp_path)
    return made


def test_words_are_split_and_the_data_is_put_in(folder: Path) -> None:
    start = TrainingStart("python3 'my train.py' --data=%s/wiki --out=a/b -o ../x %s", "lm/deep", "--steps", True)
    words, at = confined(start, folder, folder.parent / "da ta")
    data = folder.parent / "da ta"
    assert words == ["python3", "my train.py", f"--data={data}/wiki", "--out=a/b", "-o", "../x", str(data)]
    assert at == folder / "lm" / "deep"


def test_the_oldest_commands_change_to_their_folder(folder: Path) -> None:
    words, at = confined(TrainingStart("cd %s/lm && python3 t.py --data %s/data"), folder, Path("/elsewhere"))
    assert (words, at) == (["python3", "t.py", "--data", f"{folder}/data"], folder / "lm")


@pytest.mark.parametrize(
    ("command", "where", "says"),
    [
        ("python3 ../../t.py", "lm", "'../../t.py' leads out of"),
        ("python3 t.py --data=/etc", "lm", "'--data=/etc' leads out of"),
        ("python3 t.py -I/etc", "lm", "'-I/etc' leads out of"),
        ("/bin/rm x", "lm", "'/bin/rm' leads out of"),
        ("python3 ~/t.py", "lm", "'~/t.py' leads out of"),
        ("python3 away/t.py", "", "'away/t.py' leads out of"),
        ("python3 %s/../../t.py", "lm", "leads out of"),
        ("t", "..", r"folder '\.\.': leads out of"),
        ("t", "/etc", "folder '/etc': leads out of"),
        ("t", "away", "folder 'away': leads out of"),
        ("cd /etc && t", "lm", "folder '/etc': leads out of"),
        ("cd .. && t", "lm", r"folder '\.\.': leads out of"),
        ("t", "none", "folder 'none': expected a folder in .*, found none"),
        ("a && b", "lm", "'&&' needs a shell"),
        ("a > b", "lm", "'>' needs a shell"),
        ("cd lm && a | b", "", r"'\|' needs a shell"),
        ("cd lm &&", "", "expected a program, found none"),
        ("a 'b", "lm", "No closing quotation"),
        ("", "lm", "expected a command, found none"),
    ],
)
def test_what_leads_out_or_needs_a_shell_is_refused(folder: Path, command: str, where: str, says: str) -> None:
    job = Job(id=3, model="LM", steps=5, start=TrainingStart(command, where))
    with pytest.raises(InputError, match=f"^job 3.*{says}"):
        command_job(job, folder, folder / "data", "none", "own")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["..", ".", "a", "lm", "away", "", "/", "~", "--x=", "-I"]), min_size=1, max_size=5))
def test_no_word_that_is_taken_leads_out(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    """The definition: no part of a word, seen as a path from where the command runs, is outside of the folder."""
    root = tmp_path_factory.mktemp("out")
    (root / "in" / "lm").mkdir(parents=True)
    (root / "in" / "away").symlink_to(root)
    word = "/".join(parts)
    try:
        words, at = confined(TrainingStart(f"python3 '{word}'", "lm"), root / "in", root / "in" / "data")
    except InputError:
        return
    assert words == ["python3", word]
    for path in (word, word.partition("=")[2]):
        seen = (at / os.path.expanduser(path)).resolve()
        assert seen.is_relative_to((root / "in").resolve())


def test_a_job_of_gavels_is_started_as_its_workers_did(traces: Path, tmp_path: Path) -> None:
    first, second = read_trace(traces / "gavel/physical_cluster/artifact_evaluation.trace", most=2)
    (tmp_path / "image_classification/imagenet").mkdir(parents=True)
    (tmp_path / "translation").mkdir()
    spec = command_job(first, tmp_path, tmp_path / "data", "gavel", "iterator")
    spec.check()
    assert (spec.kind, spec.steps, spec.width, spec.checkpoint) == ("ResNet-50 (batch size 64)", 2931, 1, "iterator")
    assert spec.folder == str(tmp_path / "image_classification/imagenet")
    assert " ".join(spec.full_command()) == (
        f"python3 main.py -j 2 -a resnet50 -b 64 {tmp_path}/data/imagenet/ --local_rank ${{LOCAL_RANK}} "
        "--checkpoint_dir ${DOVETAIL_CHECKPOINT_DIR} --enable_gavel_iterator --num_minibatches 2931"
    )
    wide = command_job(second, tmp_path, tmp_path / "data", "gavel", "iterator")
    assert second.width == 2
    assert " ".join(wide.command).endswith(
        "--master_addr ${MASTER_ADDR} --master_port ${MASTER_PORT} --world_size ${WORLD_SIZE} --rank ${RANK}"
    )
