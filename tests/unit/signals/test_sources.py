"""Which source decides, and that with both of them nothing counts that Prometheus does not see."""

import pytest

from tailkeeper.control.samples import CounterKey, Counts, InstanceKey, PodSample, Reading, Unknown, UnknownReason
from tailkeeper.signals.direct import Target
from tailkeeper.signals.query import Access
from tailkeeper.signals.sources import FromBoth, FromPrometheus, FromWorkers, Signals, named_by_pod, open_source

KEY = InstanceKey("team", "chat", "small")
TARGETS = (Target(KEY, "chat-small-0", "10.0.0.1", 9000),)
ACCESS = Access("http://127.0.0.1:1", 1.0)


def sample(pod: str = "chat-small-0", time_s: float = 1.0) -> PodSample:
    return PodSample(pod, time_s, {CounterKey(1, "interactive"): Counts(requests=time_s)})


def reading(*samples: PodSample) -> Reading:
    return Reading({KEY: samples} if samples else {})


class Says:
    """A source that answers in turn, the last one for ever."""

    def __init__(self, *answers: Reading | Unknown) -> None:
        self.answers = list(answers)

    async def read(self, targets: object, now_s: float) -> Reading | Unknown:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def both(own: Says, theirs: Says) -> FromBoth:
    source = FromBoth(ACCESS)
    source._workers, source._prometheus = own, theirs  # type: ignore[assignment]
    return source


@pytest.mark.parametrize(
    ("signals", "kind"),
    [(Signals.DIRECT, FromWorkers), (Signals.PROMETHEUS, FromPrometheus), (Signals.BOTH, FromBoth)],
)
async def test_each_name_is_a_source(signals: Signals, kind: type) -> None:
    source = open_source(signals, ACCESS)
    assert isinstance(source, kind)
    await source.close()


@pytest.mark.parametrize("signals", [Signals.PROMETHEUS, Signals.BOTH])
def test_prometheus_needs_an_address(signals: Signals) -> None:
    with pytest.raises(ValueError, match="need the address"):
        open_source(signals, None)


def test_a_scrape_that_names_addresses_is_of_the_pods_all_the_same() -> None:
    found = named_by_pod(reading(sample("10.0.0.1:9000"), sample("other")), TARGETS)
    assert [each.pod for each in found.samples[KEY]] == ["chat-small-0", "other"]


async def test_the_workers_own_numbers_decide() -> None:
    found = await both(Says(reading(sample(time_s=9.0))), Says(reading(sample(time_s=1.0)))).read(TARGETS, 0.0)
    assert isinstance(found, Reading)
    assert found.of(KEY) == (sample(time_s=9.0),)


async def test_a_prometheus_that_does_not_answer_makes_everything_unknown() -> None:
    down = Unknown(UnknownReason.ERROR, "Prometheus at http://p cannot be reached")
    assert await both(Says(reading(sample())), Says(down)).read(TARGETS, 0.0) == down


async def test_a_worker_that_prometheus_does_not_see_is_not_acted_on() -> None:
    found = await both(Says(reading(sample())), Says(reading())).read(TARGETS, 0.0)
    assert isinstance(found, Reading)
    fault = found.of(KEY)
    assert isinstance(fault, Unknown)
    assert fault.reason is UnknownReason.ABSENT
    assert fault.text.startswith("Prometheus: no series of chat-small-0")


async def test_a_prometheus_that_scrapes_no_more_is_noticed() -> None:
    source = both(Says(reading(sample(time_s=9.0))), Says(*(reading(sample(time_s=t)) for t in (1.0, 2.0, 3.0))))
    for now_s in (1.0, 2.0, 3.0):
        found = await source.read(TARGETS, now_s)
        assert isinstance(found, Reading)
        assert isinstance(found.of(KEY), tuple)
    found = await source.read(TARGETS, 60.0)
    assert isinstance(found, Reading)
    fault = found.of(KEY)
    assert isinstance(fault, Unknown)
    assert fault.reason is UnknownReason.STALE


async def test_what_a_worker_itself_says_comes_first() -> None:
    fault = Unknown(UnknownReason.PARTIAL, "chat-small-0 answered 500")
    found = await both(Says(Reading({}, {KEY: fault})), Says(reading())).read(TARGETS, 0.0)
    assert isinstance(found, Reading)
    assert found.of(KEY) == fault
