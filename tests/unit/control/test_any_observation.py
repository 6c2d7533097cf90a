"""Whatever is observed: one outcome per tick, every step within the bounds, and the same again for the same."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tailkeeper.api.enums import Lever, Mode, RetuneMode
from tailkeeper.api.levers import move, values_of
from tailkeeper.api.settings import Settings
from tailkeeper.control.decide import decide
from tailkeeper.control.freeze import Situation
from tailkeeper.control.move import Bounds
from tailkeeper.control.observation import Idle, Observation, Value
from tailkeeper.control.record import Tick, from_line, replay, to_line
from tailkeeper.control.samples import Unknown, UnknownReason
from tailkeeper.control.state import State
from tests.unit.control import loop
from tests.unit.control.observed import value
from tests.unit.control.test_decide import under

ratio = st.one_of(st.just(0.0), st.floats(0, 0.05), st.floats(0, 1))
perhaps = st.one_of(st.none(), st.floats(0.5, 100))
line = st.fixed_dictionaries({"c": st.floats(0, 1), "a": st.floats(1e-6, 0.1)})
iterations = st.fixed_dictionaries(
    {
        "alpha": st.floats(0, 0.2),
        "beta": st.floats(0, 0.01),
        "gamma": st.floats(0, 0.01),
        "prompt_tokens": st.floats(0, 5_000),
        "output_tokens": st.floats(0, 500),
    }
)
values = st.builds(
    value,
    rate=st.floats(0, 5_000),
    late=ratio,
    cause=st.sampled_from(["hold", "busy", "slot", "exec", "batch"]),
    tier=st.sampled_from(["interactive", "batch"]),
    others=st.one_of(st.none(), st.fixed_dictionaries({"batch": st.floats(0, 100)})),
    window=perhaps,
    cap=perhaps,
    ceiling=perhaps,
    efficiency=st.one_of(st.none(), st.floats(0, 1.2)),
    cv=st.floats(0, 10),
    queue=st.one_of(st.none(), st.fixed_dictionaries({"batch": st.floats(0, 1_000)})),
    model=st.one_of(line, iterations, st.just({"c": 0.0})),
    latency_s=st.floats(0, 10),
    first_token=ratio,
    inter_token=ratio,
    timeouts=ratio,
    pods=st.integers(1, 50),
)
observations: st.SearchStrategy[Observation] = st.one_of(
    values,
    values,
    values,
    st.builds(Idle, st.floats(0, 10)),
    st.builds(Unknown, st.sampled_from(UnknownReason), st.just("why")),
)


@st.composite
def specs(draw: st.DrawFn) -> Settings:
    mode = draw(st.sampled_from([Mode.REQUEST, Mode.CONTINUOUS, Mode.FIXED]))
    idle = draw(st.integers(1, 128))
    base = loop.settings()
    first, second = base.tiers
    return base.but(
        mode=mode,
        window_idle=idle,
        window_busy=draw(st.integers(1, idle)),
        ceiling=idle,
        window_dynamic=draw(st.booleans()),
        priority_queue=draw(st.booleans()),
        first_token_sla_ms=draw(st.one_of(st.none(), st.integers(10, 1_000))),
        inter_token_sla_ms=draw(st.one_of(st.none(), st.integers(10, 1_000))),
        timeout_target_per_mille=draw(st.integers(0, 20)),
        min_efficiency_percent=draw(st.integers(0, 100)),
        tiers=[
            first.but(reserve_percent=draw(st.integers(0, 60))),
            second.but(reserve_percent=draw(st.integers(0, 30))),
        ],
    )


ticks = st.lists(st.tuples(observations, st.floats(0.5, 200)), min_size=1, max_size=25)


@settings(max_examples=80, deadline=None)
@given(specs(), ticks, st.sampled_from(RetuneMode), st.lists(st.sampled_from(Lever), max_size=2))
def test_any_course_of_things(
    spec: Settings, course: list[tuple[Observation, float]], mode: RetuneMode, pinned: list[Lever]
) -> None:
    document, state, now_s = spec, State(), 1_000.0
    bounds = Bounds(spec, tuple(pinned))
    recorded = []
    for observation, pause_s in course:
        now_s += pause_s
        if isinstance(observation, Value):
            observation = under(observation, document.generation)
        situation = Situation(mode=mode, applied=(document.generation,))
        before = state
        state, decision = decide(before, observation, document, bounds, situation, now_s)
        recorded.append(to_line(Tick(now_s, before, observation, document, bounds, situation, state, decision)))
        step = decision.step
        assert (step is None) or mode is RetuneMode.AUTO
        assert not (isinstance(observation, Unknown | Idle) and decision.still is None)
        wanted = step or decision.recommended
        if wanted is not None:
            assert wanted.moves
            assert not {each.key.lever for each in wanted.moves} & set(pinned)
            after = move(document, wanted.moves, spec)
            changed = {key for key, now in values_of(after).items() if values_of(document)[key] != now}
            assert changed == {each.key for each in wanted.moves}, "a step that changes nothing is none"
            for tier in after.tiers:
                assert tier.max_hold_ms <= spec.tier(tier.name).max_hold_ms
            if step is not None:
                document = after.but(generation=document.generation + 1)
    assert list(replay(recorded)) == []
    assert to_line(from_line(recorded[-1])) == recorded[-1]
