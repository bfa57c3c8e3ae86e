"""For workflow policies: random workloads under every policy, and every schedule of a small case."""
