"""The overlay merges exactly as the API server merges a strategic patch: it is asked, on a real Deployment."""

import json

import pytest

from tailkeeper.reconcile.kinds import DEPLOYMENT
from tailkeeper.reconcile.overlay import merge_pod_template
from tests.integration.control_plane import ControlPlane

BASE = {
    "metadata": {"labels": {"app": "worker"}},
    "spec": {
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
        "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
        "imagePullSecrets": [{"name": "one"}],
        "topologySpreadConstraints": [
            {"topologyKey": "kubernetes.io/hostname", "maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
        ],
        "containers": [
            {
                "name": "worker",
                "image": "worker:1",
                "args": ["--one"],
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "ports": [{"name": "http", "containerPort": 8000, "protocol": "TCP"}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
                "securityContext": {"capabilities": {"drop": ["ALL"]}, "runAsUser": 1},
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    },
}

WORKER_OVERLAYS = {
    "image": {"image": "worker:2"},
    "env": {"env": [{"name": "B", "value": "9"}, {"name": "C", "value": "3"}]},
    "env removed": {"env": [{"name": "A", "$patch": "delete"}]},
    "env by reference": {
        "env": [{"name": "A", "value": None, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    },
    "env before ours": {"env": [{"name": "C", "value": "3"}]},
    "env among ours": {"env": [{"name": "C", "value": "3"}, {"name": "B", "value": "2"}, {"name": "D", "value": "4"}]},
    "env turned round": {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]},
    "env reordered": {"$setElementOrder/env": [{"name": "B"}, {"name": "A"}], "env": [{"name": "B", "value": "9"}]},
    "ports": {"ports": [{"containerPort": 9999, "name": "debug"}]},
    "port replaced": {"ports": [{"containerPort": 8000, "$patch": "delete"}, {"containerPort": 8001, "name": "http"}]},
    "arguments": {"args": ["--two", "--three"]},
    "mounts": {"volumeMounts": [{"mountPath": "/tmp", "name": "tmp", "readOnly": True}]},
    "resources": {"resources": {"limits": {"cpu": "2", "nvidia.com/gpu": "1"}}},
    "capabilities": {"securityContext": {"capabilities": {"drop": ["NET_RAW"], "add": ["SYS_NICE"]}}},
    "user removed": {"securityContext": {"runAsUser": None}},
    "security replaced": {"securityContext": {"$patch": "replace", "runAsGroup": 7}},
    "probe": {"livenessProbe": {"httpGet": {"path": "/x", "port": "http"}, "periodSeconds": 3}},
}
POD_OVERLAYS = {
    "selector": {"nodeSelector": {"gpu": "yes"}},
    "selector removed": {"nodeSelector": None},
    "tolerations": {"tolerations": [{"key": "gpu", "operator": "Exists"}]},
    "host aliases": {"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["b"]}, {"ip": "10.0.0.2", "hostnames": ["c"]}]},
    "pull secrets": {"imagePullSecrets": [{"name": "two"}]},
    "spread": {"topologySpreadConstraints": [{"topologyKey": "kubernetes.io/hostname", "maxSkew": 3}]},
    "sidecar": {"containers": [{"name": "sidecar", "image": "s"}]},
    "init container": {"initContainers": [{"name": "fetch", "image": "f"}]},
    "volume added": {"volumes": [{"name": "models", "hostPath": {"path": "/models"}}]},
    "volume retained": {
        "volumes": [{"name": "tmp", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/scratch"}}]
    },
    "volume of another kind": {"volumes": [{"name": "tmp", "emptyDir": None, "hostPath": {"path": "/scratch"}}]},
    "volume removed": {
        "volumes": [{"name": "tmp", "$patch": "delete"}],
        "containers": [{"name": "worker", "volumeMounts": [{"mountPath": "/tmp", "$patch": "delete"}]}],
    },
    "affinity": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}]
                }
            }
        }
    },
    "containers replaced": {"containers": [{"name": "only", "image": "o"}, {"$patch": "replace"}]},
}
OVERLAYS = {
    **{f"worker: {name}": {"spec": {"containers": [{"name": "worker", **o}]}} for name, o in WORKER_OVERLAYS.items()},
    **{f"pod: {name}": {"spec": overlay} for name, overlay in POD_OVERLAYS.items()},
    "labels": {"metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}}},
}


@pytest.fixture(scope="module")
def deployments(apiserver: ControlPlane):
    """A client and the path of a Deployment with the base template."""
    path = DEPLOYMENT.path("default")
    with apiserver.client() as client:
        spec = {"selector": {"matchLabels": {"app": "worker"}}, "template": BASE}
        client.post(path, json={"metadata": {"name": "base"}, "spec": spec}).raise_for_status()
        yield client, path
        client.delete(f"{path}/base").raise_for_status()


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_does_what_a_strategic_patch_does(deployments, name: str) -> None:
    client, path = deployments
    overlay = OVERLAYS[name]
    theirs = client.patch(
        f"{path}/base",
        params={"dryRun": "All"},
        content=json.dumps({"spec": {"template": overlay}}),
        headers={"Content-Type": "application/strategic-merge-patch+json"},
    )
    assert theirs.is_success, theirs.text
    spec = {"selector": {"matchLabels": {"app": "worker"}}, "template": merge_pod_template(BASE, overlay)}
    ours = client.post(path, params={"dryRun": "All"}, json={"metadata": {"name": "ours"}, "spec": spec})
    assert ours.is_success, ours.text
    assert ours.json()["spec"]["template"] == theirs.json()["spec"]["template"]
