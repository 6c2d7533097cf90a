"""The line that people read."""

from dataclasses import replace

from tailkeeper.api.levers import parse_moves
from tailkeeper.control.explain import line, moves_text
from tailkeeper.control.judge import judge
from tailkeeper.control.observation import TierLatency, Value
from tailkeeper.model.quantile import Quantile
from tests.unit.control.loop import settings
from tests.unit.control.observed import value


def read(observation: Value, action: str = "window→16", reverted_in_s: float | None = None) -> str:
    return line(observation, settings(), judge(observation, settings()), action, reverted_in_s)


def test_it_names_the_numbers_that_caused_the_move() -> None:
    breach = value(100, 0.054, "busy", timeouts=0.051)
    latencies = (TierLatency("interactive", 0.82, Quantile(1.9), Quantile(6.02)),)
    assert read(replace(breach, latencies=latencies), reverted_in_s=9.2) == (
        "tier=interactive avg=820ms p95=1900ms p99=6020ms late=5.4% timeout_rate=5.1% requests=6000 span=60s "
        "cause=busy:80% rate=100/s window=64/64 efficiency=90% sla_breached=true action=window→16 reverted_in=9s"
    )


def test_a_quantile_beyond_the_last_bucket_is_written_as_such() -> None:
    beyond = TierLatency("interactive", 3.0, Quantile(1.9), Quantile(8.0, beyond=True))
    assert "p99=>8000ms" in read(replace(value(), latencies=(beyond,)))


def test_what_is_not_known_is_left_out() -> None:
    assert read(value(rate=0, window=None, efficiency=None), "none(FewSamples)") == (
        "rate=0/s sla_breached=false action=none(FewSamples)"
    )


def test_levers_go_by_their_names_and_the_ceiling_by_the_windows() -> None:
    moves = parse_moves("ceiling=16 maxHold.interactive=5 margin=20 preemption.batch=on tokenBudget=off")
    assert moves_text(moves) == "window→16,maxHold.interactive→5ms,margin→20%,preemption.batch→on,tokenBudget→off"
