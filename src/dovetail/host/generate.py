"""Create mode: a random workload by the parameters, as request lines."""

from __future__ import annotations

from random import Random

from dovetail.host.inputs import Parameters

PRIORITIES = 5


def request_lines(parameters: Parameters, seed: int, containers: int | None = None) -> str:
    """The lines of a request file; the same seed gives the same lines.

    >>> print(request_lines(Parameters(number_containers=2, time_gap=(15.0,), resources_per_container=(8,)), 0), end="")
    execution,0,tf_scheduler,8,15,3
    execution,1,tf_scheduler,8,15,3
    """
    dice = Random(seed)
    lines = []
    for i in range(parameters.number_containers if containers is None else containers):
        delay_s = parameters.time_gap[0]
        if parameters.time_distribution == "normal":
            delay_s = round(max(dice.normalvariate(*parameters.time_gap), 0.0), 3)
        threads = parameters.resources_per_container[0]
        if parameters.resources_distribution == "random":
            threads = dice.randrange(*parameters.resources_per_container)  # the last is excluded, as it always was
        priority = dice.randrange(PRIORITIES)
        lines.append(f"execution,{i},{parameters.tf_dockerimage},{threads},{delay_s:g},{priority}\n")
    return "".join(lines)
