"""`dovetail workflow policies`: who can decide."""

from __future__ import annotations

from dovetail.cli.common import Format, print_json, print_table


def policies(*, format: Format = "table") -> int:
    """List the policies, what each promises, and its options.

    Example: dovetail workflow policies

    Parameters
    ----------
    format
        table or json.
    """
    from dovetail.workflow import list_policies

    listed = list_policies()
    if format == "json":
        print_json([{"policy": name, "promise": promise, "options": options} for name, promise, options, _ in listed])
    else:
        shown = [[p.name, p.promise, " ".join(f"{key}={value}" for key, value in p.options.items())] for p in listed]
        print_table(["policy", "promise", "options"], shown)
    return 0
