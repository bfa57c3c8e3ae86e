"""`dovetail dispatch`: measure a function on devices, compare policies, and try them without hardware."""

from __future__ import annotations

from cyclopts import App

from dovetail.cli.verbs import Command, register

app = App(name="dispatch", help="Spread one batch over the CPU and GPUs of a node.", help_format="plaintext")
_HERE = "dovetail.cli.dispatch"
COMMANDS = (
    Command("tune", f"{_HERE}.tune:tune", "Find each device's best sub-batch size and its rate."),
    Command("bench", f"{_HERE}.bench:bench", "Run a function on each device alone and on all together."),
    Command("map", f"{_HERE}.map:map", "Call a function on a dataset larger than memory; results go to files."),
    Command("simulate", f"{_HERE}.simulate:simulate", "Try policies on the curves of devices, without the devices."),
)
register(app, COMMANDS)
