"""`dovetail cluster top`, `policy`, `drain`, `undrain`: a live cluster, seen and changed while it runs."""

from __future__ import annotations

from typing import Annotated, Any

from dovetail.cli.cluster.place import PLACE, ClusterFlags
from dovetail.cli.common import Flag, Format, Pairs, live_table, pairs, print_json, show_live, value
from dovetail.cli.complete import CLUSTER_NODES, policies_of
from dovetail.core.errors import InputError, within


def top(*, every: float = 1.0, once: Flag = False, format: Format = "table", place: ClusterFlags = PLACE) -> None:
    """Show nodes, who runs there and who waits, as it changes, until Ctrl-C.

    Example: dovetail cluster top --once --format json

    Parameters
    ----------
    every
        Seconds between two looks.
    once
        Look once; as without a terminal.
    format
        table or json; json looks once.
    """
    within("--every", every, "seconds, more than 0", 0.01)
    client = place.connect()
    if format == "json":
        print_json(client.top())
        return
    show_live(lambda: screen(client.url, client.top()), every, once)


def screen(url: str, now: dict[str, Any]) -> Any:
    """A cluster at one moment: the whole, its nodes, who runs and who waits."""
    from rich.console import Group

    jobs = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in now["jobs"].items()) or "no jobs yet"
    head = f"{url}: policy {now['policy']}, rounds of {now['round_s']:g} s, up for {now['uptime_s']:.0f} s; {jobs}"
    if now["trouble"]:
        head += f"\n{now['trouble']}"
    for node in now["nodes"]:
        if node["trouble"]:
            head += f"\n{node['name']}: {node['trouble']}"
    nodes = [
        [
            node["name"],
            _state(node),
            ", ".join(
                [f"{count} {name}" for name, count in node["types"].items()]
                + [f"{count} {name} not used: restart" for name, count in node["unused"].items()]
            ),
            " ".join("-" if job is None else str(job) for job in node["jobs"]),
        ]
        for node in now["nodes"]
    ]
    shown = [head, live_table(("node", "state", "accelerators", "jobs"), nodes)]
    for state, last in (("running", ("on", "devices", "leases", "served s")), ("waiting", ("width", "failures"))):
        columns = ("job", "name", "model", "state", "done %", *last, "why")
        if rows := [[_of(job, column) for column in columns] for job in now[state]]:
            shown.append(live_table(columns, rows))
    return Group(*shown)


def _state(node: dict[str, Any]) -> str:
    if not node["here"]:
        return "gone"
    told = (("trouble", "down"), ("down", "silent"), ("drained", "drained"))
    return next((state for key, state in told if node[key]), "up")


def _of(job: dict[str, Any], column: str) -> Any:
    """What `cluster list` shows under the same name."""
    if column == "done %":
        return 100 * job["done"] / job["steps"] if "done" in job else 0.0
    return job.get({"job": "id"}.get(column, column.replace(" ", "_")))


def policy(
    name: Annotated[str | None, policies_of("cluster")] = None,
    /,
    *,
    option: Pairs | None = None,
    format: Format = "table",
    place: ClusterFlags = PLACE,
) -> None:
    """Show which policy decides, or let another one decide from now on.

    Example: dovetail cluster policy finish_time_fairness_perf

    Parameters
    ----------
    name
        The policy; `dovetail cluster policies` lists them.
    option
        Its options: --option NAME=VALUE.
    format
        table or json.
    """
    client = place.connect()
    options = {key: value(text) for key, text in pairs("--option", option).items()}
    if name is not None:
        client.change_policy(name, options)
    elif options:
        raise InputError("--option: expected the name of a policy before it")
    now = client.about()
    if format == "json":
        print_json({"policy": now["policy"], "options": now["options"]})
    else:
        print(" ".join([now["policy"], *(f"{key}={each}" for key, each in now["options"].items())]))


def drain(node: Annotated[str, CLUSTER_NODES], /, *, format: Format = "table", place: ClusterFlags = PLACE) -> None:
    """Lease nothing more on a node; jobs that are there leave when the round is over.

    Example: dovetail cluster drain node-3

    Parameters
    ----------
    node
        Its name, as `dovetail cluster top` shows it.
    format
        table or json.
    """
    client = place.connect()
    client.drain(node)
    _tell(node, "drained", format)


def undrain(node: Annotated[str, CLUSTER_NODES], /, *, format: Format = "table", place: ClusterFlags = PLACE) -> None:
    """Lease on a node again.

    Example: dovetail cluster undrain node-3

    Parameters
    ----------
    node
        Its name.
    format
        table or json.
    """
    client = place.connect()
    client.undrain(node)
    _tell(node, "up", format)


def _tell(node: str, state: str, format: Format) -> None:
    print_json({"node": node, "state": state}) if format == "json" else print(f"{node}: {state}")
