"""How much training a job gets out of accelerators: throughput, what a larger batch costs, the best batch."""
