"""Models of transformers in this process, on the CPU or on CUDA devices.

The weights are mapped from their files and stay mapped while the model is kept in host memory. A GPU has a copy of
them, which `unload` drops and `load` makes anew; on the CPU the mapped weights are used as they are.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, MissingExtraError, did_you_mean, is_out_of_memory
from dovetail.workflow.live.protocol import (
    Answer,
    BackEnd,
    BackEndError,
    Emit,
    Memory,
    ModelCall,
    OutOfMemoryError,
    ServedModel,
)

if TYPE_CHECKING:
    import torch

    from dovetail.workflow.live.backends.device_copy import DeviceCopy
    from dovetail.workflow.live.backends.torch_tasks import ModelTokenizer, TorchTask
    from dovetail.workflow.live.backends.weights import MappedWeights

MIB = 1 << 20
CLASSES = {
    "llm": "AutoModelForCausalLM",
    "embedding": "AutoModel",
    "classification": "AutoModelForSequenceClassification",
}


class TorchOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"auto_class": "class"}):
    """A source's `options`. `class` is transformers' class for a model of a type that is not known here. `chat`: a
    prompt is a user's message. `defaults` are options of calls that do not say otherwise. `memory_limit_mib` is what
    this process may take of each CUDA device."""

    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    auto_class: str | None = None
    chat: bool = False
    pooling: Literal["mean", "cls", "last"] | None = None
    normalize: bool | None = None
    defaults: dict[str, Any] = {}
    memory_limit_mib: int | None = None


def make(model: ServedModel) -> BackEnd:
    """What serves a model whose source has a `path`."""
    return TorchBackEnd(model)


def prepare() -> None:
    """Import torch and transformers, which takes seconds."""
    import_module("dovetail.workflow.live.backends.torch_tasks")
    import_module("transformers.modeling_utils")


class TorchBackEnd:
    """One model of transformers."""

    def __init__(self, model: ServedModel) -> None:
        self.model = model
        self.options = _options(model)
        self._weights: MappedWeights | None = None
        self._built: Any = None  # the model, with its weights in host memory
        self._tokens: ModelTokenizer | None = None
        self._copy: DeviceCopy | None = None
        self._task: TorchTask | None = None
        self._folder = Path()

    def load(self, devices: Sequence[str]) -> None:
        torch = _imported("torch")
        if self._task is not None:
            return
        try:
            where = [torch.device(name) for name in devices]
            self._set_up(where)
            if self._built is None:
                self._open()
            self._place(where)
            self._task = self._made(where)
        except Exception as error:
            self.unload(keep=False)
            if isinstance(error, BackEndError | MissingExtraError):
                raise
            if is_out_of_memory(error):
                error.__traceback__ = None
                raise OutOfMemoryError(f"{self.model.name}: no room: {error}") from None
            raise BackEndError(f"{self.model.name}: cannot be loaded: {type(error).__name__}: {error}") from error

    def _open(self) -> None:
        """Build the model in host memory: its weights are the mapped files', unless they have to be converted."""
        from dovetail.workflow.live.backends.torch_tasks import ModelTokenizer
        from dovetail.workflow.live.backends.weights import MappedWeights

        torch, transformers = _imported("torch"), _imported("transformers")
        options, trust = self.options, {"trust_remote_code": self.options.trust_remote_code}
        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        self._folder = _folder(self.model.source)
        config = transformers.AutoConfig.from_pretrained(self._folder, **trust)
        auto = getattr(transformers, options.auto_class or CLASSES[self.model.type])
        attention = {"attn_implementation": options.attn_implementation} if options.attn_implementation else {}
        with torch.device("meta"):
            kind = type(auto.from_config(config, **trust, **attention))
        self._weights = MappedWeights(self._folder)
        dtype = options.dtype if options.dtype == "auto" else getattr(torch, options.dtype)
        self._built, about = kind.from_pretrained(
            None,
            config=config,
            state_dict=dict(self._weights.tensors),
            dtype=dtype,
            output_loading_info=True,
            **attention,
        )
        missing = sorted(
            name for name in about["missing_keys"] if self.model.type != "embedding" or "pooler" not in name
        )
        if missing:
            raise BackEndError(
                f"{self._folder}: the files have no weights for {', '.join(missing[:3])} (of {len(missing)})"
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(self._folder, **trust)
        self._tokens = ModelTokenizer(tokenizer, config)

    def _place(self, where: list[torch.device]) -> None:
        from dovetail.workflow.live.backends.device_copy import DeviceCopy

        assert self._weights is not None
        if not self._weights.pinned:
            self._weights.touch()
        if any(device.type == "cuda" for device in where):
            self._weights.pin()
        copy = DeviceCopy(self._built, self._weights)
        try:
            copy.make(where)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            error.__traceback__ = None  # it holds on to what was copied
            raise OutOfMemoryError(self._no_room(where, str(error))) from None
        self._copy = copy

    def _no_room(self, where: list[torch.device], error: str) -> str:
        torch = _imported("torch")
        assert self._weights is not None
        needs = f"{self.model.name} needs {self._weights.bytes / MIB:.0f} MiB"
        if where[0].type != "cuda":
            return f"{needs}: {error}"
        torch.cuda.empty_cache()
        free = []
        for device in where:
            left, whole = torch.cuda.mem_get_info(device)
            free.append(f"{left / MIB:.0f} of {whole / MIB:.0f} MiB of {device} are free")
        limit = f", and {self.options.memory_limit_mib} may be taken" if self.options.memory_limit_mib else ""
        return f"{needs}; {', '.join(free)}{limit}"

    def _made(self, where: list[torch.device]) -> TorchTask:
        from dovetail.workflow.live.backends.torch_tasks import Classification, Embedding, Generation, Tensors

        built, tokens, options, folder = self._built, self._tokens, self.options, self._folder
        assert tokens is not None
        if options.auto_class not in (None, CLASSES.get(self.model.type)):
            return Tensors(built, tokens, where[0])
        if self.model.type == "embedding":
            return Embedding(built, tokens, folder, where[0], pooling=options.pooling, normalize=options.normalize)
        if self.model.type == "classification":
            return Classification(built, tokens, where[0])
        slots, defaults = self.model.slots, options.defaults
        return Generation(built, tokens, folder, slots, where[0], chat=options.chat, defaults=defaults)

    def _set_up(self, where: list[torch.device]) -> None:
        torch, limit = _imported("torch"), self.options.memory_limit_mib
        # cuDNN's attention plans anew for every length that it meets: 80 ms a token where others take 15
        torch.backends.cuda.enable_cudnn_sdp(False)
        for device in where:
            if device.type == "cuda" and limit is not None:
                whole = torch.cuda.get_device_properties(device).total_memory
                torch.cuda.set_per_process_memory_fraction(min(limit * MIB / whole, 1.0), device)

    def unload(self, keep: bool) -> None:
        if self._task is not None:
            self._task.close()
            self._task = None
        if self._copy is not None:
            self._copy.drop()
            self._copy = None
        if keep:
            return
        if self._weights is not None:
            self._weights.unpin()
        self._built = self._weights = self._tokens = None

    def call(self, call: ModelCall, emit: Emit, stopped: Event) -> Answer:
        if self._task is None:
            raise BackEndError(f"{self.model.name} is not loaded")
        try:
            return self._task.call(call, emit, stopped)
        except BackEndError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfMemoryError(f"{self.model.name}: no memory left for the call: {error}") from None
            raise BackEndError(f"{self.model.name}: {type(error).__name__}: {error}") from error

    def status(self) -> dict[str, Any]:
        state = "loaded" if self._task is not None else "kept" if self._built is not None else "unloaded"
        return {"healthy": True, "state": state, "folder": str(self._folder)} | (
            self._task.status() if self._task else {}
        )

    def memory(self) -> Memory:
        host = self._weights.bytes / MIB if self._weights is not None else 0.0
        device = self._copy.bytes / MIB if self._copy is not None else 0.0
        return Memory(device, host)


def _options(model: ServedModel) -> TorchOptions:
    place = f"{model.name}: source.options"
    known = [field.encode_name for field in msgspec.structs.fields(TorchOptions)]
    for name in model.options:
        if name not in known:
            raise InputError(f"{place}: unknown key {name!r}{did_you_mean(name, known)}")
    try:
        options = msgspec.convert(model.options, TorchOptions)
    except msgspec.ValidationError as error:
        raise InputError(f"{place}: {error}") from None
    if options.auto_class is None and model.type not in CLASSES:
        hint = f"expected {', '.join(CLASSES)}, or options.class: a class of transformers"
        raise InputError(f"{model.name}: the type is {model.type!r}; {hint}")
    if options.memory_limit_mib is not None and options.memory_limit_mib < 1:
        raise InputError(f"{place}: memory_limit_mib is {options.memory_limit_mib}; expected 1 or more")
    return options


def _folder(source: dict[str, Any]) -> Path:
    """Where the files are; a model of the hub is fetched if there is a network, and never without being asked for."""
    path = source["path"]
    if not source.get("hub"):
        if not Path(path, "config.json").is_file():
            raise BackEndError(f"{path}: no folder with a config.json; a name on the hub needs hub: true")
        return Path(path)
    hub = _imported("huggingface_hub")
    try:
        offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
        wanted = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.py"]
        return Path(hub.snapshot_download(path, allow_patterns=wanted, local_files_only=offline))
    except Exception as error:
        raise BackEndError(f"{path}: cannot be had from the hub: {type(error).__name__}: {error}") from None


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise MissingExtraError("models", name, "a model from a folder") from None
