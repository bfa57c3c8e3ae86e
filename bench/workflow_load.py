"""A service of workflows under load from OpenAI's own client: what it adds to calling a model directly, and what it
does at twice what it can. Prints JSON.

    python -m bench.workflow_live load                       all parts
    python -m bench.workflow_live load emulated overload     only these
    python -m bench.workflow_live load --locust PATH         locust's FastHttpUser in the place of OpenAI's client

emulated, real: one model that is loaded, with 8 slots; the same calls through its worker alone and through the service,
which is a process of its own as the clients are: calls per second with twice as many clients as slots, the median of
one plain line and of one client, and the processor time of each side for a call. `emulated` sleeps 50 ms; `real` is a
tiny transformer.
overload: twice as many requests as can be served, for so many seconds: what became of each, how long the accepted
ones waited over what is promised, and whether whoever comes back when Retry-After says is let in.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

from bench import show
from dovetail import workflow
from dovetail.workflow.live.client import WorkflowClient
from dovetail.workflow.live.engines.local import LocalGpuEngine, emulated_gpus
from dovetail.workflow.live.protocol import Answer, CallFailed, Loaded, ModelCall, Report, WorkerReady
from dovetail.workflow.live.specs import model_specs

SLOTS = 8
CALL_S = 0.05
TOKENS = 32
ASKED = {"messages": [{"role": "user", "content": "say something"}], "max_tokens": TOKENS}
MAX_WAIT_S = 2.0


def main() -> None:
    parts = {"emulated": emulated, "real": real, "overload": overload}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(parts)}; all by default")
    parser.add_argument("--calls", type=int, default=800, help="of each kind")
    parser.add_argument("--seconds", type=float, default=15.0, help="of overload")
    parser.add_argument("--locust", help="locust's command, to be used in the place of OpenAI's client")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)  # URL and task: a process of clients
    arguments = parser.parse_args()
    if arguments.client:
        print(json.dumps(asyncio.run(clients(arguments.client[0], json.loads(arguments.client[1])))))
        return
    found: dict[str, Any] = {}
    for name in arguments.parts or parts:
        print(f"{name} ...", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(prefix="dovetail-load-") as folder:
            found[name] = parts[name](Path(folder), arguments)
        print(json.dumps(found[name]), file=sys.stderr, flush=True)
    show(found)


def configuration(model: dict[str, Any], **live: Any) -> dict[str, Any]:
    slots = {"max_concurrency": SLOTS, "concurrency_curve": [1.0] * SLOTS}
    kept = {"memory_gb": 1, "gpus_required": 1, "load_time_seconds": 0.1}
    plain = {"nodes": [{"id": "answer", "model": "model"}], "edges": []}
    return {"gpus": 1, "models": {"model": kept | slots | model}, "workflows": {"plain": plain}, "live": live}


def sleeping(**live: Any) -> dict[str, Any]:
    timed = {"inference_time_mean": CALL_S, "inference_time_std": 0}
    return configuration({**timed, "source": {"emulated": {"call_s": CALL_S}}}, **live)


def emulated(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    return resident(folder, sleeping(), arguments)


def real(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    from dovetail.testing.workflow.random_models import write_model

    write_model(folder / "weights")
    timed = {"tokens_per_second": 300, "token_mean": TOKENS, "token_std": 0}
    return resident(folder, configuration({**timed, "source": {"path": str(folder / "weights")}}), arguments)


def resident(folder: Path, config: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """One loaded model, directly and through the service, first and last directly: the machine may have changed."""
    with direct(config) as call:
        first = call(arguments.calls, 2 * SLOTS), call(arguments.calls // 8, 1)
    with service(folder, config) as (line, pid):
        ask(line, {"calls": SLOTS, "clients": SLOTS}, argparse.Namespace(locust=None))  # loads it
        through = {}
        for name, several in (("many", 2 * SLOTS), ("one", 1)):
            task = {"calls": arguments.calls if several > 1 else arguments.calls // 8, "clients": several}
            before = cpu_s(pid)
            through[name] = ask(line, task, arguments)
            through[name]["service_cpu_ms"] = 1000 * (cpu_s(pid) - before) / task["calls"]
        plain_ms = plainly(line, arguments.calls // 8)
    with direct(config) as call:
        last = call(arguments.calls, 2 * SLOTS), call(arguments.calls // 8, 1)
    many, one = through["many"], through["one"]
    per_s = [directly["per_s"] for directly in (first[0], last[0])]
    alone = [directly["median_ms"] for directly in (first[1], last[1])]
    return {
        "direct_per_s": per_s,
        "service_per_s": many["per_s"],
        "throughput_ratio": many["per_s"] / (sum(per_s) / 2),
        "direct_median_ms": alone,
        "service_median_ms": plain_ms,
        "added_ms": plain_ms - sum(alone) / 2,
        "with_the_client_median_ms": one["median_ms"],
        "service_cpu_ms": {"many": many["service_cpu_ms"], "one": one["service_cpu_ms"]},
        "client_cpu_ms": {"many": many["client_cpu_ms"], "one": one["client_cpu_ms"]},
        "statuses": many["statuses"],
    }


def overload(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    capacity = SLOTS / CALL_S
    with service(folder, sleeping(max_wait_s=MAX_WAIT_S, max_queue=10_000)) as (line, pid):
        ask(line, {"calls": 10 * SLOTS, "clients": SLOTS}, arguments)  # loads it, and shows how long a call takes
        before = cpu_s(pid)
        count = int(2 * capacity * arguments.seconds)
        told = ask(line, {"calls": count, "per_s": 2 * capacity}, argparse.Namespace(locust=None))
        spent = cpu_s(pid) - before
        waited = [run.started_s - run.arrived_s for run in line.runs("completed", count) if run.started_s is not None]
        waited.sort()
    return {
        "asked_per_s": count / told["seconds"],
        "capacity_per_s": capacity,
        "served_per_s": told["statuses"].get("200", 0) / told["seconds"],
        "statuses": told["statuses"],
        "promised_wait_s": MAX_WAIT_S,
        "longest_wait_s": waited[-1],
        "p99_wait_s": waited[int(0.99 * len(waited))],
        "waited_longer_than_promised": sum(wait > MAX_WAIT_S for wait in waited),
        "retry_after_s": told["retry_after_s"],
        "came_back_and_let_in": told["let_in"],
        "service_cpu_ms": 1000 * spent / count,
        "client_cpu_ms": told["client_cpu_ms"],
    }


# --- the model alone ------------------------------------------------------------------------------------------


@contextmanager
def direct(config: dict[str, Any]) -> Iterator[Any]:
    """The worker that serves the model, called from here without a service."""
    problem = workflow.load(config, [], mode="online")
    engine = LocalGpuEngine(emulated_gpus(1))
    ready, loaded = threading.Event(), threading.Event()
    waiting: dict[str, threading.Event] = {}

    def report(told: Report) -> None:
        if isinstance(told, WorkerReady):
            ready.set()
        elif isinstance(told, Loaded):
            loaded.set()
        elif isinstance(told, Answer | CallFailed):
            assert isinstance(told, Answer), told
            waiting.pop(told.call).set()

    def one(name: str) -> float:
        waiting[name] = done = threading.Event()
        began = time.perf_counter()
        options = {"max_tokens": TOKENS}
        engine.call(0, ModelCall(id=name, model="model", inputs={"messages": ASKED["messages"]}, options=options))
        done.wait()
        return time.perf_counter() - began

    def call(count: int, clients: int) -> dict[str, float]:
        """As many callers as there are slots: what waits for a slot waits at the caller."""
        times: list[float] = []
        names = iter(range(count))
        lock = threading.Lock()

        def caller() -> None:
            while True:
                with lock:
                    number = next(names, None)
                if number is None:
                    return
                times.append(one(f"{clients}-{number}-{time.perf_counter_ns()}"))

        began = time.perf_counter()
        callers = [threading.Thread(target=caller) for _ in range(min(clients, SLOTS))]
        for each in callers:
            each.start()
        for each in callers:
            each.join()
        return {"per_s": count / (time.perf_counter() - began), "median_ms": 1000 * median(times)}

    engine.start(model_specs(problem.system), report)
    try:
        ready.wait()
        engine.load(0, "model", (0,))
        loaded.wait()
        call(2 * SLOTS, SLOTS)
        yield call
    finally:
        engine.close()


# --- the service, and clients of it ---------------------------------------------------------------------------


@contextmanager
def service(folder: Path, config: dict[str, Any]) -> Iterator[tuple[WorkflowClient, int]]:
    """The service in a process of its own."""
    (folder / "config.json").write_text(json.dumps(config))
    words = ["workflow", "serve", "--config", str(folder / "config.json"), "--state", str(folder / "state")]
    with (folder / "log").open("w") as log:
        started = subprocess.Popen([sys.executable, "-m", "dovetail", *words], stdout=subprocess.PIPE, stderr=log)
        assert started.stdout is not None
        try:
            if not started.stdout.readline():
                raise RuntimeError((folder / "log").read_text())
            yield workflow.connect(folder / "state"), started.pid
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait()
            started.stdout.close()


def cpu_s(pid: int) -> float:
    """Processor time of a process, without those that it started."""
    fields = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(line: WorkflowClient, task: dict[str, Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Let clients in another process do a task."""
    if arguments.locust and "clients" in task:
        return locust(line, task, arguments.locust)
    command = [sys.executable, "-m", "bench.workflow_load", "--client", line.url, json.dumps(task)]
    environment = os.environ | {"OPENAI_API_KEY": line._line.address.token}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def clients(url: str, task: dict[str, Any]) -> dict[str, Any]:
    """So many clients, each with one request at a time; or as many requests a second, whatever becomes of them."""
    import openai

    statuses: Counter[str] = Counter()
    times: list[float] = []
    promised: list[float] = []
    let_in: Counter[bool] = Counter()
    dice = random.Random(0)

    async with openai.AsyncOpenAI(base_url=f"{url}/v1", max_retries=0) as client:

        async def one(retries: bool) -> float | None:
            """Ask once; gives after how many seconds to come back."""
            began = time.perf_counter()
            try:
                await client.chat.completions.create(model="model", **ASKED)  # type: ignore[call-overload]
            except openai.APIStatusError as error:
                statuses[str(error.status_code)] += not retries
                wait = error.response.headers.get("retry-after-ms")
                return None if wait is None else float(wait) / 1000
            times.append(time.perf_counter() - began)
            statuses["200"] += not retries
            return None

        async def steady() -> None:
            while task["calls"] > 0:
                task["calls"] -= 1
                await one(False)

        async def patient() -> None:
            """One of a hundred comes back when he was told to, once."""
            wait = await one(False)
            if wait is not None:
                promised.append(wait)
                if dice.random() < 0.01:
                    await asyncio.sleep(wait)
                    let_in[await one(True) is None] += 1

        if "clients" in task:
            await client.models.list()  # a connection is there
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF)
        count = task["calls"]
        if "clients" in task:
            await asyncio.gather(*(steady() for _ in range(task["clients"])))
        else:
            due, going = began, []
            for _ in range(count):
                due += dice.expovariate(task["per_s"])
                await asyncio.sleep(max(due - time.perf_counter(), 0.0))
                going.append(asyncio.ensure_future(patient()))
            sent_s = time.perf_counter() - began
            await asyncio.gather(*going)
        seconds = time.perf_counter() - began
    spent = resource.getrusage(resource.RUSAGE_SELF)
    cpu = spent.ru_utime + spent.ru_stime - used.ru_utime - used.ru_stime
    return {
        "seconds": seconds if "clients" in task else sent_s,
        "per_s": count / seconds,
        "median_ms": 1000 * median(times),
        "client_cpu_ms": 1000 * cpu / count,
        "statuses": dict(statuses),
        "retry_after_s": [min(promised), median(promised), max(promised)] if promised else None,
        "let_in": f"{let_in[True]} of {let_in.total()}",
    }


def plainly(line: WorkflowClient, calls: int) -> float:
    """The median of a client that costs next to nothing itself: one line, and the bytes of a request."""
    text = json.dumps({"model": "model", **ASKED}).encode()
    headers = {"authorization": f"Bearer {line._line.address.token}"}
    connection, times = HTTPConnection(line.url.removeprefix("http://")), []
    for _ in range(calls):
        began = time.perf_counter()
        connection.request("POST", "/v1/chat/completions", text, headers)
        connection.getresponse().read()
        times.append(time.perf_counter() - began)
    connection.close()
    return 1000 * median(times)


LOCUST = """
import json, os
from locust import FastHttpUser, events, task
class User(FastHttpUser):
    @task
    def ask(self):
        headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
        self.client.post("/v1/chat/completions", json=json.loads(os.environ["ASKED"]), headers=headers)
@events.quitting.add_listener
def told(environment, **_):
    entry, used = environment.stats.total, os.times()
    with open(os.environ["TOLD"], "w") as out:
        json.dump({"per_s": entry.num_requests / (entry.last_request_timestamp - entry.start_time),
                   "median_ms": entry.median_response_time, "failures": entry.num_failures,
                   "calls": entry.num_requests, "cpu_s": used.user + used.system}, out)
"""


def locust(line: WorkflowClient, task: dict[str, Any], command: str) -> dict[str, Any]:
    """The same for some seconds by a load generator of others; its medians are in whole milliseconds."""
    with tempfile.TemporaryDirectory(prefix="dovetail-locust-") as folder:
        (Path(folder) / "locustfile.py").write_text(LOCUST)
        given = ["-u", str(task["clients"]), "-r", "100", "-t", "6s", "--host", line.url, "--stop-timeout", "2"]
        environment = os.environ | {
            "OPENAI_API_KEY": line._line.address.token,
            "ASKED": json.dumps({"model": "model", **ASKED}),
            "TOLD": f"{folder}/told.json",
            "PYTHONPATH": "",
        }
        words = [command, "-f", f"{folder}/locustfile.py", "--headless", "--only-summary", *given]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
        if not Path(folder, "told.json").exists():
            raise RuntimeError(done.stderr)
        told = json.loads(Path(folder, "told.json").read_text())
    task["calls"] = told["calls"]
    statuses = {"200": told["calls"] - told["failures"]} | ({"failed": told["failures"]} if told["failures"] else {})
    cpu_ms = 1000 * told["cpu_s"] / told["calls"]
    return {key: told[key] for key in ("per_s", "median_ms")} | {"client_cpu_ms": cpu_ms, "statuses": statuses}


if __name__ == "__main__":
    main()
