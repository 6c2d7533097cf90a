"""`/v1/models` as OpenAI has it."""

from typing import Any

from pydantic_core import to_json

from gpu_worker.server.exchange import Call, Reply
from gpu_worker.server.service import Service


class ModelsApi:
    """The one model that this worker serves."""

    def __init__(self, service: Service, created: int) -> None:
        self._service = service
        self._created = created

    async def models(self, call: Call) -> Reply:
        """GET /v1/models."""
        return Reply(to_json({"object": "list", "data": [self._model()]}))

    async def model(self, call: Call) -> Reply:
        """GET /v1/models/{name}."""
        self._service.must_be(call.path["name"])
        return Reply(to_json(self._model()))

    def _model(self) -> dict[str, Any]:
        return {"id": self._service.model, "object": "model", "created": self._created, "owned_by": "tailkeeper"}
