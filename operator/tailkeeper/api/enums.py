"""Words of the contract that are one of a few."""

from enum import StrEnum


class TrafficClass(StrEnum):
    """What matters about the traffic: `online` the tail and the first token, `offline` total throughput."""

    ONLINE = "online"
    OFFLINE = "offline"


class Mode(StrEnum):
    """How batches form: each iteration anew, batch by batch, or wait until the window is full (the old way)."""

    CONTINUOUS = "continuous"
    REQUEST = "request"
    FIXED = "fixed"


class Engine(StrEnum):
    """What runs the forward passes."""

    CAUSAL_LM = "causal-lm"
    ENCODER = "encoder"
    MODULE = "module"
    TRITON = "triton"
    UPSTREAM = "upstream"


class Lever(StrEnum):
    """What a move may change."""

    CEILING = "ceiling"
    MARGIN = "margin"
    MAX_HOLD = "maxHold"
    BOOST = "boost"
    RESERVE = "reserve"
    PREEMPTION = "preemption"
    TOKEN_BUDGET = "tokenBudget"


class RetuneMode(StrEnum):
    """`Auto` moves levers, `Recommend` only says which move it would make, `Off` does neither."""

    AUTO = "Auto"
    RECOMMEND = "Recommend"
    OFF = "Off"


class RolloutStrategy(StrEnum):
    """`SurgeFirst` starts the new pod before it drains an old one; `DrainFirst` when no GPU is free for a surge."""

    SURGE_FIRST = "SurgeFirst"
    DRAIN_FIRST = "DrainFirst"


class MoveCause(StrEnum):
    """Why a move was made."""

    CAPACITY = "Capacity"
    HOLD = "Hold"
    LONG_BATCHES = "LongBatches"
    PRIORITY = "Priority"
    FIRST_TOKEN = "FirstToken"
    INTER_TOKEN = "InterToken"
    RECOVERY = "Recovery"
    ROLLBACK = "Rollback"
    MANUAL = "Manual"
    SPEC = "Spec"


class MoveOutcome(StrEnum):
    """What became of a move."""

    PENDING = "Pending"
    KEPT = "Kept"
    ROLLED_BACK = "RolledBack"
    RECOMMENDED = "Recommended"


class StillReason(StrEnum):
    """Why the tuner made no move: not moving has a name too."""

    WITHIN_SLA = "WithinSla"
    NO_DATA = "NoData"
    STALE = "Stale"
    FEW_SAMPLES = "FewSamples"
    IDLE = "Idle"
    SETTLING = "Settling"
    COOLDOWN = "Cooldown"
    AT_BOUND = "AtBound"
    NOT_IN_SYNC = "NotInSync"
    ROLLOUT_IN_PROGRESS = "RolloutInProgress"
    CAPACITY_SHORT = "CapacityShort"
    PAUSED = "Paused"
    CONFLICT = "Conflict"
    PROMETHEUS_ERROR = "PrometheusError"


class ConditionType(StrEnum):
    """Conditions of a BatchingPolicy."""

    ACCEPTED = "Accepted"
    READY = "Ready"
    SLA_MET = "SlaMet"
    METRICS_AVAILABLE = "MetricsAvailable"
    SETTINGS_APPLIED = "SettingsApplied"
    CAPACITY_SHORT = "CapacityShort"
    DRIFT_DETECTED = "DriftDetected"


class ConditionStatus(StrEnum):
    """As the Kubernetes API conventions have it."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"
