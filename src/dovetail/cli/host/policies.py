"""`dovetail host policies`: what there is, and what each promises."""

from __future__ import annotations

from dovetail.cli.common import Format, print_json, print_table


def policies(*, format: Format = "table") -> None:
    """List the planning and assignment policies, and what each promises.

    Example: dovetail host policies

    Parameters
    ----------
    format
        table or json.
    """
    from dovetail.core import registry
    from dovetail.host.policies import Assignment, Planning, names

    kinds = {"planning": names(Planning), "assignment": names(Assignment)}
    rows = [[kind, name, registry.promise("host", name)] for kind, found in kinds.items() for name in found]
    if format == "json":
        print_json([{"kind": kind, "name": name, "promise": promise} for kind, name, promise in rows])
    else:
        print_table(["kind", "policy", "what it promises"], rows)
