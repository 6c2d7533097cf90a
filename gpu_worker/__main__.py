"""`python -m gpu_worker`: exit status 0 after a drain, 1 when the model cannot be served, 2 for wrong arguments."""

import asyncio
import logging
import os
import signal
import sys

import uvloop

from gpu_worker.config import WorkerConfig, parse
from gpu_worker.engines.catalog import BUILDERS, EngineOptions
from gpu_worker.engines.cpus import cpus_available
from gpu_worker.scheduling import create
from gpu_worker.server.worker import Worker, write_last_words

log = logging.getLogger("gpu_worker")


def main() -> None:
    """The process."""
    config = parse(sys.argv[1:])
    logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        uvloop.run(_serve(config))
        status = 0
    except Exception as error:
        log.critical("%s: %s", type(error).__name__, error, exc_info=log.isEnabledFor(logging.DEBUG))
        write_last_words(config.termination_log, f"{type(error).__name__}: {error}")
        status = 1
    logging.shutdown()
    # A forward pass that hangs in the engine's thread would keep an orderly exit waiting for ever.
    os._exit(status)


async def _serve(config: WorkerConfig) -> None:
    options = EngineOptions(config.model_path, config.device, config.threads or cpus_available())
    worker = Worker(config, BUILDERS[config.engine](options), create)
    events = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        events.add_signal_handler(number, worker.stop)
    await worker.run()


if __name__ == "__main__":
    main()
