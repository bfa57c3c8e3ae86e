"""What is asked of service: how soon the first token comes, how fast the others follow, how soon all is done."""

from __future__ import annotations

from math import inf

from msgspec import Struct


class Slo(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Limits in seconds: from when a node is ready to its first token, from each token to the next, and from when a
    request arrives to its end."""

    ttft_s: float = inf
    tpot_s: float = inf
    response_s: float = inf

    def problem(self) -> str | None:
        """What is wrong with these values, or None."""
        for name in self.__struct_fields__:
            if not getattr(self, name) > 0:
                return f"{name}: expected a positive number of seconds, found {getattr(self, name)}"
        return None
