"""One text being made: its tokens so far, and how much of them stands in the KV memory. Everything that is needed to
go on is here, so that a request which lost its memory, or whose engine was loaded anew, goes on where it was."""

import secrets
from collections import Counter
from collections.abc import Sequence

from gpu_worker.engines.causal.sampler import Choice, Draw
from gpu_worker.engines.causal.text import Decode, TextStream
from gpu_worker.engines.interface import Finish, Likely, Piece, Sampling


class Generation:
    """State of one request; belongs to the engine's thread once the request runs."""

    __slots__ = (
        "_decode", "_ends", "_penalised", "_produced", "_prompt_set", "_seed", "_stream",
        "forwarded", "most", "prompt_tokens", "sampling", "tokens",
    )  # fmt: skip

    def __init__(
        self, prompt: Sequence[int], sampling: Sampling, most: int, ends: frozenset[int], decode: Decode
    ) -> None:
        self.tokens = list(prompt)
        self.prompt_tokens = len(self.tokens)
        self.sampling = sampling
        self.most = most
        """Tokens that it may produce."""
        self.forwarded = 0
        """Tokens in the KV memory."""
        self._ends = ends
        self._decode = decode
        self._stream = TextStream(decode, sampling.stop)
        self._seed = secrets.randbits(63) if sampling.seed is None else sampling.seed & (2**64 - 1)
        self._produced: Counter[int] = Counter()
        repeats = sampling.repetition_penalty != 1.0
        self._penalised = bool(repeats or sampling.presence_penalty or sampling.frequency_penalty)
        self._prompt_set = frozenset(self.tokens) if repeats else frozenset()

    @property
    def produced(self) -> int:
        """Tokens that it has produced."""
        return len(self.tokens) - self.prompt_tokens

    def draw(self) -> Draw:
        """What the sampler needs for the next token."""
        ends = self._ends if self.produced < self.sampling.min_tokens else frozenset()
        return Draw(self.sampling, self._seed, self.produced, self._produced, self._prompt_set, ends)

    def add(self, choice: Choice) -> Piece:
        """Takes the next token in."""
        token = choice.token
        self.tokens.append(token)
        if self._penalised:
            self._produced[token] += 1
        text, finish = self._text(token)
        chosen = None if choice.logprob is None else self._likely(token, choice.logprob)
        likeliest = tuple(self._likely(other, logprob) for other, logprob in choice.likeliest)
        return Piece(text, chosen, likeliest, finish)

    def _text(self, token: int) -> tuple[str, Finish | None]:
        if token in self._ends and not self.sampling.ignore_eos:
            return self._stream.finish(), Finish.STOP
        text = self._stream.push(token)
        if not self._stream.stopped and self.produced >= self.most:
            text += self._stream.finish()
            return text, Finish.STOP if self._stream.stopped else Finish.LENGTH
        return text, Finish.STOP if self._stream.stopped else None

    def _likely(self, token: int, logprob: float) -> Likely:
        return Likely(token, self._decode((token,)), logprob)
