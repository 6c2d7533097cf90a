"""`tailkeeper status [POLICY]`: every instance against its SLA, what the tuner did last, and what the workers say."""

import json
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Final

import typer
import yaml

from tailkeeper.cli import cluster_options as options
from tailkeeper.cli.errors import UserError
from tailkeeper.cli.kube_client import KubeClient, Manifest
from tailkeeper.cli.policies import Target, chosen, get_policy, instances_of, list_policies
from tailkeeper.cli.status_rows import Row, remarks, rows, table
from tailkeeper.cli.worker_reads import At, PodPages, Reads, from_prometheus

EVERY_S: Final = 2.0
CLEAR: Final = "\x1b[H\x1b[2J\x1b[3J"


class Format(StrEnum):
    """How it is printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def status(
    policy: Annotated[
        str | None, typer.Argument(metavar="[POLICY[/INSTANCE]]", help="Else all of the namespace.", show_default=False)
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help=f"Again every {EVERY_S:g} s, until Ctrl-C.")] = False,
    output: Annotated[Format, typer.Option("--output", "-o", help="table, json or yaml.")] = Format.TABLE,
    prometheus: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Read it for the measured columns; else the workers, through the API server."),
    ] = None,
    sample: Annotated[
        float, typer.Option(min=0, max=60, metavar="SECONDS", help="How long to look at how busy workers are.")
    ] = 1.0,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Of every namespace.")] = False,
    namespace: options.Namespace = None,
    context: options.Context = None,
    kubeconfig: options.Kubeconfig = None,
) -> None:
    """Show each instance: its SLA and latency, window and bounds, settings written and applied, the last move.

    Example: tailkeeper status chat
    """
    target = Target.parse(policy) if policy is not None else None
    if target is not None and all_namespaces:
        raise UserError("a policy has one namespace: leave out -A, or the policy")
    with options.connect(context, kubeconfig) as client:
        space = None if all_namespaces else namespace or client.access.namespace
        pages = PodPages(client)
        while True:
            found = _policies(client, space, target)
            reads = _read(pages, found, target, prometheus, watch, sample)
            text = _text(found, target, reads, output, all_namespaces, watch)
            if watch and output is Format.TABLE and sys.stdout.isatty():
                text = f"{CLEAR}{datetime.now(UTC):%H:%M:%S} UTC\n{text}"
            typer.echo(text)
            if not watch:
                return
            time.sleep(EVERY_S)


def _policies(client: KubeClient, namespace: str | None, target: Target | None) -> list[Manifest]:
    if target is None:
        return list_policies(client, namespace)
    assert namespace is not None
    found = get_policy(client, namespace, target.policy)
    chosen(found, target)
    return [found]


def _read(
    pages: PodPages,
    policies: Sequence[Manifest],
    target: Target | None,
    prometheus: str | None,
    watch: bool,
    sample_s: float,
) -> Reads:
    if prometheus is not None:
        return from_prometheus(prometheus)
    wanted = [
        At(policy["metadata"]["namespace"], policy["metadata"]["name"], name)
        for policy in policies
        for name in (chosen(policy, target) if target else instances_of(policy))
    ]
    return pages.again(wanted) if watch else pages.once(wanted, sample_s)


def _text(
    policies: Sequence[Manifest],
    target: Target | None,
    reads: Reads,
    output: Format,
    with_namespace: bool,
    watch: bool,
) -> str:
    found: list[Row] = []
    said: list[str] = []
    for policy in policies:
        of_policy = rows(policy, reads.summaries)
        if target is not None and target.instance is not None:
            of_policy = [row for row in of_policy if row["instance"] == target.instance]
        found += of_policy
        said += remarks(policy, of_policy)
    if output is not Format.TABLE:
        document = {"instances": found, "over": reads.over, "complaints": reads.complaints}
        if output is Format.YAML:
            return ("---\n" if watch else "") + yaml.safe_dump(document, sort_keys=False, allow_unicode=True).rstrip()
        return json.dumps(document, indent=None if watch else 2, ensure_ascii=False)
    if not found:
        return "no BatchingPolicy here; another namespace: -n, or all: -A"
    lines = [table(found, datetime.now(UTC), with_namespace)]
    if any(row["workersRead"] for row in found):
        lines.append(reads.over)
    return "\n".join([*lines, *said, *reads.complaints])
