"""Whether a live object still is what we applied, without asking the server and without a schema.

After a server-side apply the server records in `metadata.managedFields` which fields are ours. Whoever changes one
of them takes it away from us; whoever removes one removes it from the record too. So an object is as we want it when
it carries the hash of what we want and every field that we want is still recorded as ours. Comparing values instead
would have to know every default and every normalisation (`0.5` CPU is stored as `500m`) or write for ever.

Fields that others add (an autoscaler's replicas, a service mesh's annotation) are not ours and stay."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from tailkeeper.api.names import ANNOTATION_APPLIED, LABEL_POLICY, MANAGER
from tailkeeper.reconcile.kinds import Manifest

_IDENTITY = ("apiVersion", "kind")
_METADATA_IDENTITY = ("name", "namespace", "uid", "resourceVersion")


def fingerprint(value: Any) -> str:
    """A short hash of JSON data that does not depend on the order of keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stamped(desired: Manifest) -> Manifest:
    """The object with the hash of itself among its annotations, ready to be applied."""
    metadata = dict(desired["metadata"])
    metadata["annotations"] = {**metadata.get("annotations", {}), ANNOTATION_APPLIED: fingerprint(desired)}
    return {**desired, "metadata": metadata}


def as_applied(live: Manifest, stamped_desired: Manifest) -> bool:
    """Whether applying this stamped object would change nothing."""
    if not same_wish(live, stamped_desired):
        return False
    fields = _applied_fields(live)
    return bool(fields) and _covers(fields, _payload(stamped_desired))


def same_wish(live: Manifest, stamped_desired: Manifest) -> bool:
    """Whether this very object was applied before: when it still is not as applied, somebody else changed it."""
    wanted = stamped_desired["metadata"]["annotations"][ANNOTATION_APPLIED]
    return bool(live["metadata"].get("annotations", {}).get(ANNOTATION_APPLIED) == wanted)


def owns(live: Manifest, *path: str) -> bool:
    """Whether the field at this path of map keys is recorded as ours."""
    node: Any = _applied_fields(live)
    for name in path:
        if not isinstance(node, Mapping) or f"f:{name}" not in node:
            return False
        node = node[f"f:{name}"]
    return True


def controller_uid(live: Manifest) -> str | None:
    """UID of the object that controls this one."""
    return next((ref["uid"] for ref in live["metadata"].get("ownerReferences", []) if ref.get("controller")), None)


def may_manage(live: Manifest, policy_name: str, policy_uid: str) -> bool:
    """Whether this object is ours to change: controlled by the policy, or an orphan of a policy of this name."""
    controller = controller_uid(live)
    if controller is not None:
        return controller == policy_uid
    return bool(live["metadata"].get("labels", {}).get(LABEL_POLICY) == policy_name)


def _applied_fields(live: Manifest) -> Mapping[str, Any]:
    for entry in live["metadata"].get("managedFields", []):
        if entry.get("manager") == MANAGER and entry.get("operation") == "Apply" and not entry.get("subresource"):
            fields: Mapping[str, Any] = entry.get("fieldsV1", {})
            return fields
    return {}


def _payload(desired: Manifest) -> Manifest:
    payload = {name: value for name, value in desired.items() if name not in _IDENTITY}
    payload["metadata"] = {name: value for name, value in desired["metadata"].items() if name not in _METADATA_IDENTITY}
    return payload


def _covers(fields: Mapping[str, Any], value: Any) -> bool:
    """Whether a node of fieldsV1 records everything in the value. An empty node owns all below it."""
    if not fields:
        return True
    if isinstance(value, Mapping):
        return all(f"f:{name}" in fields and _covers(fields[f"f:{name}"], below) for name, below in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(_covers_item(fields, item) for item in value)
    return True


def _covers_item(fields: Mapping[str, Any], item: Any) -> bool:
    if not isinstance(item, Mapping):
        return "v:" + json.dumps(item, separators=(",", ":")) in fields
    for name, below in fields.items():
        if name.startswith("k:") and _is_item(json.loads(name[2:]), item):
            return _covers(below, item)
    return False


def _is_item(key: Mapping[str, Any], item: Mapping[str, Any]) -> bool:
    """Whether the item is the one with this key. The server may have defaulted a part of it (`protocol: TCP`)."""
    return any(name in item for name in key) and all(item.get(name, part) == part for name, part in key.items())
