"""Contiguous layers of a model over a chain of unlike devices: planned exactly, simulated, or run for real.

>>> from dovetail import pipeline
>>> device = pipeline.DeviceClass("t", "t", ["a", "b"], bw_mbps=1000.0, mem_mib=100.0, time_s=[0.1, 0.2, 0.3])
>>> problem = pipeline.Pipeline(
...     model="m", layers=3, mem_mib=[1.0] * 3, cut_bytes=[0] * 4, classes=[device], batch_size=1, dtype="torch.float32"
... )
>>> best = pipeline.best_plan([problem])[1]
>>> [stage.layers for stage in best.stages], round(best.bottleneck_s, 6)
([(1, 2), (3, 3)], 0.3)
>>> round(pipeline.simulate_plan(best, 10).makespan_s, 6)
3.3
"""

from typing import TYPE_CHECKING

from dovetail.core.lazy import exports

if TYPE_CHECKING:
    from dovetail.pipeline.check import check_journal
    from dovetail.pipeline.explain import curves, what_if
    from dovetail.pipeline.inputs.files import read_pipeline
    from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
    from dovetail.pipeline.live.run import run_plan
    from dovetail.pipeline.models.load import load as load_model
    from dovetail.pipeline.models.spec import ModelSpec
    from dovetail.pipeline.pareto import front
    from dovetail.pipeline.plan import Constraints, Infeasible, Plan, read_plan
    from dovetail.pipeline.planner import again
    from dovetail.pipeline.policies.base import best_plan
    from dovetail.pipeline.profile.measure import profile_chain
    from dovetail.pipeline.simulate import run as simulate_plan

__all__ = [
    "Constraints",
    "DeviceClass",
    "Infeasible",
    "ModelSpec",
    "Pipeline",
    "Plan",
    "again",
    "best_plan",
    "check_journal",
    "curves",
    "front",
    "load_model",
    "profile_chain",
    "read_pipeline",
    "read_plan",
    "run_plan",
    "simulate_plan",
    "what_if",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Constraints": "plan",
        "DeviceClass": "inputs.problem",
        "Infeasible": "plan",
        "ModelSpec": "models.spec",
        "Pipeline": "inputs.problem",
        "Plan": "plan",
        "again": "planner",
        "best_plan": "policies.base",
        "check_journal": "check",
        "curves": "explain",
        "front": "pareto",
        "load_model": "models.load:load",
        "profile_chain": "profile.measure",
        "read_pipeline": "inputs.files",
        "read_plan": "plan",
        "run_plan": "live.run",
        "simulate_plan": "simulate:run",
        "what_if": "explain",
    },
)
