"""`dovetail cluster`: training jobs on accelerators of several types, simulated and for real."""

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
    Command(
        "serve",
        "dovetail.cli.cluster.serve:serve",
        "Run training jobs on real accelerators, in rounds; jobs are submitted over HTTP.",
    ),
    Command(
        "submit",
        "dovetail.cli.cluster.jobs:submit",
        "Submit a training job to a live cluster: a command, or the jobs of a file; prints their numbers.",
    ),
    Command("list", "dovetail.cli.cluster.jobs:list_jobs", "List the newest jobs of a live cluster."),
    Command(
        "status",
        "dovetail.cli.cluster.jobs:status",
        "Show a job of a live cluster: its state, progress, place and leases.",
    ),
    Command("logs", "dovetail.cli.cluster.jobs:logs", "Print what a job's process has written, over all its leases."),
    Command("cancel", "dovetail.cli.cluster.jobs:cancel", "Cancel jobs of a live cluster, whether they wait or run."),
    Command(
        "top",
        "dovetail.cli.cluster.control:top",
        "Show nodes, who runs there and who waits, as it changes, until Ctrl-C.",
    ),
    Command(
        "policy",
        "dovetail.cli.cluster.control:policy",
        "Show which policy decides, or let another one decide from now on.",
    ),
    Command(
        "drain",
        "dovetail.cli.cluster.control:drain",
        "Lease nothing more on a node; jobs that are there leave when the round is over.",
    ),
    Command("undrain", "dovetail.cli.cluster.control:undrain", "Lease on a node again."),
    Command(
        "replay",
        "dovetail.cli.cluster.replay:replay",
        "Submit the jobs of a trace to a live cluster at their times, and tell what became of them.",
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
