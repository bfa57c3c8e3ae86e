"""`dovetail workflow`: schedule workflows of many models on a pool of GPUs."""

from __future__ import annotations

from cyclopts import App

from dovetail.cli.verbs import Command, register

app = App(name="workflow", help="Schedule workflows of many models on a pool of GPUs.")
_HERE = "dovetail.cli.workflow"
COMMANDS = (
    Command("run", f"{_HERE}.run:run", "Simulate a file of requests under a policy."),
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
