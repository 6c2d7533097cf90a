"""Which path leads to which handler, on the port of the API and on that of the metrics."""

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from gpu_worker.server.completions import CompletionsApi
from gpu_worker.server.embeddings import EmbeddingsApi
from gpu_worker.server.errors import ApiError, Code, inference_body, openai_body
from gpu_worker.server.exchange import Door, Endpoint, Handler, Shape
from gpu_worker.server.inference import InferenceApi
from gpu_worker.server.models import ModelsApi
from gpu_worker.server.status import StatusApi

POST, GET = ["POST"], ["GET", "HEAD"]


def api_app(door: Door, busiest: Sequence[BaseRoute], models: ModelsApi, status: StatusApi) -> Starlette:
    """What clients call. The engine's own paths come first: they are the busiest, and paths are tried in order."""
    routes = [
        *busiest,
        *_probes(door, status),
        _route(door, "/settings", GET, status.settings, openai_body),
        _route(door, "/v1/models", GET, models.models, openai_body),
        _route(door, "/v1/models/{name:path}", GET, models.model, openai_body),
    ]
    return _app(door, routes)


def text_routes(door: Door, completions: CompletionsApi) -> list[BaseRoute]:
    """An engine that makes text."""
    return [
        _route(door, "/v1/chat/completions", POST, completions.chat, openai_body),
        _route(door, "/v1/completions", POST, completions.completions, openai_body),
    ]


def embedding_routes(door: Door, embeddings: EmbeddingsApi, inference: InferenceApi) -> list[BaseRoute]:
    """An engine that embeds."""
    return [
        _route(door, "/v1/embeddings", POST, embeddings.embeddings, openai_body),
        _route(door, "/v2/models/{name:path}/versions/{version}/infer", POST, inference.infer, inference_body),
        _route(door, "/v2/models/{name:path}/infer", POST, inference.infer, inference_body),
        _route(door, "/v2", GET, inference.server, inference_body, open_to_all=True),
        _route(door, "/v2/health/live", GET, inference.live, inference_body, open_to_all=True),
        _route(door, "/v2/health/ready", GET, inference.ready, inference_body, open_to_all=True),
        _route(door, "/v2/models/{name:path}/versions/{version}/ready", GET, inference.model_ready, inference_body),
        _route(door, "/v2/models/{name:path}/ready", GET, inference.model_ready, inference_body),
        _route(door, "/v2/models/{name:path}/versions/{version}", GET, inference.model, inference_body),
        _route(door, "/v2/models/{name:path}", GET, inference.model, inference_body),
    ]


def metrics_app(door: Door, status: StatusApi) -> Starlette:
    """What Prometheus, the kubelet and the operator call; no API keys here."""
    routes = [
        Route("/metrics", Endpoint(door, status.metrics, openai_body, open_to_all=True), methods=["GET"]),
        Route("/settings", Endpoint(door, status.settings, openai_body, open_to_all=True), methods=["GET"]),
        *_probes(door, status),
    ]
    return _app(door, routes)


def _route(
    door: Door, path: str, methods: list[str], handler: Handler, shape: Shape, open_to_all: bool = False
) -> Route:
    return Route(path, Endpoint(door, handler, shape, open_to_all), methods=methods)


def _probes(door: Door, status: StatusApi) -> list[Route]:
    return [
        Route("/healthz", Endpoint(door, status.live, openai_body, open_to_all=True), methods=["GET"]),
        Route("/readyz", Endpoint(door, status.ready, openai_body, open_to_all=True), methods=["GET"]),
    ]


def _app(door: Door, routes: Sequence[BaseRoute]) -> Starlette:
    async def refused(request: Request, error: Exception) -> Response:
        """A path or a method that is not there, in the shape of the API that it looks like."""
        assert isinstance(error, HTTPException)
        known = error.status_code == 405
        code = Code.METHOD_NOT_ALLOWED if known else Code.NOT_FOUND
        message = f"{request.method} {request.url.path} is not served here"
        shape = inference_body if request.url.path.startswith("/v2") else openai_body
        headers = dict(error.headers or {}) | ({"connection": "close"} if door.draining else {})
        body = shape(ApiError(error.status_code, code, message))
        return Response(body, error.status_code, headers, media_type="application/json")

    app = Starlette(routes=routes, exception_handlers={HTTPException: refused})
    # A redirect has an empty body and no shape, and some clients drop the body of a POST that they send again.
    app.router.redirect_slashes = False
    return app
