"""Schedulers from options: in code, in a dictionary, in a YAML or JSON file, or as flags of a command.

schedulers:
  both:
    type: StaticHybridScheduler
    devices: [cuda:0, cpu]
    sub_batch_sizes: [65536, 512]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, cast

import msgspec
from msgspec import Struct

from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document, Key, explain
from dovetail.dispatch.compat.mpi import SimpleMPIScheduler
from dovetail.dispatch.compat.schedulers import (
    Devices,
    PolicyScheduler,
    SharedScheduler,
    SimpleScheduler,
    StaticHybridScheduler,
)

# Keys that older inputs have, and ours for the same thing.
_OLDER = {"batch_size": "sub_batch_size", "batch_sizes": "sub_batch_sizes"}


class DispatcherOptions(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What holds for every kind: how a dispatcher runs."""

    kind: ClassVar[Any] = None

    mode: Literal["async", "sync"] = "async"
    backend: Literal["thread", "process", "ray"] = "thread"
    dim: int = 0
    on_error: Literal["retry", "fail", "skip"] = "retry"
    retries: int = 1
    backup: bool = True
    cache: bool = True
    trace_file: str | None = None
    journal_file: str | None = None

    def run_options(self) -> dict[str, Any]:
        """Those that were given, as a Dispatcher takes them."""
        given = msgspec.to_builtins(self)
        return {
            name.removesuffix("_file"): given[name] for name in DispatcherOptions.__struct_fields__ if name in given
        }

    def scheduler(self) -> Any:
        """The scheduler that the others are of, if they make sense."""
        names = [name for name in self.__struct_fields__ if name not in DispatcherOptions.__struct_fields__]
        made = self.kind(**{name: getattr(self, name) for name in names})
        made.resolved()
        return made


class SharedOptions(DispatcherOptions):
    """Several tasks of this process share devices."""

    devices: str | Devices = "cpu"
    policy: str | None = None

    def scheduler(self) -> Any:
        if self.backend != "thread":
            raise InputError(f"backend: found {self.backend}; a shared pool has threads")
        return SharedScheduler(self.devices, self.policy)


def _options_of(kind: type[Struct]) -> type[DispatcherOptions]:
    """The options of a scheduler, and with them those of its dispatchers."""
    field: Any = msgspec.field
    own = [
        (each.name, each.type, field(default=each.default, default_factory=each.default_factory))
        for each in msgspec.structs.fields(kind)
        if each.name not in DispatcherOptions.__struct_fields__
    ]
    made: Any = msgspec.defstruct(
        kind.__name__, own, bases=(DispatcherOptions,), namespace={"kind": kind}, kw_only=True
    )
    return cast("type[DispatcherOptions]", made)


KINDS: dict[str, type[DispatcherOptions]] = {
    "SimpleScheduler": _options_of(SimpleScheduler),
    "StaticHybridScheduler": _options_of(StaticHybridScheduler),
    "SimpleMPIScheduler": _options_of(SimpleMPIScheduler),
    "SharedScheduler": SharedOptions,
    "Dispatcher": _options_of(PolicyScheduler),
}


class Chosen(NamedTuple):
    """A scheduler that was chosen by options, and how its dispatchers run."""

    type: str
    scheduler: Any
    run_options: dict[str, Any]

    def dispatcher(self, function: Any, **options: Any) -> Any:
        """A dispatcher as the options say; further options go before them."""
        return self.scheduler.dispatcher(function, **{**self.run_options, **options})


def read_schedulers(path: Path) -> dict[str, Chosen]:
    """The schedulers of a file by name: all under its key `schedulers`, or the one that it is (called `scheduler`)."""
    doc = Document.read(path)
    if not isinstance(doc.data, dict):
        raise doc.error((), f"expected keys and values, found {type(doc.data).__name__}")
    if "schedulers" not in doc.data:
        return {"scheduler": _chosen(doc, doc.data, ())}
    for key in doc.data:
        if key != "schedulers":
            raise doc.error((key,), f"unknown key {key!r}{did_you_mean(str(key), ['schedulers'])}")
    entries = doc.data["schedulers"]
    if not isinstance(entries, dict) or not entries:
        raise doc.error(("schedulers",), "expected schedulers by name")
    return {str(name): _chosen(doc, entry, ("schedulers", name)) for name, entry in entries.items()}


def read_scheduler(path: Path, name: str | None = None) -> Chosen:
    """One scheduler of a file; its name may be left out if there is only one."""
    found = read_schedulers(path)
    if name is None:
        if len(found) > 1:
            raise InputError(f"{path}: has {len(found)} schedulers; name one of {', '.join(found)}")
        return next(iter(found.values()))
    if name not in found:
        raise InputError(f"{path}: no scheduler is called {name!r}{did_you_mean(name, found)}")
    return found[name]


def scheduler_from(options: Mapping[str, Any]) -> Chosen:
    """A scheduler from a dictionary.

    >>> chosen = scheduler_from({"type": "SimpleScheduler", "device": "cpu", "sub_batch_size": 8, "mode": "sync"})
    >>> chosen.type, chosen.scheduler.sub_batch_size, chosen.run_options
    ('SimpleScheduler', 8, {'mode': 'sync'})
    >>> scheduler_from({"type": "SimpleScheduler", "devise": "cpu"})
    Traceback (most recent call last):
    dovetail.core.errors.InputError: options: devise: unknown key 'devise'; did you mean 'device'?
    """
    return _chosen(Document(Path("options"), b"", options), dict(options), ())


def scheduler_from_flags(type: str, flags: Mapping[str, str]) -> Chosen:
    """A scheduler from words of a command line, where lists have commas between their values.

    >>> chosen = scheduler_from_flags("StaticHybridScheduler", {"devices": "cuda,cpu", "sub_batch_sizes": "512,64"})
    >>> chosen.scheduler.sub_batch_sizes
    [512, 64]
    """
    to = _kind(type, lambda message: InputError(f"--scheduler {message}"))
    info: Any = msgspec.inspect.type_info(to)
    fields = {field.encode_name: field for field in info.fields}
    given: dict[str, Any] = {}
    for flag, text in flags.items():
        key = flag.lstrip("-").replace("-", "_")
        key = _OLDER.get(key, key)
        if key not in fields:
            raise InputError(f"--{key.replace('_', '-')}: no option of {type}{did_you_mean(key, fields)}")
        given[key] = [word.strip() for word in text.split(",")] if _is_list(fields[key].type) else text
    try:
        return _built(type, msgspec.convert(given, to, strict=False))
    except msgspec.ValidationError as error:
        keys, message = explain(error, to)
        flag = f"--{str(keys[0]).replace('_', '-')} {flags.get(str(keys[0]), '')}" if keys else f"--scheduler {type}"
        raise InputError(f"{flag.strip()}: {message}") from None


def _is_list(kind: msgspec.inspect.Type) -> bool:
    kinds = kind.types if isinstance(kind, msgspec.inspect.UnionType) else (kind,)
    return any(isinstance(each, msgspec.inspect.ListType) for each in kinds)


def _kind(name: Any, error: Callable[[str], InputError]) -> type[Any]:
    if name not in KINDS:
        raise error(f"no scheduler is called {name!r}{did_you_mean(str(name), KINDS)}")
    return KINDS[name]


def _chosen(doc: Document, entry: Any, at: Sequence[Key]) -> Chosen:
    if not isinstance(entry, dict):
        raise doc.error(at, f"expected keys and values, found {type(entry).__name__}")
    if "type" not in entry:
        raise doc.error(at, f"missing key `type`; expected one of {', '.join(KINDS)}")
    to = _kind(entry["type"], lambda message: doc.error((*at, "type"), message))
    names = {_OLDER.get(str(key), str(key)): str(key) for key in entry if key != "type"}
    try:
        options = msgspec.convert({name: entry[key] for name, key in names.items()}, to)
    except msgspec.ValidationError as error:
        keys, message = explain(error, to)
        place = [names.get(str(keys[0]), keys[0]), *keys[1:]] if keys else []
        raise doc.error([*at, *place], message) from None
    try:
        return _built(entry["type"], options)
    except InputError as error:
        raise doc.error(at, str(error)) from None


def _built(type: str, options: Any) -> Chosen:
    return Chosen(type, options.scheduler(), options.run_options())
