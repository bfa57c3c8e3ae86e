"""`dovetail pipeline profile`, `convert` and `link-test` as a user meets them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from dovetail.cli import main
from tests.waiting import PATIENCE_S

EXAMPLE = f"{Path(__file__).parents[2] / 'examples/pipeline/transformer.py'}:encoder"
SMALL = ["--argument", "blocks=2", "width=16", "heads=2", "sequence=5"]
QUICK = ["--warmup", "1", "--repeats", "3", "--seconds", "0.001", "--calm-s", "0"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["pipeline", *words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def profile(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    pytest.importorskip("torch")
    return run(capsys, "profile", EXAMPLE, *SMALL, *QUICK, *words)


def test_from_a_model_to_a_plan(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measure, write the planner's files, estimate another device, plan over both."""
    to = ["--to", "models.yml", "device_types.yml", "--device-type", "laptop", "-dtm", "1024", "-dtb", "1000"]
    code, out, err = profile(capsys, "--batch-size", "1", "8", *to)
    assert code == 0, err
    assert "attention1" in out
    assert "all of them in one go" in out
    profiles = yaml.safe_load((here / "profiler_results.yml").read_text())
    assert [each["batch_size"] for each in profiles] == [1, 8]
    assert yaml.safe_load((here / "models.yml").read_text())["encoder"]["parameters_out"] == [80] * 4
    other = ["--out", "h200.yml", "--to", "device_types.yml", "--device-type", "h200", "-dtm", "9000", "-dtb", "9000"]
    code, out, err = profile(capsys, "--estimate-for", "h200", *other)
    assert code == 0, err
    assert "estimated for NVIDIA H200 SXM" in out
    (here / "devices.yml").write_text("laptop: [a, b]\nh200: [c]\n")
    code, out, err = run(capsys, "plan", "-m", "encoder", "--format", "json")
    assert code == 0, err
    assert json.loads(out)["throughput_items_s"] > 0


def test_results_are_added_but_not_twice(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert profile(capsys, "--layers", "1", "2", "--threads", "1")[0] == 0
    single = yaml.safe_load((here / "profiler_results.yml").read_text())
    assert [row["layer"] for row in single["profile_data"]] == [1, 2]
    assert profile(capsys, "--layers", "3", "4", "--threads", "1")[0] == 0
    whole = yaml.safe_load((here / "profiler_results.yml").read_text())
    assert [row["layer"] for row in whole["profile_data"]] == [1, 2, 3, 4]
    assert whole["profile_data"][0] == single["profile_data"][0]
    before = (here / "profiler_results.yml").read_bytes()
    code, _, err = profile(capsys, "--threads", "1")
    assert code == 2
    assert "profiler_results.yml: encoder, batch size 8, torch.float32: layer 1 is in the file already" in err
    assert (here / "profiler_results.yml").read_bytes() == before
    assert profile(capsys, "-f")[0] == 0


def test_json_has_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = profile(capsys, "--format", "json", "--dtype", "bfloat16", "--cores", "0", "--model-name", "mine")
    assert code == 0
    (found,) = json.loads(out)
    assert (found["model"], found["dtype"], found["source"]) == ("mine", "torch.bfloat16", "measured")
    assert found["sum_s"] == pytest.approx(sum(layer["time_s"] for layer in found["profile"]))
    assert found["threads"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "device_types.yml"], "--to device_types.yml: name the device with --device-type"),
        (["--to", "x.yml"], "expected a name with 'models' or 'device_types' in it"),
        (["--out", EXAMPLE.rpartition(":")[0]], "is the same file as the input"),
        (["--shape", "3,x"], "--shape 3,x: expected whole numbers with commas between them"),
        (["--dtype", "float12"], "unknown dtype 'float12'; did you mean"),
        (["--layers", "2", "9"], "--layers 2 9: encoder has layers 1 to 4"),
        (["--estimate-for", "h20"], "no published figures of 'h20' here; did you mean 'h200'?"),
        (["--estimate-for", "x", "--peak-tflops", "3"], "--peak-tflops and --memory-gbps belong together"),
        (["--batch-size", "0"], "--batch-size: expected 1 or more, found 0"),
        (["--dtype", "int64"], "unknown dtype 'int64'"),
        (["--peak-tflops", "3"], "--peak-tflops and --memory-gbps: name the device with --estimate-for"),
        (["--estimate-for", "x", "--peak-tflops", "nan", "--memory-gbps", "1"], "both more than 0"),
        (["--estimate-for", "h200", "--share", "0.5"], "an estimate is of all layers on a whole device"),
        (["--shape", "5,17"], "encoder: layer 1 (attention1) fails on items of ((5, 17),): RuntimeError: "),
        (["--share", "0"], "share: expected cores from 0.05, found 0"),
        (["--to", "device_types.yml", "--device-type", "new"], "new is a new device type: give its mem_MB and bw_Mbps"),
        (["--layers", "1", "2", "--to", "models.yml"], "the profile has 2 of 4 layers; layer 3 is missing"),
        (["--out", "/proc/1/x.yml"], "/proc/1/x.yml: cannot be written"),
    ],
)
def test_bad_words_write_nothing(
    here: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, _, err = profile(capsys, *words)
    assert code == 2
    assert message in err
    assert list(here.iterdir()) == []


OLD = {
    "batch_size": 8,
    "dtype": "torch.float32",
    "layers": 1,
    "model_name": "m",
    "profile_data": [{"layer": 1, "memory": 2.5, "shape_in": [[3]], "shape_out": [[4]], "time": 0.5}],
}


@pytest.mark.parametrize("seconds", ["-1", "0", "nan"])
def test_a_time_that_makes_no_sense(here: Path, capsys: pytest.CaptureFixture[str], seconds: str) -> None:
    pytest.importorskip("torch")
    code, _, err = run(capsys, "profile", EXAMPLE, *SMALL, "--seconds", seconds)
    assert (code, err) == (2, f"error: seconds: expected more than 0, found {float(seconds):g}\n")
    assert list(here.iterdir()) == []


def test_what_cannot_be_added_is_known_before_anything_is_written(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert profile(capsys, "--to", "models.yml")[0] == 0
    before = (here / "models.yml").read_text()
    code, _, err = profile(capsys, "--out", "other.yml", "--to", "models.yml")
    assert (code, "models.yml:1: encoder: is there already; -f replaces it" in err) == (2, True)
    assert not (here / "other.yml").exists()
    assert (here / "models.yml").read_text() == before
    words = ("convert", "box", "-i", "profiler_results.yml", "-dtm", "10", "-dtb", "10")
    code, _, err = run(capsys, *words, "-o", "models.yml")  # a file of another kind
    assert (code, "models.yml:2: encoder.layers: unknown key 'layers'" in err) == (2, True)
    code, _, err = run(capsys, *words, "-o", "types.yml", "--rates", "rates.json", "--reference", "bux")
    assert (code, "types.yml: no device type 'bux'" in err) == (2, True)
    assert not (here / "types.yml").exists()
    for bad in (("-dtm", "-5", "-dtb", "1"), ("-dtm", "1", "-dtb", "nan")):
        code, _, err = run(capsys, "convert", "new", "-o", "types.yml", *bad)
        assert (code, "expected a number from 0" in err) == (2, True)


def test_times_are_scaled_to_the_whole(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = profile(capsys, "--scale-to-whole", "--threads", "1", "--format", "json")
    assert code == 0, err
    [found] = json.loads(out)
    assert found["sum_s"] == pytest.approx(found["whole_s"])
    code, out, err = profile(capsys, "--share", "0.5", "--threads", "1", "--format", "json", "--out", "half.yml")
    if "the processor cannot be shared out here" in err:
        pytest.skip(err)
    assert code == 0, err
    [half] = json.loads(out)
    assert half["share"] == 0.5
    assert half["sum_s"] == pytest.approx(half["whole_s"])
    assert yaml.safe_load((here / "half.yml").read_text())["share"] == 0.5
    code, _, err = profile(capsys, "--layers", "2", "2", "-f", "--threads", "1", "--out", "half.yml")
    assert (code, "with 1 threads and a share of 0.5 cores; name another file" in err) == (2, True)


def test_the_older_converters_words_work(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "old.yml").write_text(yaml.safe_dump(OLD))
    assert run(capsys, "convert", "-i", "old.yml", "-o", "models.yml")[0] == 0
    code, _, err = run(capsys, "convert", "-i", "old.yml", "-o", "models.yml")
    assert code == 2
    assert "models.yml:1: m: is there already; -f replaces it" in err
    assert run(capsys, "convert", "-i", "old.yml", "-o", "models.yml", "-f")[0] == 0
    assert run(capsys, "convert", "pi", "-i", "old.yml", "-dtm", "900", "-dtb", "100")[0] == 0
    assert run(capsys, "convert", "pi", "-i", "old.yml", "-f", "--rates", "r.json", "--reference", "pi")[0] == 0
    assert json.loads((here / "r.json").read_text())["rates"][0]["rate"] == 1.0
    assert yaml.safe_load((here / "device_types.yml").read_text())["pi"]["mem_MB"] == 900
    for words, message in (
        (["-i", "old.yml", "-o", "old.yml"], "is the same file as the input"),
        (["-i", "old.yml", "-dtm", "3"], "belong to a device type"),
        (["pi", "-i", "old.yml", "--rates", "r.json"], "--rates and --reference belong together"),
        (["-i", "none.yml"], "none.yml: no such file"),
    ):
        code, _, err = run(capsys, "convert", *words)
        assert code == 2
        assert message in err


def test_a_link_is_measured_between_two_processes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = [sys.executable, "-c", "import sys; from dovetail.cli import main; sys.exit(main())"]
    words = ["pipeline", "link-test", "serve", "--clients", "1"]
    with subprocess.Popen([*program, *words], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            port = server.stdout.readline().split()[-1]
            names = ["--here", "a", "--there", "b", "--out", "links.yml", "--repeats", "2", "--seconds", "0.01"]
            code, out, err = run(capsys, "link-test", "connect", "127.0.0.1", port, *names)
            assert code == 0, err
            assert "a -> b" in out
            assert server.wait(PATIENCE_S) == 0
        finally:
            server.kill()
    links = yaml.safe_load((here / "links.yml").read_text())["links"]
    assert {link["from"] for link in links} <= {"a", "b"}
    assert all(link["bw_Mbps"] > 0 and link["latency_s"] > 0 for link in links)


def test_help_does_not_load_torch() -> None:
    code = (
        "import sys; from dovetail.cli import main; main(['pipeline', 'profile', '--help']);"
        "main(['pipeline', 'convert', '--help']); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
