"""A live cluster on HTTP: what `dovetail cluster serve` starts."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from dovetail.cluster.inputs.cluster_spec import parse_cluster
from dovetail.cluster.live.agent_link import AgentErrand
from dovetail.cluster.live.client import ClusterClient, connect
from dovetail.cluster.live.cluster_memory import STORE
from dovetail.cluster.live.executor import AgentExecutor
from dovetail.cluster.live.launch import launch_here
from dovetail.cluster.live.nodes import ClusterNode, emulated_node, given_types, node_of_ray, this_machine
from dovetail.cluster.live.service import ClusterService, training_command
from dovetail.cluster.live.service_loop import ClusterLoop, NodeCarrier
from dovetail.cluster.live.settings import ClusterSettings
from dovetail.cluster.rules import RoundRules
from dovetail.core.errors import InputError
from dovetail.core.files.document import Document, Source, as_path, checked
from dovetail.core.service.access import AnyPath, state_folder
from dovetail.core.service.log_lines import LogLines
from dovetail.core.service.ray_messages import LaunchProcess, NodesChanged, ProcessEnded
from dovetail.core.service.ray_processes import RayChange, RayDown, RayProcesses, RayUp

Launch = Callable[[ClusterNode, AgentErrand], None]
_LAUNCH_S = 60.0  # for Ray to start a process
_ON_RAY = "dovetail.cluster.live.launch:on_ray"


class RayMachines:
    """The nodes of a Ray cluster, and a way to start agents on them. Who is `patient` waits for one that is away."""

    def __init__(self, address: str, tell: Callable[[list[ClusterNode]], None], patient: bool = False) -> None:
        self._tell = tell
        self._asked: dict[str, float] = {}  # when the agent of a node was asked for, until it is started
        self._ray = RayProcesses(address, self._hear, patient=patient)
        self.away, self.bind = self._ray.head_trouble, self._ray.bind

    def nodes(self) -> list[ClusterNode] | None:
        """None while nobody can tell."""
        if self._ray.head_trouble is not None:
            return None
        return [found for node in self._ray.nodes if (found := node_of_ray(node)) is not None]

    def launch(self, node: ClusterNode, errand: AgentErrand) -> None:
        name, now = f"agent of {node.ray_id}", time.monotonic()
        if now - self._asked.get(name, -_LAUNCH_S) < _LAUNCH_S:
            return  # it is on its way: whoever is asked once more is the slower for it
        self._asked[name] = now
        order = LaunchProcess(f"{name} {secrets.token_hex(4)}", node.ray_id, _ON_RAY, msgspec.msgpack.encode(errand))
        self._ray.launch(order)

    def _hear(self, change: RayChange) -> None:
        if isinstance(change, ProcessEnded):
            self._asked.pop(change.name.rpartition(" ")[0], None)
        elif isinstance(change, RayDown):
            self._asked.clear()
        elif isinstance(change, NodesChanged | RayUp):  # without its head, nodes and what runs there go on
            self._tell(_of(change))

    def close(self) -> None:
        self._ray.close()


def _of(change: RayUp | NodesChanged) -> list[ClusterNode]:
    return [found for node in change.nodes if (found := node_of_ray(node)) is not None]


class AgentAddress(msgspec.Struct):
    """Where agents dial, and what they must know: the same over restarts, or they are never heard of again."""

    port: int
    secret: bytes
    round_s: float = 0.0
    host: str = "127.0.0.1"


class ServedCluster:
    """A running service and its server; a context that ends both. What runs goes on, unless it is told to leave."""

    def __init__(self, service: ClusterService, server: Any, machines: RayMachines | None) -> None:
        self.service, self._server, self._machines = service, server, machines
        self.url, self.token_file, self.folder = server.url, server.token_file, service.folder

    def client(self) -> ClusterClient:
        """A line to it, as another process would have one."""
        return connect(self.url, self.token_file)

    def close(self, leave: bool = False) -> None:
        """End it. With `leave`, agents end what runs, and themselves: it goes on from checkpoints at the next start."""
        self._server.stop()
        self.service.close(leave)
        if self._machines is not None:
            self._machines.close()

    def __enter__(self) -> ServedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(leave=True)


class _ClusterConfig(msgspec.Struct, forbid_unknown_fields=True):
    """A configuration file of a live cluster."""

    cluster: Any = None
    policy: str | None = None
    options: dict[str, Any] = {}
    round_s: float | None = None
    entities: dict[str, float] = {}
    live: dict[str, Any] = {}


def serve(
    config: Source | None = None,
    *,
    types: Mapping[str, int] | str | None = None,
    policy: str | None = None,
    options: Mapping[str, Any] | None = None,
    round_s: float | None = None,
    address: str | None = None,
    entities: Mapping[str, float] | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    state: AnyPath | None = None,
    token_file: AnyPath | None = None,
    live: Mapping[str, Any] | None = None,
    log: LogLines | None = None,
) -> ServedCluster:
    """Run training jobs for real; gives the running service, which is a context.

    Parameters
    ----------
    config
        A file, or what it would hold: `cluster`, `policy`, `options`, `round_s`, `entities`, `live`.
    types
        Accelerators to emulate on this machine, such as {"v100": 2, "k80": 2}. Without them, and without an address,
        this machine's GPUs are used.
    policy, options
        Who decides; by default what decided before, or `max_min_fairness_perf`.
    round_s
        Seconds of a round.
    address
        Of a Ray cluster, whose nodes have the accelerators.
    entities
        Weights of those who submit jobs.
    host, port
        Where to listen: on loopback unless another address is given, on any free port if that is 0.
    state
        Folder of what must survive, which all nodes must share; by default $DOVETAIL_CLUSTER_STATE or
        ~/.local/state/dovetail/cluster.
    token_file
        File of the token that clients need; made if it is not there, for its user alone.
    live
        Settings over those of the configuration's `live`, by name.
    """
    from dovetail.cluster.live.http import ClusterServer

    document = Document.of({} if config is None else config, "config")
    given = document.convert(document.data, _ClusterConfig)
    settings = _settings(given.live, live)
    length_s = round_s if round_s is not None else given.round_s
    rules = RoundRules() if length_s is None else _rules(length_s)
    folder = state_folder("cluster", state)
    named = types if types is not None else given.cluster
    if named is not None and address is not None:
        raise InputError("types: the nodes of the Ray cluster say which they are; leave them out, or the address")
    chosen = policy if policy is not None else given.policy
    served: list[ClusterService] = []

    def nodes_are(nodes: list[ClusterNode]) -> None:
        for each in served:  # once it has started
            each.nodes_are(nodes)

    known = (folder / STORE).exists()  # then its agents may be there, whatever has become of Ray
    machines = None if address is None else RayMachines(address, nodes_are, patient=known)
    try:
        nodes = machines.nodes() if machines is not None else [_local(named)]
        launch: Launch = machines.launch if machines is not None else (lambda node, errand: launch_here(errand))
        bind = machines.bind if machines is not None else "127.0.0.1"
        service = ClusterService(
            folder,
            lambda loop: _executor(loop, bind, launch),
            nodes=nodes,
            policy=chosen,
            options=options if policy is not None else given.options or options,
            rules=rules,
            settings=settings,
            entities=entities if entities is not None else given.entities,
            log=log,
        )
        if machines is not None and machines.away is not None:
            service.log.write("ray is away", why=machines.away)
        try:
            named_file = None if token_file is None else as_path(token_file, "token_file")
            server = ClusterServer(service, folder, host=host, port=port, token_file=named_file)
            try:
                service.start()
                served.append(service)
                if machines is not None and (there := machines.nodes()) is not None:
                    service.nodes_are(there)  # what changed while the past was gone through
                server.start()
            except BaseException:
                server.stop()
                raise
        except BaseException:
            service.close()
            raise
    except BaseException:
        if machines is not None:
            machines.close()
        raise
    return ServedCluster(service, server, machines)


def _rules(round_s: float) -> RoundRules:
    if not 0 < round_s < 1e9:
        raise InputError(f"round_s {round_s:g}: expected seconds, more than 0")
    return RoundRules(round_s=round_s, restart_s=min(RoundRules().restart_s, round_s / 10))


def _local(named: Mapping[str, int] | str | None) -> ClusterNode:
    """This machine, with the accelerators that it has or is to emulate."""
    if named is None:
        return this_machine()
    if isinstance(named, str):
        spec = parse_cluster(named)
        named = dict(zip(spec.types, spec.counts, strict=True))
    return emulated_node(given_types(named))


def _executor(loop: ClusterLoop, bind: str, launch: Launch) -> NodeCarrier:
    """Agents find the service again at the same port after a restart, unless somebody else has it by now: then they end
    what they run when its leases are over, and others are started."""
    known = loop.store.get("agents", AgentAddress) or AgentAddress(0, secrets.token_bytes(32))
    host = bind or known.host

    def listen(port: int) -> AgentExecutor:
        return AgentExecutor(
            loop.settings,
            loop.rules.round_s,
            lambda job: training_command(loop, job),
            loop.tell,
            secret=known.secret,
            host=host,
            port=port,
            launch=launch,
            watch=loop.watch,
            trouble=lambda node, why: loop.log.write("agent does not come", node=node, why=why),
            longest_s=known.round_s,
        )

    try:
        executor = listen(known.port)
    except OSError as error:
        loop.log.write("agents have to find another port", was=known.port, why=str(error))
        executor = listen(0)
    loop.store.set("agents", AgentAddress(executor.port, known.secret, loop.rules.round_s, host))
    return executor


def _settings(configured: Mapping[str, Any], given: Mapping[str, Any] | None) -> ClusterSettings:
    """Those of the configuration, and over them what was given."""
    settings = checked(
        asdict(checked(dict(configured), ClusterSettings, "live")) | dict(given or {}), ClusterSettings, "live"
    )
    if (problem := settings.problem()) is not None:
        raise InputError(f"live.{problem}")
    return settings
