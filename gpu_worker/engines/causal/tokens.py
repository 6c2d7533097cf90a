"""Texts and conversations to token ids and back."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer

from gpu_worker.engines.heads import heads
from gpu_worker.engines.interface import InputError, LoadError


class Tokens:
    """A model's tokenizer and chat template. Safe to call from any thread."""

    def __init__(self, folder: Path) -> None:
        try:
            self._whole = AutoTokenizer.from_pretrained(folder)
        except (OSError, ValueError, KeyError) as error:
            raise LoadError(f"{folder}: no tokenizer: {error}") from error
        if not getattr(self._whole, "is_fast", False):
            raise LoadError(f"{folder}: tokenizer.json is missing")
        self._fast = self._whole.backend_tokenizer
        self._fast.no_padding()
        self._fast.no_truncation()
        self.end = self._whole.eos_token_id

    def encode(self, text: str, most: int, special: bool = True) -> list[int]:
        """With the special tokens that this model puts around a text, unless the text has them already. Raises
        InputError when it is much longer than the `most` tokens that the model takes; one that is a little longer comes
        back whole."""
        for head in heads(text, most):
            # Not `encode`, which holds the GIL for as long as it takes: nothing else of the worker would run.
            (encoding,) = self._fast.encode_batch_fast([head], add_special_tokens=special)
            ids: list[int] = encoding.ids
            if len(head) == len(text):
                return ids
            if len(ids) > most:
                break
        raise InputError(f"this model's longest text is {most} tokens; the prompt of {len(text)} characters is longer")

    def chat(self, messages: Sequence[Mapping[str, Any]], most: int) -> list[int]:
        """Up to where the answer begins. Raises InputError, also when that is much longer than `most` tokens."""
        if self._whole.chat_template is None:
            raise InputError("this model has no chat template; use /v1/completions")
        try:
            text = self._whole.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except (TemplateError, TypeError, ValueError, KeyError) as error:
            raise InputError(f"the model's chat template refuses these messages: {error}") from error
        return self.encode(text, most, special=False)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text without special tokens."""
        text: str = self._fast.decode(tokens, skip_special_tokens=True)
        return text
