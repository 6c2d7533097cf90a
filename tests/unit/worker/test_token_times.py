"""First and next tokens, judged against their own SLAs."""

from gpu_worker.metrics.meter import Meter, Objective, TokenTimes
from gpu_worker.scheduling.interface import Answer, Outcome, Request, Waits
from tailkeeper.api.enums import Mode
from tests.unit.worker.doubles import settings


def meter(**changes: object) -> Meter:
    made = Meter()
    made.apply(settings(1, mode=Mode.CONTINUOUS, first_token_sla_ms=200, inter_token_sla_ms=100, **changes))
    return made


REQUEST = Request("r", "interactive", arrival_s=10.0)


def run(made: Meter, times_s: list[float], outcome: Outcome = Outcome.OK) -> dict[Objective, int]:
    tokens = TokenTimes()
    for now_s in times_s:
        made.token(REQUEST, 1, tokens, now_s)
    made.ended(Answer(REQUEST, outcome, Waits(exec_s=1.0), 11.0), 1, tokens)
    late = made.judged[1]["interactive"].late
    return {objective: late[objective] for objective in (Objective.FIRST_TOKEN, Objective.INTER_TOKEN)}


def test_in_time() -> None:
    made = meter()
    assert run(made, [10.2, 10.29, 10.38]) == {Objective.FIRST_TOKEN: 0, Objective.INTER_TOKEN: 0}
    first, inter = made.tiers["interactive"].first_token, made.tiers["interactive"].inter_token
    assert first is not None
    assert inter is not None
    assert round(first.sum_s, 6) == 0.2
    assert round(inter.sum_s, 6) == 0.18


def test_a_late_first_token_counts_at_once_and_one_late_gap_of_few_makes_a_text_late() -> None:
    assert run(meter(), [10.3, 10.35, 10.5]) == {Objective.FIRST_TOKEN: 1, Objective.INTER_TOKEN: 1}


def test_one_late_gap_in_a_hundred_is_what_a_p99_allows() -> None:
    times_s = [10.1 + 0.05 * number for number in range(101)]
    times_s[100] += 0.2
    assert run(meter(), times_s)[Objective.INTER_TOKEN] == 0


def test_a_first_token_that_never_came_is_late_when_the_caller_was_let_down() -> None:
    assert run(meter(), [], Outcome.SHED)[Objective.FIRST_TOKEN] == 1
    assert run(meter(), [], Outcome.CANCELLED)[Objective.FIRST_TOKEN] == 0
