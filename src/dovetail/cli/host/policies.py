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
    from dovetail import host

    rows = host.policies()
    if format == "json":
        print_json(rows)
    else:
        print_table(["kind", "policy", "what it promises"], [list(row.values()) for row in rows])
