"""The `encoder` engine: sentence embeddings from a local folder in the layout of sentence-transformers.

Equal to the reference library to 1e-5, whatever the batch mates: attention never sees padding, and pooling leaves it
out. Inputs come as token ids, made when the request arrives, so that a bad one is refused before it joins a batch."""

import os
from collections.abc import Sequence

from tokenizers import Tokenizer

from gpu_worker.engines.heads import heads
from gpu_worker.engines.interface import InputError, LoadError, Prepared, Progress, Serves, StepResult, Task, Vector
from gpu_worker.engines.padding import split
from gpu_worker.engines.recipe import Recipe, read_recipe
from gpu_worker.engines.source import ModelSource
from gpu_worker.scheduling import EngineLimits
from tailkeeper.api.enums import Mode

PASS_COST_TOKENS = 24
"""What one more forward pass costs, in padded tokens. MiniLM on 2 CPU cores: 6.5 ms a pass against .28 ms a token."""

WARM_UP_TOKENS = 16

os.environ.setdefault(
    "TOKENIZERS_PARALLELISM", "false"
)  # its pool of threads would fight the forward pass for the CPUs


class Encoder:
    """The `encoder` engine."""

    serves = Serves.EMBEDDINGS
    modes = frozenset({Mode.REQUEST, Mode.FIXED})
    limits = EngineLimits(iterates=False)
    stateless = True

    def __init__(self, source: ModelSource, device: str = "auto", threads: int = 1) -> None:
        self._source = source
        self._device = device
        self._threads = threads

    def load(self, progress: Progress) -> None:
        """Reads the folder; on CUDA the weights go to the device in float32."""
        folder = self._source.folder(progress)
        progress(0.02, "reading the configuration")
        self._recipe = recipe = read_recipe(folder)
        progress(0.05, "loading the tokenizer")
        self._tokenizer, self._pad_id = _tokenizer(recipe)
        progress(0.1, "importing torch")
        from gpu_worker.engines.sentence_model import SentenceModel

        progress(0.4, "loading the weights")
        self._model = SentenceModel(recipe, self._device, self._threads, self._pad_id)
        progress(1.0, "loaded")

    @property
    def dimensions(self) -> int:
        """Length of each vector."""
        return self._model.dimensions

    @property
    def max_tokens(self) -> int:
        """Longest input, special tokens included."""
        return self._recipe.max_tokens

    def text(self, text: str, truncate: bool) -> Prepared:
        """Token ids of one text; a long one is cut at the model's limit, as the reference library does."""
        text = self._recipe.prompt + text
        if self._recipe.lower_case:
            text = text.lower()
        for head in heads(text, self.max_tokens):
            # Not `encode`, which holds the GIL: 1 MB stopped every other thread for 3.8 s, this way for 0.02 s.
            (encoding,) = self._tokenizer.encode_batch_fast([head])
            if encoding.overflowing:
                break
        cut = bool(encoding.overflowing) or len(head) < len(text)
        if cut and not truncate:
            raise InputError(f"the input is longer than this model's {self.max_tokens} tokens")
        return Prepared(encoding.ids, len(encoding.ids), cut)

    def tokens(self, ids: Sequence[int]) -> Prepared:
        """Token ids as given, with no special tokens added."""
        if len(ids) > self.max_tokens:
            raise InputError(f"the input has {len(ids)} tokens, this model takes {self.max_tokens}")
        bad = next((token for token in ids if not 0 <= token < self._model.vocabulary), None)
        if bad is not None:
            raise InputError(f"token {bad} is not in this model's vocabulary of {self._model.vocabulary}")
        return Prepared(list(ids), len(ids))

    def warm_up(self, batch: int) -> Sequence[Task]:
        """Runs that many inputs of 16 tokens."""
        ids = [self._pad_id + 1] * WARM_UP_TOKENS
        tasks = [Task(f"warm-up-{index}", ids, WARM_UP_TOKENS) for index in range(batch)]
        self.step(tasks, ())
        return tasks

    def step(self, tasks: Sequence[Task], evicted: Sequence[str]) -> StepResult:
        """One vector for each task."""
        outputs: dict[str, Vector] = {}
        inputs: list[list[int]] = [task.content for task in tasks]
        for group in split([len(ids) for ids in inputs], self.max_tokens, PASS_COST_TOKENS):
            vectors = self._model.forward([inputs[index] for index in group])
            outputs.update((tasks[index].id, vector) for index, vector in zip(group, vectors, strict=True))
        return StepResult(outputs=outputs, completed=frozenset(outputs))

    def release(self, ids: Sequence[str]) -> None:
        """Nothing is kept between steps."""


def _tokenizer(recipe: Recipe) -> tuple[Tokenizer, int]:
    file = recipe.weights / "tokenizer.json"
    if not file.is_file():
        raise LoadError(f"{file} is missing")
    tokenizer = Tokenizer.from_file(str(file))
    padding = tokenizer.padding
    pad_id = int(padding["pad_id"]) if padding else 0
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=recipe.max_tokens)
    return tokenizer, pad_id
