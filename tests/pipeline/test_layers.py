"""A model is cut into layers that, one after another, give what the whole gives."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.core.errors import InputError
from dovetail.pipeline.models.cuts import choose_cuts
from dovetail.pipeline.models.load import load
from dovetail.pipeline.models.spec import Chain, ModelSpec

torch = pytest.importorskip("torch")

EXAMPLE = f"{Path(__file__).parents[2] / 'examples/pipeline/transformer.py'}:encoder"
SMALL = {"blocks": 2, "width": 16, "heads": 2, "sequence": 5}

MODELS = '''
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.narrow(torch.relu(self.wide(self.norm(x))))


class Listed(nn.Module):
    """A ModuleList between a stem and a head; sizes of the input are used at the very end."""
    input_shapes = ((5, 8),)

    def __init__(self, blocks=4):
        super().__init__()
        self.stem = nn.Linear(8, 8)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(40, 3)

    def forward(self, x):
        batch, tokens = x.shape[0], x.shape[1]
        y = self.stem(x)
        for block in self.blocks:
            y = block(y)
        return self.head(y.reshape(batch, tokens * 8)), y.mean(1)


class Two(Listed):
    """Two inputs, of which the second is needed by every block: two tensors cross every cut."""
    input_shapes = ((5, 8), (5, 8))

    def forward(self, x, y):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) * torch.sigmoid(y)
        return x


class Branching(Listed):
    """Control flow that only an export can follow, and a tensor made of sizes alone."""

    def forward(self, x):
        if x.dim() == 3 and x.shape[1] > 2:
            y = self.stem(x) + torch.arange(x.shape[1]).view(1, -1, 1) * torch.ones(x.shape[0], 1, 1, dtype=x.dtype)
        for block in self.blocks:
            y = block(y)
        return y


class Data(Listed):
    def forward(self, x):
        return self.stem(x) if x.sum() > 0 else x


class Counted(nn.Module):
    input_shapes, input_dtype = ((4,),), "torch.int64"

    def __init__(self):
        super().__init__()
        self.words, self.block = nn.Embedding(11, 8), nn.Sequential(Block(), Block(), Block())
        self.out = nn.Linear(8, 2)

    def forward(self, ids):
        return self.out(self.block(self.words(ids)))


def nested():
    return nn.Sequential(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), nn.Linear(8, 4))


def blocks():
    return [Block(), Block()]


def empty():
    return []


def fails():
    raise ValueError("two\\n  lines")


ready = nn.Linear(8, 8)
wrong = dict
'''


@pytest.fixture
def models(tmp_path: Path) -> str:
    path = tmp_path / "models.py"
    path.write_text(MODELS)
    return str(path)


def run(chain: Chain, value: Any, dtype: str = "torch.float32") -> Any:
    for i in range(1, len(chain.layers) + 1):
        value = chain.part(i, i, "cpu", dtype)(value)
    return value


def the_model(spec: ModelSpec) -> Any:
    """The model itself, from the same factory with the same seed."""
    from dovetail.pipeline.models.factory import build

    torch.manual_seed(spec.seed)
    return build(spec).model.eval()


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return bool(torch.allclose(one, two, rtol=1e-5, atol=1e-6))
    return len(one) == len(two) and all(map(same, one, two))


def test_a_sequential_model_gives_its_children() -> None:
    spec = ModelSpec(source=EXAMPLE, arguments=SMALL)
    chain = load(spec)
    assert chain.names == ["attention1", "mlp1", "attention2", "mlp2"]
    value: Any = chain.inputs(3, "torch.float32")
    assert value.shape == (3, 5, 16)
    with torch.inference_mode():
        assert torch.equal(run(chain, value), the_model(spec)(value))
    assert torch.equal(run(chain, value), chain.part(1, 4, "cpu", "torch.float32")(value))


def test_the_example_is_cut_into_half_blocks_by_its_graph_too() -> None:
    spec = ModelSpec(source=EXAMPLE, arguments=SMALL | {"blocks": 4}, cut="graph")
    chain = load(spec)
    assert chain.names == [f"{half}{i}" for i in range(1, 5) for half in ("attention", "mlp")]
    value = chain.inputs(5, "torch.float32")
    with torch.inference_mode():
        assert torch.equal(run(chain, value), the_model(spec)(value))


@pytest.mark.parametrize(
    ("name", "layers", "crossing"),
    [("Listed", 5, 1), ("Two", 4, 2), ("Branching", 5, 1), ("Counted", 4, 1)],
)
def test_any_module_is_cut_where_few_tensors_are_alive(models: str, name: str, layers: int, crossing: int) -> None:
    spec = ModelSpec(source=f"{models}:{name}", seed=3)
    chain = load(spec)
    assert layers - 1 <= len(chain.layers) <= layers + 1, chain.names
    for batch in (1, 2, 7):
        value = chain.inputs(batch, "torch.float32", seed=5)
        found = chain.part(1, 1)(value)
        assert (len(found) if isinstance(found, tuple) else 1) == crossing
        with torch.inference_mode():
            assert same(run(chain, value), the_model(spec)(*(value if isinstance(value, tuple) else (value,))))


def test_another_dtype_starts_from_the_loaded_weights(models: str) -> None:
    for name in ("Branching", "Listed"):
        chain = load(ModelSpec(source=f"{models}:{name}"))
        value = chain.inputs(2, "torch.float32")
        exact = run(chain, value)
        half = run(chain, chain.inputs(2, "torch.bfloat16"), "torch.bfloat16")
        assert (half[0] if isinstance(half, tuple) else half).dtype == torch.bfloat16
        assert same(run(chain, value), exact)


def test_nested_sequentials_are_flattened_and_lists_are_chains(models: str) -> None:
    assert load(ModelSpec(source=f"{models}:nested", shapes=((8,),))).names == ["0.0", "0.1", "1"]
    assert load(ModelSpec(source=f"{models}:blocks", shapes=((8,),))).names == ["0", "1"]
    assert len(load(ModelSpec(source=f"{models}:ready", shapes=((8,),))).layers) == 1


def test_the_same_seed_gives_the_same_weights_and_inputs() -> None:
    before = torch.random.get_rng_state()
    one, two = (load(ModelSpec(source=EXAMPLE, arguments=SMALL, seed=7)) for _ in range(2))
    other = load(ModelSpec(source=EXAMPLE, arguments=SMALL, seed=8))
    value = one.inputs(2, "torch.float32", seed=1)
    assert same(value, two.inputs(2, "torch.float32", seed=1))
    assert same(run(one, value), run(two, value))
    assert not same(run(one, value), run(other, value))
    assert torch.equal(before, torch.random.get_rng_state())


def test_weights_are_loaded_and_must_fit(models: str, tmp_path: Path) -> None:
    spec = ModelSpec(source=f"{models}:nested", shapes=((8,),))
    other = the_model(ModelSpec(source=f"{models}:nested", seed=9))
    path = tmp_path / "weights.pt"
    torch.save(other.state_dict(), path)
    chain = load(ModelSpec(source=f"{models}:nested", shapes=((8,),), weights=str(path)))
    value = chain.inputs(2, "torch.float32")
    assert same(run(chain, value), other(value))
    assert not same(run(chain, value), run(load(spec), value))
    with pytest.raises(InputError, match=r"weights\.pt: weights that do not fit"):
        load(ModelSpec(source=EXAMPLE, arguments=SMALL, weights=str(path)))
    path.write_text("no weights")
    with pytest.raises(InputError, match=r"weights\.pt: expected weights as torch\.save or safetensors write them$"):
        load(ModelSpec(source=EXAMPLE, arguments=SMALL, weights=str(path)))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{}:Lists", "no 'Lists' in .*; did you mean 'Listed'"),
        ("{}:Data", "Data: cannot be cut into layers: symbolic trace: .*exported trace: .*models.py:\\d+ in forward"),
        ("{}:wrong", "expected a nn.Module, found dict"),
        ("{}:empty", "empty: has no layers"),
        ("{}:fails", "the factory failed: ValueError: two lines$"),
        ("{}:nested", "the shape of its input is not known"),
        ("no/such.py:model", "no/such.py: no such file"),
        ("no_such_package:model", "cannot import no_such_package"),
        ("resnet", "expected MODULE:FACTORY"),
        ("no/such.onnx", "no/such.onnx: no such file"),
        ("hf:no/such", "no such file; expected the configuration"),
    ],
)
def test_what_cannot_be_loaded_is_said(models: str, source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load(ModelSpec(source=source.format(models)))


def test_inputs_that_do_not_fit_are_told_in_one_line(models: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        InputError, match=r"^Listed: does not run on items of 5x9: RuntimeError: .*cannot be multiplied"
    ):
        load(ModelSpec(source=f"{models}:Listed", shapes=((5, 9),)))
    with pytest.raises(InputError, match="cannot be cut"):
        load(ModelSpec(source=f"{models}:Data"))
    assert capfd.readouterr().err == ""  # tracers say nothing of their own


def test_arguments_and_layers_out_of_range_are_refused() -> None:
    with pytest.raises(InputError, match=r"the factory failed: TypeError: .*depth"):
        load(ModelSpec(source=EXAMPLE, arguments={"depth": 3}))
    chain = load(ModelSpec(source=EXAMPLE, arguments=SMALL))
    with pytest.raises(InputError, match="layers 3 to 5: encoder has layers 1 to 4"):
        chain.part(3, 5)
    with pytest.raises(InputError, match=r"unknown dtype 'torch.float33'; did you mean"):
        chain.inputs(1, "torch.float33")


@pytest.mark.filterwarnings("ignore")
def test_a_configuration_is_named_for_its_folder_and_its_kind_must_be_known(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    file = tmp_path / "tiny-vit" / "config.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"model_type": "vit"} | CONFIGS["vit"]))
    assert load(ModelSpec(source=f"hf:{file}")).name == load(ModelSpec(source=f"hf:{file.parent}")).name == "tiny-vit"
    for text, message in (
        ('{"model_type": "bertt"}', r"unknown model_type 'bertt'; did you mean 'bert'\?$"),
        ("{", "not JSON"),
        ("[1]", "missing key 'model_type'"),
        ("{}", "missing key 'model_type'"),
    ):
        file.write_text(text)
        with pytest.raises(InputError, match=rf"config\.json: {message}"):
            load(ModelSpec(source=f"hf:{file}"))


CONFIGS = {
    "bert": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    "llama": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "bos_token_id": 1, "eos_token_id": 2, "n_positions": 12},
    "vit": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_hugging_face_configuration_is_enough(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from dovetail.pipeline.models.hugging_face import build

    words = {} if kind == "vit" else {"vocab_size": 50}
    words |= {} if kind in ("vit", "gpt2") else {"max_position_embeddings": 12}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind} | CONFIGS[kind] | words))
    spec = ModelSpec(source=f"hf:{tmp_path}")
    chain = load(spec)
    assert len(chain.layers) >= 5, chain.names  # something before the blocks, and two halves of each
    value: Any = chain.inputs(3, "torch.float32")
    if kind != "vit":
        assert value.dtype == torch.int64
        assert value.shape == (3, 12)
        assert int(value.max()) < 50
    torch.manual_seed(0)
    with torch.inference_mode():
        assert same(run(chain, value), build(spec).model.eval()(value))
    half = run(chain, chain.inputs(3, "torch.bfloat16"), "torch.bfloat16")
    assert (half[0] if isinstance(half, tuple) else half).dtype == torch.bfloat16


def onnx_blocks(path: Path, blocks: int = 4, batch: int | str = "batch") -> None:
    """Residual blocks; a constant that is computed from constants is used by all of them."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(0)
    nodes = [helper.make_node("Sqrt", ["four"], ["two"])]
    weights = [numpy_helper.from_array(np.array(4, np.float32), "four")]
    name = "x"
    for i in range(blocks):
        for key, shape in (("a", (8, 16)), ("b", (16, 8))):
            weights.append(numpy_helper.from_array(random.normal(size=shape).astype(np.float32) / 8, f"{key}{i}"))
        nodes += [
            helper.make_node("MatMul", [name, f"a{i}"], [f"wide{i}"], name=f"widen{i}"),
            helper.make_node("Relu", [f"wide{i}"], [f"relu{i}"]),
            helper.make_node("MatMul", [f"relu{i}", f"b{i}"], [f"narrow{i}"]),
            helper.make_node("Mul", [f"narrow{i}", "two"], [f"scaled{i}"]),
            helper.make_node("Add", [f"scaled{i}", name], [f"sum{i}"]),
        ]
        name = f"sum{i}"
    info = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "blocks", [info("x", 1, [batch, 5, 8])], [info(name, 1, [batch, 5, 8])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, str(path))


def test_an_onnx_file_is_cut_and_gives_what_it_gave(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    runtime = pytest.importorskip("onnxruntime")
    path = tmp_path / "blocks.onnx"
    onnx_blocks(path)
    chain = load(ModelSpec(source=str(path)))
    assert chain.name == "blocks"
    assert chain.names == ["widen0", "widen1", "widen2", "widen3"]
    assert chain.shapes == ((5, 8),)
    assert chain.layers[0].weight_bytes == 4 * (2 * 8 * 16 + 1)  # type: ignore[attr-defined]
    value: Any = chain.inputs(3, "torch.float32")
    whole = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": value.numpy()})
    assert same(run(chain, value), torch.from_numpy(whole[0]))
    with pytest.raises(InputError, match=r"computes in torch.float32, not in torch.float16"):
        chain.part(1, 1, "cpu", "torch.float16")


def test_work_is_half_weights_and_half_heavy_operations(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from dovetail.pipeline.models.onnx_layers import _Graph

    path = tmp_path / "blocks.onnx"
    onnx_blocks(path)
    graph = _Graph(onnx, onnx.load(str(path)))
    work = dict(zip([node.op_type for node in graph.nodes], graph.work(), strict=True))
    values = 4 * 2 * 8 * 16 + 1
    assert sum(graph.work()) == pytest.approx(2.0)
    assert work == pytest.approx({"Sqrt": 1 / values, "MatMul": 128 / values + 1 / 8, "Relu": 0, "Mul": 0, "Add": 0})


def test_an_onnx_file_says_which_batch_it_wants(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / "fixed.onnx"
    onnx_blocks(path, batch=2)
    chain = load(ModelSpec(source=str(path)))
    run(chain, chain.inputs(2, "torch.float32"))
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(InputError, match="not an ONNX model"):
        load(ModelSpec(source=str(tmp_path / "broken.onnx")))


@given(st.lists(st.tuples(st.one_of(st.none(), st.integers(1, 6)), st.sampled_from([0.0, 0.01, 1.0, 3.0])), min_size=1))
def test_cuts_are_allowed_in_order_and_no_layer_is_empty_handed(operations: list[tuple[int | None, float]]) -> None:
    alive, work = [a for a, _ in operations], [w for _, w in operations]
    cuts = choose_cuts(alive, work)
    assert cuts == sorted(set(cuts))
    assert all(alive[cut] is not None and cut < len(work) - 1 for cut in cuts)
    ends = [*cuts, len(work) - 1]
    sums = [sum(work[a + 1 : b + 1]) for a, b in zip([-1, *cuts], ends, strict=True)]
    assert not cuts or all(total > 0 for total in sums)


def test_loading_a_model_needs_no_path_of_its_own(models: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(ModelSpec(source=f"{models}:nested", shapes=((8,),)))
    assert "models" not in sys.modules
