"""Many simulations over clusters, policies, loads and seeds: one cell, the grid of all, the table of results."""
