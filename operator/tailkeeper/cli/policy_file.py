"""A policy from a file, for commands that need no cluster."""

from pathlib import Path

import yaml

from tailkeeper.api.names import POLICY_KIND
from tailkeeper.api.policy import BatchingPolicy
from tailkeeper.api.resolve import initial_settings, resolve
from tailkeeper.api.settings import Settings
from tailkeeper.cli.errors import UserError
from tailkeeper.reconcile.parsing import Refusal
from tailkeeper.reconcile.parsing import read_policy as parse


def read_policy(path: Path, name: str | None = None) -> BatchingPolicy:
    """The file's policy (the one of that name, where it has several). Raises UserError."""
    try:
        documents = [document for document in yaml.safe_load_all(path.read_text("utf-8")) if document]
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    policies = [d for d in documents if isinstance(d, dict) and d.get("kind") == POLICY_KIND]
    found = [p for p in policies if name is None or (p.get("metadata") or {}).get("name") == name]
    if not found:
        raise UserError(f"{path}: no {POLICY_KIND}{f' {name}' if name else ''} in it")
    try:
        return parse(found[0])
    except Refusal as refusal:
        raise UserError(f"{path}: {refusal}") from None


def instance_settings(policy: BatchingPolicy, instance: str | None = None) -> Settings:
    """The settings of one instance, the first when none is named, as they are before any move. Raises UserError."""
    names = [one.name for one in policy.spec.instances]
    if instance is not None and instance not in names:
        raise UserError(f"{policy.metadata.name}: no instance {instance}; there are {', '.join(names)}")
    chosen = policy.spec.instances[names.index(instance) if instance else 0]
    return initial_settings(
        resolve(policy.spec, chosen),
        policy_namespace=policy.metadata.namespace or "default",
        policy=policy.metadata.name,
        model_instance=chosen.name,
        generation=1,
    )
