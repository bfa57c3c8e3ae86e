"""Dovetail fits machine-learning work to mixed hardware, in simulation and for real, with the same policy code."""

__version__ = "0.1.0"
