"""The operator's port: `/healthz` (restart me when this fails), `/readyz`, `/metrics`."""

import json

from aiohttp import web

from tailkeeper.app.health import Health
from tailkeeper.app.metrics import Metrics

SHUTDOWN_S = 1.0


async def serve(host: str, port: int, health: Health, metrics: Metrics) -> web.AppRunner:
    """Starts to listen; the runner's `cleanup` ends it. Raises OSError when the port is taken."""

    async def healthz(request: web.Request) -> web.Response:
        findings = health.findings()
        told = {"healthy": not findings, "findings": [f"{finding.what}: {finding.detail}" for finding in findings]}
        return web.Response(status=503 if findings else 200, text=json.dumps(told), content_type="application/json")

    async def readyz(request: web.Request) -> web.Response:
        told = {"ready": health.synced}
        return web.Response(
            status=200 if health.synced else 503, text=json.dumps(told), content_type="application/json"
        )

    async def exposition(request: web.Request) -> web.Response:
        return web.Response(
            body=metrics.exposition(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )

    application = web.Application()
    application.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", exposition)])
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    await web.TCPSite(runner, host or None, port).start()
    return runner
