"""The rules, the clock and the text log of Gavel, for comparison with results that were made by it."""

from dovetail.cluster.rules import RoundRules

GAVEL = RoundRules(priority="fraction", allocate_every_s=1920.0, restart_s=0.0, inside=False)
"""Its rules for rounds; `gavel.py` follows the rest of its habits."""
