"""A service of workflows on HTTP, from a configuration: what `dovetail workflow serve` starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import asdict

from dovetail.core.errors import InputError
from dovetail.core.files.document import Source, as_path, checked
from dovetail.core.service.access import AnyPath, state_folder
from dovetail.core.service.log_lines import LogLines
from dovetail.workflow.choices import DEFAULT_POLICY
from dovetail.workflow.live.client import WorkflowClient, connect
from dovetail.workflow.live.engines.choice import ANY_GPUS, DeviceKind, EngineName, engine_for
from dovetail.workflow.live.http.face import WorkflowServer
from dovetail.workflow.live.service import WorkflowService
from dovetail.workflow.live.settings import LiveSettings
from dovetail.workflow.live.specs import live_policy, live_settings
from dovetail.workflow.problem import load

_LAST_WORDS_S = 2.0  # for answers that are on their way when all runs have ended


class ServedWorkflows:
    """A running service and its server; a context that drains it, and ends both."""

    def __init__(self, service: WorkflowService, server: WorkflowServer) -> None:
        self.service, self._server = service, server
        self.url, self.token_file, self.folder = server.url, server.token_file, service.folder

    def client(self) -> WorkflowClient:
        """A line to it, as another process would have one."""
        return connect(self.url, self.token_file)

    def drain(self, limit: float | None = None) -> bool:
        """Take no more requests, and wait until what is open has ended, or for so many seconds; by default as long as
        the configuration's `live.drain_s` says. True if nothing is open any more."""
        return self.service.drain(limit)

    def close(self) -> None:
        """End it. What is open goes on at the next start, except what only a client waited for."""
        self._server.stop(0.0 if self.service.about()["running"] else _LAST_WORDS_S)
        self.service.close()

    def __enter__(self) -> ServedWorkflows:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.drain()
        self.close()


def serve(
    config: Source,
    *,
    gpus: str | int | None = None,
    policy: Any = DEFAULT_POLICY,
    options: Mapping[str, Any] | None = None,
    engine: EngineName | None = None,
    address: str | None = None,
    device: DeviceKind = "auto",
    host: str = "127.0.0.1",
    port: int = 0,
    state: AnyPath | None = None,
    token_file: AnyPath | None = None,
    live: Mapping[str, Any] | None = None,
    costs: Mapping[str, Any] | None = None,
    rates: Source | None = None,
    log: LogLines | None = None,
) -> ServedWorkflows:
    """Serve the workflows and models of a configuration; gives the running service, which is a context.

    Parameters
    ----------
    gpus, costs, rates
        As `load` takes them. A cluster at an address needs no `gpus`: it has those of its nodes.
    policy, options
        Who decides, as `run` takes them.
    engine, address
        local: processes of this machine; ray: actors on the nodes of the cluster at an address, or of a private one.
    device
        cuda: GPUs do the work; cpu: processors; auto: GPUs where the machine has some and a model would use them.
    host, port
        Where to listen: on loopback unless another address is given, on any free port if that is 0.
    state
        Folder of what must survive: runs, journals, the URL and the token. By default $DOVETAIL_WORKFLOW_STATE or
        ~/.local/state/dovetail/workflow.
    token_file
        File of the token that clients need; made if it is not there, for its user alone.
    live
        Settings over those of the configuration's `live`, by name.
    """
    live_policy(policy, options)  # before anything is made
    among = ANY_GPUS if gpus is None and address is not None else gpus
    problem = load(config, [], gpus=among, mode="online", costs=costs, rates=rates)
    if problem.gpus_over_time is not None:
        raise problem.system.error(("gpus_over_time",), "a service has the GPUs that are there; leave it out")
    settings = _settings(live_settings(problem.system), live)
    folder = state_folder("workflow", state)
    carrier, problem = engine_for(problem, engine, address, device, settings.limits.silence_s)
    try:
        service = WorkflowService.over(problem, carrier, folder, settings, policy, options, log)
    except BaseException:
        carrier.close()
        raise
    try:
        named = None if token_file is None else as_path(token_file, "token_file")
        most = int((settings.max_input_mib + 1) * (1 << 20) * 4 / 3)  # bytes are sent as base64
        server = WorkflowServer(service, folder, host=host, port=port, token_file=named, most_bytes=most)
        try:
            service.start()
            server.start()
        except BaseException:
            server.stop()
            raise
    except BaseException:
        service.close()
        raise
    return ServedWorkflows(service, server)


def _settings(configured: LiveSettings, given: Mapping[str, Any] | None) -> LiveSettings:
    """Those of the configuration, and over them what was given."""
    settings = checked(asdict(configured) | dict(given or {}), LiveSettings, "live")
    if (problem := settings.problem()) is not None:
        raise InputError(f"live.{problem}")
    return settings
