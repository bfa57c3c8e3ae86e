"""What a cluster is made of: accelerators of any number of types, the servers they are in, prices and failures."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from dovetail.cluster.inputs.choices import Paid
from dovetail.cluster.inputs.csv_rows import LEAST, MOST, MOST_WHOLE
from dovetail.core.errors import InputError, did_you_mean
from dovetail.core.files.document import Document

_LONGEST_REPAIR_S = 1e8  # three years, all of whose rounds are gone through
COLON_TYPES = ("v100", "p100", "k80")  # what the three numbers of the colon form mean


class ClusterSpec(Struct, frozen=True, kw_only=True):
    """Accelerator types and how many there are of each; all tuples run over `types`.

    A price is per accelerator and hour, None where none was given. `failure_s` is the mean time between failures of one
    server (inf: never) and `repair_s` the mean time until it is back. `order` is that in which types are filled. `of`
    says which accelerator each is, where several offers of the same one have names of their own; `paid` when it is paid
    for: always, or while a job holds it.
    """

    types: tuple[str, ...]
    counts: tuple[int, ...]
    per_server: tuple[int, ...]
    prices: tuple[float | None, ...]
    failure_s: tuple[float, ...]
    repair_s: tuple[float, ...]
    of: tuple[str, ...]
    paid: tuple[Paid, ...]
    order: tuple[str, ...]

    @property
    def total(self) -> int:
        """Accelerators of all types."""
        return sum(self.counts)

    def servers(self, kind: str) -> list[int]:
        """The sizes of a type's servers; the last one has what is left over.

        >>> parse_cluster("a100=10", gpus_per_server="4").servers("a100")
        [4, 4, 2]
        """
        at = self.types.index(kind)
        full, rest = divmod(self.counts[at], self.per_server[at])
        return [self.per_server[at]] * full + [rest] * (rest > 0)

    def with_counts(self, counts: Sequence[int]) -> ClusterSpec:
        """The same with other numbers of accelerators.

        >>> parse_cluster("a100=10,l4=2").with_counts([4, 0]).counts
        (4, 0)
        """
        return replace(self, counts=tuple(counts))

    def document(self) -> dict[str, dict[str, Any]]:
        """The types as a file has them.

        >>> parse_cluster("a100=8", gpus_per_server="4").document()
        {'a100': {'count': 8, 'gpus_per_server': 4}}
        """
        found: dict[str, dict[str, Any]] = {}
        for i, name in enumerate(self.types):
            fails: dict[str, Any] = (
                {"failure_s": self.failure_s[i], "repair_s": self.repair_s[i]} if self.failure_s[i] < inf else {}
            )
            bought = {"price_per_hour": self.prices[i]} if self.prices[i] is not None else {}
            offered: dict[str, Any] = {"type": self.of[i]} if self.of[i] != name else {}
            paid = {"paid": self.paid[i]} if self.paid[i] != "always" else {}
            sizes = {"count": self.counts[i], "gpus_per_server": self.per_server[i]}
            found[name] = offered | sizes | bought | paid | fails
        return found

    def present(self) -> ClusterSpec:
        """The same without the types of which there are none, in the order in which types are filled."""
        at = [i for i in map(self.types.index, self.order) if self.counts[i]]
        columns = {name: tuple(column[i] for i in at) for name, column in asdict(self).items() if name != "order"}
        return ClusterSpec(**columns, order=columns["types"])


class _Type(Struct, forbid_unknown_fields=True):
    count: int
    gpus_per_server: int = 1
    price_per_hour: float | None = None
    failure_s: float | None = None
    repair_s: float = 3600.0
    type: str | None = None
    paid: Paid = "always"


class _ClusterFile(Struct, forbid_unknown_fields=True):
    types: dict[str, _Type | int]
    order: list[str] = field(default_factory=list)


def parse_cluster(text: str | dict[str, Any], *, gpus_per_server: str = "") -> ClusterSpec:
    """A cluster from `36:36:36` (v100, p100, k80), from `a100=16,l4=8`, from a file, or from what one would hold.

    >>> parse_cluster("8:0:4").types, parse_cluster("8:0:4").counts
    (('v100', 'p100', 'k80'), (8, 0, 4))
    >>> parse_cluster("a100=16,l4=8", gpus_per_server="l4=2").per_server
    (1, 2)
    """
    if not isinstance(text, str):
        return _from_document(Document.of(text, "cluster"), gpus_per_server)
    if "=" in text and not Path(text).is_file():
        pairs = _pairs(text, "cluster", least=0)
        types = {name: _Type(count) for name, count in pairs.items()}
        return _spec(_per_server(types, gpus_per_server))
    if text.replace(":", "").strip().isdecimal() and ":" in text:
        counts = _colons(text, "cluster", least=0)
        types = {name: _Type(count) for name, count in zip(COLON_TYPES, counts, strict=True)}
        return _spec(_per_server(types, gpus_per_server))
    if not text or not Path(text).exists():
        missing = " no such file;" if text.endswith((".yaml", ".yml", ".json")) else ""
        forms = "v100:p100:k80 such as 36:36:36, TYPE=COUNT,... or a file"
        raise InputError(f"cluster {text!r}:{missing} expected {forms}")
    return _from_document(Document.read(Path(text)), gpus_per_server)


def _from_document(doc: Document, gpus_per_server: str) -> ClusterSpec:
    """A cluster as a file holds it: `types: {a100: {count: 16, gpus_per_server: 8}, l4: 8}`."""
    content = doc.convert(doc.data, _ClusterFile)
    types = {name: given if isinstance(given, _Type) else _Type(given) for name, given in content.types.items()}
    for name, given in types.items():
        bounds: dict[str, tuple[int, float]] = {
            "count": (0, MOST_WHOLE),
            "gpus_per_server": (1, MOST_WHOLE),
            "price_per_hour": (0, MOST),
            "failure_s": (1, MOST),
            "repair_s": (0, _LONGEST_REPAIR_S),
        }
        for key, (least, most) in bounds.items():
            value = getattr(given, key)
            if value is not None and not least <= value <= most:
                wanted = f"at most {most:g}" if value > most else f"{least} or more"
                raise doc.error(("types", name, key), f"expected {wanted}, found {value}")
            if value is not None and 0 < value < LEAST:
                raise doc.error(("types", name, key), f"expected 0, or {LEAST:g} or more, found {value}")
    for i, name in enumerate(content.order):
        if name not in types or content.order.index(name) != i:
            hint = did_you_mean(name, types) if name not in types else ""
            raise doc.error(("order", i), f"expected each type once, found {name!r}{hint}")
    rest = [name for name in types if name not in content.order]
    try:
        return _spec(_per_server(types, gpus_per_server), (*content.order, *rest))
    except InputError as error:
        raise InputError(f"{doc.path}: {error}") from None


def _spec(types: dict[str, _Type], order: tuple[str, ...] = ()) -> ClusterSpec:
    given = list(types.values())
    if not any(each.count for each in given):
        raise InputError("cluster: expected at least one accelerator, found none")
    if (total := sum(each.count for each in given)) > MOST_WHOLE:
        raise InputError(f"cluster: expected at most {MOST_WHOLE:,} accelerators, found {total:,}")
    return ClusterSpec(
        types=tuple(types),
        counts=tuple(each.count for each in given),
        per_server=tuple(each.gpus_per_server for each in given),
        prices=tuple(each.price_per_hour for each in given),
        failure_s=tuple(inf if each.failure_s is None else each.failure_s for each in given),
        repair_s=tuple(each.repair_s for each in given),
        of=tuple(each.type or name for name, each in types.items()),
        paid=tuple(each.paid for each in given),
        order=order or tuple(types),
    )


def _per_server(types: dict[str, _Type], text: str) -> dict[str, _Type]:
    """The types with servers of the sizes that were asked for: one number for all, v100:p100:k80, or TYPE=NUMBER,..."""
    what = "gpus per server"
    if not text:
        return types
    if "=" in text:
        sizes = _pairs(text, what, least=1)
    elif ":" in text:
        sizes = dict(zip(COLON_TYPES, _colons(text, what, least=1), strict=True))
        sizes = {name: size for name, size in sizes.items() if name in types} or sizes
    else:
        size = _number(text, what, text, least=1)
        sizes = dict.fromkeys(types, size)
    for name, size in sizes.items():
        if name not in types:
            raise InputError(f"{what} {text!r}: the cluster has no {name!r}{did_you_mean(name, types)}")
        if size > MOST_WHOLE:
            raise InputError(f"{what} {text!r}: expected at most {MOST_WHOLE:,}, found {size:,}")
        types[name].gpus_per_server = size
    return types


def _colons(text: str, what: str, *, least: int) -> list[int]:
    parts = text.split(":")
    if len(parts) != len(COLON_TYPES):
        raise InputError(
            f"{what} {text!r}: expected {len(COLON_TYPES)} numbers, {':'.join(COLON_TYPES)}, found {len(parts)}; "
            "other types are given as TYPE=COUNT,..."
        )
    return [_number(part, what, text, least=least) for part in parts]


def _pairs(text: str, what: str, *, least: int) -> dict[str, int]:
    pairs: dict[str, int] = {}
    for part in text.split(","):
        name, equals, number = (piece.strip() for piece in part.partition("="))
        if not name or not equals:
            raise InputError(f"{what} {text!r}: expected TYPE=NUMBER, found {part!r}")
        if name in pairs:
            raise InputError(f"{what} {text!r}: {name!r} is given twice")
        pairs[name] = _number(number, what, text, least=least)
    return pairs


def _number(part: str, what: str, text: str, *, least: int) -> int:
    if not part.strip().isdecimal() or int(part) < least:
        raise InputError(f"{what} {text!r}: expected a whole number >= {least}, found {part!r}")
    return int(part)
