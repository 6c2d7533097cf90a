"""Options of every command that speaks with a cluster, named as kubectl names them."""

import os
import sys
from typing import Annotated

import typer

from tailkeeper.cli.errors import EXIT_FAILED, UserError
from tailkeeper.cli.kube_client import KubeClient
from tailkeeper.cli.kubeconfig import find_access

Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Else the context's.")]
Context = Annotated[str | None, typer.Option("--context", help="Of the kubeconfig; else its current one.")]
Kubeconfig = Annotated[str | None, typer.Option("--kubeconfig", help="Else $KUBECONFIG, or ~/.kube/config.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Until the workers have it.")]
Timeout = Annotated[float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Longest wait.")]


def connect(context: str | None, kubeconfig: str | None) -> KubeClient:
    """Raises UserError."""
    return KubeClient(find_access(kubeconfig, context, os.environ))


def confirm(question: str, yes: bool) -> None:
    """Returns when the answer is yes, else ends the command. Raises UserError where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError(f"{question} Nobody is here to be asked: add --yes")
    if not typer.confirm(question):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(EXIT_FAILED)
