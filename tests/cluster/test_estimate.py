"""Estimated pair rates: a profiled reference is always itself, and more profiling is better."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.cluster.inputs.estimate import complete, estimate
from dovetail.cluster.inputs.throughputs import RateEntry, table
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.core.errors import InputError


def error(true: Throughputs, profiled: float, references: int, seeds: int = 3) -> float:
    singles = [k for k, (_, width) in enumerate(true.kinds) if width == 1]
    assert true.pairs is not None
    exact = true.pairs[np.ix_(singles, singles)]
    wrong = []
    for seed in range(seeds):
        found = estimate(true, profiled=profiled, references=references, seed=seed).throughputs
        assert found.pairs is not None
        wrong.append(np.abs(found.pairs[np.ix_(singles, singles)] - exact).mean() / exact.mean())
    return float(np.mean(wrong))


def test_a_fully_profiled_reference_is_taken_for_itself_however_many_there_are(measured: Throughputs) -> None:
    for references in range(1, 27):
        found = estimate(measured, references=references, seed=references)
        assert len(set(found.references)) == references
        for model in found.references:
            assert found.taken_for[model] == model
        assert set(found.taken_for.values()) <= set(found.references)


def test_with_everything_known_the_estimate_is_the_truth(measured: Throughputs) -> None:
    found = estimate(measured).throughputs
    assert found.source == "estimated"
    assert measured.pairs is not None
    assert found.pairs is not None
    assert np.allclose(found.pairs, measured.pairs, rtol=1e-12)
    assert np.array_equal(found.alone, measured.alone)


def test_more_profiling_and_more_references_are_better(measured: Throughputs) -> None:
    by_profiling = [error(measured, profiled, 26) for profiled in (0.05, 0.2, 0.5, 1.0)]
    assert by_profiling == sorted(by_profiling, reverse=True)
    assert by_profiling[0] > 0.1
    assert by_profiling[-1] == pytest.approx(0, abs=1e-9)
    by_references = [error(measured, 1.0, references) for references in (1, 10, 20, 26)]
    assert by_references == sorted(by_references, reverse=True)


def test_completion_finds_what_the_mean_of_the_references_does_not(measured: Throughputs) -> None:
    assert error(measured, 0.2, 26) < 0.12  # 0.25 with means in the gaps
    assert error(measured, 0.2, 20) < 0.18  # 0.25


def test_of_references_in_one_direction_the_nearest_counts() -> None:
    kept = {"half": 0.5, "most": 0.9}  # both slow down alike beside anybody, one of them more
    entries = [RateEntry(model, "l4", 1.0) for model in kept]
    entries += [RateEntry(a, "l4", rate, beside=b) for a, rate in kept.items() for b in kept]
    found = estimate(table(entries))
    assert found.taken_for == {"half": "half", "most": "most"}


def test_the_same_seed_believes_the_same(measured: Throughputs) -> None:
    one, same = (estimate(measured, profiled=0.3, references=12, seed=5) for _ in range(2))
    other = estimate(measured, profiled=0.3, references=12, seed=6)
    assert one.taken_for == same.taken_for != other.taken_for


def test_nothing_profiled_is_a_guess_but_a_valid_one(measured: Throughputs) -> None:
    found = estimate(measured, profiled=0.0, references=5).throughputs
    assert found.pairs is not None
    assert (found.pairs <= measured.alone[:, None, :] * (1 + 1e-9)).all()
    assert (found.pairs >= 0).all()


def test_what_cannot_be_estimated_is_refused(measured: Throughputs) -> None:
    with pytest.raises(InputError, match="expected pair rates"):
        estimate(table([RateEntry("LM", "l4", 1.0)]))
    with pytest.raises(InputError, match="expected 1 to 26 models, found 27"):
        estimate(measured, references=27)
    with pytest.raises(InputError, match=r"expected 0 to 1, found 1\.5"):
        estimate(measured, profiled=1.5)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_matrix_of_low_rank_is_completed(rank: int) -> None:
    """What is known is met, and what is not is off by a few percent, but for a matrix in some hundred."""
    errors = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        whole = rng.uniform(0.3, 1.0, (9, rank)) @ rng.uniform(0.3, 1.0, (rank, 12))
        seen = np.ones(whole.shape, dtype=bool)
        seen[-1, rng.permutation(12)[: 12 - 6]] = False
        apart = np.abs(complete(np.where(seen, whole, 0.0), seen, rank=rank) - whole)
        assert apart[seen].max() < 0.1
        errors.append(apart[~seen].mean() / whole.mean())
    assert np.median(errors) < 0.01
    assert np.quantile(errors, 0.95) < 0.03
