"""Open Inference Protocol v2, which the clients of KServe and Triton speak: texts in, vectors out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic_core import to_json

from gpu_worker.engines.interface import EmbeddingEngine
from gpu_worker.server.errors import invalid, unavailable
from gpu_worker.server.exchange import Call, Reply
from gpu_worker.server.health import Health
from gpu_worker.server.options import read_options
from gpu_worker.server.service import Service
from gpu_worker.server.tensors import HEADER_LENGTH, InferRequest, read_request, texts, write_response

INPUT, OUTPUT = "text", "embedding"
VERSION = "1"


class InferenceApi:
    """The v2 endpoints on an engine that embeds."""

    def __init__(self, service: Service, engine: EmbeddingEngine, version: str, health: Health) -> None:
        self._service = service
        self._engine = engine
        self._version = version
        self._health = health

    async def infer(self, call: Call) -> Reply:
        """POST /v2/models/{name}/infer."""
        self._must_be_here(call)
        service = self._service
        request = read_request(await call.body(service.limits.body_bytes), call.headers.get(HEADER_LENGTH))
        arrival_s = service.clock()
        options = read_options(call.headers, _options(request.parameters), service.settings(), call.caller)
        inputs = _texts(request)
        prepared = await service.prepare(
            inputs, sum(map(len, inputs)), lambda text: self._engine.text(text, truncate=True), options, arrival_s
        )
        served = await service.serve(call, prepared, options, arrival_s)
        body, headers, kind = write_response(service.model, request, {OUTPUT: np.stack(served.outputs)})
        return Reply(body, kind=kind, headers=[(b"server-timing", served.timing), *headers])

    async def server(self, call: Call) -> Reply:
        """GET /v2."""
        extensions = ["binary_tensor_data"]
        return Reply(to_json({"name": "tailkeeper", "version": self._version, "extensions": extensions}))

    async def model(self, call: Call) -> Reply:
        """GET /v2/models/{name}."""
        self._must_be_here(call)
        metadata = {
            "name": self._service.model,
            "versions": [VERSION],
            "platform": "tailkeeper_encoder",
            "inputs": [{"name": INPUT, "datatype": "BYTES", "shape": [-1]}],
            "outputs": [{"name": OUTPUT, "datatype": "FP32", "shape": [-1, self._engine.dimensions]}],
        }
        return Reply(to_json(metadata))

    async def model_ready(self, call: Call) -> Reply:
        """GET /v2/models/{name}/ready."""
        self._must_be_here(call)
        return self._ready({"name": self._service.model, "ready": True})

    async def live(self, call: Call) -> Reply:
        """GET /v2/health/live."""
        reason = self._health.why_not_live()
        if reason:
            raise unavailable(reason)
        return Reply(to_json({"live": True}))

    async def ready(self, call: Call) -> Reply:
        """GET /v2/health/ready."""
        return self._ready({"ready": True})

    def _ready(self, body: Mapping[str, Any]) -> Reply:
        reason = self._health.why_not_ready()
        if reason:
            raise unavailable(reason)
        return Reply(to_json(body))

    def _must_be_here(self, call: Call) -> None:
        self._service.must_be(call.path["name"])
        version = call.path.get("version", VERSION)
        if version != VERSION:
            raise invalid(f"this model has version {VERSION} only")


def _texts(request: InferRequest) -> list[str]:
    unknown = request.outputs.keys() - {OUTPUT}
    if unknown:
        raise invalid(f"unknown output {', '.join(sorted(unknown))}; the output is {OUTPUT}")
    if len(request.inputs) != 1 or request.inputs[0].name != INPUT:
        raise invalid(f"the one input is {INPUT}, of type BYTES")
    result = texts(request.inputs[0])
    if not result:
        raise invalid(f"input {INPUT} is empty")
    return result


def _options(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Triton's own words for two of ours: `timeout` in microseconds, and a priority of 0 that means none."""
    options = dict(parameters)
    timeout_us = options.get("timeout")
    if timeout_us and options.get("deadline_ms") is None:
        options["deadline_ms"] = timeout_us / 1000 if isinstance(timeout_us, int | float) else timeout_us
    return options
