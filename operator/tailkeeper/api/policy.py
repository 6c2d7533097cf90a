"""`BatchingPolicy`: what users write. Every default that depends on the traffic class lives in `defaults`, not here:
a default in the schema would undo inheritance from class to policy to instance.

The schema of the CRD is generated from these models (`crd`), and the API server accepts what they accept: a validator
has its twin in CEL beside it, and those that look at more than one object have theirs in `rules`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import (
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)

from tailkeeper.api.base import LABEL, Bool, Contract, DnsLabel, Int, Keyed, ObjectName, Rule, Str, Unique, rules
from tailkeeper.api.batching import Batching, Tier
from tailkeeper.api.enums import Engine, Lever, RetuneMode, RolloutStrategy, TrafficClass
from tailkeeper.api.meta import NAME_FORM, PolicyMeta
from tailkeeper.api.names import API_VERSION, NAME_BUDGET, POLICY_KIND
from tailkeeper.api.resolve import resolve_all
from tailkeeper.api.rules import SPEC_RULES
from tailkeeper.api.status import PolicyStatus

MAX_INSTANCES = 32
MAX_TIERS = 8


SecretKey = Annotated[Str, StringConstraints(pattern=r"^[-._a-zA-Z0-9]+$", min_length=1, max_length=253)]
PATH_PART = r"\.?[-A-Za-z0-9_][-A-Za-z0-9_.]*"
"""A folder's name. It may be hidden, and it is not `..`, with which a volume's path would be refused later."""
RelativePath = Annotated[Str, StringConstraints(pattern=rf"^{PATH_PART}(/{PATH_PART})*/?$", max_length=512)]
AbsolutePath = Annotated[Str, StringConstraints(pattern=rf"^(/{PATH_PART})+/?$", max_length=512)]


class SecretKeyRef(Contract):
    """One key of a Secret in the policy's namespace."""

    name: ObjectName = Field(description="Name of the Secret.")
    key: SecretKey = Field("token", description="Key inside the Secret.")


class ClaimSource(Contract):
    """Weights on a PersistentVolumeClaim in the policy's namespace, mounted read-only."""

    claim_name: ObjectName = Field(description="Name of the PersistentVolumeClaim.")
    path: RelativePath | None = Field(None, description="Folder inside the volume; the volume's root when absent.")


class HuggingFaceSource(Contract):
    """Weights from the Hugging Face hub, or from its cache where one is mounted."""

    id: Annotated[
        Str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_.]*(/[A-Za-z0-9][-A-Za-z0-9_.]*)?$", max_length=192)
    ] = Field(description="Name on the hub: ORGANISATION/MODEL.")
    revision: Annotated[Str, StringConstraints(pattern=r"^[-A-Za-z0-9_./]+$", max_length=128)] | None = Field(
        None, description="Commit, tag or branch; a commit makes a rollout repeatable."
    )
    token_secret: SecretKeyRef | None = None


@dataclass(frozen=True)
class Sources:
    """What an engine needs to find its model."""

    least_weights: int
    """Of path, persistentVolumeClaim and huggingFace."""
    most_weights: int
    factory: bool
    url: bool
    words: str


_WEIGHTS = Sources(1, 1, False, False, "exactly one of path, persistentVolumeClaim, huggingFace; no factory and no url")
_SERVER = Sources(0, 0, False, True, "url; no path, persistentVolumeClaim, huggingFace or factory")
SOURCES: Mapping[Engine, Sources] = {
    Engine.CAUSAL_LM: _WEIGHTS,
    Engine.ENCODER: _WEIGHTS,
    Engine.MODULE: Sources(
        0, 1, True, False, "factory, at most one of path, persistentVolumeClaim, huggingFace; no url"
    ),
    Engine.TRITON: _SERVER,
    Engine.UPSTREAM: _SERVER,
}


def _source_rules() -> Iterator[Rule]:
    weights = "[has(self.path), has(self.persistentVolumeClaim), has(self.huggingFace)].filter(given, given).size()"
    for engine, need in SOURCES.items():
        yield Rule(
            f"self.engine != '{engine}' || {weights} >= {need.least_weights} && {weights} <= {need.most_weights} && "
            f"{'' if need.factory else '!'}has(self.factory) && {'' if need.url else '!'}has(self.url)",
            f"model with engine {engine} needs {need.words}",
        )


class Model(Contract):
    """One model and where it comes from: exactly one source, and one that the engine can use."""

    model_config = ConfigDict(json_schema_extra=rules(*_source_rules()))

    name: Annotated[Str, StringConstraints(pattern=r"^[A-Za-z0-9][-A-Za-z0-9_./:]*$", max_length=128)] = Field(
        description="The name that clients ask for."
    )
    engine: Engine = Field(
        description="What runs the model: causal-lm, encoder or module (a torch module of your own) in the worker, "
        "triton or upstream (an OpenAI-compatible server) behind it. Immutable: make a new instance to change it.",
        json_schema_extra=rules(
            Rule("self == oldSelf", "engine is immutable: add an instance of another name instead")
        ),
    )
    path: AbsolutePath | None = Field(None, description="Absolute folder in the worker's container.")
    persistent_volume_claim: ClaimSource | None = Field(
        None, description="Weights on a PersistentVolumeClaim in the policy's namespace, mounted read-only."
    )
    hugging_face: HuggingFaceSource | None = Field(
        None, description="Weights from the Hugging Face hub, or from its cache where one is mounted."
    )
    factory: (
        Annotated[Str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", max_length=256)]
        | None
    ) = Field(None, description="Entry point package.module:factory of a torch module; for the module engine.")
    url: (
        Annotated[Str, StringConstraints(pattern=r"^(https?|grpcs?)://[!-.0-~]+(/[!-~]*)?$", max_length=512)] | None
    ) = Field(None, description="Address of the server; for the triton and upstream engines.")

    @model_validator(mode="after")
    def _source_fits_engine(self) -> Self:
        weights = sum(source is not None for source in (self.path, self.persistent_volume_claim, self.hugging_face))
        need = SOURCES[self.engine]
        if (
            not need.least_weights <= weights <= need.most_weights
            or (self.factory is not None) != need.factory
            or (self.url is not None) != need.url
        ):
            raise ValueError(f"engine {self.engine} needs {need.words}")
        return self


class Instance(Contract):
    """One model with settings of its own, run as one Deployment of workers."""

    name: DnsLabel = Field(
        description="Name of the instance. Its Deployment and Service are called POLICY-INSTANCE, under 54 characters."
    )
    replicas: Annotated[Int, Field(ge=0, le=1000)] | None = Field(
        None, description="Workers. Absent: not owned, an autoscaler may set it on the Deployment."
    )
    model: Model
    batching: Batching | None = Field(None, description="Overrides of the policy's batching settings, field by field.")
    tiers: Annotated[list[Tier], Field(max_length=MAX_TIERS), Keyed("name")] | None = Field(
        None, description="Overrides of the policy's tiers, by name and field by field. An instance adds no tier."
    )
    default_tier: DnsLabel | None = Field(None, description="Tier of a request to this instance that names none.")
    template: dict[str, JsonValue] | None = Field(
        None,
        description="Overlay of the pod template (metadata, spec): lists merge by name as kubectl patch does, null "
        "removes. The worker's container is called worker.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )


class Retune(Contract):
    """What the tuner may do."""

    mode: RetuneMode = Field(
        RetuneMode.AUTO,
        description="Auto moves levers within the bounds of the spec, Recommend only says which move it would make, "
        "Off does neither.",
    )
    interval_seconds: Annotated[Int, Field(ge=1, le=300)] = Field(5, description="How often the tuner looks.")
    pin: Annotated[list[Lever], Field(max_length=len(Lever)), Unique()] = Field(
        default_factory=list, description="Levers that the tuner leaves alone."
    )


class Profiles(Contract):
    """What is learnt about a model, kept for the next one."""

    record: Bool = Field(True, description="Keep what is learnt in a BatchingProfile.")
    start_from: ObjectName | None = Field(None, description="Profile whose levers a new instance starts from.")


class Review(Contract):
    """The regular comparison of latency and arrival distributions with those of the last review."""

    interval_days: Annotated[Int, Field(ge=1, le=3650)] = Field(90, description="Days from one review to the next.")


class ApiKeys(Contract):
    """API keys that callers must present: every entry of the Secret is TENANT: KEY, or TENANT: KEY TIER[,TIER…] where
    the tenant may use some tiers only."""

    secret_name: ObjectName = Field(description="Name of the Secret in the policy's namespace.")


class PolicySpec(Contract):
    """What to run, which SLA to keep, and how far the tuner may go."""

    model_config = ConfigDict(json_schema_extra=rules(*SPEC_RULES))

    traffic_class: TrafficClass = Field(
        TrafficClass.ONLINE,
        description="What matters about the traffic: online the tail and the first token, offline total throughput. "
        "Chooses the defaults of batching and tiers.",
    )
    batching: Batching | None = Field(
        None, description="Batching settings of every instance that does not override them."
    )
    tiers: Annotated[list[Tier], Field(min_length=1, max_length=MAX_TIERS), Keyed("name")] | None = Field(
        None, description="The tiers there are. Fields not given come from the traffic class, by the tier's name."
    )
    default_tier: DnsLabel | None = Field(
        None,
        description="Tier of a request that names none. Default: interactive "
        "(online) or batch (offline) if it is one of the tiers, else the first.",
    )
    instances: Annotated[list[Instance], Field(min_length=1, max_length=MAX_INSTANCES), Keyed("name")] = Field(
        description="The model instances, each with a Deployment, a Service and settings of its own."
    )
    retune: Retune = Field(default_factory=Retune)
    rollout_strategy: RolloutStrategy = Field(
        RolloutStrategy.SURGE_FIRST,
        description="SurgeFirst starts the new pod before it drains an old one; DrainFirst drains first, for clusters "
        "where no GPU is free for a surge.",
    )
    profiles: Profiles = Field(default_factory=Profiles)
    review: Review = Field(default_factory=Review)
    api_keys: ApiKeys | None = Field(
        None,
        description="API keys that callers must present: every entry of the Secret is TENANT: KEY, or TENANT: KEY "
        "TIER[,TIER…] where the tenant may use some tiers only. Absent: everybody may call.",
    )
    drain_seconds: Annotated[Int, Field(ge=1, le=3600)] = Field(
        45, description="How long a stopping worker may finish what it has; grace period and preStop follow from it."
    )

    def batching_of(self, instance: Instance) -> Batching:
        """The policy's batching with what the instance says over it; nothing is defaulted."""
        base, own = self.batching or Batching(), instance.batching or Batching()
        # Not validated: what contradicts itself only once put together is the resolver's to refuse, with its path.
        return base.model_copy(update={name: value for name, value in own if value is not None})

    @model_validator(mode="after")
    def _effective_settings_hold(self) -> Self:
        resolve_all(self)
        return self


_NAME_LENGTH = (
    f"metadata.name and instances[].name together must have fewer than {NAME_BUDGET} characters, because Services, "
    "pods and ConfigMaps are named after both: shorten one"
)


def _own_status_or_none(value: object, read: ValidatorFunctionWrapHandler) -> object:
    """A status that another version wrote and we cannot read is as good as none: it is computed anew. The policy of the
    user must stay readable."""
    try:
        return read(value)
    except ValidationError:
        return None


class BatchingPolicy(Contract):
    """A set of model instances, their SLA, and how far the tuner may go to keep it."""

    model_config = ConfigDict(
        json_schema_extra=rules(
            Rule(f"self.metadata.name.matches('{LABEL}')", NAME_FORM, field=".metadata.name"),
            Rule(
                f"self.spec.instances.all(i, size(self.metadata.name) + size(i.name) < {NAME_BUDGET})",
                _NAME_LENGTH,
                field=".spec.instances",
            ),
        )
    )

    api_version: Literal["tailkeeper.dev/v1alpha1"] = API_VERSION
    kind: Literal["BatchingPolicy"] = POLICY_KIND
    metadata: PolicyMeta
    spec: PolicySpec
    status: Annotated[PolicyStatus | None, WrapValidator(_own_status_or_none)] = None

    @model_validator(mode="after")
    def _names_fit(self) -> Self:
        for instance in self.spec.instances:
            if len(self.metadata.name) + len(instance.name) >= NAME_BUDGET:
                raise ValueError(f"spec.instances[{instance.name}].name: {_NAME_LENGTH}")
        return self
