"""`python -m tailkeeper.app` runs the operator. Exit status: 0 after a signal, 1 when something broke, 2 bad flags."""

import asyncio
import logging
import sys

from tailkeeper.app.config import read_config
from tailkeeper.app.logs import configure_logging
from tailkeeper.app.main import Operator

logger = logging.getLogger("tailkeeper.app")


async def _run(operator_arguments: list[str]) -> None:
    config = read_config(operator_arguments)
    configure_logging(config.log_format, config.log_level)
    await Operator(config).run()


def main() -> int:
    """Runs until a signal comes."""
    try:
        asyncio.run(_run(sys.argv[1:]))
    except Exception:
        logger.exception("the operator ends")
        return 1
    logger.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
