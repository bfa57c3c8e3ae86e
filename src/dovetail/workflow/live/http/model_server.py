"""The older model server's API, over a service that decides for itself what is loaded where.

Its clients find their models, get answers, and estimates in seconds. What that server left to its clients, which model
is on which device, is the scheduler's here: a device or a target that is asked for is noted and said to be so. An
instance is a name for a model; it holds no memory and no port of its own.
"""

from __future__ import annotations

import secrets
import time
from typing import Any, Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from dovetail.core.errors import did_you_mean
from dovetail.core.service.http import HttpError, Operation, body_of, reply, unless_gone
from dovetail.version import __version__
from dovetail.workflow.live.http.desk import Desk
from dovetail.workflow.live.runs import RunRequest, RunResult, WorkflowInfo

_AT = "/standalone"
_MISFIT = 422  # as that server answers
_PLACED = "the scheduler decides what is loaded where, and when"
_DIFFUSION = ("stable-diffusion", "sd-", "flux", "diffusion")
# What that server called its options, and what they are called here.
_OPTIONS = {"max_length": "max_tokens"}
_DEFAULTS = {"llm": {"max_tokens": 100, "temperature": 0.7}, "diffusion": {"steps": 20, "guidance_scale": 7.5}}
ModelType = Literal["llm", "diffusion"]


class DownloadBody(Struct, frozen=True):
    model_name: str
    source: str = "huggingface"


class LoadBody(Struct, frozen=True):
    model_name: str
    target: str = "dram"
    device: str | None = None


class InstanceBody(Struct, frozen=True):
    model_name: str
    device: str | list[str] | None = None


class CallBody(Struct, frozen=True):
    data: dict[str, Any]
    instance_id: str | None = None


class EstimateBody(Struct, frozen=True):
    model_name: str
    data: dict[str, Any] = {}
    device: str | None = None


class OffloadBody(Struct, frozen=True):
    model_name: str
    target: Literal["dram", "disk"]


class Instance(Struct, frozen=True):
    """A name for a model."""

    instance_id: str
    model_name: str
    device: str
    devices: list[str]
    port: int
    url: str
    endpoint: str
    created_at: float


class ModelServerHandlers:
    """The handlers of the older server's paths."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._instances: dict[str, Instance] = {}

    def operations(self) -> list[Operation]:
        said = "The older model server's API: "
        return [
            Operation("GET", "/", self.root, "What this is.", public=True),
            Operation("POST", f"{_AT}/download", self.download, f"{said}a model is there or not.", takes=DownloadBody),
            Operation("POST", f"{_AT}/load", self.load, f"{said}{_PLACED}.", takes=LoadBody),
            Operation("POST", f"{_AT}/serve", self.serve, f"{said}a name for a model.", takes=InstanceBody),
            Operation("POST", f"{_AT}/call/{{instance}}", self.call, f"{said}call it.", takes=CallBody),
            Operation("POST", f"{_AT}/estimate/{{instance}}", self.estimate_instance, f"{said}seconds."),
            Operation("POST", f"{_AT}/estimate", self.estimate, f"{said}seconds of a call.", takes=EstimateBody),
            Operation("POST", f"{_AT}/offload", self.offload, f"{said}end its instances.", takes=OffloadBody),
            Operation("GET", f"{_AT}/status", self.status, f"{said}what is where."),
            Operation("DELETE", f"{_AT}/instance/{{instance}}", self.end, f"{said}end an instance."),
        ]

    async def root(self, request: Request) -> Response:
        return _done("running", {"message": "Dovetail serves workflows", "version": __version__, "status": "running"})

    async def download(self, request: Request) -> Response:
        body = await body_of(request, DownloadBody, _MISFIT)
        await self._model(body.model_name)
        return _done("nothing is downloaded: the model is configured", model_path=body.model_name, source="configured")

    async def load(self, request: Request) -> Response:
        body = await body_of(request, LoadBody, _MISFIT)
        await self._model(body.model_name)
        on = await self._resident(body.model_name)
        if on:
            return _done("it is loaded", already_loaded=True, device=",".join(on))
        return _done(_PLACED, already_loaded=False, target=body.target, model_path=body.model_name, device=None)

    async def serve(self, request: Request) -> Response:
        body = await body_of(request, InstanceBody, _MISFIT)
        await self._model(body.model_name)
        name = secrets.token_hex(3)
        instance = Instance(
            instance_id=name,
            model_name=body.model_name,
            device="auto",
            devices=[],
            port=request.url.port or 80,
            url=f"{request.url.scheme}://{request.url.netloc}",
            endpoint=f"{_AT}/call/{name}",
            created_at=time.time(),
        )
        self._instances[name] = instance
        asked = body.device not in (None, "auto")
        return _done(f"the device is not taken: {_PLACED}" if asked else "serving", instance)

    async def call(self, request: Request) -> Response:
        instance, body = self._instance(request), await body_of(request, CallBody, _MISFIT)
        kind = model_type(instance.model_name)
        input, options = _split(kind, body.data)
        asked = RunRequest(workflow=instance.model_name, input=input, options=options, trace_id=request.state.trace_id)
        result, devices = await unless_gone(request, self._answered(asked))
        told = {"response": result.answer.get("text")} if kind == "llm" else dict(result.answer)
        where = {"instance_id": instance.instance_id, "port": instance.port, "device_used": ",".join(devices)}
        return _done("done", model_type=kind, **told, **where)

    async def _answered(self, asked: RunRequest) -> tuple[RunResult, list[str]]:
        with await self._desk.submit(asked) as waiting:
            result = await waiting.completed()
        status = await self._desk.do(self._desk.service.status, result.id)
        devices = [device for device, _ in await self._gpus()]
        used = [gpu for node in status.nodes.values() for gpu in node.gpus if gpu < len(devices)]
        return result, list(dict.fromkeys(devices[gpu] for gpu in used))

    async def estimate_instance(self, request: Request) -> Response:
        instance, body = self._instance(request), await body_of(request, CallBody, _MISFIT)
        return await self._estimate(instance.model_name, body.data, instance_id=instance.instance_id)

    async def estimate(self, request: Request) -> Response:
        body = await body_of(request, EstimateBody, _MISFIT)
        await self._model(body.model_name)
        return await self._estimate(body.model_name, body.data, model_name=body.model_name)

    async def _estimate(self, model: str, data: dict[str, Any], **named: str) -> Response:
        kind = model_type(model)
        input, options = _split(kind, data)
        seconds = await self._desk.do(self._desk.service.estimate, model, input, options)
        return _done(
            "estimated",
            estimated_execution_time=seconds,
            estimated_time_unit="seconds",
            model_type=kind,
            device="auto",
            data_features=[data],
            timestamp=time.time(),
            **named,
        )

    async def offload(self, request: Request) -> Response:
        body = await body_of(request, OffloadBody, _MISFIT)
        await self._model(body.model_name)
        ended = [name for name, each in self._instances.items() if each.model_name == body.model_name]
        for name in ended:
            del self._instances[name]
        return _done(f"its instances are ended; {_PLACED}", target=body.target, instances_stopped=ended)

    async def status(self, request: Request) -> Response:
        listed = [info.name for info in await self._desk.do(self._desk.service.workflows) if info.implicit]
        return _done(
            "status",
            models_on_disk=listed,
            models_in_dram=[name for name in listed if await self._resident(name)],
            serving_instances=list(self._instances.values()),
            cache_directory=None,
            used_ports=sorted({each.port for each in self._instances.values()}),
        )

    async def end(self, request: Request) -> Response:
        instance = self._instance(request)
        del self._instances[instance.instance_id]
        told = {"instance_id": instance.instance_id, "model_name": instance.model_name, "port": instance.port}
        return _done("ended", **told)

    def _instance(self, request: Request) -> Instance:
        name = request.path_params["instance"]
        if name not in self._instances:
            raise HttpError(404, f"there is no instance {name!r}", param="instance_id")
        return self._instances[name]

    async def _model(self, name: str) -> WorkflowInfo:
        info = await self._desk.info(name)
        if info is None:
            known = [each.name for each in await self._desk.do(self._desk.service.workflows)]
            raise HttpError(404, f"there is no model {name!r}{did_you_mean(name, known)}", param="model_name")
        return info

    async def _resident(self, model: str) -> list[str]:
        """The GPUs that hold a model."""
        return list(dict.fromkeys(device for device, gpu in await self._gpus() if model in gpu["models"]))

    async def _gpus(self) -> list[tuple[str, dict[str, Any]]]:
        """What torch calls each GPU, and what is said of it."""
        about = await self._desk.do(self._desk.service.about)
        return [(gpu.get("device", f"cuda:{number}"), gpu) for number, gpu in enumerate(about["gpus"])]


def model_type(name: str) -> ModelType:
    """What that server took a model for, by its name.

    >>> model_type("CompVis/stable-diffusion-v1-4"), model_type("gpt2")
    ('diffusion', 'llm')
    """
    return "diffusion" if any(word in name.lower() for word in _DIFFUSION) else "llm"


def _split(kind: ModelType, data: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a call of that server's is given, as input and options."""
    if not isinstance(data.get("prompt"), str):
        raise HttpError(422, "data.prompt: expected a text", param="data.prompt")
    options = {_OPTIONS.get(name, name): value for name, value in data.items() if name != "prompt"}
    return {"prompt": data["prompt"]}, _DEFAULTS[kind] | options


def _done(message: str, data: Any = None, **more: Any) -> Response:
    return reply({"success": True, "message": message, "data": more if data is None else data})
