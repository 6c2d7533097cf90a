"""The alerts: each fires when it should and stays silent beside it (promtool), and has a runbook; none asks for what no
program exports."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.control_plane import programs
from tests.integration.exported import metric_names, metrics_of_rules
from tests.integration.helm import CHART, Helm, HelmError, pick

ROOT = Path(__file__).parents[2]
RULES = CHART / "files" / "alerts" / "tailkeeper.yaml"
RUNBOOKS = ROOT / "docs" / "runbooks"
CASES = sorted((Path(__file__).parent / "alerts").glob("*.yaml"))
SECTIONS = ["What it means", "Look at this first", "What the operator does by itself", "What you do"]

GROUPS = yaml.safe_load(RULES.read_text())["groups"]
ALERTS = {rule["alert"]: rule for group in GROUPS for rule in group["rules"] if "alert" in rule}


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    executable = programs() / "promtool"
    if not executable.exists():
        raise FileNotFoundError(f"{executable} is missing: run hack/local-cluster/programs promtool")
    return subprocess.run([executable, *arguments], capture_output=True, text=True, timeout=120)


def cases() -> Iterator[dict[str, Any]]:
    for path in CASES:
        for test in yaml.safe_load(path.read_text())["tests"]:
            yield from test.get("alert_rule_test", [])


def test_the_rules_are_good_ones() -> None:
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_alerts_fire_when_they_should_and_not_beside_it(path: Path) -> None:
    done = promtool("test", "rules", path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_is_tested_both_ways(alert: str) -> None:
    fired = [case["exp_alerts"] for case in cases() if case["alertname"] == alert]
    assert any(fired), "never seen to fire"
    counted_out = any(f'ALERTS{{alertname="{alert}"' in path.read_text() for path in CASES)
    assert not all(fired) or counted_out, "never seen silent"


@pytest.mark.parametrize(
    "broken", ["0.144", "1 / 3", ">= 5\n", "> 0.5\n", "for: 5m", '{traffic_class="online"}', "<= on"]
)
def test_what_the_tests_would_catch(tmp_path: Path, broken: str) -> None:
    """One changed number, look-back or selector of the rules is enough for a failure."""
    others = {
        "0.144": "0.6",
        "1 / 3": "1 / 1",
        ">= 5\n": ">= 1\n",
        "> 0.5\n": "> 0.1\n",
        "for: 5m": "for: 0s",
        "<= on": "> on",
    }
    text = RULES.read_text()
    assert broken in text
    rules = tmp_path / "rules.yaml"
    rules.write_text(text.replace(broken, others.get(broken, "")))
    copies = []
    for path in CASES:
        copies.append(tmp_path / path.name)
        copies[-1].write_text(re.sub(r"rule_files: .*", f"rule_files: [{rules}]", path.read_text()))
    assert promtool("test", "rules", *copies).returncode != 0


def test_rules_ask_only_for_what_is_exported() -> None:
    asked = {name for group in GROUPS for rule in group["rules"] for name in metrics_of_rules(rule["expr"])}
    recorded = {rule["record"] for group in GROUPS for rule in group["rules"] if "record" in rule}
    assert asked - recorded <= metric_names(), "no program exports these"
    assert recorded <= asked, "recorded for nothing"


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_says_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["annotations"]["runbook"] == f"docs/runbooks/{alert}.md"
    text = (RUNBOOKS / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert "```console" in text.partition(SECTIONS[1])[2].partition(SECTIONS[2])[0], "no command to begin with"


def test_the_index_lists_every_runbook_and_none_is_left_over() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \| (\w+) \|", (RUNBOOKS / "README.md").read_text(), re.MULTILINE)
    assert listed == [(name, name, rule["labels"]["severity"]) for name, rule in ALERTS.items()]
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {*ALERTS, "README"}


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    return Helm(tmp_path_factory.mktemp("helm"))


def test_the_chart_brings_the_same_rules_when_asked(helm: Helm, tmp_path: Path) -> None:
    assert not [o for o in helm.render({}) if o["kind"] == "PrometheusRule"]
    rule = pick(helm.render({"prometheusRule": {"enabled": True}}), "PrometheusRule")
    assert rule["spec"] == {"groups": GROUPS}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    assert promtool("check", "rules", "--lint-fatal", tmp_path / "rules.yaml").returncode == 0


def test_labels_runbook_addresses_and_the_choice_of_alerts_are_values(helm: Helm) -> None:
    values = {
        "enabled": True,
        "labels": {"release": "monitoring"},
        "alertLabels": {"team": "serving", "severity": "page"},
        "runbooksUrl": "https://docs.example.com/runbooks/",
        "disabled": ["TailkeeperEfficiencyLow"],
    }
    rule = pick(helm.render({"prometheusRule": values}), "PrometheusRule")
    assert rule["metadata"]["labels"]["release"] == "monitoring"
    rules = [rule for group in rule["spec"]["groups"] for rule in group["rules"]]
    alerts = {rule["alert"]: rule for rule in rules if "alert" in rule}
    assert ALERTS.keys() - alerts.keys() == {"TailkeeperEfficiencyLow"}
    for name, alert in alerts.items():
        assert alert["labels"] == {"team": "serving", "severity": "page"}
        assert alert["annotations"]["runbook_url"] == f"https://docs.example.com/runbooks/{name}.md"
        assert alert["expr"] == ALERTS[name]["expr"]
    assert [rule for rule in rules if "record" in rule] == [r for r in GROUPS[0]["rules"] if "record" in r]


def test_only_alerts_that_there_are_can_be_left_out(helm: Helm) -> None:
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    named = schema["properties"]["prometheusRule"]["properties"]["disabled"]["items"]["enum"]
    assert named == list(ALERTS)
    with pytest.raises(HelmError, match="/prometheusRule/disabled/0"):
        helm.render({"prometheusRule": {"disabled": ["TailkeeperNoSuch"]}})
