"""The executor of containers against an engine that answers when the test says so."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingMixIn, UnixStreamServer
from typing import Any

import pytest

from tests.host.live import PATIENCE_S, until

pytest.importorskip("docker")

from dovetail.host.live.executors.docker import DockerExecutor


class Answers(BaseHTTPRequestHandler):
    """Says which version it has, and that it has nothing to tell yet: the stream of events stays open."""

    server: SlowEngine

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        events = "/events" in self.path
        if events:
            assert self.server.go_on.wait(PATIENCE_S)
        body = b"" if events else json.dumps({"ApiVersion": "1.43"}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        if not events:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
        if events:
            self.rfile.read(1)  # until the other side hangs up

    def log_message(self, *_: object) -> None: ...


class SlowEngine(ThreadingMixIn, UnixStreamServer):
    daemon_threads = False

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), Answers)
        self.asked: list[str] = []
        self.go_on = threading.Event()

    def get_request(self) -> Any:
        return super().get_request()[0], ("engine", 0)


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowEngine]:
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    with SlowEngine(Path("engine")) as engine:
        serving = threading.Thread(target=engine.serve_forever, args=(0.01,))
        serving.start()
        yield engine
        engine.go_on.set()
        engine.shutdown()
        serving.join()


def test_an_executor_that_is_closed_before_it_hears_the_engine_ends(engine: SlowEngine) -> None:
    executor = DockerExecutor(lambda run, end: None, "test", f"unix://{Path('engine').resolve()}")
    until(lambda: any("/events" in path for path in engine.asked))
    closing = threading.Thread(target=executor.close)
    closing.start()
    until(executor._closing.is_set)
    engine.go_on.set()
    closing.join()
    assert not executor._watcher.is_alive()


def test_one_connection_is_made_however_many_ask_at_once(engine: SlowEngine) -> None:
    engine.go_on.set()
    executor = DockerExecutor(lambda run, end: None, "test", f"unix://{Path('engine').resolve()}")
    executor.reach()
    until(lambda: any("/events" in path for path in engine.asked))
    executor.close()
    assert engine.asked.count("/version") == 1
