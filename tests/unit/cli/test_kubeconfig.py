"""Who to speak with and as whom, found as kubectl finds it."""

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tailkeeper.cli.errors import UserError
from tailkeeper.cli.kubeconfig import Access, find_access


def config(**changes: Any) -> dict[str, Any]:
    return {
        "clusters": [{"name": "c", "cluster": {"server": "https://one:6443/", **changes.pop("cluster", {})}}],
        "users": [{"name": "u", "user": changes.pop("user", {"token": "t"})}],
        "contexts": [
            {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "n"}},
            {"name": "y", "context": {"cluster": "c", "user": "u"}},
        ],
        "current-context": "x",
        **changes,
    }


def write(folder: Path, content: dict[str, Any], name: str = "config") -> str:
    path = folder / name
    path.write_text(json.dumps(content))
    return str(path)


def test_the_current_context_and_another(tmp_path: Path) -> None:
    path = write(tmp_path, config())
    assert find_access(path, None, {}) == Access("https://one:6443", "n", token="t")
    assert find_access(path, "y", {}).namespace == "default"


def test_certificates_in_place_and_as_files_beside_the_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("CA")
    said = base64.b64encode(b"KEY").decode()
    user = {"client-certificate-data": base64.b64encode(b"CERT").decode(), "client-key-data": said}
    access = find_access(write(tmp_path, config(user=user, cluster={"certificate-authority": "ca.pem"})), None, {})
    assert (access.ca, access.certificate, access.key) == (b"CA", b"CERT", b"KEY")


def test_of_several_files_the_first_that_names_a_thing_counts(tmp_path: Path) -> None:
    first = write(tmp_path, {"current-context": "y"}, "first")
    second = write(tmp_path, config(), "second")
    environment = {"KUBECONFIG": f"{first}:{second}:{tmp_path}/gone"}
    assert find_access(None, None, environment).namespace == "default"


def test_home_is_where_it_is_looked_for_last(tmp_path: Path) -> None:
    (tmp_path / ".kube").mkdir()
    write(tmp_path / ".kube", config())
    assert find_access(None, None, {"HOME": str(tmp_path)}).token == "t"


def test_a_credential_plugin_is_asked(tmp_path: Path) -> None:
    program = (
        "import json, os; asked = json.loads(os.environ['KUBERNETES_EXEC_INFO'])['kind'];"
        "print(json.dumps({'status': {'token': asked + os.environ['WHO']}}))"
    )
    plugin = {"command": sys.executable, "args": ["-c", program], "env": [{"name": "WHO", "value": "-me"}]}
    assert find_access(write(tmp_path, config(user={"exec": plugin})), None, {}).token == "ExecCredential-me"


@pytest.mark.parametrize(
    ("content", "context", "says"),
    [
        (config(), "z", "no context z; there are x, y"),
        (config(**{"current-context": ""}), None, "choose one with --context: x, y"),
        (config(cluster={"server": ""}), None, "cluster c has no server address"),
        (config(cluster={"proxy-url": "http://p"}), None, "proxy-url is not supported"),
        (config(cluster={"certificate-authority-data": "%"}), None, "certificate-authority-data is not base64"),
        (config(cluster={"certificate-authority": "gone.pem"}), None, "gone.pem: No such file"),
        (config(users=[]), None, "no user u"),
        (config(user={"exec": {"command": "no-such-plugin"}}), None, "no-such-plugin, which gives the credentials, is"),
        (config(user={"exec": {"command": "false"}}), None, "false gave no credentials"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    tmp_path: Path, content: dict[str, Any], context: str | None, says: str
) -> None:
    with pytest.raises(UserError) as error:
        find_access(write(tmp_path, content), context, {})
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_no_kubeconfig_at_all(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="name one with --kubeconfig"):
        find_access(None, None, {"HOME": str(tmp_path)})
    (tmp_path / "text").write_text("just text")
    with pytest.raises(UserError, match="not a kubeconfig"):
        find_access(str(tmp_path / "text"), None, {})
