"""`tailkeeper lint FILE…`: what the API server would refuse, and what is hardly meant, without a cluster."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

import typer
from pydantic import ValidationError

from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.profile import BatchingProfile
from tailkeeper.cli.advice import Measured, advice
from tailkeeper.cli.documents import Document, read_documents
from tailkeeper.cli.errors import EXIT_FAILED, UserError
from tailkeeper.cli.faults import Fault, faults, is_ours
from tailkeeper.model.windows import Line
from tailkeeper.simulate.model import ModelError, parse_model


class Format(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"


class Severity(StrEnum):
    """An error is refused by the API server, advice is not."""

    ERROR = "error"
    ADVICE = "advice"


@dataclass(frozen=True)
class Finding:
    """One fault of one document."""

    document: Document
    severity: Severity
    fault: Fault


def lint(
    files: Annotated[list[str], typer.Argument(metavar="FILE…", help="YAML or JSON; - is standard input.")],
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", metavar="COEFFICIENTS", help="a=0.5ms,c=6ms: a batch of b takes c + a·b."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option(metavar="REQUESTS/S", min=0, help="Load per worker, to judge the windows by.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 for advice too.")] = False,
    output: Annotated[Format, typer.Option("--output", "-o", help="text or json.")] = Format.TEXT,
) -> None:
    """Check policies and profiles as the API server would, and say what is hardly meant.

    A profile among the files tells how fast its model is and what load it had, for policies that run that model.

    Exit status: 0 nothing is refused, 1 something is, 2 a file cannot be read.

    Example: tailkeeper lint examples/online-embeddings.yaml --model a=0.5ms,c=6ms
    """
    line = _line(model)
    documents = [document for file in files for document in read_documents(file)]
    ours = [document for document in documents if is_ours(document.content)]
    if not ours:
        raise UserError(f"{', '.join(files)}: no BatchingPolicy and no BatchingProfile in it")
    found = findings(ours, Measured(line, rate) if line else None)
    typer.echo(_json(found, len(ours)) if output is Format.JSON else _text(found, len(ours)))
    errors = any(finding.severity is Severity.ERROR for finding in found)
    if errors or (strict and found):
        raise typer.Exit(EXIT_FAILED)


def findings(documents: Sequence[Document], measured: Measured | None) -> list[Finding]:
    """Of all documents; `measured` holds for every instance, else the profiles among the documents are asked."""
    found: list[Finding] = []
    policies: list[tuple[Document, BatchingPolicy]] = []
    profiles: list[BatchingProfile] = []
    for document in documents:
        wrong = faults(document.content)
        found += [Finding(document, Severity.ERROR, fault) for fault in wrong]
        if wrong:
            continue
        if document.content["kind"] == "BatchingPolicy":
            policies.append((document, BatchingPolicy.model_validate(document.content)))
        elif (profile := _profile(document)) is not None:
            profiles.append(profile)
    for document, policy in policies:
        known = {
            one.name: measured or _learnt(one.model.name, one.model.engine, profiles) for one in policy.spec.instances
        }
        found += [Finding(document, Severity.ADVICE, fault) for fault in advice(policy, known)]
    order = {id(document): place for place, document in enumerate(documents)}
    return sorted(found, key=lambda finding: order[id(finding.document)])


def _profile(document: Document) -> BatchingProfile | None:
    """None when its status, which is not ours to judge, does not read."""
    try:
        return BatchingProfile.model_validate(document.content)
    except ValidationError:
        return None


def _learnt(model: str, engine: str, profiles: Sequence[BatchingProfile]) -> Measured:
    for profile in profiles:
        status = profile.status
        if (profile.spec.model, profile.spec.engine) != (model, engine) or status is None:
            continue
        prior = status.latency_model
        if prior is None or prior.per_request_ns == 0:
            continue
        review = status.last_review
        rate_per_s = review.arrivals.rate_per_hour / 3600 if review else None
        return Measured(Line(prior.fixed_ns / 1e9, prior.per_request_ns / 1e9), rate_per_s)
    return Measured()


def _line(text: str | None) -> Line | None:
    if text is None:
        return None
    try:
        line = parse_model(text).line
    except ModelError as error:
        raise UserError(str(error)) from None
    if line is None:
        raise UserError(f"model {text!r}: lint judges batches of one pass: write a=0.5ms,c=6ms")
    return line


def _text(found: Sequence[Finding], documents: int) -> str:
    lines = []
    for finding in found:
        field = f"{finding.fault.field}: " if finding.fault.field else ""
        lines.append(f"{finding.document.where}: {finding.severity.value}: {field}{finding.fault.message}")
    errors = sum(finding.severity is Severity.ERROR for finding in found)
    noun = "object" if documents == 1 else "objects"
    lines.append(f"{documents} {noun}: {errors} errors, {len(found) - errors} advice")
    return "\n".join(lines)


def _json(found: Sequence[Finding], documents: int) -> str:
    rows = [
        {
            "file": finding.document.file,
            "document": finding.document.number,
            "item": finding.document.item,
            "severity": finding.severity.value,
            "field": finding.fault.field,
            "message": finding.fault.message,
        }
        for finding in found
    ]
    return json.dumps({"objects": documents, "findings": rows}, indent=2, ensure_ascii=False)
