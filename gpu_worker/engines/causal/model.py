"""A transformers model that forwards a ragged batch: some sequences one token, others a chunk of their prompt."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from gpu_worker.engines.causal.attention import NAME, KvMemory, Plan, Row
from gpu_worker.engines.host_memory import memory_bytes
from gpu_worker.engines.interface import LoadError
from gpu_worker.engines.weights import must_be_whole

CPU_SHARE = 0.2
"""Of the machine's (or container's) memory, for KV memory on a CPU when nothing else is said."""
CUDA_SHARE = 0.8
"""Of what is free on the device once the weights are there; activations and logits need the rest."""
MOST_TOKENS = 4_194_304


class CausalModel:
    """Weights, KV memory and one forward pass."""

    def __init__(self, folder: Path, device: str, threads: int) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(device)
        on_cpu = self.device.type == "cpu"
        if on_cpu:
            torch.set_num_threads(threads)
        config = _config(folder)
        self.dtype = torch.float32 if on_cpu else torch.bfloat16
        self._gathers = not on_cpu
        try:
            self._model = _load(folder, config, self.dtype, self.device)
        except LoadError:
            raise
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            raise LoadError(f"{folder}: {error}") from error
        if "logits_to_keep" not in inspect.signature(self._model.forward).parameters:
            raise LoadError(f"{folder}: a model of type {config.model_type} cannot say the logits of chosen tokens")
        self.context: int = config.max_position_embeddings
        self.vocabulary: int = config.vocab_size
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = getattr(config, "num_key_value_heads", None) or self._heads
        self._layers: int = config.num_hidden_layers
        self._head_size: int = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self.end_tokens = _end_tokens(folder, config)

    @property
    def bytes_per_token(self) -> int:
        """KV memory of one token."""
        numbers = 2 * self._layers * self._kv_heads * self._head_size
        return numbers * int(self.dtype.itemsize)

    def tokens_that_fit(self) -> int:
        """KV memory that this device can give."""
        if self.device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(self.device)
            budget = CUDA_SHARE * free
        else:
            budget = CPU_SHARE * memory_bytes()
        return min(MOST_TOKENS, int(budget / self.bytes_per_token))

    def reserve(self, tokens: int) -> None:
        """Allocates the KV memory, once and for all."""
        self.memory = KvMemory(self._layers, self._kv_heads, tokens, self._head_size, self.dtype, self.device)

    def forward(self, rows: Sequence[Row], wanted: Sequence[bool]) -> torch.Tensor:
        """Float32 logits [how many are wanted, vocabulary] after the last token of each row that wants them."""
        plan = Plan(rows, self.memory, self._heads // self._kv_heads, self.dtype, self._gathers)
        line = [token for row in rows for token in row.tokens]
        last, keep = -1, []
        for row, wants in zip(rows, wanted, strict=True):
            last += len(row.tokens)
            if wants:
                keep.append(last)
        with torch.inference_mode():
            logits: torch.Tensor = self._model(
                input_ids=torch.tensor([line], device=self.device),
                position_ids=plan.positions,
                use_cache=False,
                # One token's logits are 49152 numbers: of a chunk only the last one's are wanted, or none.
                logits_to_keep=torch.tensor(keep or [0], device=self.device),
                plan=plan,
            ).logits[0]
            return logits[: len(keep)].float()


def _config(folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        raise LoadError(f"{folder / 'config.json'} is missing")
    try:
        config = AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, KeyError) as error:
        raise LoadError(f"{folder}: {error}") from error
    kinds = set(getattr(config, "layer_types", None) or ())
    window = getattr(config, "sliding_window", None)
    windowed = "sliding_attention" in kinds or (not kinds and getattr(config, "use_sliding_window", window))
    if kinds - {"full_attention", "sliding_attention"}:
        raise LoadError(f"{folder}: layers of type {', '.join(sorted(kinds))} keep no keys and values")
    if windowed and window and window < config.max_position_embeddings:
        config.max_position_embeddings = window  # up to there a sliding window sees everything
    return config


def _load(folder: Path, config: Any, dtype: torch.dtype, device: torch.device) -> Any:
    model, found = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=dtype, attn_implementation=NAME, output_loading_info=True
    )
    must_be_whole(folder, found)
    return model.to(device).eval()


def _end_tokens(folder: Path, config: Any) -> frozenset[int]:
    ends: list[Any] = [config.eos_token_id]
    if (folder / "generation_config.json").is_file():
        ends.append(GenerationConfig.from_pretrained(folder).eos_token_id)
    flat = [one for end in ends for one in (end if isinstance(end, list) else [end])]
    return frozenset(end for end in flat if end is not None)
