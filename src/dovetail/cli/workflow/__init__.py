"""`dovetail workflow`: schedule workflows of many models on a pool of GPUs."""

from __future__ import annotations

from cyclopts import App

from dovetail.cli.verbs import Command, register

app = App(name="workflow", help="Schedule workflows of many models on a pool of GPUs.")
_HERE = "dovetail.cli.workflow"
COMMANDS = (
    Command("run", f"{_HERE}.run:run", "Simulate a file of requests under a policy, or with --live run it for real."),
    Command("serve", f"{_HERE}.serve:serve", "Serve the workflows and models of a configuration over HTTP."),
    Command(
        "submit",
        f"{_HERE}.runs:submit",
        "Ask a running service for a workflow or a model; prints the run's id, or with --wait its answer.",
    ),
    Command("status", f"{_HERE}.runs:status", "Show a run of a service with its nodes, or the newest runs."),
    Command("result", f"{_HERE}.runs:result", "Wait for a run of a service to end, and print its answer."),
    Command("cancel", f"{_HERE}.runs:cancel", "Cancel runs of a service, whether they wait or run."),
    Command(
        "top",
        f"{_HERE}.top:top",
        "Show GPUs and what is on them, models, queues and rates of a service as they change, until Ctrl-C.",
    ),
    Command(
        "replay",
        f"{_HERE}.replay:replay",
        "Send a recorded trace to a running service at its times, and tell what came back.",
    ),
    Command("validate", f"{_HERE}.problem:validate", "Check the input files without running anything."),
    Command("compare", f"{_HERE}.study:compare", "Compare policies over pool sizes and seeds, in parallel."),
    Command("plan", f"{_HERE}.study:plan", "Find the fewest GPUs that keep P99, mean or makespan under a limit."),
    Command("bound", f"{_HERE}.problem:bound", "Give the lower bounds that no schedule can beat."),
    Command("policies", f"{_HERE}.policies:policies", "List the policies, what each promises, and its options."),
    Command("explain", f"{_HERE}.journal:explain", "Tell why a node waited and why it went where it went."),
    Command("export", f"{_HERE}.journal:export", "Write a recorded run's text log and execution log."),
    Command("generate", f"{_HERE}.inputs:generate", "Generate requests for a configuration; a seed gives its bytes."),
    Command("import", f"{_HERE}.inputs:import_app", "Turn workflows of other systems into our files."),
)
register(app, COMMANDS)
