"""What the loop asks of an engine. An engine runs forward passes and nothing else: no order, no clock, no HTTP.

`load`, `warm_up`, `step` and `release` are called on one dedicated thread, one at a time. Engines of both kinds have
the same face: a batch engine (encoder) completes every task in the step that it first sees it; an iteration-level
engine keeps state by request id between steps, emits output as it comes, and completes a task in a later step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from gpu_worker.scheduling import EngineLimits
from tailkeeper.api.enums import Mode

Progress = Callable[[float, str], None]
"""Called with a share in [0, 1] and what is being done; may be called from the engine's thread."""

Vector = npt.NDArray[np.float32]


class InputError(ValueError):
    """An input that this engine cannot take, found before it joins a batch. The message is for the caller."""


class LoadError(RuntimeError):
    """The model cannot be loaded; another try would end alike. The message is for the one who wrote the policy."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An input that passed the engine's checks."""

    content: Any
    """The engine's own form of it (token ids, tensors); nobody else looks inside."""
    tokens: int
    """Its size."""
    truncated: bool = False
    output_tokens: int = 1
    """Most tokens that it may produce."""


@dataclass(frozen=True, slots=True)
class Task:
    """What one request gets in one step."""

    id: str
    content: Any
    prefill_tokens: int
    decode: bool = False


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step made."""

    outputs: Mapping[str, Any] = field(default_factory=dict)
    """By request id: the whole output, or what this step added to it."""
    completed: frozenset[str] = frozenset()
    failed: Mapping[str, Exception] = field(default_factory=dict)
    """Requests that the engine gave up alone; its state stays good for the others."""


class Serves(StrEnum):
    """What an engine makes, and with that which APIs it has."""

    EMBEDDINGS = "embeddings"
    TEXT = "text"


class Engine(Protocol):
    """Runs the forward passes of one model."""

    @property
    def serves(self) -> Serves:
        """Which of the protocols below it has."""
        ...

    @property
    def modes(self) -> frozenset[Mode]:
        """Batching modes that make sense with it; settings of another mode are refused."""
        ...

    @property
    def limits(self) -> EngineLimits:
        """What bounds a step of it; known once it is loaded."""
        ...

    @property
    def stateless(self) -> bool:
        """A step that raised may be run again with some of its tasks: it has left nothing behind."""
        ...

    def load(self, progress: Progress) -> None:
        """Loads the model, or loads it anew after a crash. Raises LoadError."""
        ...

    def warm_up(self, batch: int) -> Sequence[Task]:
        """Runs one step of that many typical requests, of each kind of step in turn; returns what it ran. Raises
        whatever a step raises."""
        ...

    def step(self, tasks: Sequence[Task], evicted: Sequence[str]) -> StepResult:
        """Runs one batch or iteration, after the `evicted` have lost their memory (they may come again, from the
        start). An exception means that the step as a whole failed."""
        ...

    def release(self, ids: Sequence[str]) -> None:
        """Forgets requests whose callers are gone. Unknown ids are fine."""
        ...


class EmbeddingEngine(Engine, Protocol):
    """An engine that turns texts into vectors; `step` gives one `Vector` per task. `text` and `tokens` are safe to call
    from any thread while a step runs."""

    @property
    def dimensions(self) -> int:
        """Length of each vector."""
        ...

    @property
    def max_tokens(self) -> int:
        """Longest input, special tokens included."""
        ...

    def text(self, text: str, truncate: bool) -> Prepared:
        """Raises InputError: too long and not to be truncated."""
        ...

    def tokens(self, ids: Sequence[int]) -> Prepared:
        """Takes token ids exactly as given. Raises InputError: too long, or not in the vocabulary."""
        ...


class Finish(StrEnum):
    """Why a text ended; OpenAI's `finish_reason`."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Likely:
    """A token and its natural-log probability, by the model alone: before temperature, penalties and filters."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Piece:
    """What one more token adds to a text."""

    text: str
    """Empty while a character is incomplete, or may begin a stop string."""
    chosen: Likely | None = None
    """When log probabilities are asked for."""
    likeliest: tuple[Likely, ...] = ()
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a text is to be made. Temperature 0 is greedy."""

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """0: all."""
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None
    """How many of the likeliest tokens to name beside the chosen one; None: no log probabilities."""
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


class TextEngine(Engine, Protocol):
    """An engine that continues texts; `step` gives one `Piece` per task that came to a new token. These methods are
    safe to call from any thread while a step runs."""

    @property
    def max_tokens(self) -> int:
        """Longest prompt and output together."""
        ...

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation, up to where the answer begins. Raises InputError."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Raises InputError: far too long."""
        ...

    def generation(self, prompt: Sequence[int], sampling: Sampling) -> Prepared:
        """One text to be made. Raises InputError: too long, or not in the vocabulary."""
        ...
