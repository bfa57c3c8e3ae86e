"""Leases: a mechanism that promises more than there is is stopped at once."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dovetail.cluster.inputs.workload import Job
from dovetail.cluster.rounding.leases import Leases
from dovetail.cluster.rounding.mechanism import Choice, Mechanism
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import DovetailError
from tests.cluster.conftest import THROUGHPUTS, Make, Table


@pytest.mark.parametrize("per_server", [1, 2])
def test_more_jobs_than_accelerators_are_refused(make_setup: Make, per_server: int) -> None:
    jobs = [Job(id=i, model="A", steps=9) for i in range(3)]
    setup = make_setup(jobs, counts=(2, 2), per_server=(per_server, per_server))
    mechanism = Mechanism(Table({}), setup.types, setup.counts, setup.rates(), None, RoundRules(), random.Random(0))
    mechanism.arrive(jobs, [THROUGHPUTS.kinds.index(("A", 1))] * 3, [0] * 3)
    leases = Leases(setup, mechanism)
    with pytest.raises(DovetailError, match="job 2 was to run on 1 accelerators of type slow, but only 0 are free"):
        leases.apply(0.0, Choice(np.array([1, 1, 1]), np.full(3, -1)), [])
