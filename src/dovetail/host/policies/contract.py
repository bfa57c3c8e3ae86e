"""What a policy of one's own must answer: one that fails, exits or answers something else is stopped by its name.

A planning's or an assignment's methods are looked after when its class is made, and so wherever it is asked, also by
itself. Ours are not: their tests hold them to it, and a daemon asks them often.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from inspect import getattr_static, signature
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.core.errors import DovetailError, policy_failed, policy_gave

if TYPE_CHECKING:
    from dovetail.host.program import Program

_OURS = "dovetail.host.policies."


class _Answer(NamedTuple):
    """What a method must answer, in words, and whether it did: given the policy, its answer, and what it was asked. A
    user's own may take more than ours does."""

    expected: str
    fits: Callable[..., bool]


def _whole(answer: Any) -> bool:
    return isinstance(answer, Integral) and not isinstance(answer, bool)


def _cores(policy: Any, answer: Any, *_: Any) -> bool:
    return _whole(answer) and answer >= 0


def _any_whole(policy: Any, answer: Any, *_: Any) -> bool:
    return _whole(answer)


def _truth(policy: Any, answer: Any, *_: Any) -> bool:
    return type(answer).__name__ in ("bool", "bool_")


def _text(policy: Any, answer: Any, *_: Any) -> bool:
    return isinstance(answer, str) and bool(answer)


def _some_of(answer: Any, programs: list[Program]) -> bool:
    """Whether it is a list of such programs, each once."""
    known, chosen = set(map(id, programs)), list(map(id, answer)) if isinstance(answer, list | tuple) else [0]
    return known.issuperset(chosen) and len(set(chosen)) == len(chosen)


def _waiting(policy: Any, answer: Any, view: Any, *_: Any) -> bool:
    return _some_of(answer, view.waiting)


def _running(policy: Any, answer: Any, view: Any, *_: Any) -> bool:
    return _some_of(answer, view.running)


def _running_for(policy: Any, answer: Any, program: Program, view: Any, *_: Any) -> bool:
    return _some_of(answer, view.running)


def _time(policy: Any, answer: Any, *_: Any) -> bool:
    return answer is None or (isinstance(answer, Real) and not isinstance(answer, bool) and isfinite(answer))


def _may_have(policy: Any, program: Program, view: Any, cores: int) -> bool:
    """As the checker sees it."""
    most: int = min(program.most, view.high(program, policy.most(program, view)))
    return program.least <= cores <= most


def _can_start(policy: Any, answer: Any, program: Program, view: Any, *_: Any) -> bool:
    return _whole(answer) and (not answer or (answer <= view.spare and _may_have(policy, program, view, answer)))


def _by_program(policy: Any, answer: Any, view: Any, *_: Any) -> bool:
    """Whether it says a number of cores of running programs."""
    known = {p.id for p in view.running}
    return isinstance(answer, Mapping) and known.issuperset(answer) and all(_cores(policy, n) for n in answer.values())


def _shares(policy: Any, answer: Any, view: Any, *_: Any) -> bool:
    if not _by_program(policy, answer, view) or len(answer) < len(view.running):
        return False
    if sum(answer.values()) > view.cores - view.held:
        return False
    return all(answer[p.id] == view.widths[p.id] or _may_have(policy, p, view, answer[p.id]) for p in view.running)


_CORES = "a whole number of cores, 0 or more"
_BOUNDS = "of at least its `least`, at most its `most` and what `most` gives"
ANSWERS = {
    "order": _Answer("a list of waiting programs, each once", _waiting),
    "may_pause": _Answer("a list of running programs, each once", _running_for),
    "over": _Answer("a list of running programs, each once", _running),
    "look_s": _Answer("seconds, or None", _time),
    "most": _Answer(_CORES, _cores),
    "take": _Answer(f"0, or a whole number of cores {_BOUNDS}, of those to spare", _can_start),
    "lack": _Answer("a whole number of cores", _any_whole),
    "frees": _Answer(_CORES, _cores),
    "keeps": _Answer(_CORES, _cores),
    "lent": _Answer(_CORES, _cores),
    "spread": _Answer(f"cores for each running program, {_BOUNDS}, in all no more than there are", _shares),
    "must_start": _Answer("True or False", _truth),
    "must_have": _Answer("whole numbers of cores by the ids of running programs", _by_program),
    "refusal": _Answer("a reason", _text),
    "reason": _Answer("a reason", _text),
}


def look_after(kind: type) -> None:
    """Hold a class of policies to what its methods must answer."""
    if kind.__module__.startswith(_OURS):
        return
    for method, answer in ANSWERS.items():
        found = getattr_static(kind, method, None)
        if found is None or getattr(found, "__module__", "").startswith(_OURS) or hasattr(found, "looked_after"):
            continue
        setattr(kind, method, _looked_after(found, method, answer))


def _looked_after(found: Any, method: str, answer: _Answer) -> Callable[..., Any]:
    def ask(policy: Any, *given: Any, **named: Any) -> Any:
        try:
            own = found.__get__(policy, type(policy)) if hasattr(found, "__get__") else found
            told = own(*given, **named)
            good = answer.fits(policy, told, *(_in_order(own, given, named) if named else given))
        except DovetailError:
            raise
        except (Exception, SystemExit) as error:
            raise policy_failed(policy, method, error) from error
        if not good:
            raise policy_gave(policy, method, told, answer.expected)
        return told

    ask.looked_after = True  # type: ignore[attr-defined]
    return wraps(found)(ask) if callable(found) else ask


def _in_order(own: Callable[..., Any], given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a method was asked, as if nothing of it had been named."""
    bound = signature(own).bind(*given, **named)
    return *bound.args, *bound.kwargs.values()
