"""What the chart renders from its values, and which values it refuses. The real Helm; no cluster."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tailkeeper.api.names import PORT_NAME_METRICS
from tailkeeper.reconcile.worker_pod import labels as worker_labels
from tests.integration import chart_snapshots
from tests.integration.helm import CHART, EVERYTHING, VALUE_SETS, Helm, HelmError, Object, Values, pick

CRDS = CHART.parents[1] / "crds"

sets = pytest.mark.parametrize("values", VALUE_SETS.values(), ids=VALUE_SETS)


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


def operator_container(objects: list[Object]) -> Object:
    [container] = pick(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    return container


def environment(objects: list[Object]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in operator_container(objects)["env"]}


def selects(selector: dict[str, str], pod: Object) -> bool:
    return selector.items() <= pod["metadata"]["labels"].items()


@sets
def test_lint_finds_nothing(helm: Helm, values: Values) -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", CHART, values=values)


@pytest.mark.parametrize("name", chart_snapshots.SETS)
def test_what_is_rendered_is_what_was_written_down(helm: Helm, name: str) -> None:
    written = chart_snapshots.path_of(name)
    again = "when the change is meant: python -m tests.integration.chart_snapshots"
    assert chart_snapshots.snapshot(helm, name) == written.read_text(), again


@sets
def test_roles_name_what_they_grant(helm: Helm, values: Values) -> None:
    roles = [o for o in helm.render(values) if o["kind"] in ("Role", "ClusterRole")]
    for role in roles:
        for rule in role["rules"]:
            assert all(rule.values()), f"an empty list in {role['metadata']['name']}"
            assert "*" not in [entry for entries in rule.values() for entry in entries]
            assert not {"escalate", "bind", "impersonate"} & set(rule["verbs"])


@sets
def test_the_service_finds_the_operator_and_nothing_else(helm: Helm, values: Values) -> None:
    objects = helm.render(values)
    service = pick(objects, "Service")
    operator = pick(objects, "Deployment")["spec"]["template"]
    assert selects(service["spec"]["selector"], operator)
    assert selects(pick(objects, "Deployment")["spec"]["selector"]["matchLabels"], operator)
    assert not selects(service["spec"]["selector"], pick(objects, "Pod"))
    ports = {port["name"] for port in operator_container(objects)["ports"]}
    assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports


@sets
def test_objects_are_in_the_releases_namespace_or_in_a_watched_one(helm: Helm, values: Values) -> None:
    cluster_wide = {"CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding"}
    cluster_wide |= {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    for thing in helm.render(values, namespace="platform"):
        namespace = thing["metadata"].get("namespace")
        if thing["kind"] in cluster_wide:
            assert namespace is None
        elif thing["kind"] in ("Role", "RoleBinding"):
            assert namespace in values["watchNamespaces"]
        else:
            assert namespace == "platform"


def test_definitions_are_the_generated_ones_and_are_kept(helm: Helm) -> None:
    rendered = [o for o in helm.render({}) if o["kind"] == "CustomResourceDefinition"]
    assert {crd["metadata"]["annotations"].pop("helm.sh/resource-policy") for crd in rendered} == {"keep"}
    generated = [yaml.safe_load(path.read_text()) for path in sorted(CRDS.glob("*.yaml"))]
    for crd in generated:
        found = pick(rendered, "CustomResourceDefinition", crd["metadata"]["name"])
        assert found["spec"] == crd["spec"]
        assert crd["metadata"].get("annotations", {}).items() <= found["metadata"]["annotations"].items()
    assert len(rendered) == len(generated)


def test_definitions_go_with_the_release_when_not_kept(helm: Helm) -> None:
    rendered = [o for o in helm.render({"crds": {"keep": False}}) if o["kind"] == "CustomResourceDefinition"]
    assert rendered
    assert not any("helm.sh/resource-policy" in crd["metadata"].get("annotations", {}) for crd in rendered)


def test_definitions_can_come_from_elsewhere(helm: Helm) -> None:
    assert not [o for o in helm.render({"crds": {"enabled": False}}) if o["kind"] == "CustomResourceDefinition"]


def test_all_namespaces_by_default(helm: Helm) -> None:
    objects = helm.render({})
    assert "TAILKEEPER_NAMESPACES" not in environment(objects)
    [subject] = pick(objects, "ClusterRoleBinding")["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": "tailkeeper", "namespace": "tailkeeper"}
    assert not [o for o in objects if o["kind"] in ("Role", "RoleBinding")]


def test_listed_namespaces_get_a_role_each_and_nothing_is_cluster_wide(helm: Helm) -> None:
    objects = helm.render({"watchNamespaces": ["team-a", "team-b", "team-a"], "rbac": {"aggregate": False}})
    assert environment(objects)["TAILKEEPER_NAMESPACES"] == "team-a,team-b"
    assert not [o for o in objects if o["kind"] in ("ClusterRole", "ClusterRoleBinding")]
    for kind in ("Role", "RoleBinding"):
        assert [o["metadata"]["namespace"] for o in objects if o["kind"] == kind] == ["team-a", "team-b"]
    whole_cluster = pick(helm.render({"rbac": {"aggregate": False}}), "ClusterRole")
    assert all(role["rules"] == whole_cluster["rules"] for role in objects if role["kind"] == "Role")


def test_images_by_tag_and_by_digest(helm: Helm) -> None:
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    defaults = helm.render({})
    assert operator_container(defaults)["image"] == f"tailkeeper/operator:{version}"
    assert environment(defaults)["TAILKEEPER_WORKER_IMAGE"] == f"tailkeeper/worker:{version}"
    chosen = helm.render(EVERYTHING)
    assert operator_container(chosen)["image"].endswith(f"/tailkeeper/operator@sha256:{'a' * 64}")
    assert environment(chosen)["TAILKEEPER_WORKER_IMAGE"].endswith("/tailkeeper/worker:0.1.0-cuda")


def test_the_operator_reads_the_overlay_of_workers_from_a_file(helm: Helm) -> None:
    objects = helm.render(EVERYTHING)
    container = operator_container(objects)
    folder, _, file = environment(objects)["TAILKEEPER_WORKER_TEMPLATE"].rpartition("/")
    [mount] = [m for m in container["volumeMounts"] if m["mountPath"] == folder]
    volumes = pick(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    [volume] = [v for v in volumes if v["name"] == mount["name"]]
    overlay = yaml.safe_load(pick(objects, "ConfigMap", volume["configMap"]["name"])["data"][file])
    given = EVERYTHING["workers"]["template"]
    assert overlay == {**given, "spec": {**given["spec"], "imagePullSecrets": [{"name": "pull"}]}}


def test_a_changed_overlay_restarts_the_operator(helm: Helm) -> None:
    def pod(values: Values) -> Object:
        return pick(helm.render(values), "Deployment")["spec"]["template"]

    changed = {"workers": {"template": {"spec": {"priorityClassName": "high"}}}}
    assert pod({}) == pod({"networkPolicy": {"enabled": True}})
    assert pod({}) != pod(changed)


def test_prometheus_is_told_with_its_credentials(helm: Helm) -> None:
    assert not [name for name in environment(helm.render({})) if "PROMETHEUS" in name or "SIGNALS" in name]
    objects = helm.render(EVERYTHING)
    assert environment(objects)["TAILKEEPER_PROMETHEUS_URL"] == EVERYTHING["prometheus"]["url"]
    assert environment(objects)["TAILKEEPER_PROMETHEUS_HEADERS"] == "X-Scope-OrgID=team-a,X-Via=b"
    assert environment(objects)["TAILKEEPER_SIGNALS"] == "prometheus"
    folder = environment(objects)["TAILKEEPER_PROMETHEUS_CREDENTIALS"]
    [mount] = [m for m in operator_container(objects)["volumeMounts"] if m["mountPath"] == folder]
    volumes = pick(objects, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert {"name": mount["name"], "secret": {"secretName": "prometheus-reader"}} in volumes
    assert mount["readOnly"]


def test_no_variable_of_the_chart_can_be_given_twice(helm: Helm) -> None:
    """The API server refuses a list with a name in it twice."""
    for name in environment(helm.render(EVERYTHING)).keys() - {EVERYTHING["extraEnv"][0]["name"]}:
        with pytest.raises(HelmError, match="/extraEnv/0/name"):
            helm.render({"extraEnv": [{"name": name, "value": "x"}]})


def test_one_operator_at_a_time(helm: Helm) -> None:
    spec = pick(helm.render(EVERYTHING), "Deployment")["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {"type": "Recreate"}


def test_pod_settings_arrive(helm: Helm) -> None:
    template = pick(helm.render(EVERYTHING), "Deployment")["spec"]["template"]
    for setting in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "imagePullSecrets"):
        assert template["spec"][setting] == EVERYTHING[setting]
    assert EVERYTHING["podLabels"].items() <= template["metadata"]["labels"].items()
    assert EVERYTHING["podAnnotations"].items() <= template["metadata"]["annotations"].items()
    assert template["spec"]["containers"][0]["resources"] == EVERYTHING["resources"]
    assert EVERYTHING["extraEnv"][0] in template["spec"]["containers"][0]["env"]


def test_a_spread_constraint_counts_the_operators_pods_unless_it_says_otherwise(helm: Helm) -> None:
    constraint = EVERYTHING["topologySpreadConstraints"][0]
    own = {"matchLabels": {"app": "other"}}
    spec = pick(
        helm.render({"topologySpreadConstraints": [constraint, {**constraint, "labelSelector": own}]}), "Deployment"
    )["spec"]
    filled, left_alone = spec["template"]["spec"]["topologySpreadConstraints"]
    assert filled == {**constraint, "labelSelector": spec["selector"]}
    assert left_alone == {**constraint, "labelSelector": own}


def test_the_network_policy_lets_the_helm_test_in(helm: Helm) -> None:
    objects = helm.render(EVERYTHING)
    policy = pick(objects, "NetworkPolicy")["spec"]
    assert selects(policy["podSelector"]["matchLabels"], pick(objects, "Deployment")["spec"]["template"])
    [rule] = policy["ingress"]
    peers = [peer["podSelector"]["matchLabels"] for peer in rule["from"] if "podSelector" in peer]
    assert any(selects(peer, pick(objects, "Pod")) for peer in peers)
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    anybody = pick(helm.render({"networkPolicy": {"enabled": True}}), "NetworkPolicy")["spec"]
    assert anybody["policyTypes"] == ["Ingress"]
    assert "from" not in anybody["ingress"][0]


def test_a_long_release_name_makes_valid_names(helm: Helm) -> None:
    for thing in helm.render({}, release="r" * 53):
        assert len(thing["metadata"]["name"]) <= 63


def test_labels_tell_the_release_everywhere(helm: Helm) -> None:
    for thing in helm.render(EVERYTHING, release="canary"):
        labels = thing["metadata"]["labels"]
        assert labels["app.kubernetes.io/instance"] == "canary"
        assert labels["app.kubernetes.io/managed-by"] == "Helm"
        assert labels["team"] == "serving"


def test_labels_of_users_cannot_break_a_selector(helm: Helm) -> None:
    taken = dict.fromkeys(("app.kubernetes.io/name", "app.kubernetes.io/component", "release"), "taken")
    objects = helm.render({"commonLabels": taken, "podLabels": taken}, release="1e3")
    operator = pick(objects, "Deployment")["spec"]["template"]
    assert selects(pick(objects, "Service")["spec"]["selector"], operator)
    assert not selects(pick(objects, "Service")["spec"]["selector"], pick(objects, "Pod"))
    assert operator["metadata"]["labels"]["release"] == "taken"


def test_prometheus_finds_the_workers_that_the_operator_serves(helm: Helm) -> None:
    worker = {"metadata": {"labels": worker_labels("search", "minilm")}}
    for watched, namespaces in (([], {"any": True}), (["team-a"], {"matchNames": ["team-a"]})):
        objects = helm.render({"watchNamespaces": watched, "podMonitor": {"enabled": True}})
        workers = pick(objects, "PodMonitor", "tailkeeper-workers")["spec"]
        assert workers["namespaceSelector"] == namespaces
        assert selects(workers["selector"]["matchLabels"], worker)
        assert [endpoint["port"] for endpoint in workers["podMetricsEndpoints"]] == [PORT_NAME_METRICS]
        operator = pick(objects, "PodMonitor", "tailkeeper")["spec"]
        assert selects(operator["selector"]["matchLabels"], pick(objects, "Deployment")["spec"]["template"])
        ports = {port["name"] for port in operator_container(objects)["ports"]}
        assert {endpoint["port"] for endpoint in operator["podMetricsEndpoints"]} <= ports


def test_a_packed_chart_is_the_same_chart(helm: Helm, tmp_path: Path) -> None:
    helm("package", CHART, "--destination", tmp_path)
    [package] = tmp_path.glob("*.tgz")
    assert helm.render(EVERYTHING, chart=package) == helm.render(EVERYTHING)


REFUSED: dict[str, tuple[Values, str]] = {
    "unknown key": ({"replicas": 3}, "replicas"),
    "unknown nested key": ({"image": {"tga": "1"}}, "tga"),
    "unknown key of workers": ({"workers": {"images": {}}}, "images"),
    "unknown part of the overlay": ({"workers": {"template": {"spce": {}}}}, "spce"),
    "a word for a boolean": ({"rbac": {"create": "yes"}}, "/rbac/create"),
    "a number for a tag": ({"image": {"tag": 1.10}}, "/image/tag"),
    "a tag in the repository": ({"image": {"repository": "tailkeeper/operator:1"}}, "/image/repository"),
    "a cut digest": ({"image": {"digest": "sha256:abc"}}, "/image/digest"),
    "a digest without its algorithm": ({"workers": {"image": {"digest": "a" * 64}}}, "/workers/image/digest"),
    "a pull policy that is none": ({"image": {"pullPolicy": "always"}}, "/image/pullPolicy"),
    "a string for a list": ({"watchNamespaces": "team-a"}, "/watchNamespaces"),
    "no namespace's name": ({"watchNamespaces": ["Team_A"]}, "/watchNamespaces/0"),
    "a bare name for a pull secret": ({"imagePullSecrets": ["pull"]}, "/imagePullSecrets/0"),
    "a Prometheus without a scheme": ({"prometheus": {"url": "prometheus:9090"}}, "/prometheus/url"),
    "a log format that is none": ({"logging": {"format": "xml"}}, "/logging/format"),
    "a log level that is none": ({"logging": {"level": "trace"}}, "/logging/level"),
    "a map for the environment": ({"extraEnv": {"A": "b"}}, "/extraEnv"),
    "an environment variable without a name": ({"extraEnv": [{"value": "b"}]}, "/extraEnv/0"),
    "a variable that is a value": (
        {"extraEnv": [{"name": "TAILKEEPER_LOG_LEVEL", "value": "debug"}]},
        "/extraEnv/0/name",
    ),
    "a resource list that is none": ({"resources": {"limit": {}}}, "limit"),
    "a label that is none": ({"podLabels": {"a": "b c"}}, "/podLabels/a"),
    "an annotation that is a number": ({"podAnnotations": {"a": 1}}, "/podAnnotations/a"),
    "a constraint without its key": ({"topologySpreadConstraints": [{"maxSkew": 1}]}, "/topologySpreadConstraints/0"),
    "an interval that is none": ({"podMonitor": {"interval": "5"}}, "/podMonitor/interval"),
    "a budget below nothing": (
        {"podDisruptionBudget": {"maxUnavailable": -1}},
        "/podDisruptionBudget/maxUnavailable",
    ),
    "a folder that is none": ({"guardRails": {"allow": {"hostPaths": ["mnt/"]}}}, "/guardRails/allow/hostPaths/0"),
    "a guard that is none": ({"guardRails": {"allow": {"hostPath": True}}}, "hostPath"),
    "an alert that is none": ({"prometheusRule": {"disabled": ["Nothing"]}}, "/prometheusRule/disabled/0"),
    "a full name over 53 characters": ({"fullnameOverride": "n" * 54}, "/fullnameOverride"),
}


@pytest.mark.parametrize(("values", "named"), REFUSED.values(), ids=REFUSED)
def test_wrong_values_are_refused_by_name(helm: Helm, values: Values, named: str) -> None:
    with pytest.raises(HelmError, match="schema") as refusal:
        helm.render(values)
    assert named in str(refusal.value)
