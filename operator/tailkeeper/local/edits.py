"""What of a policy cannot be done here: edits that settings cannot carry, which replace pods in a cluster and take a
restart here, and what needs a cluster. Pure."""

from collections.abc import Iterator, Sequence

from tailkeeper.api.policy import BatchingPolicy


def needing_restart(started: BatchingPolicy, now: BatchingPolicy, running: Sequence[str]) -> Iterator[str]:
    """What differs from the policy that the workers were started with and takes new processes, in words."""
    if (started.metadata.name, started.metadata.namespace) != (now.metadata.name, now.metadata.namespace):
        yield "edit refused: metadata.name and metadata.namespace are the workers' identity: they take a restart"
        return
    before = {instance.name: instance for instance in started.spec.instances}
    after = {instance.name: instance for instance in now.spec.instances}
    for name in running:
        if name not in after:
            yield f"instance {name} is gone from the policy: its workers go on as they are until a restart"
        elif before[name].model != after[name].model:
            yield f"instance {name}: another model takes a restart"
    for name in after.keys() - before.keys():
        yield f"instance {name} is new: a restart runs it"
    if started.spec.drain_seconds != now.spec.drain_seconds:
        yield f"drainSeconds stays at {started.spec.drain_seconds} until a restart"


def unheeded(policy: BatchingPolicy, has_keys: bool) -> Iterator[str]:
    """What callers may count on and do not get, in words. `has_keys`: the workers were given API keys."""
    if policy.spec.api_keys is not None and not has_keys:
        yield (
            f"apiKeys: the Secret {policy.spec.api_keys.secret_name} is in a cluster, so whoever reaches the port may "
            "call; TAILKEEPER_API_KEYS_DIR names a folder of keys"
        )
