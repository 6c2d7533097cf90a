"""Policies and profiles on the API server: what it says of an object, with and without keeping it."""

from dataclasses import dataclass
from typing import Any

import httpx

GROUP_PATH = "/apis/tailkeeper.dev/v1alpha1"

Object = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the server made of an object."""

    stored: Object | None
    message: str = ""
    fields: tuple[str, ...] = ()
    """Paths of the fields at fault."""


@dataclass(frozen=True)
class Resources:
    """One kind in one namespace. Unknown and duplicate fields are errors (`fieldValidation=Strict`)."""

    client: httpx.Client
    namespace: str = "default"
    plural: str = "batchingpolicies"

    @property
    def path(self) -> str:
        return f"{GROUP_PATH}/namespaces/{self.namespace}/{self.plural}"

    def try_create(self, said: Object) -> Answer:
        """What creating it would do."""
        return _answer(self.client.post(self.path, json=said, params={"fieldValidation": "Strict", "dryRun": "All"}))

    def create(self, said: Object, field_validation: str = "Strict") -> Object:
        """Creates it, and returns it as stored."""
        return _stored(self.client.post(self.path, json=said, params={"fieldValidation": field_validation}))

    def replace(self, said: Object, subresource: str = "") -> Answer:
        """Puts it in the place of what is stored under its name."""
        path = f"{self.path}/{said['metadata']['name']}{subresource}"
        return _answer(self.client.put(path, json=said, params={"fieldValidation": "Strict"}))

    def get(self, name: str) -> Object:
        return _stored(self.client.get(f"{self.path}/{name}"))


def policy(spec: Object, name: str = "test") -> Object:
    """A policy with this spec."""
    return {"apiVersion": "tailkeeper.dev/v1alpha1", "kind": "BatchingPolicy", "metadata": {"name": name}, "spec": spec}


def minimal(**spec: object) -> Object:
    """A spec that says the least; the rest by keyword."""
    model = {"name": "m", "engine": "causal-lm", "path": "/models/m"}
    return {"instances": [{"name": "one", "model": model}], **spec}


def _answer(response: httpx.Response) -> Answer:
    body = response.json()
    if response.is_success:
        return Answer(body)
    causes = body.get("details", {}).get("causes", [])
    return Answer(None, body["message"], tuple(cause["field"] for cause in causes))


def _stored(response: httpx.Response) -> Object:
    assert response.is_success, response.text
    stored: Object = response.json()
    return stored
