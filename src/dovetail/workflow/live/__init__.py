"""Workflows on wall-clock time: the service, the executor, and the back ends that serve real models."""
