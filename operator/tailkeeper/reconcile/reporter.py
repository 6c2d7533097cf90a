"""Tells people: the status of a policy when its meaning changed, and Events."""

import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tailkeeper.api.enums import ConditionType
from tailkeeper.api.names import MANAGER
from tailkeeper.api.status import PolicyStatus
from tailkeeper.reconcile.announce import Announcement, EventLimit, announcements, event_manifest
from tailkeeper.reconcile.kinds import POLICY, Manifest
from tailkeeper.reconcile.kube import ApiError, Kube
from tailkeeper.reconcile.status import InstanceFindings, Verdict, build_status
from tailkeeper.reconcile.store import Key, Store

logger = logging.getLogger(__name__)


@dataclass
class Reporter:
    """Writes statuses and posts Events. `signals`: conditions that are measured elsewhere. `now`: RFC 3339."""

    kube: Kube
    store: Store
    monotonic_s: Callable[[], float]
    now: Callable[[], str]
    signals: Callable[[Key], Mapping[ConditionType, Verdict]] = lambda key: {}
    _limit: EventLimit = field(default_factory=EventLimit)

    async def report(
        self,
        key: Key,
        manifest: Manifest,
        before: PolicyStatus | None,
        accepted: Verdict,
        findings: Sequence[InstanceFindings],
    ) -> None:
        """Writes the status when its meaning changed, and says in Events what changed. Raises ApiError."""
        generation = manifest["metadata"]["generation"]
        after = build_status(before, generation, accepted, findings, self.signals(key), self.now())
        if after == before:
            return
        metadata = {name: manifest["metadata"][name] for name in ("name", "namespace", "uid")}
        body = {
            "apiVersion": manifest["apiVersion"],
            "kind": manifest["kind"],
            "metadata": metadata,
            "status": after.to_json(),
        }
        try:
            self.store.put(POLICY, await self.kube.apply(body, subresource="status"))
        except ApiError as error:
            if error.status in (404, 409):  # deleted, or deleted and made anew, since it was read
                return
            raise
        for announcement in announcements(before, after):
            await self.announce(key, announcement)

    async def announce(self, key: Key, announcement: Announcement) -> None:
        """Posts an Event about a policy, as far as the limit allows; none when it is gone."""
        manifest = self.store.policy(key)
        if manifest is None:
            return
        logger.info("%s: %s: %s", key, announcement.reason, announcement.message)
        if not self._limit.allows(key, announcement, self.monotonic_s()):
            return
        event = event_manifest(manifest, key, announcement, self.now(), secrets.token_hex(8), MANAGER)
        try:
            await self.kube.create_event(event)
        except ApiError as error:  # an Event is a courtesy
            logger.warning("%s: Event %s not posted: %s", key, announcement.reason, error)

    def forget(self, key: Key) -> None:
        """The policy is gone."""
        self._limit.forget(key)
