"""Both resources on a real API server: installed, shown, defaulted, pruned, kept immutable where they must be."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tailkeeper.api.enums import ConditionStatus, ConditionType, Engine, Lever, MoveCause, MoveOutcome
from tailkeeper.api.levers import changes, move, parse_moves
from tailkeeper.api.meta import ObjectMeta
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.profile import (
    Arrivals,
    BatchingProfile,
    GapBucket,
    Hardware,
    ProfileSpec,
    ProfileStatus,
    ReviewRecord,
    TierQuantiles,
    TuningRecord,
    WindowThroughput,
)
from tailkeeper.api.resolve import initial_settings, resolve_all
from tailkeeper.api.settings import LatencyPrior
from tailkeeper.api.status import Condition, InstanceStatus, MoveRecord, PolicyStatus
from tests.integration.control_plane import ControlPlane
from tests.integration.resources import Object, Resources, minimal, policy

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
NOW = "2026-03-01T12:00:00Z"


@pytest.fixture
def policies(crds: ControlPlane, namespace: str) -> Iterator[Resources]:
    with crds.client() as client:
        yield Resources(client, namespace)


@pytest.fixture
def profiles(policies: Resources) -> Resources:
    return Resources(policies.client, policies.namespace, "batchingprofiles")


class TestInstalled:
    def test_without_a_warning(self, apiserver: ControlPlane) -> None:
        applied = apiserver.kubectl("apply", "--server-side", "--warnings-as-errors", "-f", str(ROOT / "crds"))
        assert applied.stderr == ""

    @pytest.mark.parametrize("plural", ["batchingpolicies", "batchingprofiles"])
    def test_established_and_structural(self, crds: ControlPlane, plural: str) -> None:
        with crds.client() as client:
            answer = client.get(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.tailkeeper.dev")
        conditions = {each["type"]: each["status"] for each in answer.json()["status"]["conditions"]}
        assert conditions == {"NamesAccepted": "True", "Established": "True"}

    def test_found_by_short_name_and_category(self, crds: ControlPlane) -> None:
        listed = crds.kubectl("api-resources", "--categories=tailkeeper", "--no-headers").stdout.split()
        assert {"bp", "batchingpolicies", "bprof", "batchingprofiles"} <= set(listed)


class TestExplained:
    @pytest.mark.parametrize(
        ("field", "words"),
        [
            ("bp", "how far the tuner may go"),
            ("bp.spec", "drainSeconds"),
            ("bp.spec.batching.windowIdle", "most that it may ever be"),
            ("bp.spec.tiers.deadlineMs", "p99"),
            ("bp.spec.instances.model.engine", "causal-lm, encoder or module"),
            ("bp.spec.instances.template", "Overlay of the pod template"),
            ("bp.status.instances.effective.ceiling", "Lever"),
            ("bprof.status.latencyModel", "nanoseconds"),
        ],
    )
    def test_by_kubectl(self, crds: ControlPlane, field: str, words: str) -> None:
        text = " ".join(crds.kubectl("explain", field).stdout.split())
        assert words in text


class TestShown:
    def test_columns_of_a_policy(self, crds: ControlPlane, policies: Resources) -> None:
        stored = policies.create(policy(minimal(), "chat"))
        stored["status"] = status_of(stored).to_json()
        assert policies.replace(stored, "/status").stored
        header, line = crds.kubectl("get", "bp", "-n", policies.namespace).stdout.splitlines()
        assert header.split() == ["NAME", "CLASS", "READY", "SLA", "MET", "RETUNE", "AGE"]
        assert line.split()[:5] == ["chat", "online", "1/1", "False", "Auto"]
        wide = crds.kubectl("get", "bp", "-o", "wide", "-n", policies.namespace).stdout.splitlines()[0]
        assert wide.split()[-4:] == ["ACCEPTED", "APPLIED", "METRICS", "SHORT"]

    def test_columns_of_a_profile(self, crds: ControlPlane, profiles: Resources) -> None:
        stored = profiles.create(profile().to_json() | {"status": None})
        stored["status"] = profile_status().to_json()
        assert profiles.replace(stored, "/status").stored
        header, line = crds.kubectl("get", "bprof", "-n", profiles.namespace).stdout.splitlines()
        assert header.split() == ["NAME", "MODEL", "ENGINE", "DEVICE", "IDLE", "BUSY", "UPDATED", "AGE"]
        assert line.split()[:6] == ["small.on-cpu", "small", "encoder", "cpu", "32", "8"]


class TestDefaulted:
    def test_what_does_not_depend_on_the_class(self, policies: Resources) -> None:
        stored = policies.create(policy(minimal()))
        assert stored["spec"] == minimal() | {
            "trafficClass": "online",
            "retune": {"mode": "Auto", "intervalSeconds": 5},
            "rolloutStrategy": "SurgeFirst",
            "profiles": {"record": True},
            "review": {"intervalDays": 90},
            "drainSeconds": 45,
        }

    def test_inside_what_is_given_in_part(self, policies: Resources) -> None:
        token = {"id": "org/name", "tokenSecret": {"name": "hub"}}
        said = minimal(retune={"mode": "Off"})
        said["instances"][0]["model"] = {"name": "m", "engine": "encoder", "huggingFace": token}
        spec = policies.create(policy(said))["spec"]
        assert spec["retune"] == {"mode": "Off", "intervalSeconds": 5}
        assert spec["instances"][0]["model"]["huggingFace"]["tokenSecret"] == {"name": "hub", "key": "token"}


class TestPruned:
    def test_unknown_fields_are_dropped_where_the_client_does_not_ask_for_errors(self, policies: Resources) -> None:
        said = minimal(colour="red", batching={"windowIdle": 8, "windowIddle": 9})
        stored = policies.create(policy(said), field_validation="Ignore")
        assert "colour" not in stored["spec"]
        assert stored["spec"]["batching"] == {"windowIdle": 8}

    def test_the_pod_template_is_kept_as_it_is(self, policies: Resources) -> None:
        template = {"spec": {"hostUsers": False, "nodeSelector": None, "new": [{"a": None, "b": 1.5}]}, "x": {}}
        said = minimal()
        said["instances"][0]["template"] = template
        assert policies.create(policy(said))["spec"]["instances"][0]["template"] == template


class TestImmutable:
    def test_engine_of_an_instance(self, policies: Resources) -> None:
        stored = policies.create(policy(minimal()))
        changed = copy.deepcopy(stored)
        changed["spec"]["instances"][0]["model"]["engine"] = "encoder"
        answer = policies.replace(changed)
        assert answer.fields == ("spec.instances[0].model.engine",)
        assert "engine is immutable: add an instance of another name instead" in answer.message

    def test_wherever_the_instance_stands(self, policies: Resources) -> None:
        encoder = {"name": "two", "model": {"name": "m", "engine": "encoder", "path": "/m"}}
        stored = policies.create(policy({"instances": [*minimal()["instances"], encoder]}))
        stored["spec"]["instances"].reverse()
        turned = policies.replace(stored)
        assert turned.stored, turned.message
        turned.stored["spec"]["instances"][0]["model"]["engine"] = "causal-lm"
        assert policies.replace(turned.stored).fields == ("spec.instances[0].model.engine",)

    def test_everything_else_may_change(self, policies: Resources) -> None:
        stored = policies.create(policy(minimal()))
        stored["spec"]["instances"][0]["model"] |= {"path": "/models/other", "name": "other"}
        stored["spec"]["trafficClass"] = "offline"
        assert policies.replace(stored).stored

    def test_spec_of_a_profile(self, profiles: Resources) -> None:
        stored = profiles.create(profile().to_json())
        stored["spec"]["hardware"]["deviceCount"] = 2
        answer = profiles.replace(stored)
        assert answer.fields == ("spec",)
        assert "make a new BatchingProfile instead" in answer.message


class TestStatus:
    def test_is_a_subresource(self, policies: Resources) -> None:
        stored = policies.create(policy(minimal()) | {"status": {"summary": "mine"}})
        assert "status" not in stored
        stored["status"] = {"summary": "1/1"}
        assert "status" not in policies.replace(stored).stored
        written = policies.replace(policies.get("test") | {"status": {"summary": "1/1"}}, "/status").stored
        assert written["status"] == {"summary": "1/1"}
        assert written["metadata"]["generation"] == stored["metadata"]["generation"]

    def test_comes_back_as_written(self, policies: Resources) -> None:
        stored = policies.create(policy(minimal()))
        status = status_of(stored)
        answer = policies.replace(stored | {"status": status.to_json()}, "/status")
        assert answer.stored["status"] == status.to_json()
        assert BatchingPolicy.model_validate(policies.get("test"), by_name=False).status == status

    @pytest.mark.parametrize(
        ("status", "field"),
        [
            ({"conditions": [{"type": "Ready"}]}, "status.conditions[0].status"),
            ({"conditions": [{"type": "Well"}]}, "status.conditions[0].type"),
            ({"instances": [{"name": "a"}, {"name": "a"}]}, "status.instances[1]"),
            ({"summary": "x" * 1025}, "status.summary"),
        ],
    )
    def test_is_checked_as_well(self, policies: Resources, status: Object, field: str) -> None:
        stored = policies.create(policy(minimal()))
        assert field in policies.replace(stored | {"status": status}, "/status").fields

    def test_that_cannot_be_read_does_not_make_the_policy_unreadable(self) -> None:
        """A newer version may have written it, with a condition or a lever that this one does not know."""
        newer = policy(minimal()) | {"status": {"conditions": [{"type": "FromTheFuture"}]}}
        assert BatchingPolicy.model_validate(newer, by_name=False).status is None

    def test_of_a_profile_comes_back_as_written(self, profiles: Resources) -> None:
        stored = profiles.create(profile().to_json())
        answer = profiles.replace(stored | {"status": profile_status().to_json()}, "/status")
        assert answer.stored, answer.message
        read = BatchingProfile.model_validate(answer.stored, by_name=False)
        assert (read.spec, read.status) == (profile().spec, profile_status())


class TestExamples:
    @pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
    def test_accepted_and_read_the_same(self, policies: Resources, path: Path) -> None:
        (said,) = yaml.safe_load_all(path.read_text())
        answer = policies.try_create(said)
        assert answer.stored, answer.message
        read = BatchingPolicy.model_validate(said, by_name=False)
        assert BatchingPolicy.model_validate(answer.stored, by_name=False).spec == read.spec
        assert resolve_all(read.spec).keys() == {instance.name for instance in read.spec.instances}

    def test_all_fields_has_them_all(self, crds: ControlPlane) -> None:
        said = yaml.safe_load((ROOT / "examples" / "all-fields.yaml").read_text())
        crd = yaml.safe_load((ROOT / "crds" / "batchingpolicies.yaml").read_text())
        schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
        assert _fields_of(said["spec"], "spec") >= _fields_in(schema, "spec")


def _fields_in(schema: Object, path: str) -> set[str]:
    if "items" in schema:
        return _fields_in(schema["items"], path)
    inner = schema.get("properties", {})
    return {path}.union(*(_fields_in(child, f"{path}.{name}") for name, child in inner.items()))


def _fields_of(value: object, path: str) -> set[str]:
    if isinstance(value, list):
        return set().union(*(_fields_of(item, path) for item in value))
    inner = value if isinstance(value, dict) else {}
    return {path}.union(*(_fields_of(child, f"{path}.{name}") for name, child in inner.items()))


def status_of(stored: Object) -> PolicyStatus:
    """A status with every field, of a policy with one instance."""
    spec = BatchingPolicy.model_validate(stored, by_name=False).spec
    (name, effective), *_ = resolve_all(spec).items()
    initial = initial_settings(effective, policy_namespace="a", policy="test", model_instance=name, generation=4)
    moved = move(initial, parse_moves("ceiling=4 maxHold.interactive=5 tokenBudget=9"), initial).but(
        latency_prior=LatencyPrior(fixed_ns=1)
    )
    conditions = [
        Condition(
            type=type_,
            status=ConditionStatus.FALSE,
            reason="Because",
            message="why",
            observed_generation=1,
            last_transition_time=NOW,
        )
        for type_ in ConditionType
    ]
    last_move = MoveRecord(
        time=NOW,
        cause=MoveCause.LONG_BATCHES,
        generation=4,
        changes=changes(initial, moved),
        numbers="late=7 of=200",
        outcome=MoveOutcome.KEPT,
    )
    instance = InstanceStatus(
        name=name,
        ready=True,
        reason="Serving",
        message="all is well",
        desired_replicas=1,
        ready_replicas=1,
        settings_generation=4,
        applied_generation=4,
        effective=moved,
        last_move=last_move,
        paused=True,
    )
    return PolicyStatus(observed_generation=1, conditions=conditions, instances=[instance], summary="1/1")


def profile() -> BatchingProfile:
    """What a profile is about."""
    return BatchingProfile(
        metadata=ObjectMeta(name="small.on-cpu"),
        spec=ProfileSpec(model="small", engine=Engine.ENCODER, hardware=Hardware(device="cpu", memory_mib=4096)),
    )


def profile_status() -> ProfileStatus:
    """What was learnt, every field of it."""
    tuning = TuningRecord(
        time=NOW,
        cause=MoveCause.HOLD,
        generation=3,
        changes=[{"lever": Lever.MARGIN, "before": "10%", "after": "20%"}],
        instance="a/chat/small",
        p99_before_us=2_000,
        p99_after_us=1_000,
        efficiency_percent_before=70,
        efficiency_percent_after=80,
    )
    review = ReviewRecord(
        time=NOW,
        arrivals=Arrivals(
            rate_per_hour=7, cv_percent=370, dispersion_percent=120, gaps=[GapBucket(upper_us=10, per_million=999_999)]
        ),
        tiers=[TierQuantiles(tier="batch", count=9, p50_us=1, p95_us=2, p99_us=3, batch_wait_p99_us=1)],
    )
    return ProfileStatus(
        latency_model=LatencyPrior(fixed_ns=6_000_000, per_request_ns=500_000),
        throughput=[WindowThroughput(window=8, work_per_second_milli=7)],
        saturation_window=32,
        recommended_window_idle=32,
        recommended_window_busy=8,
        last_review=review,
        tuning=[tuning],
        updated=NOW,
        conditions=[
            Condition(
                type=ConditionType.ACCEPTED, status=ConditionStatus.TRUE, reason="Learnt", last_transition_time=NOW
            )
        ],
    )
