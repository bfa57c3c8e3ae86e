"""Kubernetes: Kueue's workloads, jobs of any kind, and events about them, as `kubectl get ... -o json` prints them.

A job arrives when its object was created. A workload runs from its admission to its end, a job from `startTime` to
`completionTime`; where the file has events too, the times between admissions and evictions are summed. Accelerators are
those that were assigned, else what pods ask for (init containers and sidecars too), times their replicas. Of a
workload and the job that owns it, the workload counts; of a job and those that it consists of, as a JobSet does, the
whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import inf
from typing import Any

from dovetail.cluster.inputs.traces.format import TraceFormat, TraceReading
from dovetail.cluster.inputs.traces.json_objects import JsonObject, objects
from dovetail.cluster.inputs.traces.records import JobRecord, jobs_of
from dovetail.cluster.inputs.workload import Job
from dovetail.core.errors import InputError

_JOBS = ("Job", "PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob", "TrainJob", "JobSet", "RayJob")
_UNTIMED = ("JobSet", "TrainJob")  # their status does not say when they began
_GPU = re.compile(r"[^/]+/(gpu|mig-(\d)g\.\d+gb)(\.shared)?")
_WHOLE = re.compile(r"\d+")
_TYPE_LABELS = ("nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "accelerator", "gpu.nvidia.com/class")
_ENDS = ("Finished", "Complete", "Failed", "Succeeded", "Completed")
_BEGINS = ("Admitted", "Started", "Resumed")
_STOPS = ("Preempted", "Stopped", "Suspended")
_LAST = ("series.lastObservedTime", "lastTimestamp", "deprecatedLastTimestamp")
_NEED = "kubectl get workloads,jobs,events -A -o json has both"


def _read(reading: TraceReading) -> Iterator[Job]:
    found: dict[str, JsonObject] = {}  # the last version of each object
    events: dict[str, list[tuple[float, str]]] = {}
    wrong: list[InputError] = []
    owned: set[str] = set()
    for each in objects(reading.path):
        try:
            if isinstance(each, InputError):
                raise each
            _sort(each, found, events, owned)
        except InputError as error:
            wrong.append(error)
    if events and not found:
        raise InputError(
            f"{reading.path}: expected workloads or jobs, found events alone, which do not say how many accelerators: "
            f"{_NEED}"
        )
    yield from jobs_of(reading, _records(found, events, owned, wrong))


def _sort(
    each: JsonObject, found: dict[str, JsonObject], events: dict[str, list[tuple[float, str]]], owned: set[str]
) -> None:
    """Put an object where it belongs: an event to what it is about, another by its id."""
    if isinstance(each.data.get("object"), dict) and "type" in each.data:  # as a watch tells it
        each = JsonObject(each.place, each.data["object"])
    kind = each.data.get("kind")
    if not isinstance(kind, str):
        raise each.error("kind", "expected an object of Kubernetes, found none")
    if kind == "Event":
        about = each.look("involvedObject") or each.look("regarding") or {}
        if isinstance(about, dict):
            for key in _keys(about.get("kind"), about):
                events.setdefault(key, []).extend((at_s, str(each.data.get("reason", ""))) for at_s in _times(each))
        return
    meta = each.look("metadata")
    if not isinstance(meta, dict) or "name" not in meta:
        raise each.error("metadata.name", "expected a name, found none")
    if kind == "Workload":
        owned.update(str(owner.get("uid")) for owner in each.dicts("metadata.ownerReferences"))
    found[_keys(kind, meta)[-1]] = each


def _times(event: JsonObject) -> list[float]:
    """When it happened: of one that was told several times, the first time and the last."""
    ends = (("eventTime", "firstTimestamp", "deprecatedFirstTimestamp"), _LAST)
    found = [next((t for key in keys if (t := event.time_s(key))), None) for keys in ends]
    return sorted({at_s for at_s in found if at_s is not None})


def _keys(kind: Any, meta: Mapping[str, Any]) -> list[str]:
    """What an object is known by: its place, and its id where it has one."""
    place = f"{kind} {meta.get('namespace', '')}/{meta.get('name', '')}"
    return [place, str(meta["uid"])] if meta.get("uid") else [place]


def _records(
    found: Mapping[str, JsonObject],
    events: Mapping[str, list[tuple[float, str]]],
    owned: set[str],
    wrong: list[InputError],
) -> Iterator[JobRecord | InputError | str]:
    yield from wrong
    parts = _Parts(found)
    for uid, each in found.items():
        kind, meta = each.data["kind"], each.data["metadata"]
        if kind not in (*_JOBS, "Workload"):
            yield f"objects that are no jobs ({kind})"
        elif uid in owned:
            yield "jobs that a workload stands for"
        elif parts.is_one(each, owned):
            yield "jobs that are part of another"
        elif uid in parts.told_by_a_job_set:
            yield "jobs that a job set stands for"
        else:
            try:
                heard = next((events[key] for key in reversed(_keys(kind, meta)) if key in events), [])
                yield _record(each, sorted(heard), parts.began_s.get(uid))
            except InputError as error:
                yield error


class _Parts:
    """Which jobs consist of others, as a JobSet does of Jobs, and when the first of these began."""

    def __init__(self, found: Mapping[str, JsonObject]) -> None:
        self._found = found
        self.began_s: dict[str, float] = {}  # by id of the whole
        self.told_by_a_job_set: set[str] = set()  # what a TrainJob asks for may stand in its runtime alone
        for each in found.values():
            if each.data["kind"] == "JobSet":
                self.told_by_a_job_set.update(_owners(each))
            with suppress(InputError):  # it is read again, and told, if it counts
                if (start_s := each.time_s("status.startTime")) is not None:
                    self.began_s |= {uid: min(start_s, self.began_s.get(uid, inf)) for uid in _owners(each)}

    def is_one(self, each: JsonObject, owned: set[str]) -> bool:
        """Whether it belongs to a job that counts; a TrainJob does not count beside its JobSet."""
        whole = [self._found[uid].data["kind"] for uid in _owners(each) if uid in self._found]
        return any(uid in owned for uid in _owners(each)) or any(k in _JOBS and k != "TrainJob" for k in whole)


def _owners(each: JsonObject) -> list[str]:
    """The ids of what a job belongs to. A workload belongs to nothing: what it is owned by is the same job."""
    owners = _dict(each.data["metadata"]).get("ownerReferences")
    known = owners if isinstance(owners, list) and each.data["kind"] in _JOBS else []
    return [str(owner["uid"]) for owner in known if isinstance(owner, dict) and owner.get("uid")]


def _record(each: JsonObject, heard: list[tuple[float, str]], parts_s: float | None = None) -> JobRecord | str:
    arrival_s = each.time_s("metadata.creationTimestamp")
    if arrival_s is None:
        raise each.error("metadata.creationTimestamp", "expected when it was created, found nothing")
    conditions = {str(c.get("type")): c for c in each.dicts("status.conditions")}
    ended = next((c for name in _ENDS if (c := conditions.get(name)) and c.get("status") == "True"), None)
    end_s = each.time_s("status.completionTime") or each.time_s("status.endTime")
    if end_s is None and ended is not None:
        end_s = JsonObject(each.place, ended).time_s("lastTransitionTime")
    start_s = _began_s(each, conditions, parts_s, arrival_s if ended is not None else None)
    if start_s is None and not any(reason in _BEGINS for _, reason in heard):
        return "jobs that never ran"
    if end_s is None:
        return "jobs that still run"
    ran_s = _told_s(heard, end_s)
    if ran_s is None:
        past_s = each.look("status.accumulatedPastExecutionTimeSeconds") or 0.0
        ran_s = end_s - (start_s or end_s) + (past_s if isinstance(past_s, int | float) else 0.0)
    width, share, flavor = _assigned(each)
    wants = tuple(sorted({str(value) for value in _labels(each.look("spec") or {}) if value}))
    meta = each.data["metadata"]
    owners = each.dicts("metadata.ownerReferences")
    queue = each.look("status.admission.clusterQueue") or each.look("spec.queueName")
    failed = ended is not None and (ended.get("type") == "Failed" or "Fail" in str(ended.get("reason", "")))
    ray_says = each.look("status.jobStatus")  # a RayJob has no conditions
    ended_as = "Failed" if failed or ray_says == "FAILED" else "Stopped" if ray_says == "STOPPED" else ""
    return JobRecord(
        place=each.place,
        look=each.look,
        key=f"{meta.get('namespace', '')}/{meta['name']}",
        arrival_s=arrival_s,
        ran_s=ran_s,
        width=width,
        name=str(owners[0].get("name", meta["name"]) if owners else meta["name"]),
        entity=str(queue or meta.get("namespace", "")),
        ran_on=flavor,
        wants=wants,
        share=share,
        ended=ended_as,
    )


def _began_s(
    each: JsonObject, conditions: Mapping[str, dict[str, Any]], parts_s: float | None, created_s: float | None
) -> float | None:
    """When it began, as far as it is told; of what does not say, once it has ended, when it was resumed or created."""
    admission = conditions.get("Admitted") or {}
    admitted = JsonObject(each.place, {} if admission.get("status") == "False" else admission)  # else it lost it then
    told_s = each.time_s("status.startTime") or admitted.time_s("lastTransitionTime") or parts_s
    suspended = JsonObject(each.place, conditions.get("Suspended") or {})
    if told_s or each.data["kind"] not in _UNTIMED or created_s is None or suspended.data.get("status") == "True":
        return told_s
    return suspended.time_s("lastTransitionTime") or created_s


def _told_s(heard: list[tuple[float, str]], end_s: float) -> float | None:
    """How long it ran by its events; None if they do not tell of a beginning.

    >>> _told_s([(0.0, "Admitted"), (5.0, "EvictedDueToPreempted"), (9.0, "Admitted")], end_s=20.0)
    16.0
    """
    began_s, ran_s, told = None, 0.0, False
    for at_s, reason in heard:
        if reason in _BEGINS and began_s is None and at_s < end_s:
            began_s, told = at_s, True
        elif began_s is not None and (reason.startswith("Evicted") or reason in _STOPS):
            ran_s, began_s = ran_s + at_s - began_s, None
    return None if not told else ran_s + (0.0 if began_s is None else end_s - began_s)


def _assigned(each: JsonObject) -> tuple[int | None, float, str]:
    """Accelerators of a job, which part of one each is, and what their kind is called."""
    sets = each.dicts("status.admission.podSetAssignments")
    flavors = {str(name) for s in sets for key, name in _dict(s.get("flavors")).items() if _GPU.fullmatch(key)}
    flavor = flavors.pop() if len(flavors) == 1 else ""
    usage = [(key, value) for s in sets for key, value in _dict(s.get("resourceUsage")).items()]
    asked = [(key, value, 1) for key, value in usage] or list(_requests(each.look("spec") or {}, 1))
    total, share = 0, 1.0
    for key, value, times in asked:
        if found := _GPU.fullmatch(key):
            if not _WHOLE.fullmatch(str(value)):
                raise each.error(key, f"expected a whole number of accelerators, found {value!r}")
            total += int(value) * times
            share = int(found.group(2)) / 7 if found.group(2) else share
    return total, share, flavor


def _requests(node: Any, times: int) -> Iterator[tuple[str, Any, int]]:
    """What all pods under a node ask for, times the replicas of what they are in."""
    if isinstance(node, list):
        for each in node:
            yield from _requests(each, times)
    elif isinstance(node, dict):
        least = "minReplicas" if "replicas" not in node else ""  # of workers of a RayJob that grow as they like
        for key in ("replicas", least, "parallelism", "count", "numNodes", "numOfHosts"):
            if (count := _count(node.get(key))) is not None:
                done = _count(node.get("completions")) if key == "parallelism" else None
                times *= count if done is None else min(count, done)  # no pod begins beyond those that are wanted
        if isinstance(node.get("containers"), list):
            yield from ((key, value, times) for key, value in _of_a_pod(node))
            return
        yield from ((key, value, times) for key, value in _asked(node.get("resourcesPerNode")).items())  # of a TrainJob
        for value in node.values():
            yield from _requests(value, times)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _of_a_pod(spec: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the scheduler reserves for a pod: what its containers and sidecars want together or, if that is more, an
    init container beside the sidecars that began before it. What is no number is given as it stands.

    >>> def container(gpus, **more):
    ...     return {"resources": {"limits": {"nvidia.com/gpu": gpus}}} | more
    >>> sidecar = container(1, restartPolicy="Always")
    >>> list(_of_a_pod({"initContainers": [sidecar, container("4")], "containers": [container(2)]}))
    [('nvidia.com/gpu', 5)]
    """
    together, most = Counter[str](), Counter[str]()
    for which in ("initContainers", "containers"):
        found = spec.get(which)
        for container in map(_dict, found if isinstance(found, list) else ()):
            asked = _asked(container.get("resources"))
            yield from ((key, value) for key, value in asked.items() if not _WHOLE.fullmatch(str(value)))
            wanted = Counter({key: int(value) for key, value in asked.items() if _WHOLE.fullmatch(str(value))})
            if which == "containers" or container.get("restartPolicy") == "Always":
                together += wanted
            else:
                most |= together + wanted
    yield from (together | most).items()


def _asked(resources: Any) -> dict[str, Any]:
    """The accelerators that are asked for, by what they are called."""
    asked = _dict(_dict(resources).get("limits")) | _dict(_dict(resources).get("requests"))
    return {key: value for key, value in asked.items() if _GPU.fullmatch(key)}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _labels(node: Any) -> Iterator[Any]:
    """The types that pods under a node are bound to."""
    if isinstance(node, list):
        for each in node:
            yield from _labels(each)
    elif isinstance(node, dict):
        selector = node.get("nodeSelector")
        yield from (selector[key] for key in _TYPE_LABELS if isinstance(selector, dict) and key in selector)
        for value in node.values():
            yield from _labels(value)


def _looks(text: str) -> bool:
    begin = text.lstrip()
    kinds = ("Event", "List", "Workload", "WorkloadList", "EventList", "JobList", *_JOBS)
    return (
        begin[:1] in ("{", "[")
        and ('"apiVersion"' in begin or '"items"' in begin)
        and any(re.search(rf'"kind"\s*:\s*"{kind}"', begin) for kind in kinds)
    )


FORMATS = (TraceFormat("kubernetes", "Kubernetes' and Kueue's objects", (), _read, looks=_looks, mapped=True),)
