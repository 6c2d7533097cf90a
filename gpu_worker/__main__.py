"""`python -m gpu_worker`: exit status 0 after a drain, 1 when the model cannot be served, 2 for wrong arguments."""

import logging
import os
import sys

import uvloop

from gpu_worker.config import parse
from gpu_worker.engines.catalog import BUILDERS, EngineOptions
from gpu_worker.engines.cpus import cpus_available
from gpu_worker.last_words import write_last_words
from gpu_worker.scheduling import create
from gpu_worker.server.worker import serve

log = logging.getLogger("gpu_worker")


def main() -> None:
    """The process."""
    config = parse(sys.argv[1:])
    # OpenMP's threads otherwise spin while they wait for each other: on a node that others use as well, a pass of 20 ms
    # became one of 500. It is read when torch is loaded, which is later than here.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.basicConfig(level=config.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    try:
        options = EngineOptions(
            config.model,
            config.device,
            config.threads or cpus_available(),
            config.kv_tokens,
            config.most_sequences,
        )
        uvloop.run(serve(config, BUILDERS[config.engine](options), create))
        status = 0
    except Exception as error:
        log.critical("%s: %s", type(error).__name__, error, exc_info=log.isEnabledFor(logging.DEBUG))
        write_last_words(config.termination_log, f"{type(error).__name__}: {error}")
        status = 1
    logging.shutdown()
    # A forward pass that hangs in the engine's thread would keep an orderly exit waiting for ever.
    os._exit(status)


if __name__ == "__main__":
    main()
