"""A server on loopback over a service that is none, and a plain client of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dovetail.core.service.access import find
from dovetail.core.service.client import HttpClient
from dovetail.workflow.live.http.face import WorkflowServer
from tests.workflow.live.fake_service import FakeService


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def server(service: FakeService, tmp_path: Path) -> Iterator[WorkflowServer]:
    with WorkflowServer(service, tmp_path / "state", most_bytes=100_000) as server:
        yield server


@pytest.fixture
def raw(server: WorkflowServer, tmp_path: Path) -> HttpClient:
    return HttpClient(find(tmp_path / "state"))
