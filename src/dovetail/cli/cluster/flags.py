"""The flags that cluster commands share, and what they come to: a scenario and the rules to run it by."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from dovetail.cli.common import Flag
from dovetail.cluster import CLOUDS, Widths
from dovetail.core.errors import InputError, within

if TYPE_CHECKING:
    from dovetail.cluster import Scenario

Words = Annotated[tuple[str, ...], Parameter(consume_multiple=True, negative=())]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class JobFlags:
    """Which jobs are generated."""

    generate_multi_gpu_jobs: Annotated[Flag, Parameter(alias="-m")] = False
    "Some jobs are 2, 4 or 8 accelerators wide."
    generate_multi_priority_jobs: Flag = False
    "One job in five has weight 5."
    assign_SLOs: Annotated[Flag, Parameter(name="--assign-SLOs")] = False  # noqa: N815
    "Every job is due after 1.2, 2 or 10 times its duration."
    fixed_job_duration: Annotated[float | None, Parameter(alias="-f")] = None
    "Seconds that every job takes on the reference type, in the place of drawn ones."
    simulate_steady_state: Flag = False
    "Before the first arrival, fill the cluster with jobs."

    def given(self) -> list[str]:
        """The flags that were given, as a user writes them."""
        changed = [each.name for each in fields(self) if getattr(self, each.name) != each.default]
        return ["--" + name.replace("_", "-") for name in changed]

    def apply(self, scenario: Scenario) -> Scenario:
        from msgspec.structs import replace

        within("--fixed-job-duration", self.fixed_job_duration, "seconds, more than 0", 1e-9)
        return replace(
            scenario,
            multi_gpu=self.generate_multi_gpu_jobs,
            priorities=self.generate_multi_priority_jobs,
            deadlines=self.assign_SLOs,
            duration_s=self.fixed_job_duration,
            steady_state=self.simulate_steady_state,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RuleFlags:
    """By which rules and prices a cluster is run."""

    num_gpus_per_server: str = ""
    "Accelerators in one server: 4, 8:4:4 or a100=8,l4=4; 1 if left out."
    throughputs_file: Path | None = None
    "Steps per second of every job: the old JSON, our table, or rates. Without it, the built-in model's estimates."
    rates: Path | None = None
    "A rate table: steps/s by kind, type and width over the throughputs, cold starts as restarts."
    durations_on: str = ""
    "The type that jobs' durations are on; v100 if left out, or of throughputs without it the first that runs most."
    profiles: Path | None = None
    "A folder of applications' profiles: rates then depend on batch, placement and progress."
    throughput_params: Path | None = None
    "A table of seven numbers of the throughput model, for types without a profile."
    interval: Annotated[float, Parameter(alias=["-i", "--time-per-iteration"])] = 360.0
    "Seconds of a round."
    restart_s: float | None = None
    "Seconds to save, move and load a job that starts somewhere else; 10 if left out."
    allocate_every_s: float | None = None
    "The least time between two allocations; 0 if left out, 1920 with --compat gavel."
    enable_global_queue: Flag = False
    "Rank jobs over all types together instead of type by type."
    ideal: Flag = False
    "Carry shares out exactly: no rounds and no restarts."
    compat: Literal["gavel", "sia"] | None = None
    "gavel: the older simulator's rules and accounts, for comparison with its results; sia: rounds as in Sia's."
    prices: Path | None = None
    "Prices over time, CSV time_s, type, price; else those of the cluster's file, else GCP's (V100, P100, K80), else 1."
    per_instance_type_prices_dir: Path | None = None
    "A folder of clouds' price histories, in the place of --prices."
    available_clouds: Words = CLOUDS
    "The clouds whose histories are used."
    solver: str | None = None
    "Accepted, and not used: HiGHS solves everything."

    def how(self) -> dict[str, Any]:
        """The rules, as functions take them."""
        names = ("interval", "restart_s", "allocate_every_s", "enable_global_queue", "ideal", "compat")
        return {name: getattr(self, name) for name in names}

    def apply(self, scenario: Scenario) -> Scenario:
        from msgspec.structs import replace

        if self.solver is not None:
            print("note: --solver is not used: HiGHS solves everything", file=sys.stderr)
        if self.prices is not None and self.per_instance_type_prices_dir is not None:
            raise InputError("give --prices or --per-instance-type-prices-dir, not both")
        if self.available_clouds != CLOUDS and self.per_instance_type_prices_dir is None:
            raise InputError("--available-clouds needs --per-instance-type-prices-dir")
        return replace(
            scenario,
            per_server=self.num_gpus_per_server,
            throughputs=self.throughputs_file,
            rates=self.rates,
            durations_on=self.durations_on,
            profiles=self.profiles,
            throughput_params=self.throughput_params,
            prices=self.prices or self.per_instance_type_prices_dir,
            clouds=self.available_clouds,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class WorkFlags:
    """Where jobs come from, and what they run on."""

    trace: Annotated[Path | None, Parameter(alias="-t")] = None
    "A trace of any known format; without it jobs are generated."
    trace_format: str = ""
    "The trace's format, where it cannot be told from the file."
    widths: Widths | None = None
    "What is done with widths that the throughputs do not have: error or guess."
    lam: Annotated[float | None, Parameter(alias="-l")] = None
    "Mean seconds between arrivals; 0: all jobs are there at the start."
    jobs_per_hour: float | None = None
    "The same as a rate."
    jobs: int | None = None
    "How many jobs are generated: 40 at the start, or 500 that arrive, if nothing is said."
    window_start: Annotated[int | None, Parameter(alias="-s")] = None
    "The first job that is measured (jobs are counted from 0)."
    window_end: Annotated[int | None, Parameter(alias="-e")] = None
    "The job before which measuring ends. Jobs go on arriving until all that are measured are done."
    cluster_spec: Annotated[str, Parameter(alias="-c")] = "8:8:8"
    "Accelerators: v100:p100:k80 as 8:8:8, TYPE=COUNT,... as a100=16,l4=8, or a file."
    entities: Words = ()
    "Weights of entities, NAME=WEIGHT ..., or a number: jobs are generated for so many."
    seed: int = 0
    "For generated jobs, failures and the order of types."
    profiling_percentage: float = 1.0
    "Share of pairs that are profiled before jobs share accelerators; the rest is estimated."
    num_reference_models: int | None = None
    "Models whose pairs are all profiled; all of them if left out."

    def scenario(self, jobs: JobFlags, rules: RuleFlags) -> Scenario:
        from dovetail.cluster import Scenario

        self._check(jobs)
        window = None
        lam_s = self.lam or 0.0
        if self.jobs_per_hour is not None:
            lam_s = 3600.0 / self.jobs_per_hour
        count = self.jobs
        if self.window_start is not None or self.window_end is not None:
            window = window_of(self.window_start or 0, self.window_end)
            if self.trace is None and lam_s == 0 and count is None:
                count, window = window[1] - window[0], None  # all at once: as many jobs as the window has
        scenario = Scenario(
            cluster=self.cluster_spec,
            trace=self.trace,
            trace_format=self.trace_format,
            widths=self.widths,
            lam_s=lam_s,
            jobs=count,
            window=window,
            entities=entities_of(self.entities),
            profiled=self.profiling_percentage,
            references=self.num_reference_models,
            seed=self.seed,
        )
        return rules.apply(jobs.apply(scenario))

    def _check(self, jobs: JobFlags) -> None:
        if self.lam is not None and self.jobs_per_hour is not None:
            raise InputError("give --lam or --jobs-per-hour, not both")
        within("--jobs", self.jobs, "1 or more", 1)
        within("--lam", self.lam, "seconds, 0 or more")
        within("--jobs-per-hour", self.jobs_per_hour, "more than 0", 1e-9)
        within("--profiling-percentage", self.profiling_percentage, "0 to 1", most=1)
        within("--num-reference-models", self.num_reference_models, "1 or more", 1)
        if self.trace is None:
            for flag, value in (("--trace-format", self.trace_format), ("--widths", self.widths)):
                if value:
                    raise InputError(f"{flag} is about a trace: it needs --trace")
            return
        generating: dict[str, Any] = {"--lam": self.lam, "--jobs-per-hour": self.jobs_per_hour, "--jobs": self.jobs}
        given = [flag for flag, value in generating.items() if value is not None] + jobs.given()
        if given:
            raise InputError(f"{given[0]} is for generated jobs: not together with --trace")


def window_of(start: int, end: int | None) -> tuple[int, int]:
    """
    >>> window_of(4000, 5000)
    (4000, 5000)
    """
    if end is None:
        raise InputError("--window-start needs --window-end")
    if not 0 <= start < end:
        raise InputError(f"window {start} to {end}: expected 0 <= start < end")
    return start, end


def entities_of(given: tuple[str, ...]) -> dict[str, float]:
    """
    >>> entities_of(("2",)), entities_of(("research=2", "product=1"))
    ({'entity-0': 1.0, 'entity-1': 1.0}, {'research': 2.0, 'product': 1.0})
    """
    if len(given) == 1 and given[0].isdecimal() and int(given[0]):
        within("--entities", int(given[0]), "1 or more", 1, 1e6)
        return {f"entity-{i}": 1.0 for i in range(int(given[0]))}
    weights = {}
    for item in given:
        name, equals, number = item.rpartition("=")
        if name in weights:
            raise InputError(f"--entities {item}: {name!r} is given twice")
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = 0.0
        if not equals or not weights[name] > 0:  # how large it may be, the level says
            raise InputError(f"--entities {item}: expected a number of entities, or NAME=WEIGHT with a weight above 0")
    return weights
