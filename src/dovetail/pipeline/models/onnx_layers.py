"""An ONNX file as a chain of layers, each a session of onnxruntime over a piece of the graph."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dovetail.core.errors import InputError, MissingExtraError
from dovetail.pipeline.models.cuts import MOST_ALIVE, choose_cuts
from dovetail.pipeline.models.spec import Chain, ModelSpec, need_torch

if TYPE_CHECKING:
    import torch

    from dovetail.pipeline.models.spec import Value

_HEAVY = ("MatMul", "Gemm", "Conv", "ConvTranspose", "Attention", "LSTM", "GRU")


class OnnxLayer:
    """A piece of the graph; its session is made when it is first called, on the device it was placed on."""

    def __init__(self, model: Any, dtype: str, device: str = "cpu") -> None:
        self.model = model
        self.dtype = dtype
        self.device = device
        self.weight_bytes = sum(_values(weight) * weight_item_bytes(weight) for weight in model.graph.initializer)
        self._session: Any = None

    def placed(self, device: torch.device, dtype: torch.dtype) -> OnnxLayer:
        if str(dtype) != self.dtype:
            raise InputError(f"the ONNX file computes in {self.dtype}, not in {dtype}; convert the file first")
        return OnnxLayer(self.model, self.dtype, str(device))

    def __call__(self, value: Value) -> Value:
        import numpy as np
        import torch

        names = [item.name for item in self.model.graph.input]
        tensors = value if isinstance(value, tuple) else (value,)
        feed = {name: np.ascontiguousarray(tensor.cpu().numpy()) for name, tensor in zip(names, tensors, strict=True)}
        if self._session is None:
            self._session = _session(self.model, self.device, torch.get_num_threads())
        try:
            results = self._session.run(None, feed)
        except Exception as error:  # onnxruntime has no public base class of its errors
            raise InputError(f"the ONNX layer cannot run: {str(error).strip().splitlines()[0]}") from error
        found = tuple(torch.from_numpy(np.asarray(result)).to(tensors[0].device) for result in results)
        return found[0] if len(found) == 1 else found


def load_onnx(spec: ModelSpec) -> Chain:
    """Read an ONNX file and cut it where few tensors are alive."""
    onnx = _need("onnx")
    _need("onnxruntime")
    need_torch("running ONNX layers")
    path = Path(spec.source)
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    if spec.weights is not None or spec.arguments:
        raise InputError(f"{path}: an ONNX file holds its own weights and takes no arguments")
    try:
        model = onnx.shape_inference.infer_shapes(onnx.load(str(path)))
    except Exception as error:
        raise InputError(f"{path}: not an ONNX model: {error}") from error
    graph = _Graph(onnx, model)
    if not graph.inputs or not len(model.graph.node):
        raise InputError(f"{path}: a model without inputs or without operations")
    layers, names = graph.cut()
    return Chain(
        path.stem,
        layers,
        names,
        shapes=spec.shapes or tuple(_shape(path, item) for item in graph.inputs),
        input_dtypes=[_dtype(onnx, item) for item in graph.inputs],
        id_limit=_id_limit(model),
    )


def _need(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError:
        raise MissingExtraError("onnx", package, "an ONNX model") from None


def _session(model: Any, device: str, threads: int) -> Any:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    wanted = "CPUExecutionProvider" if device == "cpu" else "CUDAExecutionProvider"
    if wanted not in runtime.get_available_providers():
        raise InputError(f"device {device}: this onnxruntime has no {wanted}; pip install onnxruntime-gpu")
    return runtime.InferenceSession(model.SerializeToString(), options, providers=[wanted])


class _Graph:
    """What lives where in an ONNX graph."""

    def __init__(self, onnx: Any, model: Any) -> None:
        self.onnx = onnx
        self.model = model
        self.nodes = list(model.graph.node)
        self.weights = {weight.name: weight for weight in model.graph.initializer}
        self.inputs = [item for item in model.graph.input if item.name not in self.weights]
        self.outputs = [item.name for item in model.graph.output]
        graph = model.graph
        self.types = {item.name: item.type for item in (*graph.input, *graph.value_info, *graph.output)}
        self.reads = [_reads(node) for node in self.nodes]
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.free = set(self.weights)  # needs no data: made again in every layer that uses it
        for node, reads in zip(self.nodes, self.reads, strict=True):
            if all(name in self.free for name in reads):
                self.free.update(node.output)
        self.last_use = dict.fromkeys(self.outputs, len(self.nodes))
        for i, reads in enumerate(self.reads):
            for name in reads:
                self.last_use[name] = max(self.last_use.get(name, -1), i)

    def alive(self, position: int) -> list[str] | None:
        """The tensors that cross the cut after an operation; None if the type of one is not known."""
        made = [item.name for item in self.inputs]
        made += [name for node in self.nodes[: position + 1] for name in node.output]
        crossing = [name for name in made if self.last_use.get(name, -1) > position and name not in self.free]
        known = all(name in self.types and self.types[name].HasField("tensor_type") for name in crossing)
        return crossing if known and crossing else None

    def work(self) -> list[float]:
        total = sum(map(_values, self.weights.values())) or 1
        heavy = sum(node.op_type in _HEAVY for node in self.nodes) or 1
        seen: set[str] = set()
        shares = []
        for node, reads in zip(self.nodes, self.reads, strict=True):
            fresh = [self.weights[name] for name in reads if name in self.weights and name not in seen]
            seen.update(reads)
            shares.append(sum(map(_values, fresh)) / total + (node.op_type in _HEAVY) / heavy)
        return shares

    def cut(self) -> tuple[list[OnnxLayer], list[str]]:
        alive = [self.alive(i) for i in range(len(self.nodes))]
        work = self.work()
        cuts = choose_cuts([len(x) if x is not None and len(x) <= MOST_ALIVE else None for x in alive], work)
        ends = [[item.name for item in self.inputs], *(alive[cut] or [] for cut in cuts), self.outputs]
        layers, names = [], []
        for number, (before, last) in enumerate(zip([-1, *cuts], [*cuts, len(self.nodes) - 1], strict=True)):
            layers.append(self.piece(before + 1, last, ends[number], ends[number + 1]))
            heaviest = self.nodes[max(range(before + 1, last + 1), key=work.__getitem__)]
            names.append(heaviest.name or f"{heaviest.op_type}{number + 1}")
        return layers, names

    def piece(self, first: int, last: int, entering: Sequence[str], leaving: Sequence[str]) -> OnnxLayer:
        """The operations first..last, with whatever free ones they need, as a model of its own."""
        helper = self.onnx.helper
        chosen = {i for i in range(first, last + 1) if not all(name in self.free for name in self.nodes[i].output)}
        wanted = [name for i in chosen for name in self.reads[i]] + list(leaving)
        seen: set[str] = set()
        while wanted:
            name = wanted.pop()
            if name in self.free and name not in seen and name not in self.weights:
                chosen.add(self.maker[name])
                wanted += self.reads[self.maker[name]]
            seen.add(name)
        graph = helper.make_graph(
            [self.nodes[i] for i in sorted(chosen)],
            f"layers{first}",
            [self._info(name) for name in entering],
            [self._info(name) for name in leaving],
            [weight for name, weight in self.weights.items() if name in seen],
        )
        model = helper.make_model(graph, opset_imports=self.model.opset_import, functions=self.model.functions)
        model.ir_version = self.model.ir_version
        floating = next((dtype for item in self.inputs if "float" in (dtype := _dtype(self.onnx, item))), "")
        return OnnxLayer(model, floating or "torch.float32")

    def _info(self, name: str) -> Any:
        kind = self.types[name].tensor_type.elem_type
        return self.onnx.helper.make_tensor_value_info(name, kind, None)


def _reads(node: Any) -> list[str]:
    """The values an operation reads, also from within the bodies of loops and branches."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for body in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            inside = {item.name for item in (*body.input, *body.initializer)} | {x for n in body.node for x in n.output}
            names += [name for inner in body.node for name in _reads(inner) if name not in inside]
    return names


def _values(weight: Any) -> int:
    count = 1
    for dim in weight.dims:
        count *= dim
    return count


def weight_item_bytes(weight: Any) -> int:
    """Bytes of one value of an initializer."""
    onnx = importlib.import_module("onnx")
    return int(onnx.helper.tensor_dtype_to_np_dtype(weight.data_type).itemsize)


def _dtype(onnx: Any, item: Any) -> str:
    return f"torch.{onnx.helper.tensor_dtype_to_np_dtype(item.type.tensor_type.elem_type)}"


def _shape(path: Path, item: Any) -> tuple[int, ...]:
    dims = list(item.type.tensor_type.shape.dim)[1:]
    if not all(dim.dim_value > 0 for dim in dims):
        raise InputError(f"{path}: the shape of the input {item.name!r} is not fixed in the file; give it")
    return tuple(dim.dim_value for dim in dims)


def _id_limit(model: Any) -> int:
    """Integer inputs are taken to be rows of the smallest table that something is gathered from."""
    tables = {weight.name: weight.dims[0] for weight in model.graph.initializer if len(weight.dims) > 1}
    gathered = [
        tables[node.input[0]] for node in model.graph.node if node.op_type == "Gather" and node.input[0] in tables
    ]
    return min(gathered, default=2)
