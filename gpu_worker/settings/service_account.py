"""How a pod speaks to its API server: address from the environment, token and CA from mounted files. The token rotates
(every hour by default, minutes where somebody says so), so it is read anew for every request."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """Where the API server is and who we are to it."""

    url: str
    token_file: Path
    ca_file: Path

    def token(self) -> str:
        """Raises OSError."""
        return self.token_file.read_text().strip()

    def tls(self) -> ssl.SSLContext:
        """Trusts the cluster's CA and nothing else; made anew for every session, as the CA may rotate too."""
        return ssl.create_default_context(cafile=str(self.ca_file))


def in_cluster(folder: Path, environment: Mapping[str, str]) -> ServiceAccount | None:
    """None outside a cluster, and where no token is mounted (`automountServiceAccountToken: false`)."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not (folder / "token").is_file():
        return None
    return ServiceAccount(f"https://{f'[{host}]' if ':' in host else host}:{port}", folder / "token", folder / "ca.crt")
