"""The dashboard, the alerts and the runbooks ask a real Prometheus: every query is answered, with numbers."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.integration.exported import metric_names, metrics_of_rules
from tests.integration.helm import CHART, Helm, pick
from tests.integration.live_metrics import NAMESPACE, POLICY, prometheus_with_data
from tests.integration.prometheus_server import GENERATIONS
from tests.integration.promql import parts

FILE = CHART / "files" / "dashboards" / "tailkeeper.json"
RULES = CHART / "files" / "alerts" / "tailkeeper.yaml"
RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
DATA_S = 6.0

DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
VARIABLES = {each["name"]: each for each in DASHBOARD["templating"]["list"]}


def panel_queries() -> dict[str, str]:
    return {f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]}


def annotation_queries() -> dict[str, str]:
    return {each["name"]: each["expr"] for each in DASHBOARD["annotations"]["list"] if "expr" in each}


def variable_queries() -> dict[str, tuple[str, str]]:
    """Of each variable the series and the label whose values it has."""
    found = {}
    for name, variable in VARIABLES.items():
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
            assert asked, name
            found[name] = (asked[1], asked[2])
    return found


def rule_queries() -> dict[str, str]:
    return {
        f"{rule.get('alert') or rule.get('record')} {number}": part
        for group in yaml.safe_load(RULES.read_text())["groups"]
        for rule in group["rules"]
        for number, part in enumerate(parts(rule["expr"]) if "alert" in rule else [rule["expr"]])
    }


def runbook_queries() -> dict[str, str]:
    found = {}
    for path in sorted(RUNBOOKS.glob("*.md")):
        blocks = re.findall(r"```promql\n(.*?)```", path.read_text(), re.DOTALL)
        for number, line in enumerate(line for block in blocks for line in block.splitlines()):
            found[f"{path.stem} {number}"] = line
    return found


def filled_in(query: str, instance: str, over: str = "4s") -> str:
    """As Grafana sends it: the variables replaced."""
    values = {"namespace": NAMESPACE, "policy": POLICY, "instance": instance, "tier": "interactive|batch"}
    query = query.replace("$__rate_interval", over)
    return re.sub(r"\$(namespace|policy|instance|tier)\b", lambda name: values[name[1]], query)


@pytest.fixture(scope="module", params=GENERATIONS)
def prometheus(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus_with_data(folder, request.param, [RULES], DATA_S) as client:
        yield client


def answer(prometheus: httpx.Client, query: str) -> list[Mapping[str, Any]]:
    said = prometheus.get("/api/v1/query", params={"query": query}).json()
    assert said["status"] == "success", f"{query}: {said.get('error')}"
    assert not said.get("warnings"), f"{query}: {said['warnings']}"
    result: list[Mapping[str, Any]] = said["data"]["result"]
    return result


def assert_numbers(prometheus: httpx.Client, query: str) -> list[Mapping[str, Any]]:
    result = answer(prometheus, query)
    assert result, f"empty: {query}"
    assert not any(math.isnan(float(series["value"][1])) for series in result), query
    return result


@pytest.mark.parametrize("title", panel_queries())
def test_every_query_of_the_dashboard_has_data(prometheus: httpx.Client, title: str) -> None:
    of_a_stream = title.startswith(("First token", "Between tokens"))
    assert_numbers(prometheus, filled_in(panel_queries()[title], "stream" if of_a_stream else "small"))


@pytest.mark.parametrize("name", annotation_queries())
def test_what_the_tuner_did_is_marked(prometheus: httpx.Client, name: str) -> None:
    result = assert_numbers(prometheus, filled_in(annotation_queries()[name], "small"))
    [annotation] = [each for each in DASHBOARD["annotations"]["list"] if each["name"] == name]
    labels = re.findall(r"\{\{(\w+)\}\}", annotation["titleFormat"])
    assert labels
    assert all(series["metric"].get(label) for series in result for label in labels)


@pytest.mark.parametrize(
    ("variable", "values"),
    {
        "namespace": {NAMESPACE},
        "policy": {POLICY},
        "instance": {"small", "stream", "night"},
        "tier": {"interactive", "batch"},
    }.items(),
)
def test_what_there_is_can_be_chosen(prometheus: httpx.Client, variable: str, values: set[str]) -> None:
    series, label = variable_queries()[variable]
    assert variable_queries().keys() == {"namespace", "policy", "instance", "tier"}
    assert {found["metric"][label] for found in answer(prometheus, filled_in(series, "small"))} == values


@pytest.mark.parametrize("rule", rule_queries())
def test_every_part_of_every_rule_has_data(prometheus: httpx.Client, rule: str) -> None:
    assert_numbers(prometheus, rule_queries()[rule])


def test_no_rule_is_in_trouble(prometheus: httpx.Client) -> None:
    groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert {rule["health"] for rule in rules} == {"ok"}, [rule.get("lastError") for rule in rules]
    assert len(rules) == sum(len(group["rules"]) for group in yaml.safe_load(RULES.read_text())["groups"])


def test_what_the_check_would_catch(prometheus: httpx.Client) -> None:
    """A check that cannot fail shows nothing."""
    with pytest.raises(AssertionError, match="empty"):
        assert_numbers(prometheus, "tailkeeper_no_such_metric")
    assert parts('a{x="(and)"} > 1 / 3 * sum(b or c) and on (t) (absent(d) or -e == 0)') == [
        'a{x="(and)"}',
        "1 / 3 * sum(b or c)",
        "d",
        "-e",
    ]


@pytest.mark.parametrize("name", runbook_queries())
def test_every_query_of_a_runbook_has_data(prometheus: httpx.Client, name: str) -> None:
    words = {"NAMESPACE": NAMESPACE, "POLICY": POLICY, "INSTANCE": "small"}
    assert_numbers(prometheus, re.sub("|".join(words), lambda word: words[word[0]], runbook_queries()[name]))


def test_causes_tiers_and_quantiles_are_curves_of_their_own(prometheus: httpx.Client) -> None:
    def legends(title: str, label: str) -> set[str]:
        [panel] = [panel for panel in PANELS if panel["title"] == title]
        result = answer(prometheus, filled_in(panel["targets"][0]["expr"], "small"))
        return {series["metric"][label] for series in result}

    assert legends("Time of a request, by cause", "cause") == {"hold", "busy", "slot", "exec"}
    assert legends("Queue by tier", "tier") == {"interactive", "batch"}
    [latency] = [panel for panel in PANELS if panel["title"].startswith("Latency by tier")]
    shown = {target["legendFormat"] for target in latency["targets"]}
    assert shown == {f"{{{{tier}}}} {what}" for what in ("p50", "p95", "p99", "mean", "SLA")}


def test_stacked_causes_add_up_to_the_mean_latency(prometheus: httpx.Client) -> None:
    queries = panel_queries()
    causes = answer(prometheus, filled_in(queries["Time of a request, by cause A"], "night"))
    requests = 'sum(rate(tailkeeper_requests_total{model_instance="night"}[4s]))'
    waited = 'sum(rate(tailkeeper_wait_seconds_total{model_instance="night"}[4s]))'
    [mean] = answer(prometheus, f"{waited} / {requests}")
    assert sum(float(series["value"][1]) for series in causes) == pytest.approx(float(mean["value"][1]), rel=0.15)


def test_the_dashboard_asks_only_for_what_is_exported() -> None:
    asked = [
        *panel_queries().values(),
        *annotation_queries().values(),
        *(series for series, _ in variable_queries().values()),
    ]
    assert {name for query in asked for name in metrics_of_rules(query)} <= metric_names()


def test_panels_stand_side_by_side_and_are_explained() -> None:
    identifiers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    cells = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(cell["x"] + cell["w"] <= 24 for cell in cells)
    for one, other in combinations(cells, 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    for panel in PANELS:
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}


def test_the_chart_carries_it_for_the_sidecar_when_asked(tmp_path: Path) -> None:
    helm = Helm(tmp_path)
    assert len([o for o in helm.render({}) if o["kind"] == "ConfigMap"]) == 1
    values = {"enabled": True, "annotations": {"grafana_folder": "Serving"}}
    found = pick(helm.render({"grafanaDashboard": values}), "ConfigMap", "tailkeeper-grafana")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert found["metadata"]["annotations"] == {"grafana_folder": "Serving"}
    assert json.loads(found["data"]["tailkeeper.json"]) == DASHBOARD
    other = {"enabled": True, "labels": {"grafana_dashboard": "main"}}
    found = pick(helm.render({"grafanaDashboard": other}), "ConfigMap", "tailkeeper-grafana")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "main"
