"""Contiguous layers of a model over a chain of unlike devices: planned exactly, simulated, or run for real.

>>> from dovetail import pipeline
>>> fast = pipeline.DeviceClass("fast", "fast", ["a", "b"], bw_mbps=1000.0, mem_mib=100.0, time_s=[0.1, 0.2, 0.3])
>>> problem = pipeline.Pipeline(
...     model="m", layers=3, mem_mib=[1.0] * 3, cut_bytes=[0] * 4, classes=[fast], batch_size=1, dtype="torch.float32"
... )
>>> best = pipeline.plan(problem)
>>> [stage.layers for stage in best.stages], round(best.bottleneck_s, 6)
([(1, 2), (3, 3)], 0.3)
>>> round(pipeline.simulate(best, microbatches=10).metrics["makespan_s"], 6)
3.3
"""

from typing import TYPE_CHECKING

from dovetail.core.lazy import exports

if TYPE_CHECKING:
    from dovetail.pipeline.explain import Curves, curves, what_if
    from dovetail.pipeline.export import Export, export
    from dovetail.pipeline.inputs.files import load
    from dovetail.pipeline.inputs.problem import DeviceClass, Pipeline
    from dovetail.pipeline.language.decoder_times import profile_generation
    from dovetail.pipeline.language.plan import max_context, plan_generation
    from dovetail.pipeline.language.problem import GenerationProblem, load_generation
    from dovetail.pipeline.live.run import run
    from dovetail.pipeline.metrics import PipelineRun
    from dovetail.pipeline.models.spec import ModelSpec
    from dovetail.pipeline.pareto import Front, front
    from dovetail.pipeline.plan import Constraints, Infeasible, InfeasibleError, Plan, Stage, read_plan
    from dovetail.pipeline.planner import again
    from dovetail.pipeline.policies.base import plan
    from dovetail.pipeline.profile.convert import Conversion, convert
    from dovetail.pipeline.profile.link_test import LinkTest, link_test, serve_link
    from dovetail.pipeline.profile.measure import ProfileResult
    from dovetail.pipeline.profile.profile import profile
    from dovetail.pipeline.simulate import simulate

__all__ = [
    "Constraints",
    "Conversion",
    "Curves",
    "DeviceClass",
    "Export",
    "Front",
    "GenerationProblem",
    "Infeasible",
    "InfeasibleError",
    "LinkTest",
    "ModelSpec",
    "Pipeline",
    "PipelineRun",
    "Plan",
    "ProfileResult",
    "Stage",
    "again",
    "convert",
    "curves",
    "export",
    "front",
    "link_test",
    "load",
    "load_generation",
    "max_context",
    "plan",
    "plan_generation",
    "profile",
    "profile_generation",
    "read_plan",
    "run",
    "serve_link",
    "simulate",
    "what_if",
]

__getattr__, __dir__ = exports(
    __name__,
    {
        "Constraints": "plan",
        "Conversion": "profile.convert",
        "Curves": "explain",
        "DeviceClass": "inputs.problem",
        "Export": "export",
        "Front": "pareto",
        "GenerationProblem": "language.problem",
        "Infeasible": "plan",
        "InfeasibleError": "plan",
        "LinkTest": "profile.link_test",
        "ModelSpec": "models.spec",
        "Pipeline": "inputs.problem",
        "PipelineRun": "metrics",
        "Plan": "plan",
        "ProfileResult": "profile.measure",
        "Stage": "plan",
        "again": "planner",
        "convert": "profile.convert",
        "curves": "explain",
        "export": "export",
        "front": "pareto",
        "link_test": "profile.link_test",
        "load": "inputs.files",
        "load_generation": "language.problem",
        "max_context": "language.plan",
        "plan": "policies.base",
        "plan_generation": "language.plan",
        "profile": "profile.profile",
        "profile_generation": "language.decoder_times",
        "read_plan": "plan",
        "run": "live.run",
        "serve_link": "profile.link_test",
        "simulate": "simulate",
        "what_if": "explain",
    },
)
