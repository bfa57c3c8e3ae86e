"""The rules of older simulators, for comparison with results that were made by them; Gavel's clock and text log."""

from dovetail.cluster.rules import RoundRules

GAVEL = RoundRules(priority="fraction", allocate_every_s=1920.0, restart_s=0.0, inside=False)
"""Gavel's rules for rounds; `gavel.py` follows the rest of its habits."""

SIA = RoundRules(inside=False, on_grid=True, free_moves=True)
"""Those of Pollux's and Sia's simulators: jobs are seen, and free accelerators used, when a round begins."""
