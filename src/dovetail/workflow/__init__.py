"""Workflow level: nodes of many-model workflows on a pool of GPUs, where loading another model has a price."""
