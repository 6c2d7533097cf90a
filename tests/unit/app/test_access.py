"""Credentials that rotate (case O2): read anew when the kubelet swaps the files, and kopf told when to ask again."""

import datetime
import subprocess
from pathlib import Path

import kopf
import pytest

from tailkeeper.app.access import Credentials
from tailkeeper.app.config import read_config

LOGIN_S = read_config(["--worker-image=worker:1"], {}).login_s


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the kubelet mounts it: files are links into a folder that is swapped as a whole."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    monkeypatch.delenv("KUBERNETES_SERVICE_PORT_HTTPS", raising=False)
    authority = tmp_path / "authority.crt"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "1"),
            *("-keyout", str(tmp_path / "key"), "-out", str(authority)),
        ],
        check=True,
        capture_output=True,
    )
    for name, token in (("first", "token-1"), ("second", "token-2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "token").write_text(f"{token}\n")
        (tmp_path / name / "ca.crt").write_text(authority.read_text())
    (tmp_path / "..data").symlink_to("first")
    for name in ("token", "ca.crt"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    return tmp_path


def rotate(account: Path) -> None:
    (account / "..data_tmp").symlink_to("second")
    (account / "..data_tmp").rename(account / "..data")


def test_a_rotated_token_is_used_from_the_next_call_on(account: Path) -> None:
    credentials = Credentials(account, LOGIN_S)
    assert credentials.access().server == "https://10.0.0.1:6443"
    assert credentials.access().headers == {"Authorization": "Bearer token-1"}
    before = credentials.access()
    assert credentials.access() is before, "nothing is parsed anew while nothing changed"
    rotate(account)
    assert credentials.access().headers == {"Authorization": "Bearer token-2"}


def test_kopf_asks_again_before_a_rotated_token_can_have_run_out(account: Path) -> None:
    login = Credentials(account, LOGIN_S).login()
    assert login.expiration is not None
    lasts = login.expiration - datetime.datetime.now(datetime.UTC)
    assert lasts < datetime.timedelta(seconds=120), "the kubelet rotates at 80 % of ten minutes at the earliest"
    rotate(account)
    assert Credentials(account, LOGIN_S).login().token == "token-2"


def test_addresses_of_version_six_are_bracketed(account: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    assert Credentials(account, LOGIN_S).access().server == "https://[fd00::1]:6443"


def test_without_any_credentials_the_operator_says_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(kopf.LoginError, match="KUBECONFIG"):
        Credentials(tmp_path, LOGIN_S).access()
