"""`dovetail cluster`: simulate training jobs on accelerators of several types."""

from __future__ import annotations

from cyclopts import App

from dovetail.cli.verbs import Command, register

COMMANDS = (
    Command(
        "simulate",
        "dovetail.cli.cluster.simulate:simulate",
        "Simulate a cluster under a policy, with jobs from a trace or generated.",
    ),
    Command(
        "compare",
        "dovetail.cli.cluster.compare:compare",
        "Compare policies on the same jobs; ratios are to the first one.",
    ),
    Command(
        "plan",
        "dovetail.cli.cluster.plan:plan",
        "Find the cheapest or fewest accelerators that keep completion times or deadlines within limits.",
    ),
    Command(
        "policies",
        "dovetail.cli.cluster.policies:policies",
        "List the policies: what they promise, what they know and which options they take.",
    ),
    Command(
        "explain",
        "dovetail.cli.cluster.explain:explain",
        "Tell where and when a job ran, why it waited and who held what it could have used.",
    ),
    Command("generate", "dovetail.cli.cluster.traces:generate", "Generate jobs, and write them as a trace."),
    Command(
        "import",
        "dovetail.cli.cluster.traces:import_trace",
        "Read a trace of any known format, and write it as our table.",
    ),
    Command(
        "sweep",
        "dovetail.cli.cluster.sweep:app",
        "Sweep over policies, loads and seeds; a sweep that was interrupted goes on.",
    ),
    Command(
        "figure",
        "dovetail.cli.cluster.figure:app",
        "Published figures by one command each: a table or JSON, and a picture.",
    ),
)

app = App(name="cluster", help="Share accelerators of several types among training jobs.")
register(app, COMMANDS)
