"""The real Helm on the chart of this tree. Nothing is read from or left in the user's own Helm folders."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import yaml

from tests.integration.control_plane import programs

CHART = Path(__file__).parents[2] / "charts" / "tailkeeper"
Values = dict[str, Any]
Object = dict[str, Any]


class HelmError(Exception):
    """Helm refused; the text is what it said."""


class Helm:
    """Runs Helm with a folder of its own and, where it needs a cluster, a kubeconfig."""

    def __init__(self, folder: Path, kubeconfig: Path | None = None) -> None:
        self._folder = folder
        self._kubeconfig = kubeconfig or folder / "no-cluster"

    def __call__(self, *arguments: str | Path, values: Values | None = None) -> str:
        """What `helm ARGUMENTS` says. Raises HelmError."""
        executable = programs() / "helm"
        if not executable.exists():
            raise FileNotFoundError(f"{executable} is missing: run hack/local-cluster/programs helm")
        given = [] if values is None else ["--values", "-"]
        done = subprocess.run(
            [executable, *arguments, *given],
            input=None if values is None else json.dumps(values),
            capture_output=True,
            text=True,
            timeout=120,
            env={"PATH": os.environ["PATH"], "HOME": str(self._folder), "KUBECONFIG": str(self._kubeconfig)},
        )
        if done.returncode:
            raise HelmError(done.stdout + done.stderr)
        return done.stdout

    def render(
        self, values: Values, release: str = "tailkeeper", namespace: str = "tailkeeper", chart: Path = CHART
    ) -> list[Object]:
        """The objects that an installation with these values would make, the helm test's pod included."""
        text = self("template", release, chart, "--namespace", namespace, values=values)
        return [document for document in yaml.safe_load_all(text) if document]


def pick(objects: list[Object], kind: str, name: str | None = None) -> Object:
    """The one object of a kind, or of a kind and a name."""
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} objects {kind} {name or ''} among {[o['kind'] for o in objects]}"
    return found[0]


EVERYTHING: Values = {
    "commonLabels": {"team": "serving"},
    "watchNamespaces": ["team-a", "team-b"],
    "guardRails": {
        "allow": {"hostPaths": ["/mnt/models"], "capabilities": ["IPC_LOCK"], "serviceAccounts": ["builder", "reader"]}
    },
    "serviceAccount": {"annotations": {"example.com/role": "reader"}},
    "image": {"repository": "registry.example.com:5000/tailkeeper/operator", "digest": f"sha256:{'a' * 64}"},
    "imagePullSecrets": [{"name": "pull"}],
    "workers": {
        "image": {"repository": "registry.example.com:5000/tailkeeper/worker", "tag": "0.1.0-cuda"},
        "imagePullSecrets": [{"name": "pull"}],
        "template": {
            "metadata": {"labels": {"team": "serving"}},
            "spec": {
                "nodeSelector": {"nvidia.com/gpu.present": "true"},
                "containers": [{"name": "worker", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
            },
        },
    },
    "signals": "prometheus",
    "prometheus": {
        "url": "https://prometheus.monitoring:9090/prefix",
        "credentialsSecret": "prometheus-reader",
        "headers": {"X-Scope-OrgID": "team-a", "X-Via": "b"},
    },
    "logging": {"format": "text", "level": "debug"},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}],
    "resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
    "podAnnotations": {"example.com/note": "kept"},
    "podLabels": {"example.com/tier": "control"},
    "nodeSelector": {"kubernetes.io/os": "linux"},
    "tolerations": [{"key": "control", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]
            }
        }
    },
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "priorityClassName": "system-cluster-critical",
    "service": {"annotations": {"prometheus.io/scrape": "true"}},
    "podMonitor": {"enabled": True, "labels": {"release": "monitoring"}, "interval": "5s"},
    "prometheusRule": {
        "enabled": True,
        "labels": {"release": "monitoring"},
        "alertLabels": {"team": "serving"},
        "runbooksUrl": "https://docs.example.com/runbooks/",
        "disabled": ["TailkeeperEfficiencyLow"],
    },
    "grafanaDashboard": {"enabled": True, "labels": {"grafana": "main"}, "annotations": {"grafana_folder": "Serving"}},
    "podDisruptionBudget": {"enabled": True, "maxUnavailable": "50%"},
    "networkPolicy": {
        "enabled": True,
        "ingressFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}],
        "egress": [{"ports": [{"port": 53, "protocol": "UDP"}, {"port": 443}, {"port": 9090}]}],
    },
}

VALUE_SETS: dict[str, Values] = {
    "defaults": {},
    "everything": EVERYTHING,
    "nothing of its own": {
        "crds": {"enabled": False},
        "guardRails": {"enabled": False},
        "rbac": {"create": False, "aggregate": False},
        "serviceAccount": {"create": False, "name": "somebody"},
    },
    "a platform that chooses the user": {"podSecurityContext": {"runAsUser": None, "runAsGroup": None}},
    "one namespace": {"watchNamespaces": ["team-a"], "crds": {"keep": False}},
    "network policy for anybody": {"networkPolicy": {"enabled": True}, "podDisruptionBudget": {"enabled": True}},
    "scraped in all namespaces": {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "a platform that trusts everybody": {
        "guardRails": {
            "allow": {
                **dict.fromkeys(("hostNetwork", "hostPID", "hostIPC", "privileged"), True),
                "hostPaths": ["/"],
                "capabilities": ["ALL"],
                "serviceAccounts": ["*"],
            }
        }
    },
    "as a subchart": {"global": {"anything": 1}, "enabled": True, "nameOverride": "latency", "resources": {}},
}
"""Value sets that every object of must be right under, by what they are for."""
