"""What a configuration says of live runs: its models as workers see them, each with its source, and the settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from msgspec import structs

from dovetail.core.errors import InputError, MissingExtraError
from dovetail.core.files.document import explain
from dovetail.workflow.inputs.costs import MIB_PER_GB
from dovetail.workflow.inputs.sources import OF_SERVERS, EmulatedSource, ModelSource
from dovetail.workflow.inputs.system import Model, System
from dovetail.workflow.live.protocol import ServedModel
from dovetail.workflow.live.settings import LiveSettings
from dovetail.workflow.policies.base import WorkflowPolicy
from dovetail.workflow.simulate import make_policy


def live_settings(system: System) -> LiveSettings:
    """What the configuration says under `live:`."""
    try:
        settings = msgspec.convert(system.live, LiveSettings)
    except msgspec.ValidationError as error:
        keys, message = explain(error, LiveSettings)
        raise system.error(("live", *keys), message) from None
    if (problem := settings.problem()) is not None:
        key, message = problem.split(": ", 1)
        raise system.error(("live", key), message)
    return settings


def model_specs(system: System, local: bool = True) -> dict[str, ServedModel]:
    """All models, ready to be served; with `local`, files must be there on this machine."""
    lacking = [name for name, model in system.models.items() if model.source is None]
    if lacking:
        names = ", ".join(repr(name) for name in lacking)
        expected = "expected source: a folder, module:function, a url, or {emulated: {}} (docs/workflow-live-data.md)"
        raise system.error(("models", lacking[0]), f"live runs need the source of every model, but {names}: {expected}")
    return {name: _spec(system, name, model, local) for name, model in system.models.items()}


def live_policy(policy: Any, options: Mapping[str, Any] | None) -> tuple[str, WorkflowPolicy]:
    """A policy that can decide as things come, and what it is called."""
    name, chosen = make_policy(policy, options, "offline")
    if chosen.plans_ahead:
        raise InputError(f"policy {name} plans ahead, for simulated runs only: live runs decide as they go")
    return name, chosen


def check_extras(models: Iterable[ServedModel]) -> None:
    """Models from folders are served by transformers: whoever lacks it is told before anything begins."""
    if not any("path" in model.source for model in models):
        return
    for package in ("torch", "transformers"):
        if not _is_there(package):
            raise MissingExtraError("models", package, "a model from a folder")


def _is_there(package: str) -> bool:
    """Whether a package can be imported; it is not, as that takes seconds."""
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _spec(system: System, name: str, model: Model, local: bool) -> ServedModel:
    source = model.source
    assert isinstance(source, ModelSource)
    if local and source.path is not None and not source.hub and not Path(source.path).is_dir():
        hint = "; a name on the hub is given as {path: org/name, hub: true}"
        raise system.error(("models", name, "source"), f"{source.path}: no such folder{hint}")
    if local and source.factory is not None and ".py:" in source.factory:
        file = source.factory.rpartition(":")[0]
        if not Path(file).is_file():
            raise system.error(("models", name, "source"), f"{file}: no such file")
    return ServedModel(
        name=name,
        source=_form(name, model, source),
        type=model.type,
        memory_mib=int(model.memory_gb * MIB_PER_GB),
        width=model.gpus_required,
        slots=model.max_concurrency,
        options=source.options,
    )


def _form(name: str, model: Model, source: ModelSource) -> dict[str, Any]:
    if source.path is not None:
        return {"path": source.path} | ({"hub": True} if source.hub else {})
    if source.factory is not None:
        return {"factory": source.factory}
    if source.emulated is not None:
        return {"emulated": _emulated(model, source.emulated)}
    return {key: getattr(source, key) for key in ("url", *OF_SERVERS)} | {"model": source.model or name}


def _emulated(model: Model, given: EmulatedSource) -> dict[str, Any]:
    """What an emulated model takes, at its speed: as given there, else as the model's own keys say."""
    speed, call_s = given.speed, given.call_s
    writes = given.tokens_per_second or model.tokens_per_second
    reads = given.prefill_tokens_per_second or model.prefill_tokens_per_second
    if call_s is None and not writes:
        call_s = model.estimate_s()[0]
    load_s = model.load_time_seconds if given.load_s is None else given.load_s
    tokens = model.token_mean if given.token_mean is None else given.token_mean
    return structs.asdict(given) | {
        "load_s": load_s / speed,
        "reload_s": None if given.reload_s is None else given.reload_s / speed,
        "unload_s": given.unload_s / speed,
        "call_s": None if call_s is None else call_s / speed,
        "tokens_per_second": None if writes is None else writes * speed,
        "prefill_tokens_per_second": None if reads is None else reads * speed,
        "token_mean": 0.0 if tokens is None else tokens,
        "shares": given.shares or model.cost.concurrency_curve,
        "speed": 1.0,
    }
