"""Measured profiles of applications, as Pollux's simulator keeps them: a folder for each application, in it

- `validation-BATCH.csv`: per epoch at that total batch `progress`, `grad_sqr` and `grad_var` (`iteration`, `metric`),
- `placements-TYPE.csv`: `placement` (digits: accelerators per server), `local_bsz`, `step_time`, `sync_time`,
- `scalability-TYPE.csv`, if there is one: `num_nodes`, `num_replicas`, `local_bsz`, `step_time`, `sync_time`.

A table of seven numbers per application and type stands in for types that have no such files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from dovetail.cluster.goodput.application import MOST_WIDTH, Application, TypeProfile, compact, placement
from dovetail.cluster.goodput.throughput import NUMBERS
from dovetail.cluster.inputs.csv_rows import CsvRow, Source, check_columns, header_of, read_rows
from dovetail.cluster.inputs.setup import AdaptiveKinds
from dovetail.cluster.inputs.traces.mapping import Mapper
from dovetail.cluster.inputs.workload import Throughputs, at_batch, batch_of
from dovetail.cluster.policies.base import Floats
from dovetail.core.errors import InputError, did_you_mean

# Pollux's and Sia's simulators: what a job takes longer than its profile says, and seconds of its restarts.
SLOWDOWN = {"bert": 1.2, "cifar10": 1.8, "deepspeech2": 1.2, "imagenet": 1.2, "ncf": 1.5, "yolov3": 1.2}
RESTART_S = {"bert": 120.0, "cifar10": 50.0, "deepspeech2": 25.0, "imagenet": 250.0, "ncf": 15.0, "yolov3": 80.0}

_VALIDATION = ("progress", "iteration", "metric", "grad_sqr", "grad_var")
_PLACEMENTS = ("placement", "local_bsz", "step_time", "sync_time")
_SCALABILITY = ("num_nodes", "num_replicas", "local_bsz", "step_time", "sync_time")
_LIMITS = ("min_local_batch", "max_local_batch", "one_gpu_samples_per_s")
_PARAMS = ("application", "profile", *NUMBERS, *_LIMITS)
_MORE_PARAMS = ("gpu", "points", "fit_objective", "rmsle_compute", "rmsle_step", "init_batch", "max_batch", "rescale_s")
_SIZES = ("epochs", "total_progress")
_LARGEST = 1e300  # of gradients


def read_profiles(folder: Path, types: Iterable[str], params: Source | None = None) -> dict[str, Application]:
    """The applications of a folder, on these types as far as there are files of them, or rows in the table `params`."""
    if not folder.is_dir():
        raise InputError(f"{folder}: expected a folder with one of profiles for each application")
    inside = sorted(each for each in folder.iterdir() if each.is_dir() and any(each.glob("validation-*.csv")))
    if not inside:
        raise InputError(f"{folder}: expected folders of applications with validation-BATCH.csv, found none")
    types = list(types)
    modelled = {} if params is None else _read_params(params)
    found = {each.name: _read_application(each, types, modelled) for each in inside}
    for name in types:
        if not any(name in application.types for application in found.values()):
            known = {path.stem.partition("-")[2] for each in inside for path in each.glob("placements-*.csv")}
            known |= {name for _, name in modelled}
            raise InputError(f"{folder}: no application has a profile of the type {name!r}{did_you_mean(name, known)}")
    return found


def _read_application(folder: Path, types: list[str], params: Mapping[tuple[str, str], CsvNumbers]) -> Application:
    name = folder.name
    batches, progress, sqr, var = _read_validation(folder)
    profiles, restart_s = {}, RESTART_S.get(name)
    for each in types:
        path = folder / f"placements-{each}.csv"
        if path.is_file():
            profiles[each] = _read_type(path, folder / f"scalability-{each}.csv")
        elif (name, each) in params:
            profiles[each], price_s = params[name, each]
            restart_s = restart_s if price_s is None else price_s
    return Application(
        name=name,
        initial=batches[0],
        most=batches[-1],
        progress=progress,
        batches=batches,
        grad_sqr=sqr,
        grad_var=var,
        types=profiles,
        slowdown=SLOWDOWN.get(name, 1.0),
        restart_s=restart_s,
    )


def _read_validation(folder: Path) -> tuple[list[int], list[float], list[list[float]], list[list[float]]]:
    """Batches in order; where epochs end, at the least of all batches; statistics by batch and epoch."""
    by_batch: dict[int, tuple[list[float], list[float], list[float]]] = {}
    for path in sorted(folder.glob("validation-*.csv")):
        digits = path.stem.partition("-")[2]
        if not digits.isdecimal() or not int(digits):
            raise InputError(f"{path}: expected a name such as validation-128.csv, with a total batch")
        check_columns(path, header_of(path), ("progress", "grad_sqr", "grad_var"), _VALIDATION)
        progress: list[float] = []
        sqr, var = [], []
        for row in read_rows(path):
            progress.append(row.number("progress", least=0))
            if progress[-1] <= (progress[-2] if len(progress) > 1 else 0.0):
                raise row.error("progress", f"expected more than in the epoch before, found {row.text('progress')!r}")
            sqr.append(row.number("grad_sqr", least=0, most=_LARGEST))
            var.append(row.number("grad_var", least=0, most=_LARGEST))
            if not sqr[-1] + var[-1] > 0:
                raise row.error("grad_sqr", "expected it or grad_var above 0")
        if not progress:
            raise InputError(f"{path}: expected a row for each epoch, found none")
        by_batch[int(digits)] = progress, sqr, var
    batches = sorted(by_batch)
    epochs = {batch: len(by_batch[batch][0]) for batch in batches}
    for batch, count in epochs.items():
        if count != epochs[batches[0]]:
            raise InputError(
                f"{folder}/validation-{batch}.csv: has {count} epochs, but validation-{batches[0]}.csv has "
                f"{epochs[batches[0]]}"
            )
    ends = np.min([by_batch[batch][0] for batch in batches], axis=0).tolist()
    return batches, ends, [by_batch[batch][1] for batch in batches], [by_batch[batch][2] for batch in batches]


def _times(row: CsvRow) -> tuple[float, float, float]:
    local, step, sync = row.whole("local_bsz"), row.number("step_time", least=1e-9), row.number("sync_time", least=0)
    if sync >= step:
        raise row.error("sync_time", f"expected less than step_time, {step:g}, found {sync:g}")
    return float(local), step, sync


def _read_type(path: Path, scalability: Path) -> TypeProfile:
    check_columns(path, header_of(path), _PLACEMENTS, _PLACEMENTS)
    placements: dict[str, list[tuple[float, float, float]]] = {}
    for row in read_rows(path):
        digits = row.text("placement")
        if not digits.isdecimal() or "0" in digits:
            raise row.error("placement", f"expected a digit for each server, 1 to 9, found {digits!r}")
        placements.setdefault(placement(tuple(map(int, digits))), []).append(_times(row))
    if "1" not in placements:
        raise InputError(f"{path}: expected rows of placement 1, one accelerator alone")
    more = []
    if scalability.is_file():
        check_columns(scalability, header_of(scalability), _SCALABILITY, _SCALABILITY)
        for row in read_rows(scalability):
            nodes, replicas = row.whole("num_nodes"), row.whole("num_replicas")
            if replicas < nodes:
                raise row.error("num_replicas", f"expected one or more in each of {nodes} servers, found {replicas}")
            more.append((float(nodes), float(replicas), *_times(row)))
    alone = placements["1"]
    locals_ = [local for rows in placements.values() for local, _, _ in rows]
    return TypeProfile(
        least_local=int(min(locals_)),
        most_local=int(max(locals_)),
        one_gpu=max(local for local, _, _ in alone) / max(step for _, step, _ in alone),
        placements={name: sorted(rows) for name, rows in placements.items()},
        scalability=more,
    )


CsvNumbers = tuple[TypeProfile, float | None]  # and seconds of a restart, where the table says


def _read_params(path: Source) -> dict[tuple[str, str], CsvNumbers]:
    """Seven numbers by application and type, which may be named by `profile` or by `gpu`."""
    check_columns(path, header_of(path), _PARAMS, (*_PARAMS, *_MORE_PARAMS, *_SIZES))
    found: dict[tuple[str, str], CsvNumbers] = {}
    for row in read_rows(path):
        numbers = [row.number(name, least=0) for name in NUMBERS]
        if numbers[0] + numbers[1] <= 0:
            raise row.error("alpha_c", "expected it or beta_c above 0")
        if not 1 <= numbers[6] <= 10:
            raise row.error("gamma", f"expected 1 to 10, found {numbers[6]:g}")
        least, most = row.whole("min_local_batch"), row.whole("max_local_batch")
        if most < least:
            raise row.error("max_local_batch", f"expected {least} or more, found {most}")
        profile = TypeProfile(
            least_local=least,
            most_local=most,
            one_gpu=row.number("one_gpu_samples_per_s", least=0),
            numbers=[max(number, 1e-8) for number in numbers],
        )
        price_s = row.number("rescale_s", least=0) if "rescale_s" in row else None
        for name in {row.text("profile"), row.text("gpu", row.text("profile"))}:
            found[row.text("application"), name] = profile, price_s
    return found


def fixed_rate(application: Application, on: str, width: int, per_server: int, batch: int) -> float:
    """Progress per second, over a whole job, at a given total batch in as few servers as possible; 0: it does not fit.

    A width over which the batch cannot be split takes as much as it must.
    """
    profile = application.types.get(on)
    if profile is None:
        return 0.0
    shape = compact(width, per_server)
    how = application.fixed(on, shape, batch)
    return 0.0 if how is None else application.size / application.seconds(on, shape, how)


class ProfileMapper(Mapper):
    """Models are applications at a batch, `cifar10 (batch size 2048)`; a job does what its application fixes.

    Every model has all widths that the cluster has room for or a job asks for, up to 64, for policies that choose one.
    """

    profiled = True

    def __init__(
        self,
        applications: Mapping[str, Application],
        types: tuple[str, ...],
        counts: Iterable[int],
        per_server: Iterable[int],
        durations_on: str = "",
    ) -> None:
        super().__init__(None)
        self._applications, self._types = applications, types
        self._per_server = tuple(per_server)
        self._widest = min(max(counts), MOST_WIDTH)
        self._alone: dict[str, list[list[float]]] = {}  # by model: rates by width and type
        self.reference = durations_on
        self._at = types.index(durations_on or types[0])

    @property
    def ready(self) -> bool:
        return True

    def application(self, model: str) -> tuple[Application, int]:
        found = batch_of(model)
        if found is None or found[0] not in self._applications:
            name = model if found is None else found[0]
            hint = did_you_mean(name, self._applications)
            raise InputError(f"no profile of the application {name!r}{hint} (expected {at_batch('NAME', 128)!r})")
        application, batch = self._applications[found[0]], found[1]
        if not application.initial <= batch <= application.most:
            raise InputError(
                f"batch size {batch}: expected {application.initial} to {application.most}, as {found[0]} has profiles"
            )
        return application, batch

    def whole_job(self, model: str) -> float | None:
        return self.application(model)[0].size

    def draw(self, key: str, width: int, like: str = "") -> str:
        self.application(like)
        return like

    def rate(self, model: str, width: int) -> float:
        application, batch = self.application(model)
        if width > MOST_WIDTH:
            raise InputError(f"width {width}: expected at most {MOST_WIDTH}")
        self._widest = max(self._widest, width)
        self.used[model, width] = None
        return self._by_width(model, application, batch)[width - 1][self._at]

    def _by_width(self, model: str, application: Application, batch: int) -> list[list[float]]:
        """By width, up to the widest so far, and type."""
        rates, servers = self._alone.setdefault(model, []), list(zip(self._types, self._per_server, strict=True))
        rates += [
            [fixed_rate(application, on, width, size, batch) for on, size in servers]
            for width in range(len(rates) + 1, self._widest + 1)
        ]
        return rates

    def guessed(self, kinds: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        return []

    @property
    def throughputs(self) -> Throughputs:
        kinds = [(model, width) for model in self._alone for width in range(1, self._widest + 1)]
        alone = np.array([rates for model in self._alone for rates in self._by_width(model, *self.application(model))])
        return Throughputs(self._types, kinds, alone, alone, None, "measured")

    def restarts_s(self) -> Floats:
        """Seconds of a restart by kind and type; nan: what the rules say."""
        found = [self.application(model)[0].restart_s for model, _ in self.throughputs.kinds]
        return np.array([[np.nan if price_s is None else price_s] * len(self._types) for price_s in found])

    def kinds(self) -> AdaptiveKinds:
        """Which application and batch every kind of the throughputs is."""
        found = [self.application(model) for model, _ in self.throughputs.kinds]
        used = list(dict.fromkeys(application.name for application, _ in found))
        return AdaptiveKinds(
            applications=tuple(self._applications[name] for name in used),
            application=np.array([used.index(application.name) for application, _ in found]),
            batch=np.array([batch for _, batch in found]),
        )
