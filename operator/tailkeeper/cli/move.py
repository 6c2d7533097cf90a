"""`tailkeeper set POLICY/INSTANCE LEVER=VALUE…`: a move by hand, within the bounds of the spec."""

from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import ValidationError

from tailkeeper.api.enums import RetuneMode
from tailkeeper.api.levers import InvalidMove, Move, changes, move, parse_moves
from tailkeeper.api.names import ANNOTATION_PAUSE_PREFIX, ANNOTATION_SET_PREFIX
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.settings import Settings
from tailkeeper.api.status import Change
from tailkeeper.cli import cluster_options as options
from tailkeeper.cli.errors import UserError
from tailkeeper.cli.kube_client import Manifest
from tailkeeper.cli.policies import Target, chosen, get_policy, path_of, status_of
from tailkeeper.cli.policy_file import instance_settings
from tailkeeper.cli.waiting import progress_of_move, wait
from tailkeeper.reconcile.parsing import Refusal, read_policy


def set_levers(
    instance: Annotated[str, typer.Argument(metavar="POLICY/INSTANCE", show_default=False)],
    moves: Annotated[
        list[str],
        typer.Argument(
            metavar="LEVER=VALUE…",
            help="ceiling=8, margin=15%, tokenBudget=256|off, and of a tier maxHold.TIER=5ms, boost.TIER=20ms, "
            "reserve.TIER=10%, preemption.TIER=on|off.",
            show_default=False,
        ),
    ],
    yes: options.Yes = False,
    wait_for_it: options.Wait = True,
    timeout: options.Timeout = 60.0,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Move levers of a running instance by hand, live, within the bounds of its policy.

    Exit status: 0 done, 1 refused by the operator or not done in time, 2 not possible as asked.

    Example: tailkeeper set chat/small ceiling=8 maxHold.interactive=5ms
    """
    target, asked = Target.parse(instance), _parsed(moves)
    with options.connect(context, kubeconfig) as client:
        space = namespace or client.access.namespace
        policy = get_policy(client, space, target.policy)
        name = _one(policy, target)
        before, after = _moved(policy, name, asked)
        changed = changes(before, after)
        if not changed:
            typer.echo(f"{target.policy}/{name}: {', '.join(map(str, asked))} already holds")
            return
        words = ", ".join(_words(change) for change in changed)
        options.confirm(f"{target.policy}/{name}: {words}. Set it?", yes)
        annotation = ANNOTATION_SET_PREFIX + name
        text = annotation_text(asked, policy["metadata"].get("annotations", {}).get(annotation))
        client.annotate(path_of(space, target.policy), {annotation: text})
        typer.echo(f"{target.policy}/{name}: {words}")
        if wait_for_it:
            wanted = wanted_fields(asked)
            said = wait(client, space, target.policy, lambda now: progress_of_move(policy, now, name, wanted), timeout)
            typer.echo(said)
        if note := _note(policy, name, asked):
            typer.echo(note, err=True)


def annotation_text(asked: Sequence[Move], there: str | None) -> str:
    """What the annotation must say. The operator acts once on each text: to ask for the same again, after the tuner
    moved on, the text differs by a blank."""
    text = " ".join(map(str, asked))
    return f"{text} " if there == text else text


def wanted_fields(asked: Sequence[Move]) -> dict[str, object]:
    """Where the moves show in a settings document, and as what."""
    fields = {
        "ceiling": "ceiling",
        "margin": "marginPercent",
        "tokenBudget": "tokenBudget",
        "maxHold": "maxHoldMs",
        "boost": "boostMs",
        "reserve": "reservePercent",
        "preemption": "preempts",
    }
    return {
        fields[each.key.lever]
        if each.key.tier is None
        else f"tiers.{each.key.tier}.{fields[each.key.lever]}": each.value
        for each in asked
    }


def _one(policy: Manifest, target: Target) -> str:
    names = chosen(policy, target)
    if len(names) > 1:
        raise UserError(f"{target.policy} has several instances: write {target.policy}/INSTANCE ({', '.join(names)})")
    return names[0]


def _parsed(moves: Sequence[str]) -> tuple[Move, ...]:
    try:
        return parse_moves(" ".join(moves))
    except InvalidMove as error:
        raise UserError(str(error)) from None


def _moved(policy: Manifest, instance: str, asked: Sequence[Move]) -> tuple[Settings, Settings]:
    """The settings now, and as they will be. Raises UserError."""
    try:
        spec = instance_settings(read_policy(policy), instance)
    except Refusal as refusal:
        raise UserError(f"the policy itself is not valid for this version: {refusal}") from None
    try:
        now = Settings.model_validate(status_of(policy, instance).get("effective"))
    except ValidationError:
        now = spec
    try:
        return now, move(now, asked, spec)
    except InvalidMove as error:
        raise UserError(f"{error} (the policy {policy['metadata']['name']} sets the bounds)") from None


def _words(change: Change) -> str:
    lever = change.lever.value if change.tier is None else f"{change.lever.value}.{change.tier}"
    return f"{lever} {change.before} → {change.after}"


def _note(policy: Manifest, instance: str, asked: Sequence[Move]) -> str:
    """Whoever moves by hand should know that the tuner moves too."""
    spec = BatchingPolicy.model_validate(policy).spec
    annotations = policy["metadata"].get("annotations", {})
    free = [str(each.key) for each in asked if each.key.lever not in spec.retune.pin]
    if spec.retune.mode is not RetuneMode.AUTO or annotations.get(ANNOTATION_PAUSE_PREFIX + instance) == "true":
        return ""
    if not free:
        return ""
    name = policy["metadata"]["name"]
    return f"the tuner may move {', '.join(free)} again: `tailkeeper pause {name}/{instance}` keeps its hands off"
