"""A TCP proxy between a client and a server, for tests that cut the line."""

import contextlib
import socket
import threading

CHUNK = 65_536


class Proxy:
    """Listens on a loopback port and forwards to another. Threads end with their connections."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._open = True
        self._lines: list[tuple[socket.socket, socket.socket]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Ends every connection; new ones are taken."""
        lines, self._lines = self._lines, []
        for line in lines:
            for end in line:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def close_line(self) -> None:
        """Ends every connection and refuses new ones."""
        self._open = False
        self.cut()

    def open_line(self) -> None:
        """Takes connections again."""
        self._open = True

    def stop(self) -> None:
        """For good."""
        self.close_line()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if not self._open:
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                near.close()
                continue
            self._lines.append((near, far))
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_forward, args=(source, sink), daemon=True).start()


def _forward(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
