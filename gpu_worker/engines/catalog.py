"""The engines of this build, by name. None imports torch before it loads: that takes seconds, and the ports are open
by then."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_worker.engines.encoder import Encoder
from gpu_worker.engines.interface import EmbeddingEngine, LoadError
from gpu_worker.engines.source import ModelSource
from tailkeeper.api.enums import Engine as EngineName


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine may need to know; which of it does is the engine's matter."""

    model: ModelSource | None = None
    device: str = "auto"
    threads: int = 1
    """Threads of one forward pass on a CPU."""


def _encoder(options: EngineOptions) -> EmbeddingEngine:
    if options.model is None:
        raise LoadError("engine encoder needs --model-path or --hugging-face-id")
    return Encoder(options.model, device=options.device, threads=options.threads)


BUILDERS: Mapping[EngineName, Callable[[EngineOptions], EmbeddingEngine]] = {EngineName.ENCODER: _encoder}
