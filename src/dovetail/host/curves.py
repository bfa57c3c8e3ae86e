"""How much faster a program runs on more cores: linear, by Amdahl's law, from a table, or fitted to measured points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, pairwise
from math import inf, isfinite
from typing import Any

from dovetail.core.errors import InputError

LINEAR = "linear"
Points = Sequence[tuple[int, float]]
_FORMS = "linear, amdahl:FRACTION, table:CORES=SECONDS,..., fit:CORES=SECONDS,... or fit+:CORES=SECONDS,..."


class SpeedUp:
    """The speed-up of a program: how much faster it runs on n cores than on one. `base_s` is what it takes on one core,
    where the curve was given in seconds.

    >>> curve("linear").speed(4), curve("amdahl:0.5").speed(2)
    (4.0, 1.3333333333333333)
    """

    def __init__(self, text: str, speed: Callable[[int], float], base_s: float | None = None) -> None:
        self.text = text
        self.base_s = base_s
        self._speed = speed
        self._known: list[float] = [0.0]
        self._gains: dict[int, list[float]] = {}

    def speed(self, cores: int) -> float:
        while len(self._known) <= cores:
            self._known.append(self._speed(len(self._known)))
        return self._known[cores]

    def sweet(self, cores: int, efficiency: float) -> int:
        """The most cores, of so many, that still pay: those up to the fastest, used at least so well as that share of
        the best that a core of this program ever does.

        >>> [curve(text).sweet(16, 0.5) for text in ("linear", "amdahl:0.9", "fit+:1=10,2=6,4=5,8=8")]
        [16, 11, 3]
        """
        each = [self.speed(n) / n for n in range(1, cores + 1)]
        enough = efficiency * max(each)
        fastest = max(range(cores), key=lambda i: (each[i] * (i + 1), -i))
        return max(i + 1 for i in range(fastest + 1) if each[i] >= enough)

    def gain(self, cores: int, most: int) -> float:
        """What each further core adds to the speed, if as many are added as pay best, up to `most`."""
        gains = self._gains.get(most)
        if gains is None:
            gains = self._gains[most] = [
                max(((self.speed(m) - self.speed(n)) / (m - n) for m in range(n + 1, most + 1)), default=0.0)
                for n in range(most + 1)
            ]
        return gains[cores] if cores < most else 0.0


@lru_cache(maxsize=4096)
def curve(text: str) -> SpeedUp:
    """A curve by its text.

    >>> curve("table:1=100,2=60,4=40").speed(3)
    2.0833333333333335
    >>> curve("amdahl:2")
    Traceback (most recent call last):
    dovetail.core.errors.InputError: curve 'amdahl:2': expected the parallel fraction, 0 to 1, found 2
    """
    kind, _, rest = text.partition(":")
    if text == LINEAR:
        return SpeedUp(text, float)
    if kind == "amdahl":
        share = _number(text, rest)
        if not 0 <= share <= 1:
            raise InputError(f"curve {text!r}: expected the parallel fraction, 0 to 1, found {rest}")
        return SpeedUp(text, lambda n: 1 / (1 - share + share / n))
    if kind in ("table", "fit", "fit+"):
        points = _points(text, rest)
        if kind == "table":
            return _table(text, points)
        coefficients = fit(points, linear=kind == "fit+")
        base_s = sum(coefficients)
        if base_s <= 0:
            raise InputError(f"curve {text!r}: nothing positive fits these points")
        return SpeedUp(text, lambda n: base_s / predicted_s(coefficients, n), base_s)
    raise InputError(f"curve {text!r}: expected {_FORMS}")


def curves_by_image(given: str | Mapping[str, str] | Iterable[str] | None) -> dict[str, str]:
    """By image, "" for all: from a mapping of that kind, one text for all, or texts of which `IMAGE@...` is for one.

    >>> curves_by_image(["amdahl:0.9", "resnet@table:1=100,2=60"])
    {'': 'amdahl:0.9', 'resnet': 'table:1=100,2=60'}
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        texts: list[Any] = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
        if not all(isinstance(text, str) for text in texts):
            raise InputError(f"curves: expected {_FORMS}, found {given!r}")
        given = {text.rpartition("@")[0]: text.rpartition("@")[2] for text in texts}
    return {image: curve(str(text)).text for image, text in given.items()}


def learned(given: str, rates: Mapping[int, float]) -> str:
    """The text of a program's curve by what was measured: its rate, in whatever unit, on so many cores. What its user
    gave stays, and two numbers of cores must be known.

    >>> learned("linear", {2: 8.0}), learned("linear", {2: 8.0, 1: 5.0}), learned("amdahl:0.9", {2: 8.0, 1: 5.0})
    ('linear', 'fit:1=0.2,2=0.125', 'amdahl:0.9')
    """
    if given != LINEAR or len(rates) < 2:
        return given
    return "fit:" + ",".join(f"{cores}={1 / rate:.9g}" for cores, rate in sorted(rates.items()))


def _number(text: str, word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = inf
    if not isfinite(value):
        raise InputError(f"curve {text!r}: expected a number, found {word!r}")
    return value


def _points(text: str, rest: str) -> list[tuple[int, float]]:
    points: dict[int, float] = {}
    for item in rest.split(","):
        cores, equals, seconds = item.partition("=")
        if not equals or not cores.strip().isdecimal() or int(cores) < 1 or int(cores) in points:
            raise InputError(f"curve {text!r}: expected CORES=SECONDS, each number of cores once, found {item!r}")
        points[int(cores)] = _number(text, seconds)
        if points[int(cores)] <= 0:
            raise InputError(f"curve {text!r}: expected a time, found {item!r}")
    return sorted(points.items())


def _table(text: str, points: Points) -> SpeedUp:
    """Speed lies on a line between neighbours; below the first it is proportional, beyond the last it stays."""
    paces = [(0, 0.0), *((n, 1 / seconds) for n, seconds in points)]

    def pace(cores: int) -> float:
        for (n, slow), (m, fast) in pairwise(paces):
            if cores <= m:
                return slow + (fast - slow) * (cores - n) / (m - n)
        return paces[-1][1]

    return SpeedUp(text, lambda n: pace(n) / pace(1), 1 / pace(1))


def fit(points: Points, linear: bool = False) -> tuple[float, ...]:
    """(a, b), or (a, b, c), for seconds = a + b / cores (+ c cores), none negative, by least squares of the relative
    error.

    >>> [round(x, 3) for x in fit([(1, 12.0), (2, 7.0), (5, 4.0)])]
    [2.0, 10.0]
    """
    import numpy as np

    cores = np.array([n for n, _ in points], float)
    seconds = np.array([s for _, s in points], float)
    columns = [np.ones_like(cores), 1 / cores, cores][: 3 if linear else 2]
    best, error = (0.0,) * len(columns), inf
    for count in range(1, len(columns) + 1):
        for chosen in combinations(range(len(columns)), count):  # the best without a negative one is among these
            matrix = np.stack([columns[i] / seconds for i in chosen], axis=1)
            found, *_ = np.linalg.lstsq(matrix, np.ones_like(seconds), rcond=None)
            off = float(((matrix @ found - 1) ** 2).sum())
            if (found >= 0).all() and off < error - 1e-15:
                values = dict(zip(chosen, map(float, found), strict=True))
                best, error = tuple(values.get(i, 0.0) for i in range(len(columns))), off
    return best


def predicted_s(coefficients: Sequence[float], cores: int) -> float:
    """What a fit says for so many cores."""
    a, b, c = (*coefficients, 0.0)[:3]
    return a + b / cores + c * cores
