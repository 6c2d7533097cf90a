"""Log lines for people, or one JSON object a line for collectors."""

import datetime
import json
import logging
import sys

_QUIET = {"kopf": logging.WARNING, "aiohttp.access": logging.WARNING, "asyncio": logging.WARNING}
"""kopf says at level info that each event was handled."""


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339), level, logger, message, and error when there is a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(format_: str, level: str) -> None:
    """Sends everything to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if format_ == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name, least in _QUIET.items():
        logging.getLogger(name).setLevel(logging.DEBUG if level == "debug" else least)
