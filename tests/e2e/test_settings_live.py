"""A changed setting reaches every worker within seconds, and no pod restarts."""

import time

import httpx

from tests.e2e import cluster


def _applied(namespace: str, name: str) -> list[dict[str, object]]:
    addresses = [pod["status"]["podIP"] for pod in cluster.pods(namespace, name)]
    return [httpx.get(f"http://{address}:9000/settings", timeout=5).json() for address in addresses]


def _identity(namespace: str, name: str) -> set[tuple[str, int]]:
    return {
        (pod["metadata"]["uid"], sum(status["restartCount"] for status in pod["status"]["containerStatuses"]))
        for pod in cluster.pods(namespace, name)
    }


def test_a_patch_is_applied_by_every_worker_without_a_restart(namespace: str) -> None:
    cluster.apply(namespace, cluster.policy("live", instances=[cluster.instance("minilm", replicas=2)]))
    cluster.wait_condition("live", namespace, "Ready", "True", timeout_s=240)
    before = _identity(namespace, "live")
    patch = '{"spec": {"batching": {"windowIdle": 48, "windowBusy": 12}}}'
    cluster.kubectl("patch", "batchingpolicy", "live", "-n", namespace, "--type=merge", "-p", patch)
    started = time.monotonic()
    cluster.wait(
        "every worker applies windowIdle 48",
        lambda: all(s["settings"]["windowIdle"] == 48 for s in _applied(namespace, "live")),
        timeout_s=10,
        every_s=0.05,
    )
    assert time.monotonic() - started < 5
    assert _identity(namespace, "live") == before
    status = cluster.wait(
        "the status says what the workers say",
        lambda: (
            (s := cluster.get("batchingpolicy", namespace, "live")["status"]["instances"][0])["appliedGeneration"]
            == s["settingsGeneration"]
            and s
        ),
        timeout_s=15,
    )
    assert status["effective"]["windowBusy"] == 12
    cluster.wait_condition("live", namespace, "SettingsApplied", "True", timeout_s=15)


def test_a_manual_move_by_annotation_is_applied_and_recorded(namespace: str) -> None:
    cluster.apply(namespace, cluster.policy("manual"))
    cluster.wait_condition("manual", namespace, "Ready", "True", timeout_s=180)
    cluster.kubectl("annotate", "batchingpolicy", "manual", "-n", namespace, "tailkeeper.dev/set.minilm=ceiling=4")
    cluster.wait(
        "the worker applies ceiling 4",
        lambda: [s["settings"]["ceiling"] for s in _applied(namespace, "manual")] == [4],
        timeout_s=10,
    )
    record = cluster.wait(
        "the move is in the status",
        lambda: cluster.get("batchingpolicy", namespace, "manual")["status"]["instances"][0].get("lastMove"),
        timeout_s=10,
    )
    assert record["cause"] == "Manual"
    assert [(c["lever"], c["after"]) for c in record["changes"]] == [("ceiling", "4")]
