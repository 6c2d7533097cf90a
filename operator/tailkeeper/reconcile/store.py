"""What the operator knows of the cluster: the last state of every object that it watches.

Watch events feed it, the answers to our own writes feed it, and a periodic list prunes it: a watch that was down may
never say that an object was deleted. The newest resource version wins, whatever came first (Kubernetes promises since
1.35 that they compare as numbers; every server on etcd has always behaved so)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from tailkeeper.api.names import LABEL_INSTANCE, LABEL_POLICY, POLICY_KIND
from tailkeeper.reconcile.kinds import POLICY, WATCHED, Kind, Manifest

TOMBSTONES = 10_000


class Key(NamedTuple):
    """A policy, by namespace and name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def key_of(kind: Kind, manifest: Manifest) -> Key | None:
    """The policy that an object belongs to, by its controller or else its label (pods, orphans); None: not ours."""
    metadata = manifest["metadata"]
    if kind == POLICY:
        return Key(metadata["namespace"], metadata["name"])
    name = metadata.get("labels", {}).get(LABEL_POLICY)
    for owner in metadata.get("ownerReferences", []):
        if owner.get("controller") and owner["kind"] == POLICY_KIND:
            name = owner["name"]
    return Key(metadata["namespace"], name) if name else None


@dataclass
class Store:
    """Objects by kind, namespace and name."""

    _objects: dict[Kind, dict[Key, Manifest]] = field(default_factory=lambda: {kind: {} for kind in WATCHED})
    _of_policy: dict[tuple[Kind, Key], set[Key]] = field(default_factory=dict)
    _gone: dict[str, int] = field(default_factory=dict)
    """UIDs of deleted objects with the version of the deletion, oldest first: a list that was read before must not
    bring them back. One that only lost our label, which a watch tells in the same words, may come back later."""

    def put(self, kind: Kind, manifest: Manifest) -> bool:
        """Takes an object in; says whether it is news."""
        metadata = manifest["metadata"]
        at = Key(metadata["namespace"], metadata["name"])
        known = self._objects[kind].get(at)
        if _version(manifest) <= self._gone.get(metadata["uid"], -1):
            return False
        if known is not None:
            if _version(known) >= _version(manifest):
                return False
            self._unindex(kind, at, known)
        self._objects[kind][at] = manifest
        if (key := key_of(kind, manifest)) is not None:
            self._of_policy.setdefault((kind, key), set()).add(at)
        return True

    def remove(self, kind: Kind, manifest: Manifest, version: int | None = None) -> None:
        """Forgets an object that is gone since `version` (default: its own), but not another one that took its name."""
        metadata = manifest["metadata"]
        self._gone[metadata["uid"]] = _version(manifest) if version is None else version
        if len(self._gone) > TOMBSTONES:
            del self._gone[next(iter(self._gone))]
        at = Key(metadata["namespace"], metadata["name"])
        known = self._objects[kind].get(at)
        if known is not None and known["metadata"]["uid"] == metadata["uid"]:
            del self._objects[kind][at]
            self._unindex(kind, at, known)

    def replace(self, kind: Kind, namespace: str | None, items: Iterable[Manifest], list_version: str) -> set[Key]:
        """Takes in a whole list of a kind (of one namespace, or of all); returns the policies that it is news for."""
        changed: set[Key] = set()
        listed: set[str] = set()
        for item in items:
            listed.add(item["metadata"]["uid"])
            if self.put(kind, item) and (key := key_of(kind, item)):
                changed.add(key)
        for at, known in list(self._objects[kind].items()):
            absent = known["metadata"]["uid"] not in listed and namespace in (None, at.namespace)
            if absent and _version(known) <= int(list_version):
                self.remove(kind, known, int(list_version))
                if key := key_of(kind, known):
                    changed.add(key)
        return changed

    def policy(self, key: Key) -> Manifest | None:
        """The policy itself."""
        return self._objects[POLICY].get(key)

    def policies(self) -> Iterator[Key]:
        """All policies."""
        return iter(list(self._objects[POLICY]))

    def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        """One object by its name."""
        return self._objects[kind].get(Key(namespace, name))

    def of_policy(self, kind: Kind, key: Key, instance: str | None = None) -> list[Manifest]:
        """A policy's objects of a kind by their labels, of one instance or of all, by name."""
        objects = (self._objects[kind][at] for at in sorted(self._of_policy.get((kind, key), ())))
        return [
            item
            for item in objects
            if instance is None or item["metadata"].get("labels", {}).get(LABEL_INSTANCE) == instance
        ]

    def all(self, kind: Kind) -> list[Manifest]:
        """Every object of a kind."""
        return list(self._objects[kind].values())

    def _unindex(self, kind: Kind, at: Key, manifest: Manifest) -> None:
        if (key := key_of(kind, manifest)) is not None:
            names = self._of_policy.get((kind, key), set())
            names.discard(at)
            if not names:
                self._of_policy.pop((kind, key), None)


def _version(manifest: Manifest) -> int:
    return int(manifest["metadata"]["resourceVersion"])
