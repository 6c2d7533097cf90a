"""The closed loop in virtual time: plant, scrape, look-backs, decision, and the new settings half a second later."""

from dataclasses import dataclass, field, replace

from tailkeeper.api.enums import Mode, TrafficClass
from tailkeeper.api.levers import Move, move
from tailkeeper.api.settings import Settings, TierSettings
from tailkeeper.control.decide import decide
from tailkeeper.control.decision import Decision
from tailkeeper.control.freeze import Situation
from tailkeeper.control.history import History
from tailkeeper.control.move import Bounds
from tailkeeper.control.state import State
from tests.unit.control.plant import Plant

TRAVEL_S = 0.5
"""From the operator's write to the worker's use."""


def settings(**changes: object) -> Settings:
    """One interactive and one batch tier, SLA 200 ms."""
    base = Settings(
        generation=1,
        policy_namespace="default",
        policy="demo",
        model_instance="m",
        traffic_class=TrafficClass.ONLINE,
        mode=Mode.REQUEST,
        window_dynamic=True,
        window_idle=64,
        window_busy=16,
        priority_queue=True,
        timeout_target_per_mille=5,
        min_efficiency_percent=70,
        tiers=[
            TierSettings(name="interactive", deadline_ms=200, timeout_ms=400, max_hold_ms=4),
            TierSettings(name="batch", deadline_ms=12_000, timeout_ms=24_000, max_hold_ms=12_000, reserve_percent=10),
        ],
        default_tier="interactive",
        ceiling=64,
    )
    return base.but(**changes)


def slow_settings(**changes: object) -> Settings:
    """Everything four times as slow as `settings`, for the plant's default engine: as telling with a quarter of the
    events."""
    tiers = [
        tier.but(
            deadline_ms=4 * tier.deadline_ms,
            timeout_ms=4 * (tier.timeout_ms or 0),
            max_hold_ms=4 * tier.max_hold_ms,
        )
        for tier in settings().tiers
    ]
    return settings(tiers=tiers).but(**changes)


@dataclass
class Loop:
    plant: Plant
    spec: Settings
    tick_s: float = 5.0
    situation: Situation = field(default_factory=Situation)
    state: State = field(default_factory=State)
    history: History = field(default_factory=History)
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    written: Settings | None = None

    def __post_init__(self) -> None:
        self.written = self.plant.settings
        self.due: list[tuple[float, Settings]] = []
        self.bounds = Bounds(self.spec)

    @property
    def moves(self) -> list[tuple[float, Decision]]:
        return [(at_s, decision) for at_s, decision in self.decisions if decision.step is not None]

    def run(self, until_s: float) -> None:
        while self.plant.now_s < until_s - 1e-9:
            next_s = min(until_s, self.plant.now_s + self.tick_s)
            for at_s, due in list(self.due):
                if at_s <= next_s:
                    self.plant.run(at_s)
                    self.plant.apply(due)
                    self.due.remove((at_s, due))
            self.plant.run(next_s)
            self.tick()

    def tick(self) -> Decision:
        assert self.written is not None
        now_s, sample = self.plant.now_s, self.plant.sample()
        observation = self.history.observe([sample], {sample.pod}, now_s)
        situation = replace(self.situation, applied=(self.plant.settings.generation,))
        self.state, decision = decide(self.state, observation, self.written, self.bounds, situation, now_s)
        self.decisions.append((now_s, decision))
        if decision.step is not None:
            self.write(decision.step.moves)
        return decision

    def write(self, moves: tuple[Move, ...]) -> None:
        assert self.written is not None
        self.written = move(self.written, moves, self.spec).but(generation=self.written.generation + 1)
        self.due.append((self.plant.now_s + TRAVEL_S, self.written))

    def inside_after_s(self, since_s: float, tier: str = "interactive") -> float | None:
        """Seconds from the first late request after `since_s` to the first of three 5 s buckets with <= 1 % late."""
        late = sorted(at_s for at_s in self.plant.late_at if at_s >= since_s)
        if not late:
            return 0.0
        start = late[0]
        buckets = int((self.plant.now_s - 5 - start) / 5)
        over = [self.plant.over_sla(start + 5 * i, start + 5 * i + 5, tier) for i in range(buckets)]
        for index in range(len(over) - 2):
            if max(over[index : index + 3]) <= 0.01:
                return 5.0 * index
        return None
