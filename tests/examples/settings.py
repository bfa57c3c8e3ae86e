"""What pages take for granted: files and names that a user has; and sizes that a test can bear."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from dovetail import workflow
from tests.examples.terminal import Block, Terminal
from tests.ports import lasting_port

Names = dict[str, Any]
TRAIN = "import sys; print('trained', *sys.argv[1:])\n"
PACED = {"--steps 600": "--steps 4", "--round 10": "--round 0.5"}


class Setting(NamedTuple):
    """`prepare` makes files and gives names for Python; `instead` is what is typed in the place of what."""

    prepare: Callable[[Terminal, list[Block]], Names] = lambda terminal, page: {}
    instead: Mapping[str, str | Callable[[Terminal], str]] = {}


def own_files(*names: str) -> Callable[[Terminal, list[Block]], Names]:
    """Examples under the names that a page gives to the user's own files."""

    def prepare(terminal: Terminal, page: list[Block]) -> Names:
        for name in names:
            source, _, target = name.partition(" as ")
            shutil.copy(terminal.folder / "examples" / source, target or Path(source).name)
        return {}

    return prepare


def programs(*names: str) -> Callable[[Terminal, list[Block]], Names]:
    def prepare(terminal: Terminal, page: list[Block]) -> Names:
        for name in names:
            Path(name).write_text(TRAIN)
        return {}

    return prepare


def _port() -> dict[str, str]:
    port = str(lasting_port())
    return {"--port 8000": f"--port {port}", "127.0.0.1:8000": f"127.0.0.1:{port}"}


def _cluster_import(terminal: Terminal, page: list[Block]) -> Names:
    Path("sacct.txt").write_text(
        "JobID|JobName|Account|State|Submit|Start|End|Elapsed|AllocTRES|ReqTRES\n"
        "100|bert-large|nlp|COMPLETED|2026-01-02T08:00:00|2026-01-02T09:00:00|2026-01-02T11:00:00|02:00:00|"
        "billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=64G,node=1|cpu=8,gres/gpu=4\n"
        "101|sweep|vision|COMPLETED|2026-01-02T08:10:00|2026-01-02T08:20:00|2026-01-02T09:20:00|01:00:00|"
        "cpu=4,gres/gpu:l4=1,gres/gpu=1,mem=8G|cpu=4,gres/gpu:l4=1\n"
    )
    return {}


def _cluster_live(terminal: Terminal, page: list[Block]) -> Names:
    Path("train.py").write_text(TRAIN)
    Path("jobs.csv").write_text("arrival_s,model,width,steps\n0,LM (batch size 5),1,60000\n400,A3C,1,900\n")
    Path("workloads").mkdir()
    Path("workloads/train.py").write_text(TRAIN)
    Path("small.trace").write_text("arrival_s,model,steps,command,folder,steps_flag\n0,toy,3,python train.py,.,-n\n")
    return {}


def _offers(terminal: Terminal, page: list[Block]) -> Names:
    header, *jobs = Path("examples/cluster/jobs.csv").read_text().splitlines(keepends=True)
    width = header.rstrip().split(",").index("width")
    Path("jobs.csv").write_text(header + "".join([job for job in jobs if job.rstrip().split(",")[width] == "1"][:4]))
    offers = next(block.text for block in page if block.language == "yaml")
    Path("offers.yaml").write_text(offers.replace("count: 16", "count: 1"))
    return {}


def _training(terminal: Terminal, page: list[Block]) -> Names:
    shutil.copy(terminal.folder / "examples/cluster/training/train.py", "train.py")
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from dovetail.cluster import ElasticBatches, TrainingLease

    dataset = TensorDataset(torch.rand(64, 2), torch.rand(64, 1))
    return {
        "loader": DataLoader(dataset, batch_size=8),
        "dataset": dataset,
        "load": lambda: None,
        "save": lambda: None,
        "DataLoader": DataLoader,
        "ElasticBatches": ElasticBatches,
        "TrainingLease": TrainingLease,
    }


def _dispatch_model(terminal: Terminal, page: list[Block]) -> Names:
    import torch

    from dovetail.dispatch import Device, Dispatcher

    Path("model.py").write_text("import torch\n\n\ndef update(x):\n    return 2 * x\n")
    for block in page:
        if block.language == "yaml":
            Path("schedulers.yml").write_text(block.text.replace("device: cuda:0", "device: cpu"))

    x = torch.rand(100, 3, dtype=torch.float64)
    model = torch.nn.Linear(3, 2, dtype=torch.float64)
    return {
        "torch": torch,
        "Device": Device,
        "Dispatcher": Dispatcher,
        "devices": "cpu",
        "function": _double,
        "model": model,
        "x": x,
        "x_dot": torch.rand_like(x),
        "y_bar": torch.rand(100, 2, dtype=torch.float64),
    }


def _images(terminal: Terminal, page: list[Block]) -> Names:
    import numpy as np
    import torch

    Path("model.py").write_text("def embed(x):\n    return 2 * x\n")
    Path("images").mkdir()
    for shard in range(3):
        np.save(f"images/{shard}.npy", np.ones((100, 4), dtype=np.float32))
    return {"model": torch.nn.Linear(4, 2)}


def _double(x: Any) -> Any:
    return 2 * x


def _host_live(terminal: Terminal, page: list[Block]) -> Names:
    programs("train.py", "load.py")(terminal, page)
    Path("until.py").write_text("import os, time\nwhile not os.path.exists('go'):\n    time.sleep(0.01)\n")
    from dovetail.host import agent

    return {"batches": [1, 2], "train": lambda batch: None, "agent": agent}


def _host_queue(terminal: Terminal, page: list[Block]) -> Names:
    programs("train.py", "nightly.py", "compare.py", "count.py")(terminal, page)
    Path("words.txt").write_text("one two\n")
    Path("sweep.yaml").write_text(next(block.text for block in page if block.language == "yaml"))
    terminal.type("dovetail host up")
    return {}


def _llama(terminal: Terminal, page: list[Block]) -> Names:
    """A language model of a few thousand weights, as a folder of Hugging Face's."""
    Path("llama").mkdir()
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 64,
        "max_position_embeddings": 8192,
        "bos_token_id": 1,
        "eos_token_id": None,
    }
    Path("llama/config.json").write_text(json.dumps(config))
    for source in Path("examples/pipeline").glob("*.*"):
        shutil.copy(source, source.name)
    return {}


def _llama_run(terminal: Terminal, page: list[Block]) -> Names:
    _llama(terminal, page)
    Path("two.yml").write_text("h100: [h100-0, h100-1]")
    files = "llama/config.json -T gpu_types.yml -D two.yml"
    terminal.type(f"dovetail pipeline plan-generation {files} --format json > plan.json")
    Path("prompts.json").write_text("[[1, 2, 3], [4, 5]]")
    return {}


def _pipeline(terminal: Terminal, page: list[Block]) -> Names:
    import torch

    for source in Path("examples/pipeline").glob("*.*"):
        shutil.copy(source, source.name)
    return {"batch": torch.rand(4, 16, 384)}


def _testing(terminal: Terminal, page: list[Block]) -> Names:
    from dovetail.core.events import Arrived, Start
    from dovetail.core.resources import Device, DeviceType, Pool
    from dovetail.core.tasks import Task, TaskGraph

    class Scheduler:
        def handle(self, events: Any, now: float) -> list[Any]:
            return [
                Start(e.job, "task", "work", (0,), now, 2.0, "it is there") for e in events if isinstance(e, Arrived)
            ]

    pool = Pool((Device(0, "cpu"),), {"cpu": DeviceType("cpu")})
    return {"pool": pool, "graphs": {"one": TaskGraph("one", (Task("task", "work"),), ())}, "scheduler": Scheduler()}


def _requests(terminal: Terminal, page: list[Block]) -> Names:
    """Requests of the example's workflows beside their configuration, and the GPUs of a day."""
    shutil.copy("examples/system_config.yaml", "system_config.yaml")
    terminal.type("dovetail workflow generate --requests 40 --rate 4 --seed 1 --out workflow_requests.jsonl")
    terminal.type("dovetail workflow generate --requests 3 --rate 4 --seed 1 --out requests.yaml")
    for block in page:
        if "gpus_over_time" in block.text:
            Path("day.yaml").write_text(block.text)
    return {}


CONVERSATION = [
    {"timestamp": 100 * i, "input_length": 1200, "output_length": 20, "hash_ids": [1, 2 + i % 3]} for i in range(12)
]


def _conversation(terminal: Terminal, page: list[Block]) -> Names:
    Path("conversation_trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in CONVERSATION))
    return {}


def _imports(terminal: Terminal, page: list[Block]) -> Names:
    for what in ("conv", "code"):
        rows = (f"2023-11-16 18:17:{i:02}.9799600,{300 + i},{20 + i}\n" for i in range(20))
        Path(f"AzureLLMInferenceTrace_{what}.csv").write_text(
            "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(rows)
        )
    usage = {"prompt_tokens": 100, "completion_tokens": 20}
    Path("calls.jsonl").write_text(
        "".join(json.dumps({"ts": i, "usage": usage, "model": "m"}) + "\n" for i in range(9))
    )
    return {}


def _live_data(terminal: Terminal, page: list[Block]) -> Names:
    _conversation(terminal, page)
    terminal.type("dovetail workflow serve --config examples/live/emulated.yaml")
    return {}


def _live_journal(terminal: Terminal, page: list[Block]) -> Names:
    config = yaml.safe_load(Path("examples/live/emulated.yaml").read_text())
    config["workflows"]["chat"] = {"nodes": [{"id": "chat", "model": "chat"}]}
    Path("system.yaml").write_text(yaml.safe_dump(config))
    return {}


FEW = "--warmup 0 --repeats 1 --seconds 0.001 --calm-s 0"
_LINK_PORT = lasting_port()
SETTINGS: dict[str, Setting] = {
    "README.md": Setting(
        programs("train.py"),
        PACED
        | {"--port 8000": "--port 0", "--seeds 0 1 2 3": "--seeds 0", "-s 100 -e 300": "-s 5 -e 10", "-n 9": "-n 2"}
        | {"3 8 --repeats 5 --work 1300": "1 2 --repeats 1 --work 100", "--jobs 60": "--jobs 10"},
    ),
    "cluster-import.md": Setting(_cluster_import),
    "cluster-live.md": Setting(
        _cluster_live,
        {
            "--steps 600": "--steps 4",
            "--round-s 10": "--round-s 0.5",
            "round_s=10": 'round_s=0.5, state="other"',
            '"steps": 600': '"steps": 4',
            "state/journals": "other/journals",
            "STATE/": lambda terminal: f"{terminal.state('cluster')}/",
            "explain 7 --url URL": lambda terminal: f"explain 1 --url {terminal.url('cluster')}",
            "http://127.0.0.1:8000": lambda terminal: terminal.url("cluster"),
            "--round-s 5": "--round-s 0.5",
            "cluster drain local": "cluster drain local; dovetail cluster undrain local",
        },
    ),
    "cluster-plan.md": Setting(_offers, {"a100=32,l4=64": "a100=8,l4=8"}),
    "cluster-training.md": Setting(
        _training,
        {"--round 30": "--round 0.5", "steps 6000": "steps 20", "steps=500": "steps=4", "< 500": "< 4"},
    ),
    "cluster.md": Setting(
        instead={
            "-s 4000 -e 5000": "-s 5 -e 10",
            "--seeds 0 1 2": "--seeds 0",
            "-n 5": "-n 2",
            "-j 6": "-j 1",
            "--jobs 100": "--jobs 10",
            "jobs=100": "jobs=20",
            "[20, 40, 80]": "[20]",
        }
    ),
    "dispatch-backends.md": Setting(
        _dispatch_model,
        {
            '"cuda:0", "cpu"': '"cpu"',
            "--shape 100000,6": "--shape 1000,6",
            '"cuda:0,cpu", "sub_batch_sizes": "65536,512"': '"cpu", "sub_batch_sizes": "512"',
        },
    ),
    "dispatch-map.md": Setting(
        _images,
        {
            '"cuda:0", "cuda:1", "cpu"': '"cpu"',
            "cuda:0,cuda:1,cpu": "cpu",
            "images embeddings --dev": "images again --dev",
        },
    ),
    "host-live.md": Setting(
        _host_live,
        {
            "examples/host/numpy_steps.py 3000": "until.py",
            "dovetail host logs -f 1": "touch go\ndovetail host logs -f 1",
            "sleep 5": "sleep 0.1",
            "dovetail host submit --cores 4": "dovetail host up\ndovetail host submit --cores 1",
            "--speed 10": "--speed 1000",
        },
    ),
    "host-queue.md": Setting(_host_queue, {"--array 20": "--array 2"}),
    "host.md": Setting(
        own_files("host/requests_file.txt"),
        {
            "3 8 --repeats 5": "1 2 --repeats 1",
            "(3, 8, repeats=5": "(1, 2, repeats=1",
            "numpy_steps.py 200": "numpy_steps.py 5",
        },
    ),
    "pipeline-llm.md": Setting(
        _llama, {"--prompt 512 --context 4096 --sequences 1 8": f"--prompt 16 --context 32 --sequences 1 {FEW}"}
    ),
    "pipeline-profile.md": Setting(
        instead={
            "--batch-size 1 8": f"--batch-size 1 {FEW}",
            "--address 0.0.0.0 --port 5201": f"--port {_LINK_PORT}",
            "connect rcc-1 5201": f"connect 127.0.0.1 {_LINK_PORT} --repeats 1 --seconds 0.01",
        }
    ),
    "pipeline-run.md": Setting(
        _llama_run,
        {
            "--max-new-tokens 64": "--max-new-tokens 4",
            "--on all=cpu": "--on all=cpu --microbatches 2",
            "plan -m encoder": "plan -m encoder --max-stages 2",
            "--model hf:llama/": "--model hf:llama/ --on all=cpu",
        },
    ),
    "pipeline.md": Setting(
        _pipeline, {'{"l4": ["gpu-0"], "t4": ["gpu-1", "gpu-2"]}': '{"l4": ["gpu-0"], "t4": ["gpu-1"]}'}
    ),
    "testing.md": Setting(_testing, {"range(1000)": "range(20)"}),
    "workflow-affinity.md": Setting(_conversation),
    "workflow-capacity.md": Setting(_requests, {"--p99 30": "--p99 300"}),
    "workflow-http.md": Setting(instead=_port() | {'state="state"': 'state="other"'}),
    "workflow-import.md": Setting(_imports, {"import jsonl calls.jsonl": "import jsonl calls.jsonl --force"}),
    "workflow-live-data.md": Setting(_live_data),
    "workflow-live.md": Setting(
        _live_journal,
        {
            **_port(),
            "TOKEN FILE": lambda terminal: f"{terminal.state('workflow')}/token",
            'emulated.yaml")': 'emulated.yaml", state="other")',
            "explain RUN": lambda terminal: f"explain {workflow.connect(terminal.state('workflow')).runs()[0].id}",
            "STATE/journals/000003": lambda terminal: f"{terminal.state('workflow')}/journals/000001",
            "STATE/journals/*": lambda terminal: f"{terminal.state('workflow')}/journals/000001",
            "live_journal.jsonl": lambda terminal: f"{terminal.state('workflow')}/journals/000001.jsonl",
        },
    ),
    "workflow-optimal.md": Setting(_requests),
}
