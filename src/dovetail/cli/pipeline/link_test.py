"""`dovetail pipeline link-test`: measure the link between two hosts."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App

from dovetail.cli.common import Force, Format, check_writable, print_json, print_table

link_test = App(name="link-test", help="Measure bandwidth and latency between two hosts.", help_format="plaintext")


@link_test.command(name="serve")
def serve_link(*, address: str = "127.0.0.1", port: int = 0, clients: int | None = None) -> int:
    """Answer link tests of other hosts.

    It listens on this machine alone unless it is given another address; anyone who reaches it may then send to it.

    Example: dovetail pipeline link-test serve --address 0.0.0.0 --port 5201

    Parameters
    ----------
    address
        Where to listen.
    port
        The port; 0 takes a free one.
    clients
        End after so many; by default only when interrupted.
    """
    from dovetail.pipeline import serve_link as answer

    answer(address, port, clients=clients, notice=lambda line: print(line, flush=True))
    return 0


@link_test.command
def connect(
    address: str,
    port: int,
    /,
    *,
    here: str = "here",
    there: str | None = None,
    repeats: int = 9,
    seconds: float = 0.2,
    out: Path | None = None,
    force: Force = False,
    format: Format = "table",
) -> int:
    """Measure the link to a host where `link-test serve` runs.

    Example: dovetail pipeline link-test connect 10.0.0.7 5201 --here mb-0 --there rcc-1 --out links.yml

    Parameters
    ----------
    address
        The other host.
    port
        Its port.
    here
        What this host or its device type is called in devices.yml.
    there
        What the other one is called; its address by default.
    repeats
        Transfers in each direction.
    seconds
        How long a transfer should take, about.
    out
        A links file to add the link to.
    force
        Replace the link if it is there already.
    format
        table or json.
    """
    from dovetail.pipeline import link_test as measure

    if out is not None:
        check_writable(out)
    found = measure(address, port, here=here, there=there, repeats=repeats, seconds=seconds, out=out, force=force)
    if format == "json":
        print_json(found)
        return 0
    result = found.result
    rows: list[list[object]] = [
        [f"{here} -> {there or address}", result.to_mbps, result.to_spread_mbps, result.latency_s],
        [f"{there or address} -> {here}", result.from_mbps, result.from_spread_mbps, result.latency_s],
    ]
    print_table(["link", "Mibit/s", "spread", "latency s"], rows)
    if out is not None:
        print(f"Written: {out}")
    return 0
