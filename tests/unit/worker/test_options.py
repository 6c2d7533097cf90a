"""How a call says how it wants to be served."""

from typing import Any

import pytest

from gpu_worker.server.errors import ApiError
from gpu_worker.server.keys import Caller
from gpu_worker.server.options import Options, read_options
from tests.unit.worker.doubles import settings


def read(headers: dict[str, str] | None = None, caller: Caller | None = None, **body: Any) -> Options:
    raw = {name.encode(): value.encode("latin-1") for name, value in (headers or {}).items()}
    return read_options(raw, body, settings(), caller)


def refused(headers: dict[str, str] | None = None, caller: Caller | None = None, **body: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(headers, caller, **body)
    return caught.value


def test_nothing_said_is_the_default_tier_with_no_deadline() -> None:
    assert read() == Options("interactive", 0, None, "")


def test_body_and_header_say_the_same_things_and_the_header_wins() -> None:
    assert read(tier="batch", priority=-3, deadline_ms=1500) == Options("batch", -3, 1.5, "")
    headers = {
        "x-tailkeeper-tier": "standard",
        "x-tailkeeper-deadline-ms": "250",
        "x-tailkeeper-tenant": "team-a",
    }
    assert read(headers, tier="batch", deadline_ms=9) == Options("standard", 0, 0.25, "team-a")


@pytest.mark.parametrize("tier", ["gold", "", 7, None.__class__, ["batch"]])
def test_an_unknown_tier_is_400_and_names_those_there_are(tier: Any) -> None:
    error = refused(tier=tier)
    assert (error.status, error.param) == (400, "tier")
    assert "interactive, standard, batch" in error.message


@pytest.mark.parametrize("left_ms", [0, -1, -0.5, "0", "-20"])
def test_a_deadline_that_has_passed_is_504_at_once(left_ms: Any) -> None:
    error = refused({"x-tailkeeper-deadline-ms": left_ms}) if isinstance(left_ms, str) else refused(deadline_ms=left_ms)
    assert error.status == 504


@pytest.mark.parametrize("bad", ["soon", "1e", "nan", "inf", "", "12;5"])
def test_a_deadline_header_that_is_no_number_is_400(bad: str) -> None:
    assert refused({"x-tailkeeper-deadline-ms": bad}).status == 400


@pytest.mark.parametrize("bad", ["100", True, [1], float("inf"), float("nan")])
def test_a_deadline_in_the_body_must_be_a_number(bad: Any) -> None:
    assert refused(deadline_ms=bad).status == 400


@pytest.mark.parametrize("bad", [1.5, "1", True, 2**40, [0]])
def test_a_priority_is_an_integer_of_32_bits(bad: Any) -> None:
    error = refused(priority=bad)
    assert (error.status, error.param) == (400, "priority")


def test_a_deadline_beyond_a_day_is_a_day() -> None:
    assert read(deadline_ms=10**12).deadline_s == 86_400


@pytest.mark.parametrize("bad", ["x" * 129, "a\tb", "a\x01b"])
def test_a_tenant_is_short_and_printable(bad: str) -> None:
    assert refused({"x-tailkeeper-tenant": bad}).status == 400


def test_the_tenant_of_an_api_key_cannot_be_changed_by_a_header() -> None:
    assert read({"x-tailkeeper-tenant": "other"}, Caller("mine")).tenant == "mine"


def test_a_key_for_some_tiers_gets_403_for_others_and_its_highest_when_it_names_none() -> None:
    caller = Caller("team", frozenset({"batch", "standard"}))
    assert refused(caller=caller, tier="interactive").status == 403
    assert read(caller=caller).tier == "standard"
    assert read(caller=caller, tier="batch").tier == "batch"
    assert refused(caller=Caller("team", frozenset({"gold"}))).status == 403
