"""What the API server takes and is yet unlikely to be meant. Pure; one line each, with what to do."""

from collections.abc import Iterator
from dataclasses import dataclass

from tailkeeper.api.defaults import CONTINUOUS_ENGINES
from tailkeeper.api.enums import Lever, Mode, RetuneMode
from tailkeeper.api.levers import InvalidMove, move, parse_moves
from tailkeeper.api.names import ANNOTATION_PAUSE_PREFIX, ANNOTATION_ROLL_PREFIX, ANNOTATION_SET_PREFIX
from tailkeeper.api.policy import BatchingPolicy, Instance
from tailkeeper.api.settings import Settings
from tailkeeper.cli.faults import Fault
from tailkeeper.cli.policy_file import instance_settings
from tailkeeper.model.windows import Line, sla_window, stable_window


@dataclass(frozen=True)
class Measured:
    """What is known of the model, and of its load per worker."""

    line: Line | None = None
    """T(b) = c + a·b in seconds."""
    rate_per_s: float | None = None


UNKNOWN = Measured()


def advice(policy: BatchingPolicy, measured: dict[str, Measured]) -> list[Fault]:
    """On a policy that is accepted. `measured`: by instance; what is not known is not judged."""
    found = list(_on_annotations(policy))
    if policy.spec.retune.mode is not RetuneMode.OFF and len(policy.spec.retune.pin) == len(Lever):
        found.append(
            Fault("spec.retune.pin", f"every lever is pinned, so mode {policy.spec.retune.mode.value} moves none")
        )
    for place, instance in enumerate(policy.spec.instances):
        path, settings = f"spec.instances[{place}]", instance_settings(policy, instance.name)
        found += _on_settings(path, instance, settings, policy.spec.drain_seconds)
        found += _on_measured(path, settings, measured.get(instance.name, UNKNOWN))
    return found


def _on_annotations(policy: BatchingPolicy) -> Iterator[Fault]:
    instances = {instance.name: instance for instance in policy.spec.instances}
    for name, text in policy.metadata.annotations.items():
        for prefix in (ANNOTATION_SET_PREFIX, ANNOTATION_PAUSE_PREFIX, ANNOTATION_ROLL_PREFIX):
            if not name.startswith(prefix):
                continue
            field, instance = f"metadata.annotations[{name}]", instances.get(name.removeprefix(prefix))
            if instance is None:
                yield Fault(field, f"names no instance; there are {', '.join(instances)}")
            elif prefix == ANNOTATION_SET_PREFIX:
                settings = instance_settings(policy, instance.name)
                try:
                    move(settings, parse_moves(text), settings)
                except InvalidMove as error:
                    yield Fault(field, f"the operator will refuse it: {error}")
            elif prefix == ANNOTATION_PAUSE_PREFIX and text != "true":
                yield Fault(field, f'"{text}" does not pause: only "true" does')


def _on_settings(path: str, instance: Instance, settings: Settings, drain_s: int) -> Iterator[Fault]:
    deadline_ms = settings.sla_ms
    if settings.mode is Mode.FIXED:
        longest_ms = settings.tier(settings.default_tier).max_hold_ms
        if longest_ms >= deadline_ms:
            yield Fault(
                f"{path}.batching.mode",
                f"fixed waits for a full batch up to the whole deadline ({deadline_ms} ms): give the tier maxHoldMs",
            )
    elif settings.window_dynamic and settings.window_busy == settings.window_idle > 1:
        yield Fault(
            f"{path}.batching.windowBusy",
            f"equals windowIdle ({settings.window_idle}), so the window cannot follow the arrivals: lower windowBusy, "
            "or say windowDynamic: false",
        )
    for tier in settings.tiers:
        if tier.max_hold_ms > tier.deadline_ms:
            yield Fault(
                f"{path}.tiers[{tier.name}].maxHoldMs",
                f"{tier.max_hold_ms} is past the deadline of {tier.deadline_ms} ms: a hold that long is a miss",
            )
        said = [other for other in instance.tiers or [] if other.name == tier.name]
        if not settings.priority_queue and any(one.preempts or one.reserve_percent for one in said):
            yield Fault(
                f"{path}.tiers[{tier.name}]", "preempts and reservePercent have no effect with priorityQueue: false"
            )
    tokens = {"firstTokenSlaMs": settings.first_token_sla_ms, "interTokenSlaMs": settings.inter_token_sla_ms}
    for name, value in tokens.items():
        if value is not None and instance.model.engine not in CONTINUOUS_ENGINES:
            yield Fault(f"{path}.batching.{name}", f"has no effect: engine {instance.model.engine} makes no tokens")
        elif value is not None and value >= deadline_ms:
            yield Fault(
                f"{path}.batching.{name}", f"{value} is not under the SLA of {deadline_ms} ms: it binds nothing"
            )
    if drain_s * 1000 < deadline_ms:
        yield Fault(
            "spec.drainSeconds",
            f"{drain_s} s is under the SLA of instance {settings.model_instance} ({deadline_ms} ms): a stopping worker "
            "cuts requests off that would have been in time",
        )
    hub = instance.model.hugging_face
    if hub is not None and hub.revision is None:
        yield Fault(f"{path}.model.huggingFace.revision", "is not said: the next pod may load other weights")


def _on_measured(path: str, settings: Settings, measured: Measured) -> Iterator[Fault]:
    line = measured.line
    if line is None:
        return
    one_ms = 1000 * line.at(1)
    for tier in settings.tiers:
        field = f"{path}.tiers[{tier.name}].deadlineMs"
        if tier.name == settings.default_tier:
            field = f"{path}.batching.tailLatencySlaMs"
        if tier.deadline_ms < one_ms:
            yield Fault(
                field, f"{tier.deadline_ms} ms is below one forward pass ({one_ms:.3g} ms): no setting can keep it"
            )
        elif tier.deadline_ms < 2 * one_ms:
            yield Fault(
                field,
                f"{tier.deadline_ms} ms is below two forward passes of {one_ms:.3g} ms: a request that arrives just "
                "after a batch left waits for that one and then rides in its own",
            )
    bound = sla_window(settings.sla_ms * (1 - settings.margin_percent / 100) / 1000, line)
    if one_ms * 2 <= settings.sla_ms and bound < settings.window_busy:
        yield Fault(
            f"{path}.batching.windowBusy",
            f"{settings.window_busy} is wider than the SLA allows ({bound}: two batches in {settings.sla_ms} ms)",
        )
    if measured.rate_per_s is not None:
        yield from _on_rate(path, settings, line, measured.rate_per_s)


def _on_rate(path: str, settings: Settings, line: Line, rate_per_s: float) -> Iterator[Fault]:
    needed = stable_window(rate_per_s, line)
    if needed is None:
        yield Fault(
            f"{path}.replicas",
            f"one worker serves under {1 / line.a:.0f} requests/s at any window, the load is {rate_per_s:.0f}: add "
            "replicas",
        )
    elif needed > settings.window_idle:
        yield Fault(
            f"{path}.batching.windowIdle",
            f"{settings.window_idle} does not keep up with {rate_per_s:.0f} requests/s: {needed} does, or more "
            "replicas",
        )
    elif needed > settings.window_busy:
        yield Fault(
            f"{path}.batching.windowBusy",
            f"{settings.window_busy} does not keep up with {rate_per_s:.0f} requests/s, so the window will stay above "
            f"it: {needed} does, or more replicas",
        )
