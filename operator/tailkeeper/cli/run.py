"""`tailkeeper run POLICY.yaml`: what a policy does, with real workers and the real tuner, without a cluster."""

import asyncio
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tailkeeper.api.enums import RetuneMode
from tailkeeper.cli.errors import UserError

if TYPE_CHECKING:
    from tailkeeper.api.policy import BatchingPolicy


class Output(StrEnum):
    """How events are written."""

    TEXT = "text"
    JSON = "json"


def run(
    policy: Annotated[Path, typer.Argument(metavar="POLICY.yaml", show_default=False)],
    models: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="The folder that stands for /models and for every PersistentVolumeClaim.",
            show_default=False,
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas", "-n", min=1, max=64, help="Workers of each instance; else one, none where the policy says 0."
        ),
    ] = None,
    instance: Annotated[
        list[str] | None, typer.Option("--instance", "-i", metavar="NAME", help="Only this one; again for more.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", "-p", min=1, max=65535, help="Of the first worker, the next ones follow; else free ones."
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    mode: Annotated[
        RetuneMode | None,
        typer.Option("--mode", "-m", case_sensitive=False, help="What the tuner may do, instead of the policy's word."),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="For settings, logs and decisions; else a new temporary folder."),
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print what happens.")] = Output.TEXT,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No status every ten seconds.")] = False,
) -> None:
    """Serve a policy's models without a cluster: the same workers, scheduler and tuner, each worker a process.

    While it runs the file is followed: edit it as you would `kubectl apply` it; an annotation
    tailkeeper.dev/set.INSTANCE moves a lever. Ctrl-C lets the workers finish what they have, a second one kills them.

    Exit codes: 0; 2: it cannot be run; 130: killed before all was answered.

    Example: tailkeeper run examples/online-embeddings.yaml --models ~/models --port 8000
    """
    from tailkeeper.cli.policy_file import read_policy
    from tailkeeper.local.events import AsJson, AsText
    from tailkeeper.local.launch import CannotStart, Wishes, missing_packages
    from tailkeeper.local.model_source import NoModel
    from tailkeeper.local.run import Order
    from tailkeeper.local.run import run as run_order
    from tailkeeper.reconcile.parsing import Refusal

    def read() -> "BatchingPolicy":
        try:
            return read_policy(policy)
        except UserError as error:
            raise Refusal(str(error)) from None

    names = tuple(instance or ())
    try:
        if missing := ", ".join(missing_packages(read(), names)):
            raise UserError(f"workers need {missing}, which is not installed: pip install 'tailkeeper[worker]'")
        if models is not None and not models.is_dir():
            raise UserError(f"--models {models}: no such folder")
        folder = folder or Path(tempfile.mkdtemp(prefix="tailkeeper-"))
        wishes = Wishes(folder.absolute(), models, replicas, names, host, port)
        as_json = output is Output.JSON
        tell = AsJson(sys.stdout) if as_json else AsText(sys.stdout)
        status = not quiet and (as_json or sys.stdout.isatty())
        raise typer.Exit(asyncio.run(run_order(Order(policy, read, wishes, mode, tell, status))))
    except (CannotStart, NoModel, Refusal) as error:
        raise UserError(str(error)) from None
