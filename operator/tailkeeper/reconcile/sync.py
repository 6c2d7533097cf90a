"""Whether the workers apply the settings that were written, by what they say themselves.

A worker that is behind for a moment is normal (the document travels); one that reports the same older generation for
over ten seconds, or other values under the same generation, is a condition."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from tailkeeper.api.settings import LONGEST_LEAP, Settings
from tailkeeper.signals.worker_settings import WorkerReport

PATIENCE_S = 10.0


class SyncState(StrEnum):
    """Reasons of `SettingsApplied`, in the order in which several instances' states are summed up: the worst first."""

    BEHIND = "WorkersBehind"
    SILENT = "WorkersSilent"
    PENDING = "Pending"
    NO_WORKERS = "NoReadyWorkers"
    APPLIED = "Applied"


@dataclass(frozen=True)
class Sync:
    """One instance's workers against its newest settings."""

    state: SyncState
    applied_generation: int
    """The oldest that a ready worker says it applies; 0 while none answers."""
    message: str = ""


NO_WORKERS = Sync(SyncState.NO_WORKERS, 0, "no ready worker")


class ReadyPod(NamedTuple):
    """A pod that gets requests."""

    uid: str
    name: str


class _Lag(NamedTuple):
    generation: int
    since_s: float


@dataclass
class SyncWatch:
    """Remembers since when each worker has been behind or silent. Times are seconds of the caller's monotonic clock."""

    _behind: dict[str, _Lag] = field(default_factory=dict)
    _silent: dict[str, float] = field(default_factory=dict)

    def judge(
        self,
        wanted: Settings,
        pods: Sequence[ReadyPod],
        reports: Mapping[str, WorkerReport | None],
        applied_before: int,
        now_s: float,
    ) -> Sync:
        """The verdict on one instance. `reports`: the newest answer of each pod by UID, None for no proper answer."""
        if not pods:
            return NO_WORKERS
        late, silent, lagging = [], [], False
        generations = []
        for pod in pods:
            report = reports.get(pod.uid)
            if report is None:
                since_s = self._silent.setdefault(pod.uid, now_s)
                if now_s - since_s > PATIENCE_S:
                    silent.append(f"pod {pod.name} does not answer on its metrics port")
                continue
            self._silent.pop(pod.uid, None)
            generations.append(report.generation)
            if report.generation == wanted.generation and not _differs(report, wanted):
                self._behind.pop(pod.uid, None)
                continue
            lagging = True
            lag = self._behind.get(pod.uid)
            if lag is None or report.generation != lag.generation:
                lag = self._behind[pod.uid] = _Lag(report.generation, now_s)
            if now_s - lag.since_s > PATIENCE_S:
                late.append(_complaint(pod, report, wanted))
        applied = min(generations) if generations else 0 if silent else applied_before
        if late:
            return Sync(SyncState.BEHIND, applied, "; ".join(late))
        if silent:
            return Sync(SyncState.SILENT, applied, "; ".join(silent))
        if lagging or len(generations) < len(pods):
            return Sync(SyncState.PENDING, applied)
        return Sync(SyncState.APPLIED, applied)

    def forget_all_but(self, uids: set[str]) -> None:
        """Pods that no longer exist do not count."""
        for known in (self._behind, self._silent):
            for uid in known.keys() - uids:
                del known[uid]


def _complaint(pod: ReadyPod, report: WorkerReport, wanted: Settings) -> str:
    why = f": {report.refusal}" if report.refusal else ""
    if report.generation > wanted.generation + LONGEST_LEAP:
        return (
            f"pod {pod.name} applies generation {report.generation}, which nobody wrote, and takes no lower one than "
            f"that: kubectl delete pod {pod.name}"
        )
    if report.generation != wanted.generation:
        return f"pod {pod.name} applies generation {report.generation}, not {wanted.generation}{why}"
    return f"pod {pod.name} applies other values than generation {wanted.generation} has{why}"


def _differs(report: WorkerReport, wanted: Settings) -> bool:
    """Whether the worker applies other values. It may be older than this operator and know fewer fields."""
    if report.generation != wanted.generation or report.settings is None:
        return False
    return not _agree(report.settings, wanted.model_dump(mode="json", by_alias=True, exclude_none=True))


def _agree(said: object, meant: object) -> bool:
    if isinstance(said, Mapping) and isinstance(meant, Mapping):
        return all(_agree(value, meant[name]) for name, value in said.items() if name in meant)
    if isinstance(said, list) and isinstance(meant, list):
        return len(said) == len(meant) and all(_agree(one, other) for one, other in zip(said, meant, strict=True))
    return said == meant
