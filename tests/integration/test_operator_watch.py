"""Watches that end, lines that break, history that is lost, tokens that rotate (cases O1, O2, O3)."""

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tailkeeper.app.watching import watcher_names
from tailkeeper.reconcile.kinds import DEPLOYMENT, OWNED, POLICY, SERVICE
from tests.integration.conftest import CRDS
from tests.integration.control_plane import ControlPlane, free_port
from tests.integration.operators import (
    HOME,
    Field,
    OperatorProcess,
    OperatorThread,
    always,
    eventually,
    grant_chart_role,
    running,
    writes_of_operator,
)
from tests.integration.proxy import Proxy


def test_a_watch_that_ends_by_itself_fails_liveness_within_thirty_seconds(field, monkeypatch) -> None:
    """Case O1: kopf does not start a watch again that ended by cancellation, and lives on, deaf."""
    monkeypatch.setenv("KUBECONFIG", str(field.plane.kubeconfig))
    operator = OperatorThread(f"--namespaces={field.namespace}", f"--http-port={free_port()}", "--tick-seconds=1")
    try:
        watches = watcher_names((field.namespace,))
        eventually(lambda: operator.healthy() and watches <= operator.tasks())
        field.apply()
        eventually(field.has)
        deaf = f"watcher for batchingpolicies.v1alpha1.tailkeeper.dev@{field.namespace}"
        operator.cancel(deaf)
        eventually(lambda: deaf not in operator.tasks())
        began_s = time.monotonic()
        eventually(lambda: not operator.healthy(), within_s=30, every_s=0.5)
        assert time.monotonic() - began_s > 5, "a watch that is only being replaced is no reason to restart"
    finally:
        operator.stop()


@pytest.fixture
def far(tmp_path: Path) -> Iterator[tuple[Field, Proxy]]:
    """A field on an API server of its own, and a line to it that can be cut."""
    folder = tmp_path / "plane"
    folder.mkdir()
    plane = ControlPlane(folder)
    proxy = Proxy(int(plane.url.rpartition(":")[2]))
    try:
        plane.kubectl("apply", "--server-side", "-f", str(CRDS))
        plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "-f", str(CRDS))
        grant_chart_role(plane, tmp_path)
        field = Field(plane, "default")
        yield field, proxy
        field.client.close()
    finally:
        proxy.stop()
        plane.stop()
        shutil.rmtree(folder / "etcd")


def through(proxy: Proxy, plane: ControlPlane, folder: Path) -> dict[str, str]:
    """Environment of an operator that reaches the server through the proxy only."""
    direct = plane.write_kubeconfig("operator", plane.service_account_token(HOME, "tailkeeper"))
    kubeconfig = folder / "through-proxy.kubeconfig"
    kubeconfig.write_text(direct.read_text().replace(plane.url, f"https://127.0.0.1:{proxy.port}"))
    return {"KUBECONFIG": str(kubeconfig)}


def test_a_broken_line_is_made_good(far, tmp_path) -> None:
    field, proxy = far
    environment = through(proxy, field.plane, tmp_path)
    with running(OperatorProcess(field.plane, tmp_path, environment=environment)):
        field.apply()
        eventually(field.has)
        proxy.close_line()
        field.apply("unheard")
        field.delete(SERVICE)
        time.sleep(3)
        proxy.open_line()
        eventually(lambda: field.has("unheard"), within_s=60)
        eventually(lambda: field.get(SERVICE), within_s=60)


def test_what_was_deleted_while_history_was_lost_is_forgotten(far, tmp_path) -> None:
    """Case O3. The policy of `ghost` goes unseen, and then its objects one by one, as a garbage collector does it."""
    field, proxy = far
    environment = through(proxy, field.plane, tmp_path)
    flags = ("--log-level=debug", "--relist-seconds=3600")
    with running(OperatorProcess(field.plane, tmp_path, *flags, environment=environment)) as operator:
        for name in ("ghost", "stays"):
            field.apply(name)
            eventually(lambda name=name: field.has(name))
        eventually(lambda: operator.metric("tailkeeper_operator_policies") == 2)
        proxy.close_line()
        field.delete(POLICY, "ghost")
        field.delete(DEPLOYMENT, "ghost-small")
        field.plane.lose_history()
        proxy.open_line()
        field.client = field.plane.client()
        eventually(lambda: "Restarting the watch-stream" in operator.log.read_text(), within_s=60)
        eventually(lambda: operator.metric("tailkeeper_operator_policies") == 1, within_s=60)
        before = len(writes_of_operator(field.plane, field.namespace))
        for kind in OWNED[:-1]:
            name = "ghost-small-settings" if kind.name == "ConfigMap" else "ghost-small"
            field.delete(kind, name)
        always(lambda: not [name for _, name in field.ours() if name.startswith("ghost")], for_s=3)
        assert len(writes_of_operator(field.plane, field.namespace)) == before
        field.delete(SERVICE, "stays-small")
        eventually(lambda: field.get(SERVICE, "stays-small"))


def test_a_ghost_that_no_watch_told_of_is_not_brought_back_by_its_objects(far, tmp_path) -> None:
    """Even before any list: the first write asks the server whether the policy still is there."""
    field, proxy = far
    environment = through(proxy, field.plane, tmp_path)
    with running(OperatorProcess(field.plane, tmp_path, "--relist-seconds=3600", environment=environment)) as operator:
        field.apply("ghost")
        eventually(lambda: field.has("ghost"))
        proxy.close_line()
        field.delete(POLICY, "ghost")  # the only policy: a new watch has nothing to replay
        field.plane.lose_history()
        proxy.open_line()
        field.client = field.plane.client()
        operator.wait_until_watching()
        time.sleep(2)
        field.delete(SERVICE, "ghost-small")
        always(lambda: field.get(SERVICE, "ghost-small") is None, for_s=3)


def bound_token(field: Field, secret: str) -> str:
    """A token of the operator that ends at once when the Secret is deleted."""
    home = f"/api/v1/namespaces/{HOME}"
    made = field.client.post(f"{home}/secrets", json={"metadata": {"name": secret}}).raise_for_status().json()
    bound = {"kind": "Secret", "apiVersion": "v1", "name": secret, "uid": made["metadata"]["uid"]}
    answer = field.client.post(
        f"{home}/serviceaccounts/tailkeeper/token",
        json={"spec": {"expirationSeconds": 600, "boundObjectRef": bound}},
    )
    return answer.raise_for_status().json()["status"]["token"]


def test_tokens_rotate_under_it_and_no_event_is_missed(far, tmp_path) -> None:
    """Case O2: files are swapped as the kubelet does it, old tokens end, connections break."""
    field, proxy = far
    account = tmp_path / "account"
    account.mkdir()

    def mount(token: str, number: int) -> None:
        version = account / f"..{number}"
        version.mkdir()
        (version / "token").write_text(token)
        (version / "ca.crt").write_text(field.plane.ca.read_text())
        (account / "..data_tmp").symlink_to(version.name)
        (account / "..data_tmp").rename(account / "..data")

    mount(bound_token(field, "t0"), 0)
    for name in ("token", "ca.crt"):
        (account / name).symlink_to(f"..data/{name}")
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(proxy.port)}
    flags = (f"--service-account-dir={account}", "--login-seconds=1", "--relist-seconds=3600", "--tick-seconds=1")
    with running(OperatorProcess(field.plane, tmp_path, *flags, environment=environment)) as operator:
        for number in range(1, 4):
            mount(bound_token(field, f"t{number}"), number)
            field.client.delete(f"/api/v1/namespaces/{HOME}/secrets/t{number - 1}").raise_for_status()
            time.sleep(4)
            proxy.cut()
            field.apply(f"p{number}")
            eventually(lambda number=number: field.has(f"p{number}"), within_s=20)
        time.sleep(12)  # the server believes in a token for ten seconds after its end
        old = field.plane.client((account / "..2" / "token").read_text())
        assert old.get(POLICY.path(field.namespace)).status_code == 401, "the old tokens have ended"
        proxy.cut()
        field.apply("last")
        eventually(lambda: field.has("last"), within_s=20)
        assert operator.process.poll() is None
        assert operator.get("/healthz").status_code == 200
