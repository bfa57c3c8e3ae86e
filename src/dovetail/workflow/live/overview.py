"""A service at one moment, as an operator looks at it: GPUs and what is on them, models, queues, rates."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from msgspec import Struct

_LINE = re.compile(r"(?:dovetail_workflow_)(\w+)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Figures = dict[str, dict[str, float]]  # by name, then by the model or workflow that they are of


class GpuOverview(Struct, frozen=True):
    """A GPU: the models that are loaded there, and what runs."""

    gpu: int
    type: str | None
    host: str | None
    state: str | None
    models: list[str]
    running: list[str]


class ModelOverview(Struct, frozen=True):
    """A model, or a workflow by itself: nodes that wait and run, calls so far, and per second since the last look."""

    model: str
    resident: list[int]
    waiting: int
    running: int
    calls: int
    loads: int
    calls_per_s: float
    tokens_per_s: float
    ttft_s: float | None


class Overview(Struct, frozen=True):
    """A service at one moment; rates are over the time since the look before it, or since the service began."""

    url: str
    policy: str
    state: str
    uptime_s: float
    queued: int
    running: int
    queue: dict[str, int]
    wait_s: float
    gpus: list[GpuOverview]
    models: list[ModelOverview]
    figures: Figures

    @classmethod
    def of(cls, url: str, about: dict[str, Any], metrics: str, before: Overview | None) -> Overview:
        """From what the service says; `before` is an earlier look."""
        figures = read_figures(metrics)
        old = {} if before is None else before.figures
        since_s = about["uptime_s"] - (0.0 if before is None else before.uptime_s)
        gpus = [
            GpuOverview(i, gpu.get("type"), gpu.get("host"), gpu.get("state"), gpu["models"], gpu["running"])
            for i, gpu in enumerate(about["gpus"])
        ]

        def now(name: str, model: str) -> float:
            return figures.get(name, {}).get(model, 0.0)

        def since(name: str, model: str) -> float:
            return now(name, model) - old.get(name, {}).get(model, 0.0)

        def model(name: str) -> ModelOverview:
            seen = since("ttft_seconds_count", name)
            return ModelOverview(
                model=name,
                resident=[gpu.gpu for gpu in gpus if name in gpu.models],
                waiting=int(now("waiting_nodes", name)),
                running=int(now("running_nodes", name)),
                calls=int(now("starts_total", name)),
                loads=int(now("loads_total", name)),
                calls_per_s=since("starts_total", name) / since_s if since_s > 0 else 0.0,
                tokens_per_s=since("tokens_total written", name) / since_s if since_s > 0 else 0.0,
                ttft_s=since("ttft_seconds_sum", name) / seen if seen else None,
            )

        trouble = about.get("trouble")
        return cls(
            url=url,
            policy=about["policy"],
            state=f"trouble: {trouble}" if trouble else "draining" if about["draining"] else "up",
            uptime_s=about["uptime_s"],
            queued=about["queued"],
            running=about["running"],
            queue=about["queue"],
            wait_s=about["wait_s"],
            gpus=gpus,
            models=[model(name) for name in about["models"]],
            figures=figures,
        )


def read_figures(text: str) -> Figures:
    """Prometheus' text, as far as it is of models and workflows.

    >>> read_figures('dovetail_workflow_tokens_total{model="a",direction="written"} 7')
    {'tokens_total written': {'a': 7.0}}
    """
    found: Figures = defaultdict(dict)
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        labels = dict(_LABEL.findall(match[2] or "")) if match else {}
        of = labels.get("model") or labels.get("workflow")
        if match and of and "le" not in labels:
            name = " ".join(filter(None, (match[1], labels.get("direction"))))
            found[name][of] = found[name].get(of, 0.0) + float(match[3])
    return dict(found)
