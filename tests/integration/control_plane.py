"""A real Kubernetes API server for tests: etcd and kube-apiserver on free loopback ports, gone with the session.

Nothing here schedules or runs a pod. With `start_controllers`, kube-controller-manager makes Deployments into pods and
collects the garbage of deleted owners. It stands beside any other cluster of the machine: its ports are free ones, its
files are in the folder given, and its kubeconfig is only in that folder."""

import ctypes
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import httpx

READY_WITHIN_S = 90
"""A cold start takes 4 s on two idle cores; others may use the cores too."""
STOP_WITHIN_S = 15
STARTS = 3
"""A port that was free when it was looked for may be taken before the server binds it: try again."""


def programs() -> Path:
    """Folder of the cluster's programs, as `hack/local-cluster/programs` fills it."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("TAILKEEPER_CACHE") or caches / "tailkeeper") / "bin"


class Program:
    """One running daemon and its log."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        executable = programs() / name
        if not executable.exists():
            raise FileNotFoundError(f"{executable} is missing: run hack/local-cluster/programs {name}")
        self.name = name
        self.log = folder / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [executable, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,  # an interrupt at the keyboard must not end etcd before the API server
                preexec_fn=_end_with_parent,
            )

    @property
    def ended(self) -> bool:
        """Whether it ended by itself."""
        return self._process.poll() is not None

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Returns when `ready` says so. Raises RuntimeError with the end of the log when it ends or takes too long."""
        deadline = time.monotonic() + READY_WITHIN_S
        while not ready():
            if self.ended or time.monotonic() > deadline:
                what = "ended" if self.ended else f"was not ready within {READY_WITHIN_S} s"
                tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])
                raise RuntimeError(f"{self.name} {what}; {self.log} ends with:\n{tail}")
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends it, by force when it takes too long."""
        self._process.terminate()
        try:
            self._process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _end_with_parent() -> None:
    """A test process that is killed cannot clean up: the kernel ends its daemons."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class ControlPlane:
    """A running API server and what is needed to speak with it as administrator."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = secrets.token_hex(16)
        self._running: list[Program] = []
        self._write_identities()
        for attempt in range(1, STARTS + 1):
            try:
                self._start()
                break
            except RuntimeError:
                self.stop()
                if attempt == STARTS:
                    raise
        self.kubeconfig = self.write_kubeconfig("admin", self.token)

    @property
    def ca(self) -> Path:
        """Certificate to verify the server with."""
        return self.folder / "certificates" / "apiserver.crt"

    @property
    def audit_log(self) -> Path:
        """Requests of service accounts, a JSON line each: user, verb, objectRef, responseStatus."""
        return self.folder / "audit.jsonl"

    def client(self, token: str | None = None, timeout_s: float = 30) -> httpx.Client:
        """An HTTP client with the server as base URL: the administrator's, or the one whom the token names."""
        return httpx.Client(
            base_url=self.url,
            verify=_trusting(self.ca),
            headers={"Authorization": f"Bearer {token or self.token}"},
            timeout=timeout_s,
        )

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs kubectl as administrator. Raises CalledProcessError, with both outputs as notes, when it fails."""
        done = subprocess.run(
            [programs() / "kubectl", "--kubeconfig", self.kubeconfig, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
        )
        if done.returncode:
            error = subprocess.CalledProcessError(done.returncode, done.args, done.stdout, done.stderr)
            error.add_note(done.stdout + done.stderr)
            raise error
        return done

    def service_account_token(self, namespace: str, name: str, seconds: int = 3600) -> str:
        """A token of a ServiceAccount, which must be there; the server grants 600 s at least."""
        with self.client() as client:
            answer = client.post(
                f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token",
                json={"spec": {"expirationSeconds": seconds}},
            )
        answer.raise_for_status()
        token: str = answer.json()["status"]["token"]
        return token

    def write_kubeconfig(self, name: str, token: str) -> Path:
        """A kubeconfig file for whom the token names."""
        path = self.folder / f"{name}.kubeconfig"
        cluster = {"server": self.url, "certificate-authority": str(self.ca)}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name, "namespace": "default"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(config))  # JSON is YAML too
        return path

    def start_controllers(self) -> Program:
        """Starts kube-controller-manager; the caller stops it."""
        controllers = Program(
            self.folder,
            "kube-controller-manager",
            f"--kubeconfig={self.kubeconfig}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--cert-dir={self.folder / 'certificates' / 'controllers'}",
            f"--service-account-private-key-file={self._account_key}",
            f"--root-ca-file={self.ca}",
            "--leader-elect=false",
            "--kube-api-qps=200",
            "--kube-api-burst=400",
            "--concurrent-gc-syncs=5",
        )
        with self.client() as client:
            account = "/api/v1/namespaces/default/serviceaccounts/default"
            controllers.wait_until(lambda: client.get(account).is_success)
        return controllers

    def stop(self) -> None:
        """Ends everything, in the order that lets each finish."""
        while self._running:
            self._running.pop().stop()

    def _write_identities(self) -> None:
        # The server makes its own certificate; a token file spares a client certificate.
        (self.folder / "tokens.csv").write_text(f"{self.token},admin,admin,system:masters\n")
        self._account_key = self.folder / "service-accounts.key"
        self._audit_policy = self.folder / "audit-policy.json"
        rules = [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]
        policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
        self._audit_policy.write_text(json.dumps(policy))
        subprocess.run(["openssl", "genrsa", "-out", self._account_key, "2048"], check=True, capture_output=True)

    def _start(self) -> None:
        etcd_url = f"http://127.0.0.1:{free_port()}"
        peer_url = f"http://127.0.0.1:{free_port()}"
        etcd = self._run(
            "etcd",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={etcd_url}",
            f"--advertise-client-urls={etcd_url}",
            f"--listen-peer-urls={peer_url}",
            f"--initial-advertise-peer-urls={peer_url}",
            f"--initial-cluster=default={peer_url}",
            "--unsafe-no-fsync",
            "--log-level=warn",
        )
        with httpx.Client(base_url=etcd_url) as client:
            etcd.wait_until(lambda: _answers(client, "/health"))
        self._etcd_url = etcd_url
        port = free_port()
        self.url = f"https://127.0.0.1:{port}"
        self._start_apiserver(etcd_url, port)

    def lose_history(self) -> None:
        """A new server process at the same address, on a compacted etcd: watches have to begin anew (410 Gone)."""
        self._running.pop().stop()
        with httpx.Client(base_url=self._etcd_url) as client:
            now = client.post("/v3/kv/range", json={"key": "Lw=="}).raise_for_status().json()["header"]["revision"]
            client.post("/v3/kv/compaction", json={"revision": now}).raise_for_status()
        self._start_apiserver(self._etcd_url, int(self.url.rpartition(":")[2]))

    def _start_apiserver(self, etcd_url: str, port: int) -> None:
        apiserver = self._run(
            "kube-apiserver",
            f"--etcd-servers={etcd_url}",
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            "--endpoint-reconciler-type=none",  # a loopback address may not be an endpoint
            f"--cert-dir={self.folder / 'certificates'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            f"--audit-policy-file={self._audit_policy}",
            f"--audit-log-path={self.audit_log}",
            "--allow-privileged",
            "--service-cluster-ip-range=10.97.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self._account_key}",
            f"--service-account-signing-key-file={self._account_key}",
        )
        apiserver.wait_until(self.ca.exists)
        with self.client() as client:
            apiserver.wait_until(lambda: _answers(client, "/readyz"))

    def _run(self, name: str, *arguments: str) -> Program:
        program = Program(self.folder, name, *arguments)
        self._running.append(program)
        return program


def free_port() -> int:
    """A TCP port of the loopback that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def _trusting(ca: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca))


def _answers(client: httpx.Client, path: str) -> bool:
    try:
        return client.get(path).is_success
    except (httpx.HTTPError, OSError):
        return False
