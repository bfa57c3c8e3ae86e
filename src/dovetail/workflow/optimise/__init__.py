"""Optimisers: the offline planner behind the `optimise` policy, and the exact optimum of a small case."""
