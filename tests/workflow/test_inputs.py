"""The configuration file: what is accepted, what each fault is told as, and what the older scheduler let pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.core.errors import InputError
from dovetail.workflow.compat.gswarm_files import GSWARM
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.costs import CostRules
from dovetail.workflow.inputs.fit import check_fit, make_pool
from dovetail.workflow.inputs.system import MOST, System

SYSTEM = """\
models:
  llm: {memory_gb: 8, gpus_required: 1, load_time_seconds: 10}
  sd: {memory_gb: 4, gpus_required: 2, load_time_seconds: 5}
workflows:
  story:
    name: A story with a picture
    nodes:
    - {id: write, model: llm, inputs: [prompt], outputs: [text]}
    - {id: draw, model: sd, inputs: [text], outputs: [image]}
    edges:
    - {from: write, to: draw}
"""


def read(folder: Path, text: str = SYSTEM, **options: Any) -> System:
    path = folder / "system.yaml"
    path.write_text(text)
    return read_system(path, **options)


def read_older(folder: Path, text: str = SYSTEM) -> System:
    (folder / "system.yaml").write_text(text)
    return GSWARM.read_system(folder / "system.yaml", "fail", None)


def refused(folder: Path, text: str, **options: Any) -> str:
    """The error, with the folder left out."""
    with pytest.raises(InputError) as caught:
        read(folder, text, **options)
    return str(caught.value).replace(f"{folder}/", "")


def changed(old: str, new: str) -> str:
    assert old in SYSTEM
    return SYSTEM.replace(old, new)


# --- what is read ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["system.yaml", "system.yml", "system.json", "system", "system.txt"])
@pytest.mark.parametrize("as_json", [True, False])
def test_content_decides_not_the_suffix(tmp_path: Path, name: str, as_json: bool) -> None:
    path = tmp_path / name
    path.write_text(json.dumps(yaml.safe_load(SYSTEM)) if as_json else SYSTEM)
    graph = read_system(path).graphs()["story"]
    assert [(task.name, task.kind, task.width) for task in graph.tasks] == [("write", "llm", 1), ("draw", "sd", 2)]
    assert graph.after == ((), (0,))


def test_all_fields_of_the_format_are_known(tmp_path: Path) -> None:
    system = read(
        tmp_path,
        """\
models:
  llm:
    name: Llama
    memory_gb: 14.0
    gpus_required: 1
    load_time_seconds: 30.0
    tokens_per_second: 50.0
    token_mean: 100
    token_std: 5.0
    inference_time_mean: 8.5
    inference_time_std: 1.2
    type: llm
    config: {max_length: [50, 100]}
    batch_curve: [1.0, 1.25]
workflows:
  chat:
    name: Chat
    description: Talks
    nodes: [{id: say, model: llm, inputs: [], outputs: [], config_options: [max_length]}]
gpu_types: {a100: {memory_gb: 80, speed: 2}}
gpus: a100:2
costs: {overlap: 0.5}
""",
    )
    assert system.costs == CostRules(overlap=0.5)
    assert system.model_costs["llm"].batch_curve == (1.0, 1.25)
    assert make_pool(system, None).speeds == [2.0, 2.0]
    assert make_pool(system, "3").speeds == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (10.0, "default")),
        ({"tokens_per_second": 50}, (20.0, "tokens")),
        ({"tokens_per_second": 50, "token_mean": 100}, (2.0, "tokens")),
        ({"inference_time_mean": 7}, (7.0, "inference_time_mean")),
        ({"tokens_per_second": 0, "inference_time_mean": 7}, (7.0, "inference_time_mean")),
        ({"tokens_per_second": 50, "inference_time_mean": 7}, (20.0, "tokens")),
    ],
)
def test_a_node_without_a_time_takes_what_its_model_says(
    tmp_path: Path, fields: dict[str, float], expected: tuple[float, str]
) -> None:
    config = yaml.safe_load(SYSTEM)
    config["models"]["llm"] |= fields
    assert read(tmp_path, json.dumps(config)).models["llm"].estimate_s() == expected


def test_a_base_model_fills_in_what_is_missing_over_any_number_of_steps(tmp_path: Path) -> None:
    config = yaml.safe_load(SYSTEM)
    config["models"]["tuned"] = {"base_model": "llm", "memory_gb": 9}
    config["models"]["again"] = {"base_model": "tuned", "load_time_seconds": 1}
    models = read(tmp_path, json.dumps(config)).models
    assert (models["again"].memory_gb, models["again"].load_time_seconds, models["again"].gpus_required) == (9, 1, 1)
    assert models["llm"].memory_gb == 8


def test_edges_may_be_absent_and_a_doubled_edge_counts_once(tmp_path: Path) -> None:
    twice = changed("- {from: write, to: draw}", "- {from: write, to: draw}\n    - {from: write, to: draw}")
    assert read(tmp_path, twice).graphs()["story"].after == ((), (0,))
    assert read(tmp_path, SYSTEM.split("    edges:")[0]).graphs()["story"].after == ((), ())


def test_a_model_may_need_no_gpu(tmp_path: Path) -> None:
    graph = read(tmp_path, changed("gpus_required: 2", "gpus_required: 0")).graphs()["story"]
    assert [task.width for task in graph.tasks] == [1, 0]


# --- what is refused ------------------------------------------------------------------------------

FAULTS = {
    # of workflows: the others could still run, so --on-error may spare the run
    "unknown model": (
        ("model: sd", "model: sdd"),
        "system.yaml:9: workflows.story.nodes.1.model: node 'draw': unknown model 'sdd'; did you mean 'sd'?",
    ),
    "cycle": (
        ("- {from: write, to: draw}", "- {from: write, to: draw}\n    - {from: draw, to: write}"),
        "system.yaml:10: workflows.story.edges: cycle write -> draw -> write",
    ),
    "self loop": (
        ("from: write, to: draw", "from: draw, to: draw"),
        "system.yaml:10: workflows.story.edges: cycle draw -> draw",
    ),
    "edge from a name that is not a node": (
        ("from: write", "from: text"),
        "system.yaml:11: workflows.story.edges.0.from: edge text -> draw: 'text' is not a node; known: draw, write"
        " (--compat gswarm reads such files as GSwarm does)",
    ),
    "edge to a name that is not a node": (
        ("to: draw", "to: drew"),
        "system.yaml:11: workflows.story.edges.0.to: edge write -> drew: 'drew' is not a node; did you mean 'draw'?"
        " (--compat gswarm reads such files as GSwarm does)",
    ),
    "node defined twice": (
        ("id: draw", "id: write"),
        "system.yaml:9: workflows.story.nodes.1.id: node 'write' is defined twice",
    ),
    "no nodes": (
        (SYSTEM[SYSTEM.index("    nodes:") :], "    nodes: []\n"),
        "system.yaml:7: workflows.story.nodes: expected at least one node",
    ),
}

WRONG = {
    # of the file itself: nothing can run
    "typo in a model": (
        ("memory_gb: 8", "memory_gib: 8"),
        "system.yaml:2: models.llm.memory_gib: unknown key 'memory_gib'; did you mean 'memory_gb'?",
    ),
    "typo in a node": (
        ("inputs: [text]", "input: [text]"),
        "system.yaml:9: workflows.story.nodes.1.input: unknown key 'input'; did you mean 'inputs'?",
    ),
    "typo in an edge": (
        ("from: write", "frm: write"),
        "system.yaml:11: workflows.story.edges.0.frm: unknown key 'frm'; did you mean 'from'?",
    ),
    "typo in a workflow": (
        ("    edges:", "    edge:"),
        "system.yaml:10: workflows.story.edge: unknown key 'edge'; did you mean 'edges'?",
    ),
    "typo at the top": (
        ("models:", "model:"),
        "system.yaml:1: model: unknown key 'model'; did you mean 'models'?",
    ),
    "missing field": (
        ("memory_gb: 8, ", ""),
        "system.yaml:2: models.llm: missing key `memory_gb`",
    ),
    "wrong type": (
        ("memory_gb: 8", "memory_gb: big"),
        "system.yaml:2: models.llm.memory_gb: expected float, found str",
    ),
    "half a gpu": (
        ("gpus_required: 1", "gpus_required: 0.5"),
        "system.yaml:2: models.llm.gpus_required: expected int, found float",
    ),
    "negative width": (
        ("gpus_required: 1", "gpus_required: -1"),
        "system.yaml:2: models.llm.gpus_required: expected 0 or more GPUs, found -1",
    ),
    "negative memory": (
        ("memory_gb: 8", "memory_gb: -8"),
        "system.yaml:2: models.llm.memory_gb: expected a number from 0 to 1e+12, found -8.0",
    ),
    "no number": (
        ("memory_gb: 8", "memory_gb: .nan"),
        "system.yaml:2: models.llm.memory_gb: expected a number from 0 to 1e+12, found nan",
    ),
    "endless": (
        ("load_time_seconds: 10", "load_time_seconds: .inf"),
        "system.yaml:2: models.llm.load_time_seconds: expected a number from 0 to 1e+12, found inf",
    ),
    "negative rate": (
        ("memory_gb: 8", "tokens_per_second: -2, memory_gb: 8"),
        "system.yaml:2: models.llm.tokens_per_second: expected a number from 0 to 1e+12, found -2.0",
    ),
    "rate that takes for ever": (
        ("memory_gb: 8", "tokens_per_second: 1.0e-200, memory_gb: 8"),
        "system.yaml:2: models.llm.tokens_per_second: expected at most 1e+12 s for a node, found 1e+203",
    ),
    "base model that is none": (
        ("memory_gb: 8", "base_model: lm, memory_gb: 8"),
        "system.yaml:2: models.llm.base_model: 'lm' is not a model; did you mean 'llm'?",
    ),
    "base model of a wrong type": (
        ("memory_gb: 8", "base_model: [sd], memory_gb: 8"),
        "system.yaml:2: models.llm.base_model: ['sd'] is not a model; known: llm, sd",
    ),
    "batch curve that does not begin at 1": (
        ("memory_gb: 8", "batch_curve: [1.5, 2], memory_gb: 8"),
        "system.yaml:2: models.llm.batch_curve: expected positive slow-downs of batches of 1, 2, ..., the first 1.0",
    ),
    "models that are a list": (
        ("models:\n", "models: []\nmore:\n"),
        "system.yaml:1: models: expected object, found array",
    ),
    "unusable gpu type": (
        ("workflows:", "gpu_types: {a100: {speed: 0}}\nworkflows:"),
        "system.yaml:4: gpu_types.a100.speed: expected a positive number up to 1e+12, found 0.0",
    ),
    "gpu type of endless memory": (
        ("workflows:", "gpu_types: {a100: {memory_gb: .inf}}\nworkflows:"),
        "system.yaml:4: gpu_types.a100.memory_gb: expected a positive number up to 1e+12, found inf",
    ),
    "typo in the costs": (
        ("workflows:", "costs: {overlp: 0.5}\nworkflows:"),
        "system.yaml:4: costs.overlp: unknown key 'overlp'; did you mean 'overlap'?",
    ),
    "unusable costs": (
        ("workflows:", "costs: {overlap: 1.5}\nworkflows:"),
        "system.yaml:4: costs.overlap: expected 0 to 1, found 1.5",
    ),
    "endless costs": (
        ("workflows:", "costs: {dram_gb: .inf}\nworkflows:"),
        "system.yaml:4: costs.dram_gb: expected a number >= 0, found inf",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_workflow_is_named_with_file_line_node_and_field(tmp_path: Path, fault: str) -> None:
    change, message = FAULTS[fault]
    assert refused(tmp_path, changed(*change)) == message


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("on_error", ["reject", "skip"])
def test_a_faulty_workflow_can_be_set_aside(tmp_path: Path, fault: str, on_error: Any) -> None:
    change, message = FAULTS[fault]
    other = "\n  talk:\n    nodes: [{id: say, model: llm}]\n"
    system = read(tmp_path, changed(*change).rstrip() + other, on_error=on_error)
    assert {name: text.replace(f"{tmp_path}/", "") for name, text in system.faults.items()} == {"story": message}
    assert list(system.graphs()) == ["talk"]


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("on_error", ["fail", "reject", "skip"])
def test_a_wrong_file_stops_everything(tmp_path: Path, wrong: str, on_error: Any) -> None:
    change, message = WRONG[wrong]
    assert refused(tmp_path, changed(*change), on_error=on_error) == message


def test_base_models_in_a_circle_are_named(tmp_path: Path) -> None:
    text = changed("memory_gb: 8", "base_model: sd, memory_gb: 8").replace("memory_gb: 4", "base_model: llm")
    message = "system.yaml:2: models.llm.base_model: inherits from itself: llm -> sd -> llm"
    assert refused(tmp_path, text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "system.yaml: is empty; expected YAML or JSON"),
        ("- 1", "system.yaml: expected a mapping with models and workflows, found list"),
        ("{}", "system.yaml: missing key `models`"),
        ("models: {}", "system.yaml: missing key `workflows`"),
        ("models: {a: [}", "system.yaml:1: not YAML: did not find expected node content"),
        ('{"models": [}', "system.yaml:1: not JSON: JSON is malformed: invalid character (byte 12)"),
    ],
)
def test_what_is_not_a_configuration(tmp_path: Path, text: str, message: str) -> None:
    assert refused(tmp_path, text) == message


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"system.yaml: no such file"):
        read_system(tmp_path / "system.yaml")


# --- --cost on top of the file --------------------------------------------------------------------


def test_cost_options_go_over_those_of_the_file_and_are_converted(tmp_path: Path) -> None:
    text = changed("workflows:", "costs: {overlap: 0.5, noise: 0.1}\nworkflows:")
    costs = read(tmp_path, text, cost_options={"overlap": "0.25", "batching": "true"}).costs
    assert costs == CostRules(overlap=0.25, noise=0.1, batching=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overlp": "0.5"}, "--cost overlp: unknown key; did you mean 'overlap'?"),
        ({"overlap": "much"}, "--cost overlap: expected float, found str"),
        ({"overlap": "2"}, "--cost overlap: expected 0 to 1, found 2.0"),
        ({"pcie_gb_s": "0"}, "--cost pcie_gb_s: expected a positive number, found 0.0"),
        ({"noise": "nan"}, "--cost noise: expected a number >= 0, found nan"),
        ({"window": "widest"}, "--cost window: expected primary or slowest, found 'widest'; did you mean 'slowest'?"),
    ],
)
def test_a_wrong_cost_option_is_told(tmp_path: Path, options: dict[str, str], message: str) -> None:
    assert refused(tmp_path, SYSTEM, cost_options=options) == message


# --- the pool -------------------------------------------------------------------------------------


def test_the_pool_must_be_given_somewhere(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="how many GPUs"):
        make_pool(read(tmp_path), None)
    assert len(make_pool(read(tmp_path, SYSTEM + "gpus: 3\n"), None)) == 3


@pytest.mark.parametrize(
    ("gpus", "message"),
    [
        ("0", "--gpus 0: expected at least one GPU"),
        ("two", "--gpus two: 'two' is not a count; expected 4, or a100:2,l4:4"),
        ("-1", "--gpus -1: '-1' is not a count; expected 4, or a100:2,l4:4"),
        ("a100:2", "--gpus a100:2: 'a100' is not a GPU type"),
    ],
)
def test_a_wrong_pool_is_told(tmp_path: Path, gpus: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        make_pool(read(tmp_path), gpus)
    assert str(caught.value) == message


TYPES = "gpu_types: {big: {memory_gb: 8}, small: {memory_gb: 2}}\nworkflows:"


@pytest.mark.parametrize(
    ("gpus", "misfit"),
    [
        ("1", "node 'draw' (model 'sd') needs 2 GPUs, the pool has 1"),
        ("small:2", "node 'write' (model 'llm') needs 8192 MiB on each of 1 neighbouring GPUs, and no 1 have that"),
        ("big:1,small:1", None),  # draw needs 2 GiB on each
        ("small:1,big:1,small:1", None),
    ],
)
def test_a_workflow_that_does_not_fit_the_pool_is_set_aside(tmp_path: Path, gpus: str, misfit: str | None) -> None:
    system = read(tmp_path, changed("workflows:", TYPES))
    pool = make_pool(system, gpus)
    check_fit(system, pool, Path("system.yaml"))
    assert system.faults == ({"story": f"system.yaml: workflows.story: {misfit}"} if misfit else {})


def test_very_large_numbers_up_to_the_limit_are_usable(tmp_path: Path) -> None:
    model = read(tmp_path, changed("memory_gb: 8", f"memory_gb: {MOST!r}")).models["llm"]
    assert model.cost.shard_mib == 1024 * 10**12


# --- as the older scheduler read it ---------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        ("memory_gb: 8", "colour: red, memory_gb: 8"),
        ("id: write", "colour: red, id: write"),
        ("from: write", "colour: red, from: write"),
        ("    edges:", "    colour: red\n    edges:"),
        ("models:", "colour: red\nmodels:"),
        ("from: write, to: draw", "from: write, to: nowhere"),
        ("from: write, to: draw", "from: nowhere, to: nowhere else"),
        ("memory_gb: 8", "base_model: unknown, memory_gb: 8"),
    ],
)
def test_compat_ignores_what_the_older_scheduler_ignored(tmp_path: Path, change: tuple[str, str]) -> None:
    system = read_older(tmp_path, changed(*change))
    assert system.faults == {}
    assert system.graphs()["story"].never == {}


@pytest.mark.parametrize(
    ("change", "never"),
    [
        (("from: write", "from: text"), {"draw": "waits for 'text', which is not a node"}),
        (("from: write", "from: draw"), {"draw": "waits for ever: cycle draw -> draw"}),
        (
            ("- {from: write, to: draw}", "- {from: write, to: draw}\n    - {from: draw, to: write}"),
            dict.fromkeys(("write", "draw"), "waits for ever: cycle write -> draw -> write"),
        ),
    ],
)
def test_compat_lets_a_node_wait_for_ever(tmp_path: Path, change: tuple[str, str], never: dict[str, str]) -> None:
    graph = read_older(tmp_path, changed(*change)).graphs()["story"]
    assert {graph.tasks[i].name: why for i, why in graph.never.items()} == never
    assert all(i not in graph.never for i in graph.roots)


def test_compat_lets_a_node_that_is_too_wide_wait_for_ever(tmp_path: Path) -> None:
    system = read_older(tmp_path)
    GSWARM.check_fit(system, make_pool(system, "1"), Path("system.yaml"))
    assert list(system.graphs()["story"].never.values()) == ["needs 2 GPUs, the pool has 1"]


@pytest.mark.parametrize(
    "text",
    [
        changed("id: draw", "id: write"),  # which of the two would run?
        changed("model: sd", "model: sdd"),
        changed("    nodes:", "    nodes: 3\n    nods:"),
        SYSTEM[: SYSTEM.index("    nodes:")],
    ],
)
def test_compat_refuses_what_the_older_scheduler_could_not_run_either(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        read_older(tmp_path, text)
