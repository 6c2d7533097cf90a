"""The engines of this build, by name. None imports torch before it loads: that takes seconds, and the ports are open
by then."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_worker.engines.causal_lm import MOST_SEQUENCES, CausalLm
from gpu_worker.engines.encoder import Encoder
from gpu_worker.engines.interface import Engine, LoadError
from gpu_worker.engines.source import ModelSource
from tailkeeper.api.enums import Engine as EngineName


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What an engine may need to know; which of it does is the engine's matter."""

    model: ModelSource | None = None
    device: str = "auto"
    threads: int = 1
    """Threads of one forward pass on a CPU."""
    kv_tokens: int = 0
    """Tokens that the KV memory holds; 0: as many as the device has memory for."""
    most_sequences: int = MOST_SEQUENCES
    """Texts that may have KV memory at a time."""


def _encoder(options: EngineOptions) -> Engine:
    if options.model is None:
        raise LoadError("engine encoder needs --model-path or --hugging-face-id")
    return Encoder(options.model, device=options.device, threads=options.threads)


def _causal_lm(options: EngineOptions) -> Engine:
    if options.model is None:
        raise LoadError("engine causal-lm needs --model-path or --hugging-face-id")
    return CausalLm(options.model, options.device, options.threads, options.kv_tokens, options.most_sequences)


BUILDERS: Mapping[EngineName, Callable[[EngineOptions], Engine]] = {
    EngineName.CAUSAL_LM: _causal_lm,
    EngineName.ENCODER: _encoder,
}
