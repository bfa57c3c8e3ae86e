"""Leases: a mechanism that promises more than there is is stopped at once."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dovetail.cluster.rounding.leases import Leases
from dovetail.cluster.rounding.mechanism import Choice, Mechanism
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import DovetailError
from tests.cluster.conftest import THROUGHPUTS, Make, Table


@pytest.mark.parametrize("per_server", [1, 2])
def test_more_jobs_than_accelerators_are_refused(make_setup: Make, per_server: int) -> None:
    setup = make_setup([], counts=(2, 2), per_server=(per_server, per_server))
    rates, kinds = setup.rates(), THROUGHPUTS.kinds
    mechanism = Mechanism(
        Table({}), setup.types, setup.counts, rates, None, RoundRules(), random.Random(0), kinds=kinds
    )
    kind = kinds.index(("A", 1))
    mechanism.arrive({"id": [0, 1, 2], "kind": [kind] * 3, "steps": [9.0] * 3, "at_s": [0.0] * 3})
    leases = Leases(mechanism, setup.per_server.tolist(), rates)
    with pytest.raises(DovetailError, match="job 2 was to run on 1 accelerators of type slow, but only 0 are free"):
        leases.apply(0.0, Choice(np.array([1, 1, 1]), np.full(3, -1)), [])
