"""Oracles, generators and emulated devices for tests and benchmarks, one module for each level."""
