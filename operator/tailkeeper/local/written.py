"""The settings of one instance: planned as the operator plans them, and written to the file that its workers watch."""

import os
from pathlib import Path
from typing import Final

from tailkeeper.api.names import ANNOTATION_SET_PREFIX
from tailkeeper.api.policy import BatchingPolicy, Instance
from tailkeeper.api.resolve import initial_settings, resolve
from tailkeeper.api.settings import Settings
from tailkeeper.control.move import Bounds
from tailkeeper.local.launch import NAMESPACE
from tailkeeper.reconcile.moves import Proposal
from tailkeeper.reconcile.objects import settings_document
from tailkeeper.reconcile.reconciler import now
from tailkeeper.reconcile.settings_plan import Plan, Record, plan_settings

_FIRST: Final = Record()


class WrittenSettings:
    """What the settings ConfigMap is in a cluster. `plan` before anything is read of it."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._record = _FIRST
        self._bounds: Bounds | None = None

    @property
    def settings(self) -> Settings:
        """The newest that were written."""
        assert self._record.settings is not None
        return self._record.settings

    @property
    def bounds(self) -> Bounds:
        """How far the tuner may go."""
        assert self._bounds is not None
        return self._bounds

    def plan(self, policy: BatchingPolicy, instance: Instance, proposal: Proposal | None = None) -> Plan:
        """Writes what this policy, its annotations and the proposal come to, when it is something new."""
        name = instance.name
        spec = initial_settings(
            resolve(policy.spec, instance),
            policy_namespace=policy.metadata.namespace or NAMESPACE,
            policy=policy.metadata.name,
            model_instance=name,
            generation=1,
        )
        plan = plan_settings(
            spec=spec,
            record=self._record,
            status_settings=None,
            highest_reported=0,  # the workers are ours alone, and none is older than this record
            manual=policy.metadata.annotations.get(ANNOTATION_SET_PREFIX + name),
            proposal=proposal,
            now=now(),
        )
        if plan.rewrite:
            _replace(self._file, settings_document(plan.settings))
        self._bounds = Bounds(spec, tuple(policy.spec.retune.pin))
        self._record = Record(plan.settings, True, plan.settings.generation, plan.manual, plan.move)
        return plan


def _replace(file: Path, text: str) -> None:
    """A worker reads the old document or the new one, never a part."""
    new = file.with_suffix(".new")
    new.write_text(text, "utf-8")
    os.replace(new, file)
