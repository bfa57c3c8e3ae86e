"""Training jobs over a cluster of unlike accelerators: shares of time by policy, rounds by mechanism."""
