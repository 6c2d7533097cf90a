"""What the chart renders, written down: a change of a template shows in review as what it changes in the cluster.

`python -m tests.integration.chart_snapshots` writes the files anew. Left out: the resource definitions, the rules
and the dashboard, whose files are in the chart themselves, byte by byte."""

import tempfile
from pathlib import Path

import yaml

from tests.integration.helm import VALUE_SETS, Helm, Object

FOLDER = Path(__file__).parent / "snapshots"
SETS = ("defaults", "everything", "nothing of its own", "one namespace", "a platform that trusts everybody")


def path_of(name: str) -> Path:
    return FOLDER / f"{name.replace(' ', '-')}.yaml"


def snapshot(helm: Helm, name: str) -> str:
    """The objects of a value set, by kind and name, as YAML."""
    shown = [_without_files(o) for o in helm.render(VALUE_SETS[name]) if o["kind"] != "CustomResourceDefinition"]
    shown.sort(key=lambda o: (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]))
    return yaml.safe_dump_all(shown, sort_keys=True, width=120, explicit_start=True)


def _without_files(thing: Object) -> Object:
    if thing["kind"] == "PrometheusRule":
        return {**thing, "spec": {"groups": [group["name"] for group in thing["spec"]["groups"]]}}
    if thing["metadata"]["name"].endswith("-grafana"):
        return {**thing, "data": dict.fromkeys(thing["data"], "…")}
    return thing


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for each in SETS:
            path_of(each).write_text(snapshot(Helm(Path(folder)), each))
