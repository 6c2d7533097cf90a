"""Which settings document is applied: the newest valid one of this instance, or none of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_worker.settings.keeper import SettingsKeeper, Source, Verdict
from tailkeeper.api.enums import Mode
from tailkeeper.api.settings import LONGEST_LEAP, Settings
from tests.unit.worker.doubles import IDENTITY, document

API, FILE = Source.CONFIG_MAP, Source.FILE


class Sink:
    def __init__(self) -> None:
        self.applied: list[Settings] = []

    def __call__(self, settings: Settings) -> None:
        self.applied.append(settings)

    @property
    def generations(self) -> list[int]:
        return [settings.generation for settings in self.applied]


@pytest.fixture
def sink() -> Sink:
    return Sink()


@pytest.fixture
def keeper(sink: Sink) -> SettingsKeeper:
    return SettingsKeeper(IDENTITY, frozenset({Mode.REQUEST, Mode.FIXED}), sink)


def test_newer_generations_are_applied_in_turn(keeper: SettingsKeeper, sink: Sink) -> None:
    assert keeper.offer(document(1), API) is Verdict.APPLIED
    assert keeper.offer(document(2, ceiling=8), API) is Verdict.APPLIED
    assert sink.generations == [1, 2]
    assert keeper.applied is not None
    assert keeper.applied.settings.ceiling == 8
    assert keeper.refused == 0


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("", "Invalid JSON"),
        ("{", "Invalid JSON"),
        ("[]", "object"),
        (document(2).replace('"ceiling":64', '"ceiling":65'), "ceiling"),
        (document(2).replace('"windowBusy":16', '"windowBusy":"16"'), "windowBusy"),
        (document(2).replace('"formatVersion":1', '"formatVersion":2'), "formatVersion"),
        (
            document(2, default_tier="interactive").replace('"defaultTier":"interactive"', '"defaultTier":"gold"'),
            "gold",
        ),
        (document(2, policy="other"), "belong to default/other/minilm"),
        (document(2, model_instance="other"), "belong to"),
        (document(2, policy_namespace="other"), "belong to other/chat/minilm"),
        (document(2, mode=Mode.CONTINUOUS), "continuous does not fit"),
        (document(1, ceiling=8), "applied already, with other content"),
        ("x" * 70_000, "70000 bytes"),
    ],
)
def test_a_bad_document_is_refused_whole_and_the_last_good_one_stays(
    keeper: SettingsKeeper, sink: Sink, bad: str, says: str
) -> None:
    keeper.offer(document(1), API)
    assert keeper.offer(bad, API) is Verdict.REFUSED
    assert sink.generations == [1]
    assert keeper.refused == 1
    assert keeper.last_refusal is not None
    assert says in keeper.last_refusal


def test_good_bad_and_the_same_good_again_ends_in_sync(keeper: SettingsKeeper, sink: Sink) -> None:
    keeper.offer(document(3), API)
    keeper.offer("{", API)
    assert keeper.offer(document(3), API) is Verdict.UNCHANGED
    assert keeper.last_refusal is None
    assert keeper.refused == 1
    assert sink.generations == [3]


def test_a_refused_document_that_is_seen_again_counts_once(keeper: SettingsKeeper) -> None:
    for _ in range(5):
        assert keeper.offer("{", API) is Verdict.REFUSED
    assert keeper.refused == 1


def test_a_bad_first_document_leaves_nothing_applied_and_a_good_one_follows(keeper: SettingsKeeper) -> None:
    keeper.offer("{", API)
    assert keeper.applied is None
    assert keeper.offer(document(1), API) is Verdict.APPLIED
    assert keeper.last_refusal is None


def test_a_config_map_that_restarts_at_a_lower_generation_is_older_and_refused(keeper: SettingsKeeper) -> None:
    keeper.offer(document(7), API)
    assert keeper.offer(document(1), API) is Verdict.REFUSED
    assert keeper.last_refusal == "generation 1 is older than 7, which is applied"
    assert keeper.offer(document(8), API) is Verdict.APPLIED
    assert keeper.last_refusal is None


def test_a_mounted_file_that_lags_behind_the_api_is_not_a_refusal(keeper: SettingsKeeper, sink: Sink) -> None:
    keeper.offer(document(1), FILE)
    keeper.offer(document(3), API)
    assert keeper.offer(document(2), FILE) is Verdict.LAGGING
    assert keeper.offer(document(3), FILE) is Verdict.UNCHANGED
    assert (keeper.refused, keeper.last_refusal) == (0, None)
    assert sink.generations == [1, 3]


def test_a_file_that_goes_back_is_refused_even_when_the_api_brought_the_newest(keeper: SettingsKeeper) -> None:
    keeper.offer(document(3), API)
    keeper.offer(document(3), FILE)
    assert keeper.offer(document(2), FILE) is Verdict.REFUSED


def test_the_file_carries_on_when_the_api_is_silent(keeper: SettingsKeeper, sink: Sink) -> None:
    keeper.offer(document(1), API)
    assert keeper.offer(document(2), FILE) is Verdict.APPLIED
    assert keeper.applied is not None
    assert keeper.applied.source is FILE
    assert keeper.offer(document(2), API) is Verdict.UNCHANGED
    assert sink.generations == [1, 2]


def test_a_document_that_cannot_be_applied_is_refused() -> None:
    def explode(settings: Settings) -> None:
        raise RuntimeError("no room")

    keeper = SettingsKeeper(IDENTITY, frozenset({Mode.REQUEST}), explode)
    assert keeper.offer(document(1), API) is Verdict.REFUSED
    assert keeper.applied is None
    assert keeper.last_refusal == "no room"


OFFERS = st.tuples(
    st.one_of(st.integers(1, 6).map(document), st.sampled_from(["{", document(9, policy="other")])),
    st.sampled_from(Source),
)


@given(st.lists(OFFERS, max_size=30))
def test_whatever_is_offered_generations_only_grow_and_the_newest_valid_one_is_applied(
    offers: list[tuple[str, Source]],
) -> None:
    sink = Sink()
    keeper = SettingsKeeper(IDENTITY, frozenset({Mode.REQUEST}), sink)
    for text, source in offers:
        keeper.offer(text, source)
    valid = [generation for generation in range(1, 7) if any(text == document(generation) for text, _ in offers)]
    assert sink.generations == sorted(set(sink.generations))
    assert (keeper.applied.settings.generation if keeper.applied else 0) == max(valid, default=0)


def test_a_generation_that_leaps_away_is_refused_and_the_next_ordinary_one_is_applied(
    keeper: SettingsKeeper, sink: Sink
) -> None:
    """Somebody who edits the ConfigMap to the last number there is must not keep the operator out for ever."""
    assert keeper.offer(document(7), API) is Verdict.APPLIED
    for leap in (2**53 - 2, 7 + LONGEST_LEAP + 1):
        assert keeper.offer(document(leap, ceiling=8), API) is Verdict.REFUSED
        assert "past 7" in (keeper.last_refusal or "")
    assert keeper.offer(document(8), API) is Verdict.APPLIED
    assert keeper.offer(document(8 + LONGEST_LEAP), API) is Verdict.APPLIED
    assert sink.generations == [7, 8, 8 + LONGEST_LEAP]


def test_a_worker_without_settings_takes_any_generation(keeper: SettingsKeeper, sink: Sink) -> None:
    assert keeper.offer(document(2**53 - 2), API) is Verdict.APPLIED
    assert sink.generations == [2**53 - 2]
