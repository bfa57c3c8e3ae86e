"""The cluster on wall-clock time: a service, its rounds, and an agent on every node."""
