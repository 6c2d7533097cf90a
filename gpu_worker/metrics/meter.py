"""Counts what the tuner and people judge by. Plain dictionaries, owned by the event loop: one request costs a few
microseconds. `exposition` turns them into Prometheus families.

A request counts under the settings generation that was applied when it arrived: only those that ran wholly under a
generation may speak for it. The current and the previous generation are kept; a straggler of an older one counts under
the older of the two, so that no request is lost from the sums."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from gpu_worker.metrics.histogram import Histogram, edges_s
from gpu_worker.scheduling.interface import Answer, Cause, Outcome, Request, StepReport, Waits
from tailkeeper.api.enums import Mode
from tailkeeper.api.settings import Settings


class Objective(StrEnum):
    """What a request can miss; the `objective` label of `tailkeeper_late_total`."""

    LATENCY = "latency"
    FIRST_TOKEN = "first_token"
    INTER_TOKEN = "inter_token"
    TIMEOUT = "timeout"


class Moment(StrEnum):
    """Sums over seconds of n requests and k late ones, for the design effect of clustered misses."""

    NN = "nn"
    NK = "nk"
    KK = "kk"


LATE = frozenset({Outcome.LATE, Outcome.SHED, Outcome.EXPIRED})
LATE_GAPS = 0.01
"""A text whose gaps between tokens were over the SLA more often than this is late: the SLA is a p99."""
TIMED_OUT = frozenset({Outcome.SHED, Outcome.EXPIRED})


@dataclass(slots=True)
class Judged:
    """Counters of one tier under one settings generation."""

    requests: Counter[Outcome] = field(default_factory=Counter)
    late: Counter[Objective] = field(default_factory=Counter)
    late_wait_s: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))
    moments: dict[Moment, int] = field(default_factory=lambda: dict.fromkeys(Moment, 0))
    second: int = 0
    """The second that n and k belong to."""
    n: int = 0
    k: int = 0

    def count(self, second: int, late: bool) -> None:
        """One more request that ended in that second."""
        if second != self.second:
            self.close_second()
            self.second = second
        self.n += 1
        self.k += late

    def close_second(self) -> None:
        """Adds the open second to the moments."""
        self.moments[Moment.NN] += self.n * self.n
        self.moments[Moment.NK] += self.n * self.k
        self.moments[Moment.KK] += self.k * self.k
        self.n = self.k = 0


@dataclass(slots=True)
class TierTimes:
    """What is kept of one tier over all generations."""

    sla_s: float
    request: Histogram
    batch_wait: Histogram
    first_token: Histogram | None
    inter_token: Histogram | None
    wait_s: dict[Cause, float] = field(default_factory=lambda: dict.fromkeys(Cause, 0.0))
    preemptions: int = 0


@dataclass(slots=True)
class TokenTimes:
    """One request's tokens."""

    last_s: float | None = None
    """When the last one was made."""
    gaps: int = 0
    late_gaps: int = 0


class Meter:
    """All counters of one worker."""

    def __init__(self) -> None:
        self.settings: Settings | None = None
        self.generations: list[int] = []
        """Current last; at most two."""
        self.judged: dict[int, dict[str, Judged]] = {}
        self.tiers: dict[str, TierTimes] = {}
        self.busy_s = 0.0
        self.work = 0
        """Requests served; tokens forwarded in continuous mode."""
        self.batch_size = 0

    def apply(self, settings: Settings) -> None:
        """Starts counting under a new generation; histograms whose SLA changed start anew."""
        self.settings = settings
        if settings.generation not in self.judged:
            self.generations = [*self.generations[-1:], settings.generation]
            self.judged[settings.generation] = {}
        for old in self.judged.keys() - set(self.generations):
            del self.judged[old]
        # Every series is there from the start, at zero: a reader can then tell "no request" from "no worker".
        for generation in self.generations:
            tiers = self.judged[generation]
            self.judged[generation] = {tier.name: tiers.get(tier.name) or Judged() for tier in settings.tiers}
        self.tiers = {tier.name: self._times(settings, tier.name) for tier in settings.tiers}

    def _times(self, settings: Settings, tier: str) -> TierTimes:
        streams = settings.mode is Mode.CONTINUOUS
        sla_s = settings.tier(tier).deadline_ms / 1000
        first = _slas_s(settings.first_token_sla_ms, sla_s) if streams else None
        inter = _slas_s(settings.inter_token_sla_ms, sla_s) if streams else None
        old = self.tiers.get(tier)
        return TierTimes(
            sla_s=sla_s,
            request=_kept(old.request if old else None, sla_s),
            batch_wait=_kept(old.batch_wait if old else None, sla_s),
            first_token=_kept(old.first_token if old else None, first) if first is not None else None,
            inter_token=_kept(old.inter_token if old else None, inter) if inter is not None else None,
            wait_s=old.wait_s if old else dict.fromkeys(Cause, 0.0),
            preemptions=old.preemptions if old else 0,
        )

    def token(self, request: Request, generation: int, tokens: TokenTimes, now_s: float) -> None:
        """One more token of a request was made."""
        assert self.settings is not None
        tier = self._tier(request)
        times, last_s = self.tiers[tier], tokens.last_s
        tokens.last_s = now_s
        if last_s is None:
            seconds = now_s - request.arrival_s
            if times.first_token is not None:
                times.first_token.observe(seconds)
            if _over(seconds, self.settings.first_token_sla_ms):
                self._judged(generation, tier).late[Objective.FIRST_TOKEN] += 1
            return
        tokens.gaps += 1
        if times.inter_token is not None:
            times.inter_token.observe(now_s - last_s)
        tokens.late_gaps += _over(now_s - last_s, self.settings.inter_token_sla_ms)

    def ended(self, answer: Answer, generation: int, tokens: TokenTimes | None = None) -> None:
        """One request ended. A tier that is gone meanwhile counts as the default tier, where its requests moved."""
        tier = self._tier(answer.request)
        times = self.tiers[tier]
        outcome, waits = answer.outcome, answer.waits
        missed = outcome in LATE and _promised(answer.request, times.sla_s)
        # A caller that went away after its SLA had passed was let down like the others.
        late = missed or ((outcome in LATE or outcome is Outcome.CANCELLED) and waits.total_s > times.sla_s)
        judged = self._judged(generation, tier)
        judged.requests[outcome] += 1
        judged.count(int(answer.ended_s), late)
        if late:
            judged.late[Objective.LATENCY] += 1
            _add(judged.late_wait_s, waits)
        if late and outcome in TIMED_OUT:
            judged.late[Objective.TIMEOUT] += 1
        _add(times.wait_s, waits)
        if outcome in (Outcome.OK, Outcome.LATE):
            times.request.observe(waits.total_s)
            times.batch_wait.observe(waits.hold_s)
        elif outcome in TIMED_OUT:
            # A missing answer counts as its timeout: percentiles are over all requests that were sent.
            times.request.observe(max(waits.total_s, self._timeout_s(tier)))

        if tokens is not None:
            self._judge_tokens(judged, times, tokens, outcome, tier)

    def _judge_tokens(self, judged: Judged, times: TierTimes, tokens: TokenTimes, outcome: Outcome, tier: str) -> None:
        assert self.settings is not None
        if tokens.late_gaps > LATE_GAPS * tokens.gaps:
            judged.late[Objective.INTER_TOKEN] += 1
        if tokens.last_s is None and outcome in TIMED_OUT:  # a first token that never came counts as its timeout
            if times.first_token is not None:
                times.first_token.observe(self._timeout_s(tier))
            if self.settings.first_token_sla_ms is not None:
                judged.late[Objective.FIRST_TOKEN] += 1

    def _tier(self, request: Request) -> str:
        assert self.settings is not None
        return request.tier if request.tier in self.tiers else self.settings.default_tier

    def _judged(self, generation: int, tier: str) -> Judged:
        return self.judged.get(generation, self.judged[self.generations[0]])[tier]

    def step(self, report: StepReport) -> None:
        """One step ended."""
        self.busy_s += report.ended_s - report.started_s
        self.batch_size = len(report.step.work)
        if self.settings is not None and self.settings.mode is Mode.CONTINUOUS:
            self.work += sum(work.prefill_tokens + work.decode for work in report.step.work)
        else:
            self.work += len(report.completed)
        for victim in report.step.preempted:
            if victim.tier in self.tiers:
                self.tiers[victim.tier].preemptions += 1

    def close_second(self, second: int) -> None:
        """Adds to the moments what is older than this second; a reader calls it first."""
        for tiers in self.judged.values():
            for judged in tiers.values():
                if judged.second < second:
                    judged.close_second()

    def _timeout_s(self, tier: str) -> float:
        assert self.settings is not None
        settings = self.settings.tier(tier)
        return (settings.timeout_ms or settings.deadline_ms) / 1000


def _promised(request: Request, sla_s: float) -> bool:
    """Whether the settings are to blame when this one is late. Windows are chosen so that two batches fit into the SLA:
    a caller's own deadline under half of it is more than any setting promises, and no reason to move one."""
    return request.deadline_s is None or request.deadline_s - request.arrival_s >= sla_s / 2


def _slas_s(sla_ms: int | None, otherwise_s: float) -> float:
    return otherwise_s if sla_ms is None else sla_ms / 1000


def _over(seconds: float, sla_ms: int | None) -> bool:
    return sla_ms is not None and seconds * 1000 > sla_ms


def _kept(old: Histogram | None, sla_s: float) -> Histogram:
    edges = edges_s(sla_s)
    return old if old is not None and old.edges == edges else Histogram(edges)


def _add(totals: dict[Cause, float], waits: Waits) -> None:
    totals[Cause.HOLD] += waits.hold_s
    totals[Cause.BUSY] += waits.busy_s
    totals[Cause.SLOT] += waits.slot_s
    totals[Cause.EXEC] += waits.exec_s
