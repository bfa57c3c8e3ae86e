"""What a journal says of a node's tokens."""

from __future__ import annotations

from dovetail.core.events import Arrived


def tokens_of(arrived: Arrived, node: str) -> tuple[int, int]:
    """How many tokens a node reads and writes, as far as its arrival says so in a way that can be understood."""
    tokens = arrived.facts.get("tokens")
    given = tokens.get(node) if isinstance(tokens, dict) else None
    if not isinstance(given, list) or len(given) != 2 or not all(type(n) is int and n >= 0 for n in given):
        return 0, 0
    return given[0], given[1]
