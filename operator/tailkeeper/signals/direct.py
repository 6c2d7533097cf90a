"""Scrapes the workers themselves: the reaction of seconds that a Prometheus with a 15–30 s scrape cannot give."""

import asyncio
import time
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tailkeeper.control.samples import InstanceKey, PodSample, Reading, Unknown, UnknownReason
from tailkeeper.signals.counters import WANTED, Point, instance_of, pod_sample
from tailkeeper.signals.histograms import BUCKET, SUM, Histogram, Series, histograms

TIMEOUT_S: Final = 2.0
CONNECTIONS: Final = 100
LONGEST_PAGE: Final = 4_194_304
"""Bytes. A worker's page has at most 500 series, about 100 kB."""
SHOWN: Final = frozenset({BUCKET, SUM})
"""Read at a slower pace, for people."""


@dataclass(frozen=True, slots=True)
class Target:
    """One worker to scrape."""

    key: InstanceKey
    pod: str
    host: str
    port: int


class DirectSource:
    """Reads `/metrics` of many workers at once. Use inside one event loop; `close` at the end."""

    def __init__(self, timeout_s: float = TIMEOUT_S) -> None:
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def read(self, targets: Iterable[Target]) -> Reading:
        """Never raises for what a worker does; an instance with a worker that cannot be read is Unknown."""
        wanted = list(targets)
        answers = await asyncio.gather(*(self._scrape(target) for target in wanted))
        samples: dict[InstanceKey, list[PodSample]] = {}
        faults: dict[InstanceKey, Unknown] = {}
        for target, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, Unknown):
                faults.setdefault(target.key, answer)
            else:
                samples.setdefault(target.key, []).append(answer)
        return Reading({key: tuple(found) for key, found in samples.items()}, faults)

    async def read_histograms(self, targets: Iterable[Target]) -> dict[Series, Histogram]:
        """Latencies of all workers that can be read, for people."""
        wanted = list(targets)
        answers = await asyncio.gather(*(self._fetch(target, SHOWN) for target in wanted))
        found: dict[Series, Histogram] = {}
        for target, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, _Page):
                found |= histograms(target.key, target.pod, answer.points)
        return found

    async def close(self) -> None:
        """Ends the connections."""
        if self._session is not None:
            await self._session.close()

    async def _scrape(self, target: Target) -> PodSample | Unknown:
        page = await self._fetch(target, WANTED)
        return page if isinstance(page, Unknown) else pod_sample(target.pod, page.time_s, page.points)

    async def _fetch(self, target: Target, names: Set[str]) -> "_Page | Unknown":
        host = f"[{target.host}]" if ":" in target.host else target.host
        where = f"{target.pod} at http://{host}:{target.port}/metrics"
        try:
            async with self._open().get(f"http://{host}:{target.port}/metrics", allow_redirects=False) as response:
                time_s = time.time()
                if response.status != 200:
                    return Unknown(UnknownReason.PARTIAL, f"{where} answered {response.status}")
                page = b""
                async for chunk in response.content.iter_any():
                    page += chunk
                    if len(page) > LONGEST_PAGE:
                        return Unknown(
                            UnknownReason.PARTIAL, f"{where} sends over {LONGEST_PAGE} bytes: is it a worker?"
                        )
        except TimeoutError:
            return Unknown(UnknownReason.PARTIAL, f"{where} did not answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, OSError) as error:
            return Unknown(UnknownReason.PARTIAL, f"{where} cannot be reached: {error}")
        try:
            points = tuple(parse(page.decode("utf-8"), names))
        except ValueError as error:
            return Unknown(UnknownReason.PARTIAL, f"{where} does not send Prometheus text: {error}")
        others = {instance_of(point.labels) for point in points} - {target.key}
        if others:
            return Unknown(UnknownReason.PARTIAL, f"{where} is a worker of another instance: {others.pop()}")
        return _Page(time_s, points)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeout_s),
                connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=60),
            )
        return self._session


@dataclass(frozen=True, slots=True)
class _Page:
    """A worker's page as far as it is wanted, and when it was read."""

    time_s: float
    points: tuple[Point, ...]


def parse(page: str, names: Set[str] = WANTED) -> Iterator[Point]:
    """The series of a page of these names. Raises ValueError when one of them does not parse.

    Only their lines go through the parser: histogram buckets are most of a page, and it takes 50 µs a line."""
    lines = [line for line in page.splitlines() if _name(line) in names]
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            yield Point(sample.name, sample.labels, sample.value)


def _name(line: str) -> str:
    end = min((at for at in (line.find("{"), line.find(" ")) if at >= 0), default=0)
    return line[:end]
