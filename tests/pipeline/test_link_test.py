"""The link test, over the loopback of this machine."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from dovetail.core.errors import DovetailError, InputError
from dovetail.pipeline.profile.link_test import LinkResult, link_entries, listen, measure_link, serve, write_links


@pytest.fixture
def server() -> Iterator[tuple[int, list[str]]]:
    """A server for two clients, and what it tells."""
    told: list[str] = []
    with listen() as listener:
        thread = threading.Thread(target=serve, args=(listener,), kwargs={"clients": 2, "told": told.append})
        thread.start()
        port = listener.getsockname()[1]
        yield port, told
        while thread.is_alive():  # a test that used fewer clients leaves the server waiting
            socket.create_connection(("127.0.0.1", port)).close()
            thread.join(1)


def test_both_directions_and_the_latency_are_measured(server: tuple[int, list[str]]) -> None:
    found = measure_link("127.0.0.1", server[0], repeats=3, seconds=0.01)
    assert found.to_mbps > 0
    assert found.from_mbps > 0
    assert 0 < found.latency_s < 10
    assert found.repeats == 3


def test_a_stranger_does_no_harm(server: tuple[int, list[str]]) -> None:
    port, told = server
    with socket.create_connection(("127.0.0.1", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n")  # as many bytes as a greeting has
        assert stranger.recv(100) == b""
    assert told == ["127.0.0.1: not a client of this test"]
    measure_link("127.0.0.1", port, repeats=1, seconds=0.001)


def test_a_request_that_is_too_large_is_refused(server: tuple[int, list[str]]) -> None:
    port, told = server
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"dovetail-link-1\n")
        assert client.recv(100) == b"dovetail-link-1\n"
        client.sendall(b"G" + (2**40).to_bytes(8, "big"))
        assert client.recv(100) == b""
    assert told == ["127.0.0.1: a request that is not understood"]


def test_nobody_there_is_said() -> None:
    with listen() as listener:
        port = listener.getsockname()[1]
    with pytest.raises(DovetailError, match=f"127.0.0.1 port {port}: the link test failed: Connection refused"):
        measure_link("127.0.0.1", port)
    with pytest.raises(InputError, match="expected more than 0"):
        measure_link("127.0.0.1", port, repeats=0)
    with pytest.raises(InputError, match="expected more than 0"):
        measure_link("127.0.0.1", port, seconds=float("nan"))
    with pytest.raises(InputError, match="port: expected 1 to 65535, found 70000"):
        measure_link("127.0.0.1", 70000)
    with pytest.raises(InputError, match="port: expected 0 to 65535, found 70000"):
        listen(port=70000)
    with pytest.raises(InputError, match="cannot listen"):
        listen("203.0.113.1")


def result(to: float, back: float) -> LinkResult:
    return LinkResult(to_mbps=to, from_mbps=back, latency_s=0.001, to_spread_mbps=0, from_spread_mbps=0, repeats=1)


def test_unlike_directions_are_two_entries() -> None:
    assert len(link_entries(result(100, 91), "a", "b")) == 1
    assert link_entries(result(100, 50), "a", "b") == [
        {"from": "a", "to": "b", "bw_Mbps": 100.0, "latency_s": 0.001, "one_way": True},
        {"from": "b", "to": "a", "bw_Mbps": 50.0, "latency_s": 0.001, "one_way": True},
    ]


def test_a_links_file_is_extended_and_the_planner_reads_it(tmp_path: Path) -> None:
    from dovetail.pipeline.inputs.files import load

    path = tmp_path / "links.yml"
    path.write_text("latency_s: 0.5\nlinks:\n- {from: a, to: c, bw_Mbps: 7}\n- {from: b, to: a, bw_Mbps: 1}\n")
    with pytest.raises(InputError, match=r"links.yml:4: .*the link of a and b is there already; -f replaces it"):
        write_links(path, link_entries(result(100, 100), "a", "b"))
    write_links(path, link_entries(result(100, 50), "a", "b"), force=True)
    found = yaml.safe_load(path.read_text())
    assert found["latency_s"] == 0.5
    assert [(link["from"], link["to"], link["bw_Mbps"]) for link in found["links"]] == [
        ("a", "c", 7),
        ("a", "b", 100.0),
        ("b", "a", 50.0),
    ]
    profile = {"batch_size": 8, "dtype": "torch.float32", "time_s": [1.0]}
    kind = {"bw_Mbps": 10, "mem_MB": 10, "model_profiles": {"m": [profile]}}
    model = {"layers": 1, "mem_MB": [1.0], "parameters_in": 1, "parameters_out": [1]}
    for name, content in {"models": {"m": model}, "types": {"t": kind}, "devices": {"t": ["a", "b", "c"]}}.items():
        (tmp_path / f"{name}.yml").write_text(yaml.safe_dump(content))
    files = [tmp_path / f"{name}.yml" for name in ("models", "types", "devices")]
    pipeline = load(*files, model="m", links=path)
    assert pipeline.link_mbps is not None
    place = {c.name: i for i, c in enumerate(pipeline.classes)}
    assert pipeline.link_mbps[place["a"]][place["b"]] == 100.0
    assert pipeline.link_mbps[place["b"]][place["a"]] == 50.0
    new = tmp_path / "new.yml"
    write_links(new, link_entries(result(100, 100), "a", "b"))
    assert yaml.safe_load(new.read_text())["links"][0]["bw_Mbps"] == 100.0
