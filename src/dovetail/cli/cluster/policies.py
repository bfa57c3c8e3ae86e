"""`dovetail cluster policies`: what can be chosen."""

from __future__ import annotations

from dovetail.cli.common import Format, print_json, print_table


def policies(*, format: Format = "table") -> None:
    """List the policies: what they promise, what they know and which options they take.

    Example: dovetail cluster policies

    Parameters
    ----------
    format
        table or json.
    """
    from dovetail.cluster import list_policies

    rows = list_policies()
    if format == "json":
        print_json(rows)
        return
    table = [[r["name"], r["knows"], " ".join(f"{k}={v}" for k, v in r["options"].items()), r["promise"]] for r in rows]
    print_table(["policy", "knows", "options", "promise"], table)
