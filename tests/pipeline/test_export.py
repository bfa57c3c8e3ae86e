"""Plans for other engines: what they are given is read as they read it, and the PyTorch script is run."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from dovetail.cli import main
from dovetail.core.errors import InputError
from dovetail.pipeline import Plan, export, load_generation, plan_generation
from dovetail.pipeline.plan import Stage
from tests.pipeline.test_language_shape import LLAMA3_8B, small

TYPES = {name: {"bw_Mbps": 1e5, "mem_MB": 24576.0} for name in ("l4", "a10", "t4")}


@pytest.fixture(scope="module")
def plan() -> Plan:
    hosts = {"l4": ["l"], "a10": ["a"], "t4": ["t"]}
    made = plan_generation(load_generation(LLAMA3_8B, TYPES, hosts, dtype="float16", concurrency=12), groups=3)
    assert len(made.stages) == 3
    return made


def blocks(made: Plan) -> list[int]:
    last = made.stages[-1].layers[1]
    return [sum(1 < layer < last for layer in range(s.layers[0], s.layers[1] + 1)) for s in made.stages]


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_vllm_gets_the_blocks_of_each_stage(plan: Plan) -> None:
    made = export(plan, to="vllm", model="meta-llama/Meta-Llama-3-8B")
    variable, *words = shlex.split(made.text)
    name, _, given = variable.partition("=")
    assert name == "VLLM_PP_LAYER_PARTITION"
    partition = [int(count) for count in given.split(",")]
    assert partition == blocks(plan)
    assert sum(partition) == 32  # what vLLM checks: the sum, and one for each stage
    assert len(partition) == int(option(words, "--pipeline-parallel-size"))
    assert words[:3] == ["vllm", "serve", "meta-llama/Meta-Llama-3-8B"]
    assert (option(words, "--max-model-len"), option(words, "--max-num-seqs")) == ("4096", "12")
    hosts = ", ".join(stage.host for stage in plan.stages)
    assert any(hosts in loss for loss in made.losses)


def devices_of_llama_cpp(shares: list[float], layers: int) -> list[int]:
    """The device of each block and of the output, in single precision, as llama.cpp's load_tensors assigns them."""
    splits = np.cumsum(np.array(shares, np.float32), dtype=np.float32)
    splits = splits / splits[-1]
    return [int(np.searchsorted(splits, np.float32(i) / np.float32(layers), side="right")) for i in range(layers)]


def test_llama_cpp_assigns_the_blocks_of_each_stage(plan: Plan) -> None:
    comment, command = export(plan, to="llama.cpp", model="llama-3-8b.gguf").text.splitlines()
    words = shlex.split(command)
    shares = [float(share) for share in option(words, "--tensor-split").split(",")]
    assert int(option(words, "--n-gpu-layers")) == 33
    found = devices_of_llama_cpp(shares, 33)
    assert [found[:32].count(i) for i in range(3)] == blocks(plan)
    assert found[32] == 2  # the output is with the last
    assert option(words, "--rpc") == ",".join(f"{stage.host}:50052" for stage in plan.stages)
    assert option(words, "--device") == "RPC0,RPC1,RPC2"
    assert (option(words, "--ctx-size"), option(words, "--parallel")) == (str(12 * 4096), "12")
    assert comment.startswith("# on each of ")


@pytest.mark.parametrize("layers", [24, 33])
def test_llama_cpp_gives_every_split_back(layers: int) -> None:
    for first in range(1, layers - 1):
        for second in range(1, layers - first):
            shares = [first, second, layers - first - second]
            found = devices_of_llama_cpp([float(share) for share in shares], layers)
            assert [found.count(i) for i in range(3)] == shares


class _Exo(BaseHTTPRequestHandler):
    """An exo of three nodes that answers as version 1.0.71 does."""

    order: tuple[str, ...] = ()
    posted: list[Any] = []  # noqa: RUF012

    def answer(self, data: Any) -> None:
        body = json.dumps(data).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/state":
            self.answer({"nodeIdentities": {f"id-{name}": {"friendlyName": name} for name in self.order}})
            return
        shards = {
            f"runner-{name}": {
                "PipelineShardMetadata": {"deviceRank": i, "startLayer": 0, "endLayer": 1, "nLayers": 32}
            }
            for i, name in enumerate(self.order)
        }
        nodes = {f"id-{name}": f"runner-{name}" for name in self.order}
        self.answer({"MlxRingInstance": {"shardAssignments": {"runnerToShard": shards, "nodeToRunner": nodes}}})

    def do_POST(self) -> None:
        self.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.answer({"message": "Command received."})

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def exo(order: list[str]) -> Iterator[tuple[str, list[Any]]]:
    handler = type("Handler", (_Exo,), {"order": tuple(order), "posted": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", handler.posted  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


def test_exo_is_told_the_layers_of_each_node(plan: Plan, tmp_path: Path) -> None:
    script = tmp_path / "place.py"
    export(plan, to="exo", model="mlx-community/Llama-3-8B", out=script)
    hosts = [stage.host for stage in plan.stages]
    with exo(hosts) as (url, posted):
        script.write_text(script.read_text().replace("http://localhost:52415", url))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
        assert done.stdout == "Command received.\n"
    shards = posted[0]["instance"]["MlxRingInstance"]["shardAssignments"]["runnerToShard"]
    found = [shards[f"runner-{host}"]["PipelineShardMetadata"] for host in hosts]
    assert [shard["endLayer"] - shard["startLayer"] for shard in found] == blocks(plan)
    assert (found[0]["startLayer"], found[-1]["endLayer"]) == (0, 32)


def test_exo_is_left_alone_if_its_ring_is_another(plan: Plan, tmp_path: Path) -> None:
    script = tmp_path / "place.py"
    export(plan, to="exo", out=script)
    with exo([stage.host for stage in plan.stages][::-1]) as (url, posted):
        script.write_text(script.read_text().replace("http://localhost:52415", url))
        done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing was changed" in done.stderr
    assert posted == []


def staged(layers: list[tuple[int, int]], **more: Any) -> Plan:
    stages = [
        Stage(
            host=f"h{i}",
            type="t",
            layers=each,
            compute_s=1.0,
            send_s=0.0,
            send_bits=32,
            mem_mib=1.0,
            mem_limit_mib=2.0,
            utilisation=1.0,
            **(more if i == 0 else {}),
        )
        for i, each in enumerate(layers)
    ]
    return Plan(
        model="m",
        objective="throughput",
        method="exact",
        batch_size=2,
        bottleneck_s=1.0,
        latency_s=2.0,
        throughput_items_s=2.0,
        value=1.0,
        bound_s=1.0,
        optimal=True,
        binding="",
        stages=stages,
    )


def run_script(script: Path, processes: int, *words: str) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    own = os.environ | {"TMPDIR": str(script.parent), "OMP_NUM_THREADS": "1"}  # torchrun leaves a folder there
    done = subprocess.run([*command, str(script), *words], capture_output=True, text=True, check=False, env=own)
    assert done.returncode == 0, done.stderr[-3000:]


def test_the_script_for_torch_gives_what_the_model_gives(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from dovetail.pipeline.models.load import load
    from dovetail.pipeline.models.spec import model_spec

    layers = [(1, 3), (4, 10), (11, 12)]
    source = f"{Path(__file__).parents[2] / 'examples' / 'pipeline' / 'transformer.py'}:encoder"
    arguments = {"blocks": 6, "width": 16, "heads": 2}
    chain = load(model_spec(source, argument=arguments, seed=3))
    script = tmp_path / "stages.py"
    made = export(staged(layers), to="torch", model=source, argument=arguments, seed=3, out=script)
    assert any("buffers" in loss for loss in made.losses)
    value = chain.inputs(6, "torch.float32", seed=5)
    torch.save(value, tmp_path / "input.pt")
    run_script(script, 3, "--input", str(tmp_path / "input.pt"), "--output", str(tmp_path / "output.pt"))
    found = torch.load(tmp_path / "output.pt")
    alone = [chain.part(1, 12)(value[i : i + 2]) for i in (0, 2, 4)]
    assert torch.equal(found, torch.cat(alone))


@pytest.mark.parametrize(("model", "read"), [("net.py:net", "net.py"), ("hf:llama/", "llama")])
def test_the_script_for_torch_runs_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, read: str
) -> None:
    monkeypatch.chdir(tmp_path)
    text = export(staged([(1, 3), (4, 5)]), to="torch", model=model, weights="weights").text
    (spec,) = (line for line in text.splitlines() if line.startswith("MODEL = "))
    assert str(tmp_path / read) in spec
    assert f"weights={str(tmp_path / 'weights')!r}" in spec


@pytest.mark.parametrize(
    ("out", "given"),
    [
        ("plan.json", {"to": "vllm"}),
        ("config.json", {"to": "vllm", "config": "config.json"}),
        ("config.json", {"to": "llama.cpp", "config": "."}),
        ("net.py", {"to": "torch", "model": "net.py:net"}),
        ("config.json", {"to": "torch", "model": "hf:."}),
        ("w.pt", {"to": "torch", "model": "net.py:net", "weights": "w.pt"}),
    ],
)
def test_what_is_read_is_not_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Plan, out: str, given: dict[str, Any]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("plan.json").write_bytes(msgspec.json.encode(plan))
    Path("config.json").write_text(json.dumps(LLAMA3_8B))
    Path("net.py").write_text("")
    Path("w.pt").write_text("")
    before = Path(out).read_bytes()
    with pytest.raises(InputError, match=rf"^{out}: is the same file as the input"):
        export("plan.json", out=f"./{out}", **given)
    assert Path(out).read_bytes() == before


@pytest.mark.parametrize(
    ("made", "asked", "message"),
    [
        (staged([(1, 3), (4, 5)], replicas=["x"]), {"to": "vllm"}, r"replicas taking turns at a stage \(h0 \+ x\)"),
        (
            staged([(1, 3), (4, 5)]),
            {"to": "vllm"},
            "is for language models: expected a plan of plan-generation, or --config",
        ),
        (staged([(1, 3), (4, 5)]), {"to": "torch"}, "--to torch: expected --model"),
        (staged([(1, 3), (4, 5)]), {"to": "torch", "model": "m.onnx"}, "m.onnx is run by onnxruntime"),
        (
            staged([(1, 3), (4, 5)]),
            {"to": "torch", "model": "meta-llama/Meta-Llama-3-8B"},
            "8B: expected MODULE:FACTORY",
        ),
        (staged([(1, 3), (4, 5)]), {"to": "tgi"}, "--to tgi: expected one of torch, llama.cpp, vllm, exo"),
        (staged([(1, 3), (4, 6)]), {"to": "exo", "config": small("llama")}, "config has 5 layers, the plan is for 6"),
        (staged([(1, 1), (2, 5)]), {"to": "exo", "config": small("llama")}, "the stage on h0 has no block"),
    ],
)
def test_what_an_engine_cannot_take_is_refused(made: Plan, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        export(made, **asked)


@pytest.mark.parametrize(
    ("to", "message"), [("vllm", "one tensor-parallel size"), ("llama.cpp", "tensor-parallel groups")]
)
def test_groups_of_devices_that_an_engine_does_not_have(to: Any, message: str) -> None:
    links = {"links": [{"from": "l4", "to": "l4", "bw_Mbps": 2.4e6}]}
    types = {"l4": TYPES["l4"] | {"mem_MB": 7000.0}}
    problem = load_generation(LLAMA3_8B, types, {"l4": ["a", "b", "c"]}, tensor_parallel=(2,), links=links)
    made = plan_generation(problem)
    assert made.generation is not None
    assert set(made.generation.widths) == {1, 2}
    with pytest.raises(InputError, match=message):
        export(made, to=to)


def test_widths_are_told_as_lost() -> None:
    made = export(narrow(), to="vllm", config=small("llama"))
    assert "values are sent as they are, not narrower as planned" in made.losses


def narrow() -> Plan:
    made = staged([(1, 3), (4, 5)])
    made.stages[0].send_bits = 8
    return made


def test_the_command_tells_what_is_lost(plan: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(plan.save(tmp_path / "plan.json"))
    assert main(["pipeline", "export", place, "--to", "vllm", "--model", "x/y"]) == 0
    printed = capsys.readouterr()
    assert re.match(r"VLLM_PP_LAYER_PARTITION=[\d,]+ vllm serve x/y --pipeline-parallel-size 3 ", printed.out)
    assert printed.err.startswith("for vLLM 0.26")
    assert printed.err.count("lost: ") == 3
    assert main(["pipeline", "export", place, "--to", "exo", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["to"] == "exo"
    assert main(["pipeline", "export", place, "--to", "torch"]) == 2
