"""Log lines for collectors."""

import json
import logging
import sys

from tailkeeper.app.logs import JsonFormatter


def test_one_json_object_a_line() -> None:
    record = logging.LogRecord("tailkeeper.app", logging.WARNING, __file__, 1, "policy %s\nnext", ("chat",), None)
    line = JsonFormatter().format(record)
    assert "\n" not in line
    told = json.loads(line)
    assert (told["level"], told["logger"], told["message"]) == ("warning", "tailkeeper.app", "policy chat\nnext")
    assert told["time"].endswith("Z")


def test_tracebacks_are_kept() -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        record = logging.LogRecord("x", logging.ERROR, __file__, 1, "it broke", (), sys.exc_info())
    assert "ValueError: bad" in json.loads(JsonFormatter().format(record))["error"]
