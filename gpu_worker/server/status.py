"""What a worker says about itself: `/settings`, `/readyz`, `/healthz`, `/metrics`. The operator reads the first from
every pod: which generation is applied is known from the worker itself, never assumed."""

from importlib.metadata import version
from typing import Any

from pydantic_core import to_json

from gpu_worker.clock import Clock
from gpu_worker.config import WorkerConfig
from gpu_worker.metrics.exposition import CONTENT_TYPE, Exposition
from gpu_worker.server.exchange import Call, Reply
from gpu_worker.server.health import Health
from gpu_worker.settings.keeper import SettingsKeeper

VERSION = version("tailkeeper")


class StatusApi:
    """Endpoints about the worker itself."""

    def __init__(
        self, config: WorkerConfig, keeper: SettingsKeeper, health: Health, exposition: Exposition, clock: Clock
    ) -> None:
        self._config = config
        self._keeper = keeper
        self._health = health
        self._exposition = exposition
        self._clock = clock
        self._started_s = clock()

    async def settings(self, call: Call) -> Reply:
        """GET /settings."""
        return Reply(to_json(self._status()))

    async def ready(self, call: Call) -> Reply:
        """GET /readyz."""
        reason = self._health.why_not_ready()
        return Reply(to_json({"ready": not reason, "reason": reason}), 503 if reason else 200)

    async def live(self, call: Call) -> Reply:
        """GET /healthz."""
        reason = self._health.why_not_live()
        return Reply(to_json({"live": not reason, "reason": reason}), 503 if reason else 200)

    async def metrics(self, call: Call) -> Reply:
        """GET /metrics."""
        return Reply(self._exposition.text(), kind=CONTENT_TYPE.encode())

    def _status(self) -> dict[str, Any]:
        config, keeper = self._config, self._keeper
        applied = keeper.applied
        reason = self._health.why_not_ready()
        return {
            "generation": applied.settings.generation if applied else None,
            "source": applied.source.value if applied else None,
            "appliedAt": applied.at if applied else None,
            "refused": keeper.refused,
            "lastRefusal": keeper.last_refusal,
            "policyNamespace": config.identity.policy_namespace,
            "policy": config.identity.policy,
            "modelInstance": config.identity.model_instance,
            "podName": config.pod.name,
            "podUid": config.pod.uid,
            "podNamespace": config.pod.namespace,
            "model": config.model_name,
            "engine": config.engine.value,
            "version": VERSION,
            "ready": not reason,
            "reason": reason,
            "draining": self._health.draining,
            "uptimeSeconds": round(self._clock() - self._started_s, 3),
            "settings": applied.settings.to_json() if applied else None,
        }
