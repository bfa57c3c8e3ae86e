"""`dovetail pipeline`: split a model's layers over unlike devices."""

from __future__ import annotations

from cyclopts import App

from dovetail.cli.verbs import Command, register

app = App(name="pipeline", help="Split a model's layers over unlike devices.")
COMMANDS = (
    Command(
        "plan",
        "dovetail.cli.pipeline.plan:plan",
        "Plan where to cut a model and which device gets which layers.",
    ),
    Command(
        "plan-generation",
        "dovetail.cli.pipeline.plan_generation:plan_generation",
        "Plan where to cut a language model: prefill, decode and the memory of contexts.",
    ),
    Command("simulate", "dovetail.cli.pipeline.simulate:simulate", "Send microbatches through a plan in virtual time."),
    Command(
        "run",
        "dovetail.cli.pipeline.run:run",
        "Run a plan: one process per stage, on this machine or over a Ray cluster.",
    ),
    Command(
        "export",
        "dovetail.cli.pipeline.export:export",
        "Write a plan as what other engines run, and say what of it they cannot take.",
    ),
    Command("profile", "dovetail.cli.pipeline.profile:profile", "Measure a model's layers: time, memory and shapes."),
    Command(
        "profile-generation",
        "dovetail.cli.pipeline.profile_generation:profile_generation",
        "Measure a language model's layers: prompts and tokens apart, for plan-generation.",
    ),
    Command("convert", "dovetail.cli.pipeline.convert:convert", "Turn a profile file into the planner's files."),
    Command(
        "link-test", "dovetail.cli.pipeline.link_test:link_test", "Measure bandwidth and latency between two hosts."
    ),
)
register(app, COMMANDS)
