"""Observations made by hand, for one branch at a time."""

from dataclasses import replace

from tailkeeper.control.observation import LookBack, TierCounts, Value
from tailkeeper.control.samples import Counts, Gauges

SPANS_S = (15.0, 60.0, 300.0, 900.0)


def counts(
    requests: float,
    late: float = 0.0,
    cause: str = "slot",
    latency_s: float = 0.4,
    first_token: float = 0.0,
    inter_token: float = 0.0,
    timeouts: float = 0.0,
    seconds: float = 15.0,
) -> Counts:
    """`late`, `first_token`, … are ratios; the late ones spread over all seconds, 80 % of their time on one cause."""
    n, k = requests / seconds, requests * late / seconds
    spent = {name: 0.8 if name == cause else 0.2 / 3 for name in ("hold", "busy", "slot", "exec")}
    if cause == "batch":
        spent = {"hold": 0.05, "slot": 0.05, "busy": 0.4, "exec": 0.5}
    return Counts(
        requests=requests,
        late=requests * late,
        late_first_token=requests * first_token,
        late_inter_token=requests * inter_token,
        timeouts=requests * timeouts,
        hold_s=requests * late * latency_s * spent["hold"],
        busy_s=requests * late * latency_s * spent["busy"],
        slot_s=requests * late * latency_s * spent["slot"],
        exec_s=requests * late * latency_s * spent["exec"],
        nn=n * n * seconds,
        nk=n * k * seconds,
        kk=k * k * seconds,
    )


def value(
    rate: float = 100.0,
    late: float = 0.0,
    cause: str = "slot",
    *,
    generation: int = 1,
    tier: str = "interactive",
    others: dict[str, float] | None = None,
    window: float | None = 64.0,
    cap: float | None = 64.0,
    ceiling: float | None = 64.0,
    efficiency: float | None = 0.9,
    cv: float = 1.0,
    queue: dict[str, float] | None = None,
    model: dict[str, float] | None = None,
    latency_s: float = 0.4,
    first_token: float = 0.0,
    inter_token: float = 0.0,
    timeouts: float = 0.0,
    short_late: float | None = None,
    pods: int = 1,
    whole: bool = True,
) -> Value:
    """`rate` requests a second of one tier; `others` are the rates of other tiers, none of them late."""

    def look(asked_s: float, ratio: float) -> LookBack:
        rows = [
            TierCounts(
                generation,
                tier,
                counts(rate * asked_s, ratio, cause, latency_s, first_token, inter_token, timeouts, asked_s),
            )
        ]
        rows += [
            TierCounts(generation, name, counts(other * asked_s, seconds=asked_s))
            for name, other in (others or {}).items()
        ]
        return LookBack(
            asked_s=asked_s,
            span_s=asked_s if whole else asked_s / 2,
            whole=whole,
            tiers=tuple(rows),
            rate_per_s=rate + sum((others or {}).values()),
            busy_s=0.5 * asked_s,
            work=rate * asked_s,
        )

    looks = [look(span, late) for span in SPANS_S]
    if short_late is not None:
        looks[0] = look(SPANS_S[0], short_late)
    return Value(
        age_s=1.0,
        interval_s=1.0,
        pods=pods,
        look_backs=tuple(looks),
        newest=replace(looks[0], asked_s=5.0, span_s=5.0),
        gauges=Gauges(
            window=window,
            window_cap=cap,
            ceiling=ceiling,
            efficiency=efficiency,
            arrival_cv=cv,
            queue=queue or {},
            latency_model={"c": 0.006, "a": 0.0005} if model is None else model,
        ),
    )
