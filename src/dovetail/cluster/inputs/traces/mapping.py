"""What a trace does not say: which model a job trains, and how many steps its time comes to.

A job that is known only by its time gets a model drawn by a hash of its name, so the same file gives the same jobs, and
as many steps as that model does in this time on the reference type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import cached_property
from zlib import crc32

import numpy as np

from dovetail.cluster.inputs.choices import Widths
from dovetail.cluster.inputs.throughputs import Kind, rates_at, reference_type, with_widths
from dovetail.cluster.inputs.workload import Throughputs
from dovetail.cluster.policies.base import Floats
from dovetail.core.errors import InputError, did_you_mean

ONLY_ON = " on "


# Which of the known families stands for a model of another trace: the same architecture or the nearest in kind.
STANDS_FOR = {
    "a2c": "A3C",
    "alexnet": "ResNet-18",
    "bert": "Transformer",
    "cifar10": "ResNet-18",
    "deepspeech2": "LM",
    "dqn": "A3C",
    "gpt2": "Transformer",
    "imagenet": "ResNet-50",
    "inception3": "ResNet-50",
    "inception4": "ResNet-50",
    "inception_v3": "ResNet-50",
    "lstm": "LM",
    "mobilenet_v2": "ResNet-18",
    "ncf": "Recommendation",
    "resnet101": "ResNet-50",
    "resnet152": "ResNet-50",
    "resnet18": "ResNet-18",
    "resnet50": "ResNet-50",
    "shufflenet_v2_x1_0": "ResNet-18",
    "vgg11": "ResNet-50",
    "vgg16": "ResNet-50",
    "vgg19": "ResNet-50",
    "yolov3": "CycleGAN",
}


class Mapper:
    """Models and steps by the throughputs that the jobs will run with.

    With `widths` "guess", a width that the throughputs do not have is guessed from those they have; with "error" it is
    refused.
    """

    def __init__(
        self,
        throughputs: Throughputs | None,
        widths: Widths = "error",
        elsewhere: Callable[[], Throughputs] | None = None,
        timed: Throughputs | None = None,
    ) -> None:
        """`elsewhere` gives those of types that are not here, for jobs that ran there; `timed` are of the one type that
        durations are on."""
        self._given = throughputs
        self._elsewhere = elsewhere
        self._widths = widths
        self._rates: dict[Kind, float] = {}
        self._choices: dict[tuple[str, int], list[str]] = {}
        self._index: dict[Kind, int] = {}
        self._models: dict[str, None] = {}
        self.used: dict[Kind, None] = {}
        self._plain: dict[str, tuple[str, tuple[str, ...]]] = {}  # restricted models: what they are, and where they run
        self._scaled: dict[str, tuple[str, float]] = {}  # models in steps of another: what they are, and steps per step
        self.reference = ""
        if throughputs is not None:
            self._timed = throughputs.of_types((reference_type(throughputs),)) if timed is None else timed
            self._index = throughputs.index()
            self._models = dict.fromkeys(model for model, _ in throughputs.kinds)
            (self.reference,) = self._timed.types

    @property
    def throughputs(self) -> Throughputs | None:
        """Those given, and the guessed ones for widths that were met."""
        if self._given is None:
            return None
        found = with_widths(self._given, self.guessed(self.used))
        for name, (model, types) in self._plain.items():
            widths = [width for used, width in self.used if used == name]
            runs = np.array([float(kind in types) for kind in found.types])
            found = _copied(found, model, name, widths, runs, runs)
        for name, (model, factor) in self._scaled.items():
            widths = [width for used, width in self.used if used == name]
            runs = np.ones(len(found.types))
            found = _copied(found, model, name, widths, runs * factor, runs)
        return found

    def guessed(self, kinds: Iterable[Kind]) -> list[Kind]:
        """Of these kinds, those whose throughputs are guessed from other widths."""
        others = self._plain | self._scaled
        plain = [(others[model][0] if model in others else model, width) for model, width in kinds]
        return [kind for kind in plain if kind not in self._index]

    @property
    def ready(self) -> bool:
        """Whether there are throughputs to go by."""
        return self._given is not None

    @property
    def models(self) -> list[str]:
        """Models and families that are known."""
        return list(dict.fromkeys([*self._models, *map(_family, self._models)]))

    @cached_property
    def everywhere(self) -> Throughputs | None:
        """Throughputs of more types than those here, if there are any."""
        return self._given if self._elsewhere is None else self._elsewhere()

    @property
    def types(self) -> tuple[str, ...]:
        """Those here, and those of which it is known how fast jobs run there."""
        here, more = self._given, self.everywhere
        return () if here is None or more is None else tuple(dict.fromkeys((*here.types, *more.types)))

    def rate_on(self, model: str, width: int, on: str, spread: bool = False) -> float:
        """Steps per second on a type that is known, here or elsewhere, in one server or over several; models are those
        of `rate`."""
        assert self._given is not None
        assert self.everywhere is not None
        self.rate(model, width)
        source = self._given if on in self._given.types else self._timed if on == self.reference else self.everywhere
        plain = self._plain.get(model, (model, ()))[0]
        alone, over_several = (float(rates[source.types.index(on)]) for rates in rates_at(source, plain, width))
        return over_several or alone if spread else alone

    def rate(self, model: str, width: int) -> float:
        """Steps per second on the reference type, perhaps 0. An error says what is wrong; the row knows where."""
        kind = (model, width)
        if kind in self._rates:
            return self._rates[kind]
        if self._given is None:
            raise InputError("needs throughputs to tell steps from seconds")
        if model not in self._models:
            plain, _, types = model.rpartition(ONLY_ON)
            allowed = self._known(types.split("|"))
            if plain in self._models and allowed:
                return self._restrict(model, plain, width, allowed)
            raise InputError(f"no throughputs for the model {model!r}{self._hint(model)}")
        if kind not in self._index and self._widths == "error":
            has = ", ".join(str(w) for m, w in self._given.kinds if m == model)
            raise InputError(f"no throughputs for {model} at width {width}, only at {has} (--widths guess guesses it)")
        rate = float(rates_at(self._timed, model, width)[0][0])
        self._rates[kind] = rate
        self.used[kind] = None
        return rate

    def _hint(self, model: str) -> str:
        """Which model was meant; if only its family is like it, all of that."""
        near = get_close_matches(_family(model), {_family(each) for each in self._models}, n=1)
        alike = [repr(each) for each in self._models if _family(each) in near]
        if not alike or get_close_matches(model, self._models, n=1):
            return did_you_mean(model, self._models)
        return f"; did you mean {' or '.join(alike)}?"

    profiled = False  # whether models are applications with profiles

    def whole_job(self, model: str) -> float | None:
        """The steps that every job of a model has, where they are known."""
        return None

    def draw(self, key: str, width: int, like: str = "") -> str:
        """A model for a job that is called `key`: `like` itself if it is known, else one of its kind, else any."""
        if like in self._models:
            return like
        family = STANDS_FOR.get(like.lower(), like)
        choices = self._choices.get((family, width))
        if choices is None:
            choices = self._choices[family, width] = self._able(family, width)
        return choices[crc32(key.encode()) % len(choices)]

    def rescaled(self, first: str, width: int, model: str, factor: float) -> str:
        """What a job of `first` runs as with the batch of `model`, a step of which is worth so many of its own; nothing
        if there are no throughputs of it."""
        if self._given is None or (model, width) not in self._index:
            return ""
        name = f"{first} now {model.rpartition(' ')[2].rstrip(')')}"
        self._scaled[name] = (model, factor)
        for of, each in self._index:  # all widths, for policies that choose one
            if of == model:
                self._rates[name, each] = self.rate(model, each) * factor
                self.used[name, each] = None
        return name

    def restrict(self, model: str, width: int, types: Iterable[str]) -> str:
        """The same model as one that runs only on these types, `MODEL on TYPE|TYPE`; nothing if none is known."""
        assert self._given is not None
        allowed = self._known(types)
        if len(allowed) in (0, len(self._given.types)):
            return model if allowed else ""
        name = f"{model}{ONLY_ON}{'|'.join(allowed)}"
        self._restrict(name, model, width, allowed)
        return name

    def _known(self, types: Iterable[str]) -> tuple[str, ...]:
        wanted = set(types)
        return () if self._given is None else tuple(name for name in self._given.types if name in wanted)

    def _restrict(self, name: str, model: str, width: int, types: tuple[str, ...]) -> float:
        rate = self._rates[name, width] = self.rate(model, width)
        self._plain[name] = (model, types)
        self.used[name, width] = None
        return rate

    def _able(self, family: str, width: int) -> list[str]:
        """Models that run at this width on the reference type, or at least at another width than one."""
        if self._given is None:
            raise InputError("needs throughputs to choose models")
        runs = {kind for kind, rate in zip(self._timed.kinds, self._timed.alone[:, 0], strict=True) if rate > 0}
        able = [m for m in self._models if (m, width) in runs]
        if not able and self._widths == "guess":
            able = [m for m in self._models if any(k == m and w > 1 for k, w in runs)] or list(self._models)
        if not able:
            raise InputError(f"no throughputs for any model at width {width} (--widths guess guesses it)")
        return [m for m in able if _family(m) == family] or able


def _family(model: str) -> str:
    """A model without its batch size."""
    return model.partition(" (")[0]


def _copied(
    found: Throughputs, model: str, name: str, widths: Iterable[int], speed: Floats, runs: Floats
) -> Throughputs:
    """Throughputs with copies of a model under another name, `speed` times as fast by type, where it `runs`."""
    copied = list(dict.fromkeys(widths))
    index, old = found.index(), len(found.kinds)
    rows = [*range(old), *(index[model, width] for width in copied)]
    faster, there = np.ones((2, len(rows), len(found.types)))
    faster[old:], there[old:] = speed, runs
    pairs = None
    if found.pairs is not None:
        pairs = found.pairs[np.ix_(rows, rows)] * faster[:, None, :] * there[None, :, :]
    kinds = [*found.kinds, *((name, width) for width in copied)]
    return Throughputs(found.types, kinds, found.alone[rows] * faster, found.spread[rows] * faster, pairs, found.source)
