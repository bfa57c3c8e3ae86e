"""What live runs teach: how fast kinds of jobs run on types, alone and beside others, and what a restart costs.

A kind is a model with its batch, and a width. What is not measured is estimated from what is. The policy hears of a
number when it is new, or has moved by more than measurements differ: noise wakes nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import log
from typing import Any

import numpy as np
from msgspec import Struct

from dovetail.cluster.policies.base import Floats, Ints
from dovetail.cluster.rounding import records
from dovetail.core.events import Rows

GUESS = 1.0  # steps per second of the first kind of all, before anything is known
BESIDE = 0.55  # of its own rate, beside a job of which nothing is known: a little better than taking turns
_SHARES = 0.05, 1.0  # the least and the most that is expected of a rate beside others
_GUESS_ABOVE = 0.25  # a guess is told anew if it has moved by more than this part
_NO_COST_S = 0.02  # costs that differ by less are alike, whatever part of them that is
_FITS = 20
_CURIOUS = 1.3  # times the best type: what a type is taken for that no job was on
_MOST_PAIRED = 200  # kinds of which pairs are guessed: their number grows with the square
_SPREAD = " over several servers"
_AT_WIDTH = " at width"
Kind = tuple[str, int]
Key = tuple[str, int, str, str]  # model, width, type, the model beside


NumberRecord = tuple[str, Key, float, int]  # what, of what, its value, from how many measurements


class MeasuredNumber(Struct):
    """A number, and from how many measurements it is; 0: a user said so."""

    value: float
    count: int = 0

    def see(self, value: float, weight: float) -> None:
        """Measured once more: later ones have this weight at least, the first few count alike.

        >>> rate = MeasuredNumber(8.0)
        >>> rate.see(4.0, 0.3), rate.value, rate.see(5.0, 0.3), rate.value
        (None, 4.0, None, 4.5)
        """
        self.count += 1
        self.value += (value - self.value) * max(weight, 1 / self.count)


class Knowledge(Struct):
    """All that was measured, over all journals of a service: by model, width, type, and the model beside."""

    rates: dict[Key, MeasuredNumber] = {}
    costs: dict[Key, MeasuredNumber] = {}
    costs_ahead: dict[Key, MeasuredNumber] = {}  # of starts that were planned ahead

    @property
    def _named(self) -> dict[str, dict[Key, MeasuredNumber]]:
        return {"rate": self.rates, "cost": self.costs, "cost ahead": self.costs_ahead}

    def plain(self) -> list[NumberRecord]:
        """For the store."""
        named = self._named.items()
        return [(what, key, each.value, each.count) for what, known in named for key, each in known.items()]

    def told(self) -> list[dict[str, Any]]:
        """For people."""
        return [
            {
                "what": what,
                "model": key[0],
                "width": key[1],
                "type": key[2],
                "beside": key[3],
                "value": value,
                "count": n,
            }
            for what, key, value, n in self.plain()
        ]

    @classmethod
    def of(cls, plain: Iterable[NumberRecord]) -> Knowledge:
        """
        >>> known = Knowledge(rates={("LM", 1, "v100", ""): MeasuredNumber(3.0, 2)})
        >>> Knowledge.of(known.plain()) == known
        True
        """
        found = cls()
        for what, key, value, count in plain:
            found._named[what][key] = MeasuredNumber(value, count)
        return found


def called(model: str, width: int, widths: Sequence[int] = ()) -> str:
    """What a journal calls a model at a width. Kinds that are called alike are one job's choice: an elastic policy may
    give it the width of any of them, and a rigid job has none.

    >>> called("LM", 1), called("LM", 2), called("LM", 2, [1, 2, 4]), model_of("LM at widths 1, 2, 4")
    ('LM', 'LM at width 2', 'LM at widths 1, 2, 4', 'LM')
    """
    if len(set(widths)) > 1:
        return f"{model}{_AT_WIDTH}s {', '.join(map(str, sorted(set(widths))))}"
    return model if width == 1 else f"{model}{_AT_WIDTH} {width}"


def model_of(name: str) -> str:
    """The model that a journal calls so."""
    return name.partition(_AT_WIDTH)[0]


class LearnedTable:
    """Kinds in the order of a journal, and what its policy was told of them. `see_*` and `add` give what it should hear
    next."""

    def __init__(self, types: Sequence[str], knowledge: Knowledge, above: float = 0.05, weight: float = 0.3) -> None:
        self.types, self.knowledge = tuple(types), knowledge
        self._above, self._weight = above, weight
        self.kinds: list[Kind] = []  # models and widths; two may be alike that are called otherwise
        self._place: dict[Kind, int] = {}  # by what they are called, and width
        # By kind, type, and whether over several servers; 0: it cannot run there.
        self._told: dict[tuple[int, int, bool], float] = {}
        self._told_beside: dict[tuple[int, int, int], float] = {}  # by kind, the other's, type
        self._told_costs: dict[tuple[int, int, bool], float] = {}  # by kind, type, whether it was planned ahead
        self._fitted: tuple[dict[str, float], float, Floats] | None = None  # until something is measured first
        self._alike: dict[Kind, list[int]] = {}  # by model and width
        self.packs = False  # whether the policy wants to hear of pairs

    # --- what the journal has -----------------------------------------------------------------------------

    def recall(self, rows: Rows) -> None:
        """The policy has heard this."""
        c = rows.columns
        if rows.of == "kinds":
            for name, width, alone in zip(c["model"], c["width"], c["alone"], strict=True):
                if (name, width) not in self._place:
                    self._append(name, width)
                kind = self._place[name, width]
                self._told |= {(kind, j, spread): rate for j, rate in enumerate(alone) for spread in (False, True)}
        elif rows.of == "learned":
            spread = c.get("spread") or [False] * len(c["kind"])
            self._told |= dict(zip(zip(c["kind"], c["on"], spread, strict=True), c["rate"], strict=True))
        elif rows.of == "learned_pairs":
            keys = zip(c["kind"], c["beside"], c["on"], strict=True)
            self._told_beside |= dict(zip(keys, c["rate"], strict=True))
        elif rows.of == "costs":
            every = [(False, True)] * len(c["kind"]) if not c.get("ahead") else [(each,) for each in c["ahead"]]
            for kind, j, seconds, which in zip(c["kind"], c["on"], c["restart_s"], every, strict=True):
                self._told_costs |= {(kind, j, ahead): seconds for ahead in which}

    def _append(self, name: str, width: int) -> int:
        self._place[name, width] = len(self.kinds)
        self.kinds.append((model_of(name), width))
        self._alike.setdefault(self.kinds[-1], []).append(len(self.kinds) - 1)
        return len(self.kinds) - 1

    def place(self, model: str, width: int, widths: Sequence[int] = ()) -> int:
        """The kind of a job that has this width, or may have any of several."""
        return self._place[called(model, width, widths), width]

    # --- new kinds ------------------------------------------------------------------------------------------

    def add(
        self, model: str, widths: Sequence[int], types: Sequence[str] = (), given: Mapping[str, float] | None = None
    ) -> list[Rows]:
        """A model that runs at these widths, on these types or on all; `given` are its rates at the first of them, as
        its user says."""
        first, *others = dict.fromkeys(widths)
        name = called(model, first, widths)
        new = [width for width in (first, *others) if (name, width) not in self._place]
        if not new:
            return []
        for on, rate in (given or {}).items():
            if rate > 0:
                self.knowledge.rates.setdefault((model, first, on, ""), MeasuredNumber(rate))
                self._fitted = None
        able = [not types or on in types for on in self.types]
        places = [self._append(name, width) for width in new]
        alone = self._rates(places) * able
        found = [records.kinds([name] * len(new), new, alone.tolist())]
        self.recall(found[0])
        for k, j in ((k, j) for k in places for j, fits in enumerate(able) if fits):
            found += self._cost_news(k, j)
        return found + (self.all_pairs(places) if self.packs else [])

    def _rates(self, kinds: Sequence[int]) -> Floats:
        """Steps per second of kinds on all types, as they are known or else guessed."""
        rates = self.guessed(kinds)
        for row, k in enumerate(kinds):
            model, width = self.kinds[k]
            for j, name in enumerate(self.types):
                if (known := self.knowledge.rates.get((model, width, name, ""))) is not None:
                    rates[row, j] = known.value
        return rates

    def guessed(self, kinds: Sequence[int]) -> Floats:
        """Steps per second of kinds on all types as type ratios and widths suggest: the logarithm of a rate is a number
        of the model plus one of the type, and a wider job is faster by as much."""
        of_model, usual, of_type = self._fitted = self._fitted or self._fit()
        models, widths = zip(*(self.kinds[k] for k in kinds), strict=True)
        level = np.array([of_model.get(model, usual) for model in models])
        found: Floats = np.exp(level[:, None] + of_type[None, :]) * np.array(widths, dtype=np.float64)[:, None]
        return found

    def _fit(self) -> tuple[dict[str, float], float, Floats]:
        """Numbers of models, of one that is not known, and of types. One that nobody was on yet is taken for a little
        better than the best: so it is tried when it is free."""
        known = [(key, each.value) for key, each in self.knowledge.rates.items() if not key[3] and key[2] in self.types]
        if not known:
            return {}, log(GUESS), np.zeros(len(self.types))
        models = {name: i for i, name in enumerate(dict.fromkeys(key[0] for key, _ in known))}
        row = np.array([models[key[0]] for key, _ in known])
        j = np.array([self.types.index(key[2]) for key, _ in known])
        value = np.array([log(rate / key[1]) for key, rate in known])
        of_type = np.zeros(len(self.types))
        for _ in range(_FITS):
            of_model = _means(row, value - of_type[j], len(models))
            of_type = _means(j, value - of_model[row], len(self.types))
            of_type = np.where(np.isnan(of_type), np.nanmax(of_type) + log(_CURIOUS), of_type)
        return dict(zip(models, of_model.tolist(), strict=True)), float(np.median(of_model)), of_type

    # --- measurements ---------------------------------------------------------------------------------------

    def see_rate(self, kind: int, j: int, rate: float, spread: bool = False) -> list[Rows]:
        """A job of a kind ran alone on a type at this rate, in one server or over several. Guesses of others may move
        with it."""
        seen = self._see(self.knowledge.rates, kind, j, rate, spread=spread)
        model, width = self.kinds[kind]
        alike = width > 1 and (model, width, self._at(j, not spread), "") not in self.knowledge.rates
        moved: list[tuple[int, int, bool, float]] = []
        for k in self._same(kind):
            if _moved(seen.value, self._told.get((k, j, spread)), self._above):
                moved.append((k, j, spread, seen.value))
            if alike and _moved(seen.value, self._told.get((k, j, not spread)), _GUESS_ABOVE):
                moved.append((k, j, not spread, seen.value))  # nothing better is known
        if seen.count == 1 and not spread:
            self._fitted = None
            moved += self._guessed_anew()
        if not moved:
            return []
        kinds, on, where, rates = (list(column) for column in zip(*moved, strict=True))
        found = self._news(records.learned(kinds, on, rates, where if any(where) else None))
        return found + (self.all_pairs(kinds) if self.packs else [])  # guesses follow the rates alone

    def _same(self, kind: int) -> list[int]:
        """All kinds of the same model and width, whatever they are called."""
        return self._alike[self.kinds[kind]]

    def _at(self, j: int, spread: bool) -> str:
        """What a type is called among what is known."""
        return f"{self.types[j]}{_SPREAD}" if spread else self.types[j]

    def see_pair(self, kind: int, other: int, j: int, rate: float) -> list[Rows]:
        """A job of a kind ran at this rate beside one of another."""
        value = self._see(self.knowledge.rates, kind, j, rate, self.kinds[other][0]).value
        pairs = [(a, b) for a in self._same(kind) for b in self._same(other)]
        moved = [pair for pair in pairs if _moved(value, self._told_beside.get((*pair, j)), self._above)]
        if not moved:
            return []
        kinds, others = (list(column) for column in zip(*moved, strict=True))
        return self._news(records.learned_pairs(kinds, others, [j] * len(moved), [value] * len(moved)))

    def see_cost(self, kind: int, j: int, seconds: float, ahead: bool = False) -> list[Rows]:
        """To start a job of a kind on a type, which may have been planned ahead, and to save it, took so long."""
        self._see(self.knowledge.costs_ahead if ahead else self.knowledge.costs, kind, j, seconds)
        return [rows for k in self._same(kind) for rows in self._cost_news(k, j)]

    def _see(
        self, known: dict[Key, MeasuredNumber], kind: int, j: int, value: float, beside: str = "", spread: bool = False
    ) -> MeasuredNumber:
        model, width = self.kinds[kind]
        found = known.setdefault((model, width, self._at(j, spread), beside), MeasuredNumber(value))
        found.see(value, self._weight)
        return found

    def _cost_news(self, kind: int, j: int) -> list[Rows]:
        """What starts cost that were not planned ahead, and that were; as long as one is not known, it is the other."""
        model, width = self.kinds[kind]
        numbers = self.knowledge.costs, self.knowledge.costs_ahead
        known = [each.get((model, width, self.types[j], "")) for each in numbers]
        values = {ahead: each.value for ahead, each in enumerate(known) if each is not None}
        if not values:
            return []
        moved: list[bool] = []
        for ahead in (False, True):
            value, told = values.setdefault(ahead, values.get(not ahead, 0.0)), self._told_costs.get((kind, j, ahead))
            if _moved(value, told, 2 * self._above) and abs(value - (told or 0.0)) >= _NO_COST_S:
                moved.append(ahead)
        if not moved:
            return []
        if None in known:
            return self._news(records.costs([kind], [j], [values[False]]))
        count = len(moved)
        return self._news(records.costs([kind] * count, [j] * count, [values[ahead] for ahead in moved], moved))

    def _guessed_anew(self) -> list[tuple[int, int, bool, float]]:
        """Guesses that are far from what was told."""
        guessed, found = self.guessed(range(len(self.kinds))), []
        for (kind, j, spread), told in self._told.items():
            model, width = self.kinds[kind]
            known = any((model, width, self._at(j, each), "") in self.knowledge.rates for each in (False, True))
            if told > 0 and not known and (width > 1 or not spread):
                guess = float(guessed[kind, j])
                if _moved(guess, told, _GUESS_ABOVE):
                    found.append((kind, j, spread, guess))
        return found

    def _news(self, rows: Rows) -> list[Rows]:
        self.recall(rows)
        return [rows]

    # --- pairs ----------------------------------------------------------------------------------------------

    def all_pairs(self, kinds: Sequence[int] | None = None) -> list[Rows]:
        """What is known or guessed of these kinds, or all, beside all of the same width: for a policy that packs."""
        self.packs = True
        chosen = set(range(len(self.kinds)) if kinds is None else kinds) & set(range(_MOST_PAIRED))
        share = self._shares()
        columns: dict[str, list[Any]] = {"kind": [], "beside": [], "on": [], "rate": []}
        for a, (model, width) in enumerate(self.kinds[:_MOST_PAIRED]):
            for b in range(min(len(self.kinds), _MOST_PAIRED)) if a in chosen else sorted(chosen):
                other, width_b = self.kinds[b]
                if width != width_b:
                    continue
                for j, name in enumerate(self.types):
                    known = self.knowledge.rates.get((model, width, name, other))
                    guess = self._told.get((a, j, False), 0.0) * share.get((model, other), BESIDE)
                    rate = known.value if known is not None else guess * (self._told.get((b, j, False), 0.0) > 0)
                    if _moved(rate, self._told_beside.get((a, b, j)), self._above):
                        for key, value in zip(columns, (a, b, j, rate), strict=True):
                            columns[key].append(value)
        if not columns["kind"]:
            return []
        return self._news(records.learned_pairs(columns["kind"], columns["beside"], columns["on"], columns["rate"]))

    def _shares(self) -> dict[tuple[str, str], float]:
        """What is expected to be left of a model's own rate beside another: how much it suffers, and how much the
        other one takes, each on the average of what was measured."""
        seen: list[tuple[str, str, float]] = []
        for (model, width, name, other), pair in self.knowledge.rates.items():
            alone = self.knowledge.rates.get((model, width, name, ""))
            if other and alone is not None and alone.value > 0:
                seen.append((model, other, pair.value / alone.value))
        if not seen:
            return {}
        mean = sum(share for *_, share in seen) / len(seen)
        suffers, takes = (_mean_by(seen, at) for at in (0, 1))
        models = dict.fromkeys(model for model, _ in self.kinds)
        least, most = _SHARES
        return {
            (a, b): min(max(suffers.get(a, mean) * takes.get(b, mean) / mean, least), most)
            for a in models
            for b in models
        }


def _moved(value: float, told: float | None, above: float) -> bool:
    """
    >>> _moved(1.04, 1.0, 0.05), _moved(1.06, 1.0, 0.05), _moved(2.0, None, 0.05), _moved(0.0, 0.0, 0.05)
    (False, True, True, False)
    """
    return told is None or abs(value - told) > above * told


def _means(group: Ints, values: Floats, count: int) -> Floats:
    """The mean of each group; nan where there is none."""
    sums, sizes = np.bincount(group, values, count), np.bincount(group, minlength=count)
    found: Floats = np.divide(sums, sizes, out=np.full(count, np.nan), where=sizes > 0)
    return found


def _mean_by(seen: Sequence[tuple[str, str, float]], at: int) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for each in seen:
        groups.setdefault(str(each[at]), []).append(each[2])
    return {name: sum(shares) / len(shares) for name, shares in groups.items()}
