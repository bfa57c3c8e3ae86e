"""`dovetail workflow serve`: workflows and models on HTTP, until it is told to end."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from dovetail.cli.common import Pairs, pairs, value
from dovetail.cli.complete import policies_of
from dovetail.core.errors import DovetailError
from dovetail.workflow import DEFAULT_POLICY

if TYPE_CHECKING:
    from dovetail.workflow import ServedWorkflows

_LOOK_EVERY_S = 0.1


def serve(
    *,
    config: Path = Path("system_config.yaml"),
    gpus: str | None = None,
    policy: Annotated[str, policies_of("workflow")] = DEFAULT_POLICY,
    option: Pairs | None = None,
    engine: Literal["local", "ray"] | None = None,
    address: str | None = None,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    host: str = "127.0.0.1",
    port: int = 0,
    state: Path | None = None,
    token_file: Path | None = None,
    live: Pairs | None = None,
    cost: Pairs | None = None,
    rates: Path | None = None,
) -> int:
    """Serve the workflows and models of a configuration over HTTP.

    Prints the URL and where the token is. The first SIGTERM or Ctrl-C takes no more requests and lets open ones end,
    the second ends at once; what is then open goes on at the next start. Exit code 3 if something is left open.

    Example: dovetail workflow serve --config examples/live/emulated.yaml --port 8000
    Example: dovetail workflow serve --config system_config.yaml --address 10.0.0.1:6379

    Parameters
    ----------
    config
        Models with their sources, workflows, GPU types and costs: YAML or JSON.
    gpus
        How many GPUs, or how many of each type: 4, or a100:2,l4:4. A cluster at an address has those of its nodes, and
        at least these.
    policy
        Who decides; `dovetail workflow policies` lists them.
    option
        Options of the policy: --option objective=mean.
    engine
        local: processes of this machine; ray: actors on the nodes of a cluster.
    address
        Of the Ray cluster, which is then the engine; without one --engine ray starts a private cluster here.
    device
        cuda: GPUs do the work; cpu: processors; auto: GPUs where the machine has some and a model would use them.
    host
        Address to listen at; by default only this machine can ask.
    port
        Port to listen at; 0 takes a free one.
    state
        Folder of the service's state; by default $DOVETAIL_WORKFLOW_STATE or ~/.local/state/dovetail/workflow.
    token_file
        File of the token that clients need, made for its user alone if it is not there; by default in the folder.
    live
        Limits over those of the configuration's `live`: --live max_queue=100 drain_s=10.
    cost
        Cost rules over those of the configuration: --cost dram_gb=64.
    rates
        A rate table: measured speeds and switch times.
    """
    from dovetail.workflow import serve as started

    asked: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: asked.append(number))
    served = started(
        config,
        gpus=gpus,
        policy=policy,
        options=pairs("--option", option),
        engine=engine,
        address=address,
        device=device,
        host=host,
        port=port,
        state=state,
        token_file=token_file,
        live={name: value(text) for name, text in pairs("--live", live).items()},
        costs=pairs("--cost", cost),
        rates=rates,
    )
    try:
        about = served.service.about()
        kinds = served.service.workflows()
        models = sum(info.implicit for info in kinds)
        offered = f"{_count(models, 'model')} and {_count(len(kinds) - models, 'workflow')}"
        print(f"Serving {offered} on {_count(len(about['gpus']), 'GPU')}: {served.url}")
        print(f"The token is in {served.token_file}")
        print(f"How to use it: {served.url}/docs", flush=True)
        return _until_told(served, asked)
    finally:
        served.close()


def _until_told(served: ServedWorkflows, asked: list[int]) -> int:
    """Wait for a signal, then for the end of what is open, or another signal."""
    pause = threading.Event()
    while not asked:
        pause.wait(_LOOK_EVERY_S)
        if served.service.failed:
            raise DovetailError(served.service.trouble)
    print("No more requests are taken; once more ends at once", file=sys.stderr, flush=True)
    drained: list[bool] = []
    draining = threading.Thread(target=lambda: drained.append(served.drain()), daemon=True)
    draining.start()
    while draining.is_alive() and len(asked) < 2:
        draining.join(_LOOK_EVERY_S)
    if drained == [True]:
        return 0
    about: dict[str, Any] = served.service.about()
    print(
        f"Left open: {_count(about['queued'] + about['running'], 'run')}, to go on at the next start", file=sys.stderr
    )
    return 3


def _count(number: int, what: str) -> str:
    """A number of things.

    >>> _count(1, "model"), _count(2, "model")
    ('1 model', '2 models')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
