"""A small HTTP server that answers as told, for what a real Prometheus only does on a bad day."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Say:
    """One answer."""

    body: str = ""
    status: int = 200
    content_type: str = "application/json"
    wait_s: float = 0.0
    drip_s: float = 0.0
    """Between bytes."""
    reset: bool = False
    """The connection ends instead."""


def vector(*series: tuple[dict[str, str], str], warnings: list[str] | None = None, at_s: float = 100.0) -> Say:
    result = [{"metric": labels, "value": [at_s, value]} for labels, value in series]
    body: dict[str, object] = {"status": "success", "data": {"resultType": "vector", "result": result}}
    if warnings is not None:
        body["warnings"] = warnings
    return Say(json.dumps(body))


@dataclass
class FaultyServer:
    """`answers` are given in turn, the last one for ever; a function gets the query."""

    answers: list[Say | Callable[[str], Say]]
    requests: list[dict[str, str]] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)

    def next(self, path: str, headers: dict[str, str]) -> Say:
        from urllib.parse import parse_qs, urlsplit

        query = parse_qs(urlsplit(path).query).get("query", [""])[0]
        self.requests.append(headers)
        self.queries.append(query)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer if isinstance(answer, Say) else answer(query)

    @contextmanager
    def running(self) -> Iterator[str]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                say = server.next(self.path, dict(self.headers))
                time.sleep(say.wait_s)
                if say.reset:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    self.connection.close()
                    self.close_connection = True
                    return
                body = say.body.encode()
                self.send_response(say.status)
                self.send_header("Content-Type", say.content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                for at in range(0, len(body), 1 if say.drip_s else len(body)):
                    self.wfile.write(body[at : at + 1] if say.drip_s else body)
                    self.wfile.flush()
                    time.sleep(say.drip_s)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # callers that hang up are the point

        listening = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.server_port}"
        finally:
            listening.shutdown()
            listening.server_close()
