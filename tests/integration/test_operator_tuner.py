"""The tuner inside a real operator on a real API server: from late requests to settings in a ConfigMap."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tailkeeper.reconcile.kinds import CONFIG_MAP, POLICY
from tests.integration.control_plane import free_port
from tests.integration.operators import Field, always, eventually, one_instance, ready_status
from tests.integration.pretend_worker import PretendWorker
from tests.unit.signals.faulty_server import FaultyServer, Say, vector

LOOK_BACK_S = 60.0
BATCHING = {"tailLatencySlaMs": 200, "windowIdle": 64}
TIERS = [{"name": "interactive", "timeoutMs": 400}, {"name": "batch", "deadlineMs": 12_000}]
TOO_SMALL = {"tailkeeper.dev/set.small": "ceiling=2"}
"""Serves 285 requests a second of 400."""

Serve = Callable[..., PretendWorker]


@pytest.fixture
def serve(field: Field) -> Iterator[Serve]:
    """Applies a policy and lets its one worker serve a load."""
    with ExitStack() as stack:

        def start(policy: str, rate: float, annotations: dict[str, str] | None = None, **retune: Any) -> PretendWorker:
            spec = {"batching": BATCHING, "tiers": TIERS, "retune": {"intervalSeconds": 1, **retune}, **one_instance()}
            field.apply(policy, spec, annotations)
            eventually(lambda: settings(field, policy).get("ceiling") == (2 if annotations else 64))
            config_map = f"{policy}-small-settings"
            view = Field(field.plane, field.namespace)  # a client of its own: it is asked from another thread
            stack.enter_context(view.client)
            worker = PretendWorker(lambda: json.dumps(view.settings(config_map)), rate)
            stack.enter_context(worker.running())
            field.set_pods(ready_status(worker.ip), of=f"{policy}-small")
            return worker

        yield start


def settings(field: Field, policy: str) -> dict[str, Any]:
    return field.settings(f"{policy}-small-settings")


def versions(field: Field, policy: str) -> list[str]:
    found = (field.get(POLICY, policy), field.get(CONFIG_MAP, f"{policy}-small-settings"))
    return [each["metadata"]["resourceVersion"] for each in found if each]


def status_of(field: Field, policy: str, kind: str) -> str:
    return str(field.condition(kind, policy).get("status"))


def test_a_breach_is_mended_advised_or_left_as_the_mode_says_and_a_restart_waits_for_a_look_back(
    field: Field, operate: Any, serve: Serve
) -> None:
    operator = operate()
    serve("calm", 50)
    serve("auto", 400, TOO_SMALL)
    serve("off", 400, TOO_SMALL, mode="Off")
    serve("advise", 400, TOO_SMALL, mode="Recommend")
    planted = {policy: settings(field, policy)["generation"] for policy in ("auto", "off", "advise")}
    time.sleep(LOOK_BACK_S / 2)
    operator.stop()

    began_s = time.monotonic()
    operator = operate()
    eventually(lambda: settings(field, "auto")["generation"] > planted["auto"], within_s=LOOK_BACK_S * 2.5)
    assert time.monotonic() - began_s > LOOK_BACK_S - 2, "the new operator has seen nothing before"
    assert settings(field, "auto")["ceiling"] == 64
    move = json.loads(
        field.get(CONFIG_MAP, "auto-small-settings")["metadata"]["annotations"]["tailkeeper.dev/last-move"]
    )
    assert move["generation"] == planted["auto"] + 1
    assert move["cause"] == "Capacity"
    assert "sla_breached=true action=window→64" in move["numbers"]
    (event,) = eventually(lambda: field.events("Retuned"))
    assert event["involvedObject"]["name"] == "auto"
    assert f"small: generation {planted['auto'] + 1}, Capacity: ceiling 2 → 64 (tier=interactive" in event["message"]

    advice = eventually(lambda: field.events("MoveRecommended"))
    assert {each["involvedObject"]["name"] for each in advice} == {"advise"}
    eventually(lambda: status_of(field, "auto", "SlaMet") == "True", within_s=60)
    for policy in ("off", "advise"):
        assert settings(field, policy)["generation"] == planted[policy]
        assert status_of(field, policy, "SlaMet") == "False"
    assert operator.metric("tailkeeper_operator_moves_total", policy="auto", cause="Capacity") == 1
    assert operator.metric("tailkeeper_operator_moves_total", policy="off") == 0

    assert [status_of(field, "calm", kind) for kind in ("SlaMet", "MetricsAvailable", "CapacityShort")] == [
        "True",
        "True",
        "False",
    ]
    before = versions(field, "calm")
    always(lambda: versions(field, "calm") == before, for_s=15, every_s=0.5)


def nan(query: str) -> Say:
    """A worker that Prometheus knows, with counters that are none."""
    who = {"policy_namespace": "x", "policy": "auto", "model_instance": "small", "pod": "p", "instance": "i"}
    value = str(time.time() // 5) if "timestamp(" in query else "NaN"
    return vector(({**who, "tier": "interactive", "generation": "1", "__name__": "tailkeeper_window"}, value))


@pytest.mark.parametrize(
    ("say", "reason", "text"),
    [
        (None, "SignalsError", "cannot be reached: "),
        (Say("<html>login</html>", content_type="text/html"), "SignalsError", "answered text/html instead of JSON"),
        (nan, "SignalsNotFinite", "is nan: what exports it is broken"),
    ],
    ids=["nobody listens", "HTML", "NaN"],
)
def test_a_prometheus_that_cannot_be_read_is_a_condition_and_no_move(
    field: Field, operate: Any, serve: Serve, say: Any, reason: str, text: str
) -> None:
    answer = say if not callable(say) else lambda query: relabelled(say(query), field.namespace)
    with ExitStack() as stack:
        url = f"http://127.0.0.1:{free_port()}"
        if answer is not None:
            url = stack.enter_context(FaultyServer([answer]).running())
        operate(f"--prometheus-url={url}")
        serve("auto", 400, TOO_SMALL)
        planted = settings(field, "auto")["generation"]
        eventually(lambda: field.condition("MetricsAvailable", "auto").get("reason") == reason, within_s=60)
        condition = field.condition("MetricsAvailable", "auto")
        assert condition["status"] == "False"
        assert text in condition["message"]
        before = versions(field, "auto")
        always(lambda: versions(field, "auto") == before, for_s=LOOK_BACK_S + 10 if "html" in text else 5, every_s=0.5)
        assert settings(field, "auto")["generation"] == planted


def relabelled(say: Say, namespace: str) -> Say:
    return Say(say.body.replace('"x"', json.dumps(namespace)), say.status, say.content_type)
