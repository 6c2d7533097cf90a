"""Until the operator and the workers have done what was asked: what there is to see in a policy's status. Pure, but for
the loop at the end."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tailkeeper.api.enums import ConditionType
from tailkeeper.cli.errors import EXIT_FAILED, UserError
from tailkeeper.cli.kube_client import KubeClient, Manifest
from tailkeeper.cli.policies import condition, get_policy, status_of

POLL_S: Final = 0.5
REFUSED: Final = "ManualValueRefused"


@dataclass(frozen=True)
class Reached:
    """It is done; what there is to say of it."""

    message: str


@dataclass(frozen=True)
class Refused:
    """It will not be done, and why."""

    message: str


@dataclass(frozen=True)
class Waiting:
    """Not yet, and for what."""

    message: str


Progress = Reached | Refused | Waiting


def levers_written(document: Mapping[str, Any], wanted: Mapping[str, object]) -> bool:
    """Whether a settings document has these values, by field of the document (`tiers.NAME.FIELD` for a tier's)."""
    for place, value in wanted.items():
        at: Any = document
        tiers, _, rest = place.partition(".")
        if rest:
            name, _, field = rest.rpartition(".")
            at = next((tier for tier in document.get(tiers, []) if tier.get("name") == name), {})
        else:
            field = place
        if at.get(field) != value:
            return False
    return True


def progress_of_move(before: Manifest, now: Manifest, instance: str, wanted: Mapping[str, object]) -> Progress:
    """Of a move by hand. `before`: the policy as it was before the annotation."""
    was, status = status_of(before, instance), status_of(now, instance)
    generation, ready = status.get("settingsGeneration", 0), status.get("readyReplicas", 0)
    accepted = condition(now, ConditionType.ACCEPTED)
    written = generation > was.get("settingsGeneration", 0)
    if not written or not levers_written(status.get("effective", {}), wanted):
        if accepted.get("reason") == REFUSED and accepted != condition(before, ConditionType.ACCEPTED):
            return Refused(f"the operator refused it: {accepted.get('message', '')}")
        if accepted.get("status") == "False":
            return Refused(f"the policy is not accepted, so nothing of it is applied: {accepted.get('message', '')}")
        return Waiting("the operator has not written it: is it running?")
    if ready == 0:
        return Reached(f"generation {generation} is written; no worker is ready to apply it yet")
    if status.get("appliedGeneration", 0) < generation:
        applied = condition(now, ConditionType.SETTINGS_APPLIED)
        why = f": {applied['message']}" if applied.get("status") == "False" and applied.get("message") else ""
        return Waiting(
            f"generation {generation} is written, the workers apply {status.get('appliedGeneration', 0)}{why}"
        )
    return Reached(f"generation {generation} is applied by {ready} {'worker' if ready == 1 else 'workers'}")


def progress_of_pause(now: Manifest, instances: list[str], paused: bool) -> Progress:
    """Of pausing these instances, or of resuming them."""
    open_ = [name for name in instances if bool(status_of(now, name).get("paused", False)) is not paused]
    if open_:
        return Waiting(f"the operator has not taken note for {', '.join(open_)}: is it running?")
    return Reached("the tuner's hands are off" if paused else "the tuner may move again")


def wait(
    client: KubeClient, namespace: str, policy: str, progress: Callable[[Manifest], Progress], for_s: float
) -> str:
    """What there is to say once it is done. Raises UserError (exit 1) when it is refused or takes longer."""
    until_s = time.monotonic() + for_s
    while True:
        match progress(get_policy(client, namespace, policy)):
            case Reached(message):
                return message
            case Refused(message):
                raise UserError(message, EXIT_FAILED)
            case Waiting(message) if time.monotonic() > until_s:
                raise UserError(f"not within {for_s:g} s: {message}", EXIT_FAILED)
        time.sleep(POLL_S)
