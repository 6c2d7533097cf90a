"""A decoder model small enough for tests: random weights, one token a byte, and a driver that plays the scheduler."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from gpu_worker.engines.causal_lm import CausalLm
from gpu_worker.engines.interface import Finish, Piece, Prepared, Sampling, Task
from gpu_worker.engines.source import LocalFolder

END = 256
TEMPLATE = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}assistant: "


def tiny_model(folder: Path, context: int = 512) -> Path:
    """Two layers, grouped query heads; its texts look like noise, and that is what tests of bytes want."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=context,
        initializer_range=0.6,
        bos_token_id=257,
        eos_token_id=END,
        pad_token_id=END,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: index for index, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>", "<begin>"])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", bos_token="<begin>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


def loaded(folder: Path, kv_tokens: int = 4096, most_sequences: int = 16) -> CausalLm:
    """An engine on one thread: machines that run tests have other things to do."""
    engine = CausalLm(LocalFolder(folder), "cpu", 1, kv_tokens, most_sequences)
    engine.load(lambda share, what: None)
    return engine


@dataclasses.dataclass
class Run:
    """One request in the driver's hands."""

    prepared: Prepared
    prefilled: int = 0
    target: int = 0
    pieces: list[Piece] = dataclasses.field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        """Those that it produced."""
        content = self.prepared.content
        made: list[int] = content.tokens[content.prompt_tokens :]
        return made

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def finish(self) -> Finish | None:
        return self.pieces[-1].finish if self.pieces else None


class Driver:
    """Gives every request its share, step by step, and counts what was forwarded."""

    def __init__(self, engine: CausalLm) -> None:
        self.engine = engine
        self.runs: dict[str, Run] = {}
        self.forwarded = 0

    def add(self, name: str, prompt: str | Sequence[int], sampling: Sampling) -> Run:
        tokens = self.engine.encode(prompt) if isinstance(prompt, str) else prompt
        prepared = self.engine.generation(tokens, sampling)
        self.runs[name] = Run(prepared, target=prepared.tokens)
        return self.runs[name]

    def open(self) -> list[str]:
        return [name for name, run in self.runs.items() if run.finish is None]

    def step(self, names: Sequence[str], chunk: int = 1 << 30, evicted: Sequence[str] = ()) -> Mapping[str, Piece]:
        """One iteration of these requests; the evicted have to be prefilled again, with all they produced."""
        for name in evicted:
            run = self.runs[name]
            run.prefilled, run.target = 0, run.prepared.tokens + len(run.tokens)
        tasks = []
        for name in names:
            run = self.runs[name]
            prefill = min(chunk, run.target - run.prefilled)
            run.prefilled += prefill
            tasks.append(Task(name, run.prepared.content, prefill, prefill == 0))
            self.forwarded += prefill or 1
        result = self.engine.step(tasks, evicted)
        assert not result.failed
        for name, piece in result.outputs.items():
            self.runs[name].pieces.append(piece)
        ended = {name for name, piece in result.outputs.items() if piece.finish is not None}
        assert result.completed == ended
        return result.outputs

    def finish(self, chunk: int = 1 << 30) -> None:
        """Everything to its end."""
        while self.open():
            self.step(self.open(), chunk)


def alone(engine: CausalLm, prompt: str | Sequence[int], sampling: Sampling) -> Run:
    """The same request with nobody beside it."""
    driver = Driver(engine)
    run = driver.add("alone", prompt, sampling)
    driver.finish()
    return run
