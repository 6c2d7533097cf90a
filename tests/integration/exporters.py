"""Workers' metrics pages behind real HTTP, for a Prometheus or the operator to scrape."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from tests.unit.signals.faulty_server import FaultyServer, Say

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class Page(Protocol):
    """A metrics page: a worker's, or the operator's."""

    def text(self) -> str: ...


@contextmanager
def exporting(page: Page) -> Iterator[str]:
    """Yields HOST:PORT. Every scrape sees the page as it is then."""
    server = FaultyServer([lambda _: Say(page.text(), content_type=TEXT)])
    with server.running() as url:
        yield url.removeprefix("http://")
