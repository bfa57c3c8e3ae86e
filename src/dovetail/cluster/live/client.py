"""The line to a live cluster, from another process or machine: all that can be asked of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

import msgspec

from dovetail.cluster.live.jobs import JobState, JobStatus
from dovetail.cluster.live.nodes import ClusterNodeStatus
from dovetail.cluster.live.specs import JobSpec, job_spec, of_several
from dovetail.cluster.live.wire import ProcessEvent
from dovetail.core.errors import DovetailError
from dovetail.core.results.run import Account
from dovetail.core.service.access import AnyPath, find_service
from dovetail.core.service.client import HttpClient

_LONGEST_WAIT_S = 60.0  # of one request; whoever waits longer asks again
_PAGE = 1000


def connect(place: AnyPath | None = None, token_file: AnyPath | None = None) -> ClusterClient:
    """A line to the service whose state is in this folder, or in the usual one, or which answers at this URL.

    Its token is read from `token_file`, else from that folder (the usual one, if its service has this URL), else from
    the variable DOVETAIL_TOKEN.
    """
    return ClusterClient(HttpClient(find_service("cluster", place, token_file)))


class ClusterClient:
    """Asks a live cluster; any thread may."""

    def __init__(self, line: HttpClient) -> None:
        self._line = line
        self.url = line.address.url

    def __repr__(self) -> str:
        return f"<ClusterClient of {self.url}>"

    # --- jobs -----------------------------------------------------------------------------------------------------

    def submit(self, job: JobSpec | Mapping[str, Any], key: str | None = None) -> int:
        """Submit a job, a `JobSpec` or its keys; gives its number once it is kept. The same key and content are the
        same job, however often it is sent. Without a folder it runs in the one where this is called."""
        spec = _here(job)
        headers = {} if key is None else {"idempotency-key": key}
        return int(self._line.ask("POST", "/v1/jobs", spec, headers=headers)["id"])

    def submit_all(self, jobs: Iterable[JobSpec | Mapping[str, Any]]) -> list[int]:
        """Submit jobs, all of them or, if one is refused, none; gives their numbers."""
        specs = []
        for i, job in enumerate(jobs):
            with of_several(i):
                specs.append(_here(job))
        return [int(each["id"]) for each in self._line.ask("POST", "/v1/jobs/batch", {"jobs": specs})]

    def status(self, job: int) -> JobStatus:
        return msgspec.convert(self._line.get(f"/v1/jobs/{job}"), JobStatus)

    def jobs(self, state: JobState | None = None, limit: int | None = None) -> list[JobStatus]:
        """The jobs, those that came last first; all that are known, or the newest so many."""
        found: list[JobStatus] = []
        after = None
        while limit is None or len(found) < limit:
            size = _PAGE if limit is None else min(_PAGE, limit - len(found))
            page = self._line.get("/v1/jobs", state=state, limit=size, after=after)
            found += msgspec.convert(page["data"], list[JobStatus])
            after = page["next"]
            if after is None:
                break
        return found

    def wait(self, job: int, timeout_s: float | None = None) -> JobStatus:
        """Wait until a job has ended, however it ends."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = _LONGEST_WAIT_S if until is None else max(until - time.monotonic(), 0.0)
            found = self._line.get(f"/v1/jobs/{job}", wait=round(min(left, _LONGEST_WAIT_S), 3))
            status = msgspec.convert(found, JobStatus)
            if not status.open:
                return status
            if until is not None and time.monotonic() >= until:
                raise DovetailError(f"job {job} has not ended after {timeout_s:g} s: it is {status.state}")

    def cancel(self, job: int) -> JobStatus:
        """End a job, whether it waits or runs."""
        return msgspec.convert(self._line.ask("DELETE", f"/v1/jobs/{job}"), JobStatus)

    def logs(self, job: int, rank: int = 0, *, tail: int | None = None, follow: bool = False) -> Iterator[str]:
        """What a rank of a job has written, line by line, over all its leases; the last so many lines of it. Those who
        `follow` get what comes until the job has ended."""
        return self._line.lines(f"/v1/jobs/{job}/logs", rank=rank, tail=tail, follow="true" if follow else None)

    def explain(self, job: int) -> Account:
        """Why it waited, and where it ran."""
        return msgspec.convert(self._line.get(f"/v1/jobs/{job}/explain"), Account)

    def timeline(self, job: int) -> list[ProcessEvent]:
        """What its processes went through, and when: launch, import, load, first step, save, exit."""
        return msgspec.convert(self._line.get(f"/v1/jobs/{job}/timeline"), list[ProcessEvent])

    # --- the cluster ----------------------------------------------------------------------------------------------

    def nodes(self) -> list[ClusterNodeStatus]:
        return msgspec.convert(self._line.get("/v1/nodes"), list[ClusterNodeStatus])

    def drain(self, node: str) -> None:
        """Lease nothing more on a node; who is there leaves when the round is over."""
        self._line.ask("POST", f"/v1/nodes/{quote(node, safe='')}/drain")

    def undrain(self, node: str) -> None:
        self._line.ask("POST", f"/v1/nodes/{quote(node, safe='')}/undrain")

    def change_policy(self, policy: str, options: Mapping[str, Any] | None = None) -> None:
        """Let another policy decide from now on."""
        self._line.ask("PUT", "/v1/policy", {"policy": policy, "options": dict(options or {})})

    def about(self) -> dict[str, Any]:
        """Policy, counts, types, and what was learned."""
        found: dict[str, Any] = self._line.get("/v1/about")
        return found

    def top(self) -> dict[str, Any]:
        """The same with nodes, who runs there, and who waits."""
        found: dict[str, Any] = self._line.get("/v1/top")
        return found

    def metrics(self) -> str:
        """All figures, as Prometheus reads them."""
        return str(self._line.get("/metrics"))


def _here(job: JobSpec | Mapping[str, Any]) -> JobSpec:
    """A job that runs in this folder, unless it names one."""
    spec = job_spec(job)
    return spec if spec.folder else msgspec.structs.replace(spec, folder=os.getcwd())
