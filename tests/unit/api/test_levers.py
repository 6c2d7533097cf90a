"""Levers: moved within the spec's bounds, kept when the spec changes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper.api.levers import InvalidMove, Key, Move, carry, changes, move, parse_moves, values_of
from tailkeeper.api.policy import PolicySpec
from tailkeeper.api.resolve import initial_settings, resolve_all
from tailkeeper.api.settings import LatencyPrior, Settings


def spec(**batching: object) -> Settings:
    """Settings of an online instance: interactive 1000 ms with hold 20, standard 5000, batch 60000 with reserve 10."""
    tiers = batching.pop("tiers", None)
    instance = {"name": "one", "model": {"name": "m", "engine": "causal-lm", "path": "/m"}, "batching": batching}
    said = PolicySpec.model_validate({"instances": [instance], **({"tiers": tiers} if tiers else {})})
    return initial_settings(
        resolve_all(said)["one"], policy_namespace="a", policy="p", model_instance="one", generation=5
    )


def moved(text: str, settings: Settings | None = None, of: Settings | None = None) -> Settings:
    of = of or spec()
    return move(settings or of, parse_moves(text), of)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("ceiling=4", lambda settings: settings.ceiling == 4),
        ("margin=20", lambda settings: settings.margin_percent == 20),
        ("margin=20%", lambda settings: settings.margin_percent == 20),
        ("maxHold.interactive=5", lambda settings: settings.tier("interactive").max_hold_ms == 5),
        ("maxHold.interactive=0ms", lambda settings: settings.tier("interactive").max_hold_ms == 0),
        ("boost.batch=1000ms", lambda settings: settings.tier("batch").boost_ms == 1000),
        ("reserve.batch=20", lambda settings: settings.tier("batch").reserve_percent == 20),
        ("preemption.interactive=off", lambda settings: settings.tier("interactive").preempts is False),
        ("preemption.standard=on", lambda settings: settings.tier("standard").preempts is True),
        ("tokenBudget=512", lambda settings: settings.token_budget == 512),
        ("tokenBudget=off", lambda settings: settings.token_budget is None),
        (
            " ceiling=4,margin=20  boost.batch=1 ",
            lambda settings: (settings.ceiling, settings.margin_percent) == (4, 20),
        ),
    ],
)
def test_a_move_in_words(text: str, read: object) -> None:
    assert read(moved(text))


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "nothing to set"),
        ("ceiling", "write LEVER=VALUE"),
        ("window=4", "window: there is no such lever; there are ceiling, margin"),
        ("ceiling=", "write a whole number"),
        ("ceiling=four", "write a whole number"),
        ("ceiling=4.0", "write a whole number"),
        ("ceiling=-1", "write a whole number"),
        ("ceiling=4ms", "write a whole number"),
        ("ceiling=²", "write a whole number"),
        ("ceiling=0", "ceiling=0 is out of bounds: 1 to 64"),
        ("ceiling=65", "ceiling=65 is out of bounds: 1 to 64"),
        ("margin=1", "margin=1% is out of bounds: 2% to 90%"),
        ("margin=91", "out of bounds"),
        ("maxHold=5", "maxHold belongs to a tier: write maxHold.TIER"),
        ("maxHold.=5", "belongs to a tier"),
        ("maxHold.a.b=5", "belongs to a tier"),
        ("ceiling.interactive=5", "ceiling belongs to the instance"),
        ("maxHold.gold=5", "maxHold.gold: there is no such tier; there are interactive, standard, batch"),
        ("maxHold.interactive=1001", "maxHold.interactive=1001ms is out of bounds: 0ms to 1000ms"),
        ("boost.interactive=1001", "out of bounds"),
        ("reserve.interactive=81", "reserve adds up to 91%"),
        ("reserve.interactive=91", "out of bounds"),
        ("preemption.interactive=true", "write on or off"),
        ("tokenBudget=0", "out of bounds"),
        ("tokenBudget=1048577", "out of bounds"),
        ("ceiling=4 ceiling=5", "ceiling is set twice"),
        ("ceiling=99999999999999999999", "write a whole number"),
    ],
)
def test_a_move_that_cannot_be_is_refused_by_name(text: str, part: str) -> None:
    with pytest.raises(InvalidMove) as error:
        moved(text)
    assert part in str(error.value)


def test_a_token_budget_needs_iterations() -> None:
    batchwise = spec(mode="request")
    with pytest.raises(InvalidMove, match="mode request has no token budget"):
        moved("tokenBudget=512", of=batchwise)
    assert moved("tokenBudget=off", of=batchwise) == batchwise


def test_one_bad_move_leaves_all_undone() -> None:
    settings = spec()
    with pytest.raises(InvalidMove):
        moved("ceiling=4 margin=99", settings)
    assert settings == spec()


class TestMoved:
    def test_names_what_differs_from_the_spec(self) -> None:
        settings = moved("maxHold.interactive=5 ceiling=4 margin=10")
        assert settings.moved == ["ceiling", "maxHold.interactive"]

    def test_forgets_a_lever_that_is_back(self) -> None:
        assert moved("ceiling=64", moved("ceiling=4")) == spec()

    def test_moves_add_up_and_keep_the_generation(self) -> None:
        settings = moved("margin=20", moved("ceiling=4"))
        assert (settings.ceiling, settings.margin_percent, settings.generation) == (4, 20, 5)
        assert settings.moved == ["ceiling", "margin"]


class TestCarry:
    """A new spec: what was moved keeps its value as far as it may, the rest follows."""

    def test_follows_where_nothing_was_moved(self) -> None:
        new = spec(windowIdle=100, tailLatencySlaMs=500)
        assert carry(spec(), new) == new

    def test_keeps_what_was_moved(self) -> None:
        kept = carry(moved("ceiling=4 maxHold.interactive=5"), spec(windowIdle=100, tailLatencySlaMs=500))
        assert (kept.ceiling, kept.window_idle) == (4, 100)
        assert [tier.max_hold_ms for tier in kept.tiers] == [5, 2_500, 30_000]
        assert kept.moved == ["ceiling", "maxHold.interactive"]

    def test_stays_within_the_new_bounds(self) -> None:
        kept = carry(moved("ceiling=40 maxHold.interactive=900"), spec(windowIdle=8, tailLatencySlaMs=500))
        assert (kept.ceiling, kept.tier("interactive").max_hold_ms) == (8, 500)
        assert kept.moved == ["maxHold.interactive"]  # ceiling 8 is what the spec says itself

    def test_a_tier_that_is_gone_takes_its_moves_along(self) -> None:
        new = spec(tiers=[{"name": "interactive"}, {"name": "batch"}])
        assert carry(moved("maxHold.standard=1 boost.standard=7"), new) == new

    def test_reserves_that_do_not_fit_together_any_more_follow_the_spec(self) -> None:
        new = spec(tiers=[{"name": "interactive", "reservePercent": 60}, {"name": "batch", "reservePercent": 10}])
        kept = carry(moved("reserve.batch=40 margin=20"), new)
        assert [tier.reserve_percent for tier in kept.tiers] == [60, 10]
        assert kept.moved == ["margin"]

    def test_a_token_budget_ends_with_the_iterations(self) -> None:
        assert carry(moved("tokenBudget=512"), spec(mode="request")).token_budget is None

    def test_generation_and_latency_prior_stay(self) -> None:
        old = moved("ceiling=4").but(generation=9, latency_prior=LatencyPrior(fixed_ns=3))
        kept = carry(old, spec())
        assert kept == old

    def test_a_lever_of_a_newer_version_is_dropped(self) -> None:
        assert carry(spec().but(moved=["newLever.batch"]), spec()) == spec()


def test_changes_are_as_people_read_them() -> None:
    after = moved(
        "ceiling=4 margin=20 maxHold.interactive=5 preemption.interactive=off tokenBudget=512 reserve.batch=20"
    )
    assert [(str(Key(each.lever, each.tier)), each.before, each.after) for each in changes(spec(), after)] == [
        ("ceiling", "64", "4"),
        ("margin", "10%", "20%"),
        ("tokenBudget", "off", "512"),
        ("maxHold.interactive", "20ms", "5ms"),
        ("preemption.interactive", "on", "off"),
        ("reserve.batch", "10%", "20%"),
    ]
    assert changes(after, after) == []


MOVES = st.dictionaries(
    st.sampled_from(list(values_of(spec()))),
    st.one_of(st.integers(0, 100), st.booleans()),
    max_size=5,
).map(lambda wanted: [Move(key, value) for key, value in wanted.items() if _fits(key, value)])


def _fits(key: Key, value: object) -> bool:
    return isinstance(value, bool) == (key.lever == "preemption")


@given(MOVES, st.integers(1, 80), st.integers(1, 5_000))
def test_moves_and_carrying_always_give_valid_settings(moves: list[Move], window: int, sla_ms: int) -> None:
    old, new = spec(), spec(windowIdle=window, tailLatencySlaMs=sla_ms)
    try:
        settings = move(old, moves, old)
    except InvalidMove:
        return
    assert parse_moves_of(settings, old) == settings
    kept = carry(settings, new)
    assert carry(kept, new) == kept
    assert set(kept.moved) <= set(settings.moved)
    follow = {key: value for key, value in values_of(kept).items() if str(key) not in kept.moved}
    assert follow.items() <= values_of(new).items()


def parse_moves_of(settings: Settings, of: Settings) -> Settings:
    """The same settings again, from the words in which their changes are told."""
    text = " ".join(f"{Key(each.lever, each.tier)}={each.after}" for each in changes(of, settings))
    return move(of, parse_moves(text), of) if text else of
