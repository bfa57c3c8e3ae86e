"""How the level's files are read: strictly, or by the rules of an older scheduler (`compat/`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.core.files.document import Source
from dovetail.core.resources import Pool
from dovetail.workflow.choices import OnError
from dovetail.workflow.inputs.configuration import read_system
from dovetail.workflow.inputs.fit import check_fit
from dovetail.workflow.inputs.requests import Requests
from dovetail.workflow.inputs.system import System


class Reading(NamedTuple):
    """Reads a configuration, says what of it does not fit on a pool, and reads requests for it."""

    read_system: Callable[[Source, OnError, Mapping[str, Any] | None], System] = read_system
    check_fit: Callable[[System, Pool, Path], None] = check_fit
    requests: type[Requests] = Requests
