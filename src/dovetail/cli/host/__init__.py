"""`dovetail host`: programs on the cores of one machine, simulated and live."""

from __future__ import annotations

from cyclopts import App

from dovetail.cli.defaults import UserDefaults
from dovetail.cli.verbs import Command, register

COMMANDS = (
    Command("simulate", "dovetail.cli.host.simulate:simulate", "Simulate programs on the cores of a machine."),
    Command(
        "experiment",
        "dovetail.cli.host.experiment:experiment",
        "Compare every planning with every assignment on the same workloads.",
    ),
    Command(
        "policies",
        "dovetail.cli.host.policies:policies",
        "List the planning and assignment policies, and what each promises.",
    ),
    Command(
        "measure",
        "dovetail.cli.host.measure:measure",
        "Run a program on several numbers of cores and tell how long it takes on each.",
    ),
    Command(
        "recommend",
        "dovetail.cli.host.recommend:recommend",
        "Measure a program on several numbers of cores, alone and side by side, and say how many to run at once.",
    ),
    Command(
        "gantt",
        "dovetail.cli.host.gantt:gantt",
        "Draw a run with a row for each program: its cores over time, resizes, pauses and failures, as SVG.",
    ),
    Command(
        "up",
        "dovetail.cli.host.daemon:up",
        "Start the daemon of this machine, or start it again after it ended in whatever way.",
    ),
    Command(
        "down",
        "dovetail.cli.host.daemon:down",
        "Stop the daemon. Its programs run on, and the next daemon finds them; paused ones stay paused.",
    ),
    Command(
        "install",
        "dovetail.cli.host.daemon:install",
        "Let systemd start the daemon at every login of this user, and again if it fails; programs outlive it.",
    ),
    Command("submit", "dovetail.cli.host.submit:submit", "Submit a program; prints its number at once."),
    Command(
        "submit-jobs",
        "dovetail.cli.host.submit:submit_jobs",
        "Submit all programs of a job file, with every combination of its matrices; prints number and name of each.",
    ),
    Command(
        "pause", "dovetail.cli.host.programs:pause", "Pause programs; they keep their memory and give up their cores."
    ),
    Command("resume", "dovetail.cli.host.programs:resume", "Let paused programs go on, when there are cores for them."),
    Command("resize", "dovetail.cli.host.programs:resize", "Change how many cores a program asks for."),
    Command("priority", "dovetail.cli.host.programs:priority", "Change how urgent a program is."),
    Command("cancel", "dovetail.cli.host.programs:cancel", "Cancel programs, whether they wait, run or are paused."),
    Command(
        "requeue",
        "dovetail.cli.host.programs:requeue",
        "Put programs back into the queue, to begin again; prints their numbers.",
    ),
    Command(
        "retry",
        "dovetail.cli.host.programs:retry",
        "Let programs that failed or were cancelled come once more; prints the old and the new number of each.",
    ),
    Command(
        "edit",
        "dovetail.cli.host.programs:edit",
        "Change a program that waits; what is not given stays as it is, and so does its place in the queue.",
    ),
    Command(
        "clean",
        "dovetail.cli.host.programs:clean",
        "Forget programs that have ended, and remove their logs; prints how many. The journal keeps what happened.",
    ),
    Command(
        "group",
        "dovetail.cli.host.programs:group",
        "Change how many programs of a group may run at once; without a number all of them may. Who runs goes on.",
    ),
    Command(
        "run",
        "dovetail.cli.host.run:run",
        "Replay a request file on the running daemon, and print the figures when all has ended.",
    ),
    Command(
        "list",
        "dovetail.cli.host.watch:list_",
        "List the programs: what was asked, what ought to be, what is, and why one waits.",
    ),
    Command("top", "dovetail.cli.host.watch:top_", "Show the programs as they change, until Ctrl-C."),
    Command("logs", "dovetail.cli.host.watch:logs_", "Print what a program has written."),
    Command(
        "explain", "dovetail.cli.host.watch:explain_", "Tell why a program waits, or what was decided about it and why."
    ),
    Command("metrics", "dovetail.cli.host.watch:metrics_", "Figures of the run so far: per program and for the whole."),
    Command(
        "journal",
        "dovetail.cli.host.watch:journal_",
        "Write what has happened so far as a journal, for `dovetail check`, `report` and replay.",
    ),
    Command(
        "rates",
        "dovetail.cli.host.watch:rates_",
        "Write what was measured of the programs as a table of rates, which other levels read.",
    ),
    Command(
        "wait",
        "dovetail.cli.host.watch:wait_",
        "Wait until programs have ended, or all; ends with the exit code of the first that was not completed.",
    ),
)

app = App(
    name="host",
    help="Co-schedule programs on the cores of one machine.",
    config=UserDefaults("host", (command.verb for command in COMMANDS)),
)
register(app, COMMANDS)
