"""A language model cut at its decoder blocks. A part of it runs the model's own code, cache and all.

The layers are the embedding, each block, and what follows the blocks. One tensor goes from layer to layer; that
nothing else would have to is proven by a run on tensors without data.
"""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dovetail.pipeline.models.graph_layers import flat

if TYPE_CHECKING:
    from dovetail.pipeline.models.spec import Value


_LOG = logging.getLogger("torch._subclasses.fake_tensor")
_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class UncuttableError(Exception):
    """Why a model cannot be cut at its blocks."""


class Decoder(NamedTuple):
    """A model with a list of blocks at a path, and the modules with weights that run before and after them."""

    model: Any
    path: str
    wrapped: bool  # a block gives a tuple that begins with its hidden values
    before: tuple[str, ...]
    after: tuple[str, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> Decoder:
        return self  # a part's copy has its own weights, not the model's

    @property
    def blocks(self) -> nn.ModuleList:
        found = self.model.get_submodule(self.path)
        assert isinstance(found, nn.ModuleList)
        return found

    def pass_on(self, args: Any, kwargs: Any) -> Any:
        """What a block gives that does nothing."""
        return args[:1] if self.wrapped else args[0]

    def layers(self) -> tuple[list[DecoderPart], list[str]]:
        count = len(self.blocks) + 2
        names = ["embedding", *(f"{self.path}.{i}" for i in range(count - 2)), "head"]
        return [DecoderPart(self, i, i) for i in range(1, count + 1)], names


class DecoderPart(nn.Module):
    """Layers first..last (from 1) of a decoder: the model without the other blocks and their weights.

    It takes token ids, or else the hidden values [items, tokens, width] that the layer before gave, and gives hidden
    values or, with the last layer, what the model gives. `cache` is one of the library's own, with an entry for each of
    this part's blocks; `options` go to the model's own forward, such as `last_logits`: those of the last token alone.
    """

    def __init__(self, decoder: Decoder, first: int, last: int) -> None:
        super().__init__()
        blocks = decoder.blocks
        self.first, self.last = first, last
        self.is_first, self.is_last = first == 1, last == len(blocks) + 2
        self._decoder = decoder
        begin, end = max(first - 2, 0), min(last - 1, len(blocks))
        memo: dict[int, Any] = {id(t): t for t in (*decoder.model.parameters(), *decoder.model.buffers())}
        own = [copy.deepcopy(block, memo) for block in blocks[begin:end]]
        near = blocks[min(begin, len(blocks) - 1)]
        inner = own or [_Standing(near, decoder.pass_on)]
        memo[id(blocks)] = nn.ModuleList(inner)
        self.model = copy.deepcopy(decoder.model, memo)
        at = begin if own else min(begin, len(blocks) - 1)
        _narrow_config(self.model.config, at, len(inner))
        for index, block in enumerate(own):
            module: Any
            for module in block.modules():
                if isinstance(getattr(module, "layer_idx", None), int):
                    module.layer_idx = index
        absent = (() if self.is_first else decoder.before) + (() if self.is_last else decoder.after)
        for name in absent:
            if not any(name.startswith(f"{other}.") for other in absent):  # else it is gone with the module around it
                self.model.set_submodule(name, _Absent())
        self.has_cache = bool(own)
        known = inspect.signature(self.model.forward).parameters
        self.last_logits = {"logits_to_keep": 1} if self.is_last and "logits_to_keep" in known else {}
        self.takes_positions = "position_ids" in known
        self._entering: torch.Tensor | None = None
        if not self.is_first:
            inner[0].register_forward_pre_hook(self._enter, with_kwargs=True)
        if not self.is_last:
            inner[-1].register_forward_hook(_leave)

    @property
    def blocks(self) -> nn.ModuleList:
        """This part's own blocks; one that does nothing, where it has none."""
        found = self.model.get_submodule(self._decoder.path)
        assert isinstance(found, nn.ModuleList)
        return found

    def until(self, last: int) -> DecoderPart:
        """The layers from this part's first to another's last as one part."""
        return self if last == self.last else DecoderPart(self._decoder, self.first, last).eval()

    def forward(self, value: torch.Tensor, cache: Any = None, **options: Any) -> Value:
        options |= {"use_cache": cache is not None, "past_key_values": cache, "return_dict": True}
        # What stands for embeddings is a copy: some models scale them in place.
        options["input_ids" if self.is_first else "inputs_embeds"] = value if self.is_first else value.clone()
        self._entering = value
        try:
            with _attention(value.device):
                found = flat(self.model(**options), torch.Tensor)
        except _Left as left:
            return left.hidden
        finally:
            self._entering = None
        return found[0] if len(found) == 1 else tuple(found)

    def placed(self, device: torch.device, dtype: torch.dtype) -> DecoderPart:
        """A copy for a device and dtype. Buffers keep theirs, as the library has it: frequencies are never rounded.

        Weights that are right already are not copied: what just fits a device would not fit twice.
        """
        right = {id(p): p for p in self.parameters() if p.device == device and p.dtype is dtype}
        if device.type == "cpu" and len(right) == len(list(self.parameters())):
            return self
        memo: dict[int, Any] = dict(right)
        made = copy.deepcopy(self, memo).to(device=device)
        for parameter in made.parameters():
            parameter.data = parameter.data.to(dtype)
        return made

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        return (self._entering, *args[1:]), kwargs


def _attention(device: torch.device) -> AbstractContextManager[None]:
    """On a GPU, any attention but cuDNN's: that makes a plan for every length of a context, so for every token."""
    return sdpa_kernel(_BACKENDS) if device.type == "cuda" else nullcontext()


class _Left(BaseException):
    """Ends a model's forward after the last block of a part."""

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()
        self.hidden = hidden


def _leave(module: nn.Module, args: Any, out: Any) -> None:
    raise _Left(flat(out, torch.Tensor)[0])


class _Absent(nn.Module):
    """In the place of a module with weights that another part holds: of what is made of it only the shape is used."""

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        hidden = args[0] if args else None
        return hidden if isinstance(hidden, torch.Tensor) and hidden.dim() > 2 else torch.zeros(())


class _Standing(nn.Module):
    """In the place of a block, with its plain attributes, by which a model may choose what to give it."""

    def __init__(self, block: nn.Module, give: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._give = give
        for name, value in vars(block).items():
            if isinstance(value, str | int | float) and not hasattr(self, name):
                setattr(self, name, value)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._give(args, kwargs)


def _narrow_config(config: Any, begin: int, count: int) -> None:
    """Say in a configuration that there are only some of the blocks."""
    own = config.get_text_config(decoder=True)
    total = own.num_hidden_layers
    for name, value in vars(own).items():
        if isinstance(value, list | tuple) and len(value) == total and name.startswith("layer"):
            setattr(own, name, list(value[begin : begin + count]))
    own.num_hidden_layers = count


def find_decoder(model: Any) -> Decoder:
    """A language model's blocks, once it is proven that only hidden values go from one to the next."""
    count = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", 0)
    lists = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == count and count > 0
    ]
    if not lists:
        raise UncuttableError("it has no list of blocks")
    path = min(lists, key=lambda name: name.count("."))
    last: UncuttableError | None = None
    _LOG.disabled, before = True, _LOG.disabled  # what fails without data is no error of the user's
    try:
        for wrapped in (False, True):  # a block may give a tensor, or a tuple that begins with it
            try:
                found = Decoder(model, path, wrapped, *_probe(model, path, wrapped))
                _try_parts(found)
                return found
            except UncuttableError as error:
                last = last or error
    finally:
        _LOG.disabled = before
    assert last is not None
    raise last


_INPUT, _WEIGHTS = -2, -1  # where values come from; a block's are known by its number


class _Origins(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes of each tensor which inputs, weights and blocks its values depend on; sizes and types do not count."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._of: dict[int, frozenset[int]] = {}
        self._alive: list[torch.Tensor] = []  # so that no address is used again

    def mark(self, tensor: torch.Tensor, origins: frozenset[int]) -> None:
        self._alive.append(tensor)
        self._of[_address(tensor)] = self.of(tensor) | origins

    def of(self, *tensors: torch.Tensor) -> frozenset[int]:
        return frozenset().union(*(self._of.get(_address(tensor), frozenset()) for tensor in tensors))

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.__name__.partition(".")[0]
        if not (name.endswith("_like") or name.startswith("new_")):
            origins = self.of(*_tensors((args, kwargs)))
            for tensor in _tensors(out):
                self.mark(tensor, origins)
        return out


def _address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _tensors(nested: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(nested) if isinstance(leaf, torch.Tensor))


def _probe(model: Any, path: str, wrapped: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Run the model without its blocks on tensors without data; the modules with weights before and after them."""
    blocks = model.get_submodule(path)
    origins, fake = _Origins(), FakeTensorMode()
    with fake:
        memo = _without_data(model)
        ids = torch.zeros(2, 3, dtype=torch.int64)
    given: list[torch.Tensor] = []

    def take(args: Any, kwargs: Any) -> Any:
        number = len(given)
        if not args or (given and args[0] is not given[-1]):
            raise UncuttableError(f"block {number + 1} takes something else than what the block before gave")
        _check_extras(origins, number, args[1:], kwargs)
        out = torch.empty_like(args[0])
        origins.mark(out, frozenset({number}))
        given.append(out)
        return (out,) if wrapped else out

    memo[id(blocks)] = nn.ModuleList(_Standing(block, take) for block in blocks)
    standing = copy.deepcopy(model, memo)
    vars(standing.config)["pad_token_id"] = None  # or the model would look for padding in the ids
    called: dict[str, bool] = {}

    def note(name: str, module: nn.Module, args: Any) -> None:
        called.setdefault(name, len(given) == len(blocks))

    for name, module in standing.named_modules():
        if module._parameters and not name.startswith(path):
            module.register_forward_pre_hook(partial(note, name))
    for parameter in standing.parameters():
        origins.mark(parameter, frozenset({_WEIGHTS}))
    origins.mark(ids, frozenset({_INPUT}))
    try:
        with torch.no_grad(), fake, origins:
            found = standing(input_ids=ids, use_cache=False, return_dict=True)
    except UncuttableError:
        raise
    except Exception as error:
        raise UncuttableError(f"its code does not run without data: {error}") from error
    if len(given) != len(blocks):
        raise UncuttableError(f"{len(given)} of its {len(blocks)} blocks were called")
    after = origins.of(*flat(found, torch.Tensor)) - {_WEIGHTS}
    if after != {len(blocks) - 1}:
        raise UncuttableError("what follows its blocks takes more than the last one's values")
    return tuple(n for n, late in called.items() if not late), tuple(n for n, late in called.items() if late)


def _without_data(model: Any) -> dict[int, Any]:
    """For a copy of a model, in a mode of tensors without data: such ones in the place of its own."""
    memo: dict[int, Any] = {id(t): torch.empty(t.shape, dtype=t.dtype) for t in model.buffers()}
    return memo | {id(t): nn.Parameter(torch.empty(t.shape), requires_grad=False) for t in model.parameters()}


def _try_parts(decoder: Decoder) -> None:
    """Run the first, the second and the last layer alone on tensors without data: what a model's code does around its
    blocks, which do nothing here, must bear that the other layers are not there."""
    with FakeTensorMode(), torch.no_grad():
        memo = _without_data(decoder.model)
        memo[id(decoder.blocks)] = nn.ModuleList(_Standing(block, decoder.pass_on) for block in decoder.blocks)
        hollow = decoder._replace(model=copy.deepcopy(decoder.model, memo))
        value: Value = torch.zeros(2, 3, dtype=torch.int64)
        for layer in (1, 2, len(hollow.blocks) + 2):
            try:
                value = DecoderPart(hollow, layer, layer).eval()(value)
            except Exception as error:
                raise UncuttableError(f"its layer {layer} does not run without the others: {error}") from error


def _check_extras(origins: _Origins, number: int, args: Any, kwargs: dict[str, Any]) -> None:
    """What a block takes beside the hidden values must be made of sizes: it is made again in every part."""
    for name, value in (*enumerate(args, 2), *kwargs.items()):
        if origins.of(*_tensors(value)):
            raise UncuttableError(f"block {number + 1} also takes {name!r}, which is made of inputs or weights")
        if isinstance(value, dict | list):
            raise UncuttableError(f"block {number + 1} also takes {name!r}, through which blocks may share values")
