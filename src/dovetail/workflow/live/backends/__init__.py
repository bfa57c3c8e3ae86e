"""Back ends by where a model comes from. Each is a module with `make(model) -> BackEnd`, imported when it is used; one
with `prepare()` too has a worker do in advance what would make its first load slow."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module
from typing import cast

from dovetail.core.errors import did_you_mean
from dovetail.workflow.live.protocol import BackEnd, BackEndError, ServedModel

MODULES = {"path": "torch_models", "url": "servers", "factory": "factory", "emulated": "emulated"}


def back_end_for(model: ServedModel) -> BackEnd:
    """What serves a model, not loaded yet.

    >>> model = ServedModel(name="m", source={"factory": "operator:itemgetter"})
    >>> back_end_for(model).status()["healthy"]
    True
    """
    for key in MODULES:
        if key in model.source:
            module = import_module(f"{__name__}.{MODULES[key]}")
            return cast("BackEnd", module.make(model))
    found = next(iter(model.source), "nothing")
    raise BackEndError(f"{model.name}: the source is {found!r}{did_you_mean(found, MODULES)}")


def prepare(models: Iterable[ServedModel]) -> None:
    """Do what the first load of such models would have to do. What fails now, fails there."""
    for key in sorted({key for model in models for key in MODULES if key in model.source}):
        with suppress(Exception):
            getattr(import_module(f"{__name__}.{MODULES[key]}"), "prepare", lambda: None)()
