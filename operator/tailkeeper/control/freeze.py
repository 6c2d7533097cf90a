"""When nothing may be moved whatever the numbers say, and the name of the reason."""

from dataclasses import dataclass, replace
from typing import Final

from tailkeeper.api.enums import RetuneMode, StillReason
from tailkeeper.api.settings import Settings
from tailkeeper.control.check import settling_s
from tailkeeper.control.observation import Idle, Observation, Value
from tailkeeper.control.samples import Unknown, UnknownReason
from tailkeeper.control.state import GOOD_READS, State

BACKLOG_S: Final = 30.0
"""Longest that a backlog from before a move keeps that move from being judged."""
DRAINING: Final = 0.9
"""A queue that fell under this share since the last tick is being drained; less is chance."""

WHY_UNKNOWN: Final = {
    UnknownReason.ABSENT: StillReason.NO_DATA,
    UnknownReason.STALE: StillReason.STALE,
    UnknownReason.NOT_FINITE: StillReason.PROMETHEUS_ERROR,
    UnknownReason.PARTIAL: StillReason.PROMETHEUS_ERROR,
    UnknownReason.ERROR: StillReason.PROMETHEUS_ERROR,
}


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known of an instance beside its counters."""

    mode: RetuneMode = RetuneMode.AUTO
    paused: bool = False
    """By annotation."""
    conflict: bool = False
    """Someone else writes the settings as well."""
    rollout_in_progress: bool = False
    applied: tuple[int | None, ...] = ()
    """Settings generation that each ready worker says it applies; None: it did not say."""


@dataclass(frozen=True, slots=True)
class Still:
    """No step, and why."""

    reason: StillReason
    why: str = ""


def noticed(state: State, observation: Observation, settings: Settings, situation: Situation, since_s: float) -> State:
    """Counts good reads after a bad one, and notes since when all workers apply the settings if they do so now."""
    if isinstance(observation, Unknown):
        state = replace(state, unknown=observation.reason, good_reads=0)
    elif state.unknown is not None:
        good_reads = state.good_reads + 1
        state = replace(state, unknown=None if good_reads >= GOOD_READS else state.unknown, good_reads=good_reads)
    in_sync = bool(situation.applied) and all(each == settings.generation for each in situation.applied)
    if not in_sync:
        return replace(state, in_sync_since_s=None)
    return state if state.in_sync_since_s is not None else replace(state, in_sync_since_s=since_s)


def freeze(
    state: State, observation: Observation, settings: Settings, situation: Situation, now_s: float
) -> Still | None:
    """Why nothing may be moved now; None when it may."""
    if situation.paused:
        return Still(StillReason.PAUSED, "paused by annotation")
    if situation.mode is RetuneMode.OFF:
        return Still(StillReason.PAUSED, "retune.mode is Off")
    if situation.conflict:
        return Still(StillReason.CONFLICT, "someone else writes this instance's settings")
    if isinstance(observation, Unknown):
        return Still(WHY_UNKNOWN[observation.reason], observation.text)
    if isinstance(observation, Idle):
        return Still(StillReason.IDLE, "no request for the whole look-back")
    if state.unknown is not None:
        return Still(WHY_UNKNOWN[state.unknown], f"good read {state.good_reads} of {GOOD_READS} after that")
    if situation.rollout_in_progress:
        return Still(StillReason.ROLLOUT_IN_PROGRESS, "workers are being replaced")
    if state.in_sync_since_s is None:
        return Still(StillReason.NOT_IN_SYNC, _behind(settings, situation))
    if not observation.long.whole:
        seen_s, asked_s = observation.long.span_s, observation.long.asked_s
        return Still(StillReason.SETTLING, f"seen {seen_s:.0f} s of the first {asked_s:.0f} s")
    return _settling(state, observation, settings, state.in_sync_since_s, now_s)


def _settling(state: State, value: Value, settings: Settings, in_sync_since_s: float, now_s: float) -> Still | None:
    since_s = now_s - in_sync_since_s
    settling = settling_s(settings, value.interval_s, state.settle_factor)
    if not state.changed:
        return None
    if since_s < settling:
        return Still(StillReason.SETTLING, f"{since_s:.0f} s of {settling:.0f} s since generation {state.generation}")
    queued = sum(value.gauges.queue.values())
    if settings.ceiling < queued < DRAINING * state.queued and since_s < BACKLOG_S:
        return Still(StillReason.SETTLING, f"the backlog of {queued:.0f} requests is shrinking")
    return None


def _behind(settings: Settings, situation: Situation) -> str:
    if not situation.applied:
        return "no worker is ready"
    behind = sum(each != settings.generation for each in situation.applied)
    return f"{behind} of {len(situation.applied)} workers do not apply generation {settings.generation} yet"
