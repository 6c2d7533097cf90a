"""`tailkeeper lint`: everything that the API server refuses, each with its place, and what is hardly meant."""

from pathlib import Path

import pytest
import yaml

from tests.unit.cli.calling import POLICY, Tailkeeper

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))
REFUSED = Path(__file__).parents[2] / "integration" / "refused_policies.yaml"

TWO_DOCUMENTS = """
apiVersion: v1
kind: ConfigMap
metadata: {name: not-ours}
---
apiVersion: tailkeeper.dev/v1alpha1
kind: BatchingPolicy
metadata: {name: p}
spec:
  batching: {windowBusy: 9}
  instances:
  - {name: a, batching: {windowIdle: 4}, model: {name: m, engine: encoder, path: /m}}
  - {name: b, batching: {windowIdle: 3}, model: {name: m, engine: encoder, path: /m}}
---
apiVersion: tailkeeper.dev/v1alpha1
kind: BatchingPolicy
metadata: {name: q}
spec:
  bathcing: {}
  instances:
  - {name: a, model: {name: m, engine: encoder}}
"""

PROFILE = """
---
apiVersion: tailkeeper.dev/v1alpha1
kind: BatchingProfile
metadata: {name: m-on-cpu}
spec: {model: m, engine: encoder, hardware: {device: cpu}}
status:
  latencyModel: {fixedNs: 6000000, perRequestNs: 500000}
  lastReview: {time: "2026-11-01T00:00:00Z", arrivals: {ratePerHour: 5400000, cvPercent: 100}}
"""


def test_the_examples_are_accepted(tailkeeper: Tailkeeper) -> None:
    called = tailkeeper("lint", *EXAMPLES)
    assert called.code == 0
    assert " 0 errors" in called.out


def test_every_error_has_its_file_document_and_field(tailkeeper: Tailkeeper) -> None:
    called = tailkeeper("lint", tailkeeper.file(TWO_DOCUMENTS), "-o", "json")
    assert called.code == 1
    found = [(one["document"], one["severity"], one["field"]) for one in called.json()["findings"]]
    assert found == [
        (2, "error", "spec.instances[a].batching.windowBusy"),
        (2, "error", "spec.instances[b].batching.windowBusy"),
        (3, "error", "spec.instances[0].model"),
        (3, "error", "spec.bathcing"),
    ]
    assert called.json()["objects"] == 2
    text = tailkeeper("lint", tailkeeper.file(TWO_DOCUMENTS)).out
    assert "policy.yaml: document 3: error: spec.bathcing: there is no such field: is it misspelt?" in text


@pytest.mark.parametrize("case", yaml.safe_load(REFUSED.read_text()), ids=lambda case: case["what"])
def test_what_the_api_server_refuses_is_an_error(tailkeeper: Tailkeeper, case: dict) -> None:
    instance = {"name": "one", "model": {"name": "m", "engine": "causal-lm", "path": "/m"}, **case.get("instance", {})}
    spec = {"instances": [instance], **case.get("spec", {})}
    metadata = {"name": case.get("name", "test")}
    said = {"apiVersion": "tailkeeper.dev/v1alpha1", "kind": "BatchingPolicy", "metadata": metadata, "spec": spec}
    assert tailkeeper("lint", tailkeeper.file(yaml.safe_dump(said))).code == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not YAML"),
        ("a: 1\na: 2\nkind: BatchingPolicy", "line 2: a is there twice"),
        ("kind: Deployment", "no BatchingPolicy and no BatchingProfile"),
        ("", "no BatchingPolicy and no BatchingProfile"),
    ],
)
def test_what_cannot_be_read_is_one_line_and_2(tailkeeper: Tailkeeper, text: str, says: str) -> None:
    called = tailkeeper("lint", tailkeeper.file(text))
    assert (called.code, called.out) == (2, "")
    assert says in called.err
    assert called.err.count("\n") == 1


def test_a_missing_file_is_2(tailkeeper: Tailkeeper) -> None:
    assert tailkeeper("lint", "/nowhere.yaml").code == 2


@pytest.mark.parametrize("text", ["5", "[]", "kind: [x]", "kind: BatchingPolicy", "{kind: BatchingPolicy, spec: 1}"])
def test_any_yaml_ends_without_a_traceback(tailkeeper: Tailkeeper, text: str) -> None:
    assert tailkeeper("lint", tailkeeper.file(text)).code in (1, 2)


def advised(tailkeeper: Tailkeeper, text: str, *options: str) -> str:
    called = tailkeeper("lint", tailkeeper.file(text), *options)
    assert called.code == 0
    return called.out


def test_an_sla_below_one_forward_pass(tailkeeper: Tailkeeper) -> None:
    fast = POLICY.replace("tailLatencySlaMs: 200", "tailLatencySlaMs: 5")
    out = advised(tailkeeper, fast, "--model", "a=0.5ms,c=6ms")
    assert "tailLatencySlaMs: 5 ms is below one forward pass (6.5 ms): no setting can keep it" in out
    assert tailkeeper("lint", tailkeeper.file(fast), "--model", "a=0.5ms,c=6ms", "--strict").code == 1


def test_a_window_that_does_not_keep_up_with_the_load_of_the_profile(tailkeeper: Tailkeeper) -> None:
    """1500/s: 1.1·1500·.006/(1 − 1500·.0005) = 39.6 requests."""
    out = advised(tailkeeper, POLICY + PROFILE)
    assert "windowIdle: 32 does not keep up with 1500 requests/s: 40 does" in out
    assert "advice" not in advised(tailkeeper, POLICY).replace("0 advice", "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("metadata: {name: chat}", "metadata: {name: chat, annotations: {tailkeeper.dev/set.small: ceiling=99}}"),
         "the operator will refuse it: ceiling=99 is out of bounds: 1 to 32"),
        (("metadata: {name: chat}", "metadata: {name: chat, annotations: {tailkeeper.dev/pause.big: 'true'}}"),
         "names no instance; there are small"),
        (("windowBusy: 8", "windowBusy: 32"), "the window cannot follow the arrivals"),
        (("windowBusy: 8", "windowBusy: 8, mode: fixed"), "give the tier maxHoldMs"),
        (("windowBusy: 8", "windowBusy: 8, firstTokenSlaMs: 20"), "engine encoder makes no tokens"),
        (("tailLatencySlaMs: 200", "tailLatencySlaMs: 60000"), "45 s is under the SLA of instance small (60000 ms)"),
        (("path: /m", "huggingFace: {id: a/b}"), "the next pod may load other weights"),
    ],
)  # fmt: skip
def test_what_is_hardly_meant(tailkeeper: Tailkeeper, change: tuple[str, str], says: str) -> None:
    assert says in advised(tailkeeper, POLICY.replace(*change))
