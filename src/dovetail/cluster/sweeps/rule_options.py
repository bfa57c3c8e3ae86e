"""By which rules runs are made: what a user says, checked."""

from __future__ import annotations

from typing import TypedDict, get_args

from msgspec.structs import replace

from dovetail.cluster.compat import GAVEL, SIA
from dovetail.cluster.inputs.choices import Compat, one_of
from dovetail.cluster.rules import ClusterOptions, RoundRules
from dovetail.core.errors import InputError, within
from dovetail.core.files.plain import scalar


class RuleKeywords(TypedDict, total=False):
    """By which rules a cluster is run; what is left out is as on the command line."""

    interval: float
    restart_s: float | None
    allocate_every_s: float | None
    enable_global_queue: bool
    ideal: bool
    compat: Compat | None


def options_of(
    interval: float = 360.0,
    restart_s: float | None = None,
    allocate_every_s: float | None = None,
    enable_global_queue: bool = False,
    ideal: bool = False,
    compat: Compat | None = None,
) -> ClusterOptions:
    """
    >>> options_of(restart_s=30).rules.restart_s, options_of(compat="gavel").rules.allocate_every_s
    (30.0, 1920.0)
    """
    interval, restart_s, allocate_every_s = scalar(interval), scalar(restart_s), scalar(allocate_every_s)
    within("interval", interval, "seconds, more than 0", 1e-3, optional=False)
    within("restart_s", restart_s, "seconds, 0 or more")
    within("allocate_every_s", allocate_every_s, "seconds, 0 or more")
    if compat is not None:
        one_of("compat", compat, get_args(Compat))
    for name, value in (("ideal", ideal), ("enable_global_queue", enable_global_queue)):
        if not isinstance(value, bool):
            raise InputError(f"{name} {value!r}: expected True or False")
    if compat == "gavel" and (ideal or restart_s is not None):
        raise InputError("compat gavel has rounds, and restarts that are free: not with ideal or restart_s")
    if compat == "sia" and ideal:
        raise InputError("compat sia has rounds: not with ideal")
    if ideal and allocate_every_s:
        raise InputError("an ideal run has new shares whenever something changes: not with allocate_every_s")
    rules = {None: RoundRules(), "gavel": GAVEL, "sia": SIA}[compat]
    rules = replace(
        rules,
        round_s=float(interval),
        global_queue=enable_global_queue,
        restart_s=rules.restart_s if restart_s is None else float(restart_s),
        allocate_every_s=rules.allocate_every_s if allocate_every_s is None else float(allocate_every_s),
    )
    return ClusterOptions(rules=rules, compat=compat == "gavel", ideal=ideal)
