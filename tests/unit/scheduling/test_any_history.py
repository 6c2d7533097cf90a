"""On any history: nobody is lost or answered twice, waits add up, old keys keep their order, only time decides."""

import math
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_worker.scheduling import EngineLimits, create
from gpu_worker.scheduling.interface import Answer, Decision, Outcome, Request, Step, StepReport
from tests.unit.scheduling import drive
from tests.unit.scheduling.drive import tier

TIERS = [
    tier("high", 50, preempts=True, max_hold_ms=0),
    tier("middle", 200, max_hold_ms=100),
    tier("low", 2000, reserve_percent=20),
]
MODES = ["request", "fixed", "continuous"]

events = st.lists(
    st.one_of(
        st.tuples(
            st.just("submit"),
            st.sampled_from(["high", "middle", "low"]),
            st.sampled_from(["", "a", "b"]),
            st.integers(1, 300),
            st.integers(1, 8),
            st.sampled_from([None, 0.01, 5.0]),
        ),
        st.tuples(st.just("cancel"), st.integers(0, 60)),
        st.tuples(st.just("pass"), st.floats(0.0, 0.2)),
        st.tuples(st.just("end"), st.integers(0, 3)),
        st.tuples(st.just("apply"), st.integers(0, 2)),
    ),
    max_size=120,
)


class History:
    """Plays events against one scheduler and keeps everything that it says."""

    def __init__(self, mode: str, iterates: bool) -> None:
        self.mode = mode
        self.now_s = 0.0
        self.iterates = iterates
        limits = EngineLimits(iterates, max_batch=6, kv_tokens=2000 if iterates else None)
        self.scheduler = create(drive.settings(mode=mode, tiers=TIERS, window_idle=8, window_busy=2), 0.0, limits)
        self.sent: dict[str, Request] = {}
        self.answers: list[Answer] = []
        self.log: list[object] = []
        self.step: Step | None = None
        self.started_s = 0.0
        self.produced: dict[str, int] = {}
        self.wanted: dict[str, int] = {}

    def heard(self, answers: Sequence[Answer]) -> None:
        self.answers += answers
        self.log.append(tuple(answers))

    def turn(self) -> None:
        decision: Decision = self.scheduler.next(self.now_s) if self.step is None else self.scheduler.tick(self.now_s)
        self.heard(decision.answers)
        self.log.append((decision.step, decision.wake_at_s))
        if decision.step is not None:
            assert self.step is None
            self.step, self.started_s = decision.step, self.now_s
            self.check(decision.step)

    def check(self, step: Step) -> None:
        ids = [work.request.id for work in step.work]
        assert 1 <= len(ids) == len(set(ids)) <= 6
        ended = {answer.request.id for answer in self.answers}
        assert not ended & set(ids)
        assert step.window <= 8

    def end_step(self) -> None:
        step = self.step
        assert step is not None
        completed = []
        for work in step.work:
            key = work.request.id
            if not self.iterates:
                completed.append(key)
            elif work.decode:
                self.produced[key] = self.produced.get(key, 0) + 1
                if self.produced[key] >= self.wanted[key]:
                    completed.append(key)
            else:
                self.produced.setdefault(key, 0)
        self.step = None
        report = StepReport(step, self.started_s, self.now_s, frozenset(completed))
        self.heard(self.scheduler.finished(report, self.now_s))

    def play(self, what: Sequence[object]) -> None:
        kind = what[0]
        if kind == "submit":
            _, name, tenant, prompt, output, own = what
            number = str(len(self.sent))
            request = Request(
                number,
                str(name) if str(name) in self.scheduler.state(self.now_s).tiers else "high",
                self.now_s,
                deadline_s=None if own is None else self.now_s + own,  # type: ignore[operator]
                tenant=str(tenant),
                prompt_tokens=prompt,  # type: ignore[arg-type]
                max_output_tokens=output,  # type: ignore[arg-type]
            )
            self.sent[number], self.wanted[number] = request, output  # type: ignore[assignment]
            self.heard(self.scheduler.submit(request, self.now_s))
        elif kind == "cancel":
            answer = self.scheduler.cancel(str(what[1]), self.now_s)
            self.heard([] if answer is None else [answer])
        elif kind == "pass":
            self.now_s += what[1]  # type: ignore[operator]
        elif kind == "end" and self.step is not None:
            self.now_s += 0.01 * what[1]  # type: ignore[operator]
            self.end_step()
        elif kind == "apply":
            tiers = (TIERS, TIERS[:1], list(reversed(TIERS)))[what[1]]  # type: ignore[call-overload]
            self.heard(
                self.scheduler.apply(
                    drive.settings(
                        mode=self.mode, tiers=tiers, window_idle=8, window_busy=2, default_tier="high", generation=2
                    ),
                    self.now_s,
                )
            )
        self.turn()

    def run_out(self) -> None:
        """To the end: every request is answered, at the latest at its timeout."""
        for _ in range(5000):
            if len(self.answers) >= len(self.sent) and self.step is None:
                return
            if self.step is not None:
                self.now_s += 0.01
                self.end_step()
            else:
                self.now_s += 0.02
            self.turn()
        raise AssertionError(f"{len(self.sent) - len(self.answers)} requests are never answered")


def played(mode: str, iterates: bool, what: Sequence[Sequence[object]]) -> History:
    history = History(mode, iterates)
    for event in what:
        history.play(event)
    history.run_out()
    return history


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODES), st.booleans(), events)
def test_everybody_is_answered_once_and_the_waits_add_up(mode: str, iterates: bool, what: list[list[object]]) -> None:
    history = played(mode, iterates, what)
    assert sorted(answer.request.id for answer in history.answers) == sorted(history.sent)
    for answer in history.answers:
        waits = answer.waits
        if answer.outcome is Outcome.ERROR:
            continue
        assert min(waits.hold_s, waits.busy_s, waits.slot_s, waits.exec_s) >= 0.0
        latency_s = answer.ended_s - answer.request.arrival_s
        assert math.isclose(waits.total_s, latency_s, abs_tol=1e-3)
    state = history.scheduler.state(history.now_s)
    assert not any(waiting.queued for waiting in state.tiers.values())


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(MODES), st.booleans(), events)
def test_the_same_history_gives_the_same_decisions(mode: str, iterates: bool, what: list[list[object]]) -> None:
    assert played(mode, iterates, what).log == played(mode, iterates, what).log


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 0.05), st.sampled_from(["middle", "low"])), min_size=2, max_size=60))
def test_inside_a_tier_the_older_goes_first(arrivals: list[tuple[float, str]]) -> None:
    run = drive.Drive(
        create(drive.settings(tiers=TIERS, window_dynamic=False, window_busy=2), 0.0), lambda size: 0.004 + 0.001 * size
    )
    now_s = 0.0
    for number, (gap_s, name) in enumerate(arrivals):
        now_s += gap_s
        run.submit(Request(str(number), name, now_s))
    run.until(math.inf)
    for name in ("middle", "low"):
        served = [int(w.request.id) for _, step in run.steps for w in step.work if w.request.tier == name]
        in_time = [n for n in served if run.answer(str(n)).outcome is Outcome.OK]
        assert in_time == sorted(in_time)
