"""Custom resource definitions on a test API server, usable when the call returns.

`kubectl wait --for=condition=Established` fails on a definition that is so new that its conditions are null
(the server writes null until its controller has looked, and kubectl takes that for a malformed status)."""

import time
from pathlib import Path

from tests.integration.control_plane import ControlPlane

ESTABLISHED_WITHIN_S = 30
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def install_definitions(plane: ControlPlane, path: Path) -> None:
    """Applies a file, or the files of a folder, and waits until all definitions of the server are established."""
    plane.kubectl("apply", "--server-side", "-f", str(path))
    await_definitions(plane)


def await_definitions(plane: ControlPlane) -> None:
    """Waits until all definitions of the server are established. Raises TimeoutError that names those that are not."""
    deadline = time.monotonic() + ESTABLISHED_WITHIN_S
    with plane.client() as client:
        while missing := _not_established(client.get(DEFINITIONS).raise_for_status().json()["items"]):
            if time.monotonic() > deadline:
                raise TimeoutError(f"not established within {ESTABLISHED_WITHIN_S} s: {missing}")
            time.sleep(0.1)


def _not_established(definitions: list[dict]) -> list[str]:
    return [
        crd["metadata"]["name"]
        for crd in definitions
        if not any(
            condition["type"] == "Established" and condition["status"] == "True"
            for condition in crd["status"].get("conditions") or []
        )
    ]
