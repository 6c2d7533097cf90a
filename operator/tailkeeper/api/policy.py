"""`BatchingPolicy`: what users write. Every default that depends on the traffic class lives in `resolve`, not here:
a default in the schema would undo inheritance from class to policy to instance."""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, StringConstraints, model_validator

from tailkeeper.api.base import Bool, Contract, DnsLabel, Int, Milliseconds, ObjectName, Percent, Str
from tailkeeper.api.enums import Engine, Lever, Mode, RetuneMode, RolloutStrategy, TrafficClass
from tailkeeper.api.names import API_VERSION, NAME_BUDGET, POLICY_KIND
from tailkeeper.api.settings import Window
from tailkeeper.api.status import PolicyStatus

MAX_INSTANCES = 32
MAX_TIERS = 8


class Batching(Contract):
    """Batching settings; the policy's hold for every instance that does not override them."""

    mode: Mode | None = Field(
        None,
        description="continuous (iteration level), request (batch by batch) or fixed "
        "(wait until windowIdle requests are there: the old way). Default by engine.",
    )
    window_dynamic: Bool | None = Field(
        None,
        description="Derive the window from the arrivals between windowBusy and "
        "windowIdle. When false the window is windowBusy.",
    )
    window_idle: Window | None = Field(None, description="Window when idle, and the most that it may ever be.")
    window_busy: Window | None = Field(None, description="Preferred window when busy.")
    priority_queue: Bool | None = Field(
        None, description="Order requests by tier. When false, tiers are labels on one first-in first-out queue."
    )
    tail_latency_sla_ms: Milliseconds | None = Field(
        None, description="p99 of the end-to-end latency of the default tier, in milliseconds."
    )
    first_token_sla_ms: Milliseconds | None = Field(None, description="p99 of the time to the first token.")
    inter_token_sla_ms: Milliseconds | None = Field(None, description="p99 of the time between tokens of a stream.")
    timeout_target_per_mille: Annotated[Int, Field(ge=0, le=1000)] | None = Field(
        None, description="Requests per thousand that may time out."
    )
    min_efficiency_percent: Percent | None = Field(
        None, description="Least work per busy second, as a share of that at the saturation window."
    )

    @model_validator(mode="after")
    def _windows_ordered(self) -> Self:
        if self.window_busy is not None and self.window_idle is not None and self.window_busy > self.window_idle:
            raise ValueError(f"windowBusy ({self.window_busy}) must not exceed windowIdle ({self.window_idle})")
        return self


class Tier(Contract):
    """A priority level of requests. Its deadline is its SLA (p99)."""

    name: DnsLabel
    deadline_ms: Milliseconds | None = Field(None, description="The tier's SLA: p99 of its end-to-end latency.")
    timeout_ms: Milliseconds | None = Field(None, description="When the caller is gone.")
    max_hold_ms: Annotated[Int, Field(ge=0, le=86_400_000)] | None = Field(
        None, description="Longest that an incomplete batch is kept open for a request of this tier; 0 starts at once."
    )
    preempts: Bool | None = Field(None, description="May take the slot of a running request of a lower tier.")
    reserve_percent: Annotated[Int, Field(ge=0, le=90)] | None = Field(
        None, description="Share of a batch kept for this tier's requests that are due."
    )

    @model_validator(mode="after")
    def _timeout_after_deadline(self) -> Self:
        if self.timeout_ms is not None and self.deadline_ms is not None and self.timeout_ms < self.deadline_ms:
            raise ValueError(f"timeoutMs ({self.timeout_ms}) must not be under deadlineMs ({self.deadline_ms})")
        return self


SecretKey = Annotated[Str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)]
RelativePath = Annotated[Str, StringConstraints(pattern=r"^[A-Za-z0-9_][-A-Za-z0-9_./]*$", max_length=512)]


class SecretKeyRef(Contract):
    """One key of a Secret in the policy's namespace."""

    name: ObjectName
    key: SecretKey = "token"


class ClaimSource(Contract):
    """Weights on a PersistentVolumeClaim in the policy's namespace, mounted read-only."""

    claim_name: ObjectName
    path: RelativePath | None = Field(None, description="Folder inside the volume; the volume's root when absent.")


class HuggingFaceSource(Contract):
    """Weights from the Hugging Face hub, or from its cache where one is mounted."""

    id: Annotated[
        Str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]*(/[A-Za-z0-9][-A-Za-z0-9_.]*)?$", max_length=192)
    ]
    revision: Annotated[Str, StringConstraints(pattern=r"^[-A-Za-z0-9_./]+$", max_length=128)] | None = Field(
        None, description="Commit, tag or branch; a commit makes a rollout repeatable."
    )
    token_secret: SecretKeyRef | None = None


class Model(Contract):
    """One model and where it comes from: exactly one source, and one that the engine can use."""

    name: Annotated[Str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./:]*$", max_length=128)] = Field(
        description="The name that clients ask for."
    )
    engine: Engine = Field(description="Immutable.")
    path: Annotated[Str, StringConstraints(pattern=r"^/[-A-Za-z0-9_./]*$", max_length=512)] | None = Field(
        None, description="Absolute folder in the worker's container."
    )
    persistent_volume_claim: ClaimSource | None = None
    hugging_face: HuggingFaceSource | None = None
    factory: Annotated[Str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", max_length=256)] | None = (
        Field(None, description="Entry point package.module:factory of a torch module; for the module engine.")
    )
    url: Annotated[Str, StringConstraints(pattern=r"^(https?|grpcs?)://[^\s/]+(/[^\s]*)?$", max_length=512)] | None = (
        Field(None, description="Address of the server; for the triton and upstream engines.")
    )

    @model_validator(mode="after")
    def _source_fits_engine(self) -> Self:
        weights = [self.path, self.persistent_volume_claim, self.hugging_face]
        given = sum(source is not None for source in weights)
        match self.engine:
            case Engine.CAUSAL_LM | Engine.ENCODER:
                ok = given == 1 and self.factory is None and self.url is None
                need = "exactly one of path, persistentVolumeClaim, huggingFace, and neither factory nor url"
            case Engine.MODULE:
                ok = given <= 1 and self.factory is not None and self.url is None
                need = "factory, at most one of path, persistentVolumeClaim, huggingFace, and no url"
            case Engine.TRITON | Engine.UPSTREAM:
                ok = given == 0 and self.factory is None and self.url is not None
                need = "url, and no other source"
        if not ok:
            raise ValueError(f"engine {self.engine.value} needs {need}")
        return self


class Instance(Contract):
    """One model with settings of its own, run as one Deployment of workers."""

    name: DnsLabel
    replicas: Annotated[Int, Field(ge=0, le=1000)] | None = Field(
        None, description="Workers. Absent: not owned, an autoscaler may set it on the Deployment."
    )
    model: Model
    batching: Batching | None = None
    tiers: Annotated[list[Tier], Field(max_length=MAX_TIERS)] | None = Field(
        None, description="Overrides of the policy's tiers, by name."
    )
    default_tier: DnsLabel | None = None
    template: dict[str, JsonValue] | None = Field(
        None, description="Overlay of the pod template; lists merge by name as kubectl patch does."
    )


class Retune(Contract):
    """What the tuner may do."""

    mode: RetuneMode = RetuneMode.AUTO
    interval_seconds: Annotated[Int, Field(ge=1, le=300)] = 5
    pin: Annotated[list[Lever], Field(max_length=len(Lever))] = Field(
        default_factory=list, description="Levers that the tuner leaves alone."
    )


class Profiles(Contract):
    """What is learnt about a model, kept for the next one."""

    record: Bool = True
    start_from: DnsLabel | None = Field(None, description="Profile whose levers a new instance starts from.")


class Review(Contract):
    """The regular comparison of latency and arrival distributions with those of the last review."""

    interval_days: Annotated[Int, Field(ge=1, le=3650)] = 90


class ApiKeys(Contract):
    """API keys that callers must present: every entry of the Secret is TENANT: KEY, or TENANT: KEY TIER[,TIER…] where
    the tenant may use some tiers only."""

    secret_name: ObjectName


class PolicySpec(Contract):
    """`spec` of a BatchingPolicy."""

    traffic_class: TrafficClass = TrafficClass.ONLINE
    batching: Batching | None = None
    tiers: Annotated[list[Tier], Field(min_length=1, max_length=MAX_TIERS)] | None = Field(
        None, description="The tiers there are. Fields not given come from the traffic class, by the tier's name."
    )
    default_tier: DnsLabel | None = Field(None, description="Tier of a request that names none.")
    instances: Annotated[list[Instance], Field(min_length=1, max_length=MAX_INSTANCES)]
    retune: Retune = Field(default_factory=Retune)
    rollout_strategy: RolloutStrategy = RolloutStrategy.SURGE_FIRST
    profiles: Profiles = Field(default_factory=Profiles)
    review: Review = Field(default_factory=Review)
    api_keys: ApiKeys | None = None
    drain_seconds: Annotated[Int, Field(ge=1, le=3600)] = Field(
        45, description="How long a stopping worker may finish what it has; grace period and preStop follow from it."
    )

    @model_validator(mode="after")
    def _effective_settings_hold(self) -> Self:
        from tailkeeper.api.resolve import resolve_all  # the resolver needs these models

        names = [instance.name for instance in self.instances]
        if len(set(names)) != len(names):
            raise ValueError("instances: names must be unique")
        resolve_all(self)
        return self


class ObjectMeta(Contract):
    """The part of `metadata` that Tailkeeper reads; everything else passes by."""

    model_config = ConfigDict(extra="ignore")

    name: ObjectName
    namespace: DnsLabel | None = None
    uid: Str | None = None
    generation: Int | None = None
    resource_version: Str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    deletion_timestamp: Str | None = None


class BatchingPolicy(Contract):
    """A set of model instances, their SLA, and how far the tuner may go to keep it."""

    api_version: Literal["tailkeeper.dev/v1alpha1"] = API_VERSION
    kind: Literal["BatchingPolicy"] = POLICY_KIND
    metadata: ObjectMeta
    spec: PolicySpec
    status: PolicyStatus | None = None

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        for instance in self.spec.instances:
            if "." in self.metadata.name or not self.metadata.name[0].isalpha():
                raise ValueError(
                    "metadata.name: must be a DNS label that starts with a letter: Services are named after it"
                )
            if len(self.metadata.name) + 1 + len(instance.name) > NAME_BUDGET:
                raise ValueError(
                    f"spec.instances: {self.metadata.name}-{instance.name} is over {NAME_BUDGET} characters"
                )
        return self
