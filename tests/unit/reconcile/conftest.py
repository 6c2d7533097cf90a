"""Policies and objects to build from."""

from collections.abc import Callable
from typing import Any

import pytest

from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.reconcile.kinds import Manifest

MakePolicy = Callable[..., BatchingPolicy]


@pytest.fixture
def make_policy() -> MakePolicy:
    """A policy `team/chat` with an instance `small`; keywords change the instance, `spec` and `annotations` more."""

    def make(spec: dict[str, Any] | None = None, annotations: dict[str, str] | None = None, **instance: Any):
        model = {"name": "minilm", "engine": "encoder", "path": "/models/minilm"}
        return BatchingPolicy.model_validate(
            {
                "metadata": {"name": "chat", "namespace": "team", "uid": "u-1", "annotations": annotations or {}},
                "spec": {"instances": [{"name": "small", "model": model, **instance}], **(spec or {})},
            }
        )

    return make


def live_object(kind: str = "Pod", name: str = "one", version: int = 1, **metadata: Any) -> Manifest:
    """An object as the server has it."""
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "labels": {"tailkeeper.dev/policy": "chat", "tailkeeper.dev/model-instance": "small"},
            **metadata,
        },
    }


@pytest.fixture
def make_live() -> Callable[..., Manifest]:
    """See `live_object`."""
    return live_object
