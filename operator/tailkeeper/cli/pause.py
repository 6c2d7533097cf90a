"""`tailkeeper pause` and `resume POLICY[/INSTANCE]`: keep the tuner's hands off, or let it move again."""

from typing import Annotated

import typer

from tailkeeper.api.names import ANNOTATION_PAUSE_PREFIX
from tailkeeper.cli import cluster_options as options
from tailkeeper.cli.policies import Target, chosen, get_policy, path_of
from tailkeeper.cli.waiting import progress_of_pause, wait

Which = Annotated[str, typer.Argument(metavar="POLICY[/INSTANCE]", help="Else all instances.", show_default=False)]


def pause(
    which: Which,
    yes: options.Yes = False,
    wait_for_it: options.Wait = True,
    timeout: options.Timeout = 60.0,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Keep the tuner's hands off: settings stay as they are, and scheduling inside them goes on.

    Example: tailkeeper pause chat/small
    """
    _annotate(which, "true", yes, timeout if wait_for_it else None, namespace, context, kubeconfig)


def resume(
    which: Which,
    yes: options.Yes = False,
    wait_for_it: options.Wait = True,
    timeout: options.Timeout = 60.0,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Let the tuner move again.

    Example: tailkeeper resume chat/small
    """
    _annotate(which, None, yes, timeout if wait_for_it else None, namespace, context, kubeconfig)


def _annotate(
    which: str,
    value: str | None,
    yes: bool,
    wait_s: float | None,
    namespace: str | None,
    context: str | None,
    kubeconfig: str | None,
) -> None:
    """`value` of the annotation; None takes it away."""
    target = Target.parse(which)
    with options.connect(context, kubeconfig) as client:
        space = namespace or client.access.namespace
        policy = get_policy(client, space, target.policy)
        annotations = policy["metadata"].get("annotations", {})
        names = [name for name in chosen(policy, target) if annotations.get(ANNOTATION_PAUSE_PREFIX + name) != value]
        if not names:
            typer.echo(f"{target}: already {'paused' if value else 'not paused'}")
            return
        words = ", ".join(f"{target.policy}/{name}" for name in names)
        options.confirm(f"{'Pause' if value else 'Resume'} {words}?", yes)
        client.annotate(path_of(space, target.policy), {ANNOTATION_PAUSE_PREFIX + name: value for name in names})
        said = "asked for"
        if wait_s is not None:
            said = wait(
                client, space, target.policy, lambda now: progress_of_pause(now, names, value is not None), wait_s
            )
        typer.echo(f"{words}: {said}")
