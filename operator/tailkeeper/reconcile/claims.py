"""Whose the objects of a name are: those of instance `c` of policy `a-b` and of `b-c` of `a` would be called the same.

First come, first served: two policies that wrote them at the same time would each get some, and neither could serve."""

from dataclasses import dataclass, field
from typing import NamedTuple

from tailkeeper.api.names import child
from tailkeeper.reconcile.apply import Conflict
from tailkeeper.reconcile.store import Key, Store


class _Holder(NamedTuple):
    key: Key
    uid: str
    instance: str


@dataclass
class Claims:
    """Names that are taken. After a restart the objects themselves say whose they are."""

    store: Store
    _of: dict[tuple[str, str], _Holder] = field(default_factory=dict)

    def take(self, key: Key, uid: str, instance: str) -> None:
        """Takes the name for this instance. Raises Conflict while another has it."""
        at = (key.namespace, child(key.name, instance))
        holder = self._of.get(at)
        if holder is not None and holder.uid != uid and self._holds(holder):
            raise Conflict(f"the name {at[1]} is taken by instance {holder.instance} of policy {holder.key.name}")
        self._of[at] = _Holder(key, uid, instance)

    def forget(self, key: Key) -> None:
        """The policy is gone."""
        self._of = {at: holder for at, holder in self._of.items() if holder.key != key}

    def _holds(self, holder: _Holder) -> bool:
        """Whether that policy still is there, and still has that instance."""
        manifest = self.store.policy(holder.key)
        if manifest is None or manifest["metadata"]["uid"] != holder.uid:
            return False
        if manifest["metadata"].get("deletionTimestamp"):
            return False
        return any(one.get("name") == holder.instance for one in manifest["spec"].get("instances", []))
