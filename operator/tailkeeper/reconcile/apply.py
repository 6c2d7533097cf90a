"""Makes one object be what is desired, and says who is in the way when it must not."""

from collections.abc import Awaitable, Callable

from tailkeeper.api.names import MANAGER
from tailkeeper.reconcile.kinds import DEPLOYMENT, Kind, Manifest, kind_of
from tailkeeper.reconcile.kube import ApiError, Kube
from tailkeeper.reconcile.ownership import as_applied, controller_uid, may_manage, owns, same_wish, stamped
from tailkeeper.reconcile.spoiled import Spoiled, spoiled
from tailkeeper.reconcile.store import Store

HANDOVER_MANAGER = "tailkeeper-handover"


class Conflict(Exception):
    """An object of this name is somebody else's."""


class Terminating(Exception):
    """An object of this name is being deleted; it can be made anew when it is gone."""


class Applier:
    """Applies the objects of one policy during one reconcile. Whatever it put back is told in `repaired`.

    `confirm` is awaited once before the first write: a policy that was deleted while the watch was down must not come
    back to life through its objects. It raises when the policy is not there any more as it was read."""

    def __init__(
        self,
        kube: Kube,
        store: Store,
        policy: Manifest,
        confirm: Callable[[], Awaitable[None]],
        may_repair: Callable[[str], bool],
        count_repair: Callable[[str], object],
    ) -> None:
        self.repaired: list[str] = []
        self.left_changed: list[str] = []
        """What others change so often that putting it back has to wait."""
        self._kube = kube
        self._store = store
        self._name = policy["metadata"]["name"]
        self._uid = policy["metadata"]["uid"]
        self._confirm = confirm
        self._may_repair = may_repair
        self._count_repair = count_repair
        self._confirmed = False

    async def ensure(self, desired: Manifest, expected: bool, fenced: bool = False) -> Manifest:
        """The object, now as desired. Raises Conflict, Terminating, ApiError.

        `expected`: it was there before, so that its absence is somebody's doing. `fenced`: nobody may have written it
        since it was read (a settings generation follows from the one that was read)."""
        wish = stamped(desired)
        kind, metadata = kind_of(desired), desired["metadata"]
        live = self._store.get(kind, metadata["namespace"], metadata["name"])
        if live is not None and self._ours(kind, live) and as_applied(live, wish) and spoiled(live, wish) is None:
            return live
        await self.before_write()
        if live is None:  # not among the objects with our label, but there may be one without it
            live = await self._kube.get(kind, metadata["namespace"], metadata["name"])
        changed, put_back = "", False
        if live is not None and self._ours(kind, live):
            found = spoiled(live, wish)
            if (found or same_wish(live, wish)) and not self._may_put_back(kind, live):
                return live
            if found or same_wish(live, wish):
                changed = f"was changed by others{f' ({found.what})' if found else ''}: put back"
                put_back = True
            if found is not None:
                live = await self._unspoil(kind, live, found)
        if live is not None:
            wish["metadata"]["uid"] = live["metadata"]["uid"]
            if fenced:
                wish["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"]
            if kind is DEPLOYMENT:
                await self._hand_over_replicas(live, wish)
        applied = await self._apply(kind, wish, live)
        self._store.put(kind, applied)
        if put_back:
            self._count_repair(f"{kind.name} {metadata['name']}")
        if not changed and live is None and expected:
            changed = "was deleted: made anew"
        if changed:
            self.repaired.append(f"{kind.name} {metadata['name']} {changed}")
        return applied

    async def _unspoil(self, kind: Kind, live: Manifest, found: Spoiled) -> Manifest | None:
        """Takes out what others set; None when the object had to go for it."""
        if found.patch is None:
            await self._kube.delete(kind, live)
            self._store.remove(kind, live)
            return None
        identity = {name: live["metadata"][name] for name in ("name", "namespace", "uid")}
        head = {"apiVersion": kind.api_version, "kind": kind.name, "metadata": identity}
        return await self._kube.overwrite({**head, **found.patch})

    async def _apply(self, kind: Kind, wish: Manifest, live: Manifest | None) -> Manifest:
        try:
            return await self._kube.apply(wish)
        except ApiError as error:
            if error.status == 409:  # it changed or was replaced since: the next try looks anew
                await self._look_again(kind, wish["metadata"]["namespace"], wish["metadata"]["name"])
            if error.status != 422 or live is None or not same_wish(live, wish):
                raise
        # Others put items into our lists that do not go with ours (a second port called http): lists become ours whole.
        await self._kube.overwrite(wish)
        return await self._kube.apply(wish)

    async def remove(self, kind: Kind, live: Manifest) -> None:
        """Deletes an object of this policy."""
        if controller_uid(live) == self._uid and not live["metadata"].get("deletionTimestamp"):
            await self.before_write()
            await self._kube.delete(kind, live)

    async def before_write(self) -> None:
        """Makes sure, once, that the policy still is what this reconcile acts on."""
        if not self._confirmed:
            await self._confirm()
            self._confirmed = True

    def _ours(self, kind: Kind, live: Manifest) -> bool:
        if not may_manage(live, self._name, self._uid):
            raise Conflict(f"{kind.name} {live['metadata']['name']} {_belongs_to(live)}")
        if live["metadata"].get("deletionTimestamp"):
            raise Terminating(f"{kind.name} {live['metadata']['name']} is being deleted")
        return True

    def _may_put_back(self, kind: Kind, live: Manifest) -> bool:
        what = f"{kind.name} {live['metadata']['name']}"
        if self._may_repair(what):
            return True
        self.left_changed.append(f"{what} is changed again and again by {', '.join(_others(live))}")
        return False

    async def _hand_over_replicas(self, live: Manifest, wish: Manifest) -> None:
        """Letting go of a field that nobody else holds would set it back to its default: one replica."""
        if "replicas" in wish["spec"] or not owns(live, "spec", "replicas"):
            return
        metadata = {name: wish["metadata"][name] for name in ("name", "namespace", "uid")}
        held = {**wish, "metadata": metadata, "spec": {"replicas": live["spec"]["replicas"]}}
        await self._kube.apply(held, manager=HANDOVER_MANAGER)

    async def _look_again(self, kind: Kind, namespace: str, name: str) -> None:
        known = self._store.get(kind, namespace, name)
        present = await self._kube.get(kind, namespace, name)
        if present is not None:
            self._store.put(kind, present)
        elif known is not None:
            self._store.remove(kind, known)


def _belongs_to(live: Manifest) -> str:
    for owner in live["metadata"].get("ownerReferences", []):
        if owner.get("controller"):
            return f"is controlled by {owner['kind']} {owner['name']}"
    return "exists and is not Tailkeeper's"


def _others(live: Manifest) -> list[str]:
    """Who else wrote this object, the latest first; a status is no change of ours."""
    entries = [
        entry
        for entry in live["metadata"].get("managedFields", [])
        if not entry.get("subresource") and entry.get("manager") not in (MANAGER, HANDOVER_MANAGER)
    ]
    entries.sort(key=lambda entry: str(entry.get("time", "")), reverse=True)
    return [entry["manager"] for entry in entries[:3]] or ["somebody"]
