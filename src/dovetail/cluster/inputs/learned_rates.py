"""A policy that decides by estimated pair rates, and learns the true ones of the pairs that it tries."""

from __future__ import annotations

from dataclasses import replace

from dovetail.cluster.policies.base import Allocation, Floats, Policy, Problem, by_older_rules


class LearnedRates:
    """Passes problems on with believed pair rates in the place of the true ones.

    A pair that was given time is measured by it: from the next decision on, its true rates are known.
    """

    def __init__(self, policy: Policy, pairs: Floats) -> None:
        self.policy = policy
        self.pairs = pairs
        self.agnostic, self.packs, self.strict = policy.agnostic, policy.packs, policy.strict
        self.every_round = getattr(policy, "every_round", False)

    def by_older_rules(self) -> LearnedRates:
        return LearnedRates(by_older_rules(self.policy), self.pairs)

    def allocate(self, problem: Problem) -> Allocation:
        true = problem.pair_rates
        if true is None:
            return self.policy.allocate(problem)
        found = self.policy.allocate(replace(problem, pair_rates=self.pairs))
        tried = found.pairs[(found.pair_share > 0).any(axis=1)] if len(found.pairs) else found.pairs
        if len(tried):
            # Policies may keep the array that they were given, so it is replaced and not changed.
            self.pairs = self.pairs.copy()
            a, b = problem.kind[tried].T
            self.pairs[a, b], self.pairs[b, a] = true[a, b], true[b, a]
        return found
