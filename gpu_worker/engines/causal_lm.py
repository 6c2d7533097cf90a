"""The `causal-lm` engine: texts from a decoder model, iteration by iteration.

A step forwards what the scheduler says, a chunk of a prompt here, one token there, all in one pass; a sequence whose
last known token was forwarded gets its next one. Nothing of a step is kept before all of it has succeeded."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_worker.engines.causal.extents import ALIGNMENT, Extents, rounded
from gpu_worker.engines.interface import (
    InputError,
    LoadError,
    Piece,
    Prepared,
    Progress,
    Sampling,
    Serves,
    StepResult,
    Task,
)
from gpu_worker.engines.source import ModelSource
from gpu_worker.scheduling import EngineLimits
from tailkeeper.api.enums import Mode

if TYPE_CHECKING:
    from gpu_worker.engines.causal.attention import Row
    from gpu_worker.engines.causal.generation import Generation

MOST_SEQUENCES = 64
DEFAULT_OUTPUT_TOKENS = 1024
"""Of a request that does not say: memory is set aside for all that it may produce."""
WARM_UP_TOKENS = 16
WARM_UP_BATCH = 8


class CausalLm:
    """The `causal-lm` engine. `kv_tokens` 0: as much memory as the device can give."""

    serves = Serves.TEXT
    modes = frozenset({Mode.CONTINUOUS, Mode.REQUEST, Mode.FIXED})
    stateless = True

    def __init__(
        self,
        source: ModelSource,
        device: str = "auto",
        threads: int = 1,
        kv_tokens: int = 0,
        most_sequences: int = MOST_SEQUENCES,
    ) -> None:
        self._source = source
        self._device = device
        self._threads = threads
        self._asked_tokens = kv_tokens
        self._most_sequences = most_sequences
        self._live: dict[str, Generation] = {}
        """Who has been in a step and has not ended."""
        self._warm_ups = itertools.count()

    def load(self, progress: Progress) -> None:
        """Reads the folder and allocates the KV memory. Who was running keeps its tokens and is forwarded anew."""
        folder = self._source.folder(progress)
        progress(0.05, "importing torch and transformers")
        from gpu_worker.engines.causal.model import CausalModel
        from gpu_worker.engines.causal.tokens import Tokens

        progress(0.3, "loading the tokenizer")
        self._tokens = Tokens(folder)
        progress(0.4, "loading the weights")
        self._model = model = CausalModel(folder, self._device, self._threads)
        self._ends = model.end_tokens | ({self._tokens.end} if self._tokens.end is not None else set())
        progress(0.9, "allocating the KV memory")
        kv_tokens = self._asked_tokens or min(model.tokens_that_fit(), self._most_sequences * model.context)
        if kv_tokens < 2 * WARM_UP_TOKENS:
            raise LoadError(f"there is memory for {kv_tokens} tokens only, of {model.bytes_per_token} bytes each")
        # Beside what the scheduler counts: what rounding up costs each, and the warm-up after a crash.
        spare = self._most_sequences * (ALIGNMENT - 1) + WARM_UP_BATCH * rounded(WARM_UP_TOKENS + 1)
        model.reserve(kv_tokens + spare)
        self._extents = Extents(kv_tokens + spare)
        for generation in self._live.values():
            generation.forwarded = 0
        self._limits = EngineLimits(iterates=True, max_batch=self._most_sequences, kv_tokens=kv_tokens)
        self._warm_ups = itertools.count()
        progress(1.0, f"KV memory for {kv_tokens} tokens")

    @property
    def limits(self) -> EngineLimits:
        """Sequences and KV memory."""
        return self._limits

    @property
    def max_tokens(self) -> int:
        """Longest prompt and output together."""
        tokens = self._limits.kv_tokens
        assert tokens is not None
        return min(self._model.context, tokens)

    @property
    def held(self) -> frozenset[str]:
        """Who holds KV memory now."""
        return self._extents.owners

    # -- what comes in

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Token ids of a conversation by the model's own template."""
        return self._tokens.chat(messages, self.max_tokens)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, special tokens included. Raises InputError when it is far too long."""
        return self._tokens.encode(text, self.max_tokens)

    def generation(self, prompt: Sequence[int], sampling: Sampling) -> Prepared:
        """One text to be made; memory for all of it is counted from the start."""
        from gpu_worker.engines.causal.generation import Generation

        vocabulary = self._model.vocabulary
        if not prompt:
            raise InputError("the prompt has no tokens")
        bad = next((token for token in (*prompt, *sampling.logit_bias) if not 0 <= token < vocabulary), None)
        if bad is not None:
            raise InputError(f"token {bad} is not in this model's vocabulary of {vocabulary}")
        room = self.max_tokens - len(prompt)
        most = min(room, DEFAULT_OUTPUT_TOKENS) if sampling.max_tokens is None else sampling.max_tokens
        if most < 1 or most > room:
            wanted = max(1, most)
            raise InputError(
                f"this model's longest text is {self.max_tokens} tokens; "
                f"the prompt has {len(prompt)} and {wanted} are to be made"
            )
        generation = Generation(prompt, sampling, most, frozenset(self._ends), self._tokens.decode)
        return Prepared(generation, len(prompt), output_tokens=most)

    # -- steps

    def warm_up(self, batch: int) -> Sequence[Task]:
        """One step of that many sequences: prefill and decoding in turn."""
        decodes = next(self._warm_ups) % 2 == 1
        tasks = []
        for index in range(batch):
            generation = self.generation([1] * WARM_UP_TOKENS, Sampling(max_tokens=1, temperature=0.0)).content
            if decodes:  # over memory that was never written: it takes as long
                generation.forwarded = WARM_UP_TOKENS - 1
            tasks.append(Task(f"warm-up-{index}", generation, 0 if decodes else WARM_UP_TOKENS, decodes))
        try:
            for task in tasks:
                self._remember(task)
            self._run(tasks)
        finally:
            self.release([task.id for task in tasks])
        return tasks

    def step(self, tasks: Sequence[Task], evicted: Sequence[str]) -> StepResult:
        """One iteration. Who lost its memory is forwarded from its first token, with what it has produced."""
        for request_id in evicted:
            self._extents.free(request_id)
        for task in tasks:
            if self._extents.start(task.id) is None:
                task.content.forwarded = 0
            self._remember(task)
        return self._run(tasks)

    def release(self, ids: Sequence[str]) -> None:
        """Frees memory at once."""
        for request_id in ids:
            self._live.pop(request_id, None)
            self._extents.free(request_id)

    def _remember(self, task: Task) -> None:
        generation: Generation = task.content
        self._live[task.id] = generation
        if self._extents.start(task.id) is None:
            for move in self._extents.take(task.id, generation.prompt_tokens + generation.most):
                self._model.memory.move(move.source, move.target, move.tokens)

    def _run(self, tasks: Sequence[Task]) -> StepResult:
        from gpu_worker.engines.causal.sampler import choose

        rows = [self._row(task) for task in tasks]
        ready = [row.reach == len(task.content.tokens) for task, row in zip(tasks, rows, strict=True)]
        logits = self._model.forward(rows, ready)
        due = [task for task, is_ready in zip(tasks, ready, strict=True) if is_ready]
        choices = choose(logits, [task.content.draw() for task in due])
        for task, row in zip(tasks, rows, strict=True):
            task.content.forwarded = row.reach
        outputs: dict[str, Piece] = {}
        failed: dict[str, Exception] = {}
        for task, choice in zip(due, choices, strict=True):
            if choice is None:
                failed[task.id] = ArithmeticError("the model gave no finite numbers for this input")
            else:
                outputs[task.id] = task.content.add(choice)
        completed = frozenset(request_id for request_id, piece in outputs.items() if piece.finish is not None)
        self.release([*completed, *failed])
        return StepResult(outputs, completed, failed)

    def _row(self, task: Task) -> "Row":
        from gpu_worker.engines.causal.attention import Row

        generation: Generation = task.content
        first, known = generation.forwarded, len(generation.tokens)
        # A decoding sequence has one token to forward; after a crash of the engine, all of them.
        reach = known if task.decode else min(known, first + task.prefill_tokens)
        extent = self._extents.start(task.id)
        assert extent is not None
        return Row(generation.tokens[first:reach], first, extent)
