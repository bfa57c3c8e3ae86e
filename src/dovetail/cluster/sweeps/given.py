"""What users give to functions over many runs, checked: a scenario, policies, seeds, numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dovetail.cluster.inputs.scenario import LoadedScenario, Scenario, given
from dovetail.cluster.policies import make, name_of
from dovetail.cluster.rules import ClusterOptions
from dovetail.core.errors import InputError, within
from dovetail.core.files.plain import plain

Progress = Callable[[int, int], None]


def scenario_of(scenario: Scenario | LoadedScenario | None) -> Scenario:
    return scenario.scenario if isinstance(scenario, LoadedScenario) else given(scenario)


def policies_of(policies: Any) -> list[Any]:
    """Policies, each under its own name; one alone is fine."""
    given = [policies] if isinstance(policies, str) or not isinstance(policies, Iterable) else list(policies)
    names: dict[str, Any] = {}
    for policy in given:
        make(policy)
        if name_of(policy) in names:
            raise InputError(
                f"policies: {name_of(policy)} is given twice (options go behind its name: NAME,OPTION=VALUE)"
            )
        names[name_of(policy)] = policy
    if not names:
        raise InputError("policies: expected at least one")
    return list(names.values())


def notes_of(scenario: Scenario, seeds: Sequence[int]) -> list[str]:
    """What must be known of differences seed by seed: seeds do not draw other jobs where there is a trace."""
    if scenario.trace is None or len(seeds) < 2:
        return []
    return ["the jobs are the trace's with every seed: intervals tell of these jobs only, not of others like them"]


def untuned_notes(scenario: Scenario, policies: Iterable[Any], options: Mapping[str, Any] | None = None) -> list[str]:
    """Where policies that go by jobs' goodput meet jobs without profiles, that these are as rigid as ever."""
    if scenario.profiles is not None:
        return []
    names = ", ".join(name_of(each) for each in policies if getattr(make(each, options), "tunes", False))
    return [f"{names}: jobs without profiles keep their width and batch (--profiles)"] if names else []


def mean_rate_notes(scenario: Scenario, how: ClusterOptions) -> list[str]:
    """Where jobs with profiles run without their epochs and batches, that they do."""
    if scenario.profiles is None or not (how.ideal or how.compat):
        return []
    rules = "ideal" if how.ideal else "compat gavel"
    return [f"{rules}: jobs with profiles run at the mean rate of the batch that they ask for, and choose no other"]


def seeds_of(seeds: Any) -> tuple[int, ...]:
    """Seeds that were given, each once."""
    drawn = tuple(dict.fromkeys(numbers_of("seeds", seeds, "whole numbers", -(2**62), 2**62, whole=True)))
    if not drawn:
        raise InputError("seeds: expected at least one value, found ()")
    return drawn


def numbers_of(
    name: str, values: Any, expected: str, least: float, most: float = 1e12, *, whole: bool = False
) -> tuple[Any, ...]:
    found = plain(values)
    if not isinstance(found, list):
        raise InputError(f"{name}: expected at least one value, found {values!r}")
    for value in found:
        within(name, value, expected, least, most, whole=whole, optional=False)
    return tuple(found)
