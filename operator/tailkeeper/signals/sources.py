"""Where the tuner reads from: Prometheus, the workers themselves, or both.

With both the workers' own numbers decide, because they are seconds old, and Prometheus must see the same workers too:
what it cannot show now cannot be looked up afterwards, so nothing is moved on numbers that only we have seen."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Final, Protocol

from tailkeeper.control.history import History
from tailkeeper.control.samples import InstanceKey, PodSample, Reading, Unknown
from tailkeeper.signals.direct import DirectSource, Target
from tailkeeper.signals.histograms import Growth, Latencies
from tailkeeper.signals.prometheus import PrometheusSource
from tailkeeper.signals.query import Access

FORGET_S: Final = 900.0
"""Instances that were not asked for so long are gone: the slowest policy looks every 300 s."""


class Signals(StrEnum):
    """Which source decides."""

    PROMETHEUS = "prometheus"
    DIRECT = "direct"
    BOTH = "both"


class Source(Protocol):
    """One read for all instances. Use inside one event loop; `close` at the end."""

    async def read(self, targets: Sequence[Target], now_s: float) -> Reading | Unknown:
        """Counters of these workers, by the names of their pods; Unknown when nothing at all could be read."""

    async def latencies(self, targets: Sequence[Target], over_s: float, now_s: float) -> Latencies | Unknown:
        """Mean, p95 and p99 of the last `over_s` seconds, for people: read at a slower pace."""

    async def close(self) -> None:
        """Ends the connections."""


def open_source(signals: Signals, prometheus: Access | None) -> Source:
    """Raises ValueError when Prometheus is wanted and there is none."""
    if signals is Signals.DIRECT:
        return FromWorkers()
    if prometheus is None:
        raise ValueError(f"signals {signals.value} need the address of a Prometheus")
    return FromPrometheus(prometheus) if signals is Signals.PROMETHEUS else FromBoth(prometheus)


class FromWorkers:
    """The operator scrapes the workers."""

    def __init__(self) -> None:
        self._direct = DirectSource()
        self._growth = Growth()

    async def read(self, targets: Sequence[Target], now_s: float) -> Reading | Unknown:
        """Never Unknown as a whole: each worker answers for itself."""
        return await self._direct.read(targets)

    async def latencies(self, targets: Sequence[Target], over_s: float, now_s: float) -> Latencies | Unknown:
        """Growth of the workers' histograms between this call and the earlier ones; empty at the first."""
        return self._growth.add(await self._direct.read_histograms(targets), now_s, over_s)

    async def close(self) -> None:
        """Ends the connections."""
        await self._direct.close()


class FromPrometheus:
    """One query per signal for all instances."""

    def __init__(self, access: Access) -> None:
        self._prometheus = PrometheusSource(access)

    async def read(self, targets: Sequence[Target], now_s: float) -> Reading | Unknown:
        """Unknown, with what to do, when Prometheus does not answer as it should."""
        found = await self._prometheus.read()
        return found if isinstance(found, Unknown) else named_by_pod(found, targets)

    async def latencies(self, targets: Sequence[Target], over_s: float, now_s: float) -> Latencies | Unknown:
        """From the histograms that Prometheus has."""
        return await self._prometheus.read_latencies(over_s)

    async def close(self) -> None:
        """Ends the connections."""
        self._prometheus.close()


class FromBoth:
    """The workers' own numbers, as long as Prometheus sees the same workers."""

    def __init__(self, access: Access) -> None:
        self._workers, self._prometheus = FromWorkers(), FromPrometheus(access)
        self._seen: dict[InstanceKey, tuple[History, float]] = {}
        """What Prometheus says over time, which tells that samples grow old; and when it was last asked."""

    async def read(self, targets: Sequence[Target], now_s: float) -> Reading | Unknown:
        """Unknown as a whole when Prometheus does not answer as it should."""
        own, theirs = await asyncio.gather(self._workers.read(targets, now_s), self._prometheus.read(targets, now_s))
        if isinstance(theirs, Unknown) or isinstance(own, Unknown):
            return theirs if isinstance(theirs, Unknown) else own
        faults = dict(own.faults)
        for key, pods in _pods(targets).items():
            history, _ = self._seen.get(key, (History(), now_s))
            seen = history.observe(theirs.of(key), pods, now_s)
            self._seen[key] = history, now_s
            if isinstance(seen, Unknown) and key not in faults:
                faults[key] = replace(seen, text=f"Prometheus: {seen.text}")
        self._seen = {key: kept for key, kept in self._seen.items() if now_s - kept[1] < FORGET_S}
        return Reading(own.samples, faults)

    async def latencies(self, targets: Sequence[Target], over_s: float, now_s: float) -> Latencies | Unknown:
        """From the histograms that Prometheus has."""
        return await self._prometheus.latencies(targets, over_s, now_s)

    async def close(self) -> None:
        """Ends the connections."""
        await asyncio.gather(self._workers.close(), self._prometheus.close())


def named_by_pod(reading: Reading, targets: Iterable[Target]) -> Reading:
    """A scrape that does not name pods names addresses: these are the workers' all the same."""
    names = {(target.key, f"{target.host}:{target.port}"): target.pod for target in targets}

    def named(key: InstanceKey, samples: tuple[PodSample, ...]) -> tuple[PodSample, ...]:
        return tuple(replace(sample, pod=names.get((key, sample.pod), sample.pod)) for sample in samples)

    return Reading({key: named(key, samples) for key, samples in reading.samples.items()}, reading.faults)


def _pods(targets: Iterable[Target]) -> dict[InstanceKey, set[str]]:
    pods: dict[InstanceKey, set[str]] = {}
    for target in targets:
        pods.setdefault(target.key, set()).add(target.pod)
    return pods
