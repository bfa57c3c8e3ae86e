"""The built-in estimate: as near to what was measured as it says, and faster where hardware is faster."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail.cluster.inputs.accelerators import ACCELERATORS, accelerator
from dovetail.cluster.inputs.analytic import FAMILIES, analytic
from dovetail.cluster.inputs.templates import TEMPLATES
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.policies.base import Floats
from dovetail.core.errors import InputError


def median_error(true: Floats, guess: Floats) -> float:
    both = (true > 0) & (guess > 0)
    return float(np.median(np.abs(guess[both] / true[both] - 1)))


def test_the_estimate_is_as_good_as_it_says(measured: Throughputs) -> None:
    guess = analytic(measured.types)
    at = [guess.index()[kind] for kind in measured.kinds]
    one = np.array([width == 1 for _, width in measured.kinds])
    assert measured.pairs is not None
    assert guess.pairs is not None
    assert round(median_error(measured.alone[one], guess.alone[at][one]), 2) == 0.09
    assert round(median_error(measured.alone[~one], guess.alone[at][~one]), 2) == 0.15
    assert round(median_error(measured.spread[~one], guess.spread[at][~one]), 2) == 0.15
    pairs = guess.pairs[np.ix_(at, at)]
    assert round(median_error(measured.pairs[np.ix_(one, one)], pairs[np.ix_(one, one)]), 2) == 0.21
    assert np.array_equal(measured.alone > 0, guess.alone[at] > 0)  # what does not fit on a K80


def test_every_accelerator_runs_and_generations_are_faster() -> None:
    everything = analytic(list(ACCELERATORS))
    assert (everything.alone[everything.index()["A3C", 1]] > 0).all()
    resnet = everything.alone[everything.index()["ResNet-50 (batch size 64)", 1]]
    speed = dict(zip(everything.types, resnet.tolist(), strict=True))
    order = ["k80", "t4", "p100", "v100", "a10", "a100", "a100-80", "h100", "h200"]
    assert [speed[name] for name in order] == sorted(speed[name] for name in order)


def test_rates_make_sense_together() -> None:
    found = analytic(["v100", "h100", "l4"])
    index = found.index()
    assert {model for model, _ in found.kinds} == {template.model for template in TEMPLATES}
    for template in TEMPLATES:
        one = found.alone[index[template.model, 1]]
        assert ((template.model, 8) in index) == FAMILIES[template.family].wide
        if (template.model, 8) in index:
            eight = found.alone[index[template.model, 8]]
            assert (eight <= 8 * one * (1 + 1e-12)).all()
    assert (found.spread <= found.alone * (1 + 1e-12)).all()
    slow = analytic(["v100", "h100", "l4"], network_gbit_s=1.0)
    wide = [k for k, (_, width) in enumerate(found.kinds) if width > 1]
    assert (slow.spread[wide] < found.spread[wide]).all()


def test_pairs_never_beat_running_alone_nor_lose_to_taking_turns() -> None:
    found = analytic(["k80", "a100"])
    assert found.pairs is not None
    alone = found.alone[:, None, :]
    assert (found.pairs <= alone * (1 + 1e-12)).all()
    kept = np.divide(found.pairs, alone, out=np.zeros_like(found.pairs), where=alone > 0)
    together = kept + kept.transpose(1, 0, 2)
    shares = kept > 0
    assert np.array_equal(shares, shares.transpose(1, 0, 2))
    assert (together[shares] >= 1 - 1e-12).all()
    for a, (_, width_a) in enumerate(found.kinds):
        for b, (_, width_b) in enumerate(found.kinds):
            assert width_a == width_b or not shares[a, b].any()
    big = found.index()["ResNet-50 (batch size 128)", 1]
    assert not shares[big, big, 0]  # two of them do not fit on a K80
    assert shares[big, big, 1]


def test_names_are_found_in_any_spelling() -> None:
    assert accelerator("Tesla V100") == accelerator("v100") == accelerator("NVIDIA V100")
    assert accelerator("RTX 3090") == accelerator("rtx3090")
    assert accelerator("A100-80GB").memory_gib == 80
    with pytest.raises(InputError, match="'h100x'; did you mean 'h100'"):
        accelerator("h100x")
