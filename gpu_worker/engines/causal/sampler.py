"""The next token of every sequence of an iteration at once, each by its own rules. Every operation is row by row and
the random numbers come from (seed, position) alone, so that a request's text does not depend on its neighbours."""

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from gpu_worker.engines.interface import Sampling

CANDIDATES = 256
"""Likeliest tokens that are looked at first; sorting a whole vocabulary takes ten times as long."""


@dataclass(slots=True)
class Draw:
    """One sequence's turn."""

    sampling: Sampling
    seed: int
    position: int
    """Tokens that it has produced."""
    produced: Mapping[int, int] = field(default_factory=dict)
    """How often each token was produced; only kept where a penalty asks for it."""
    prompt: frozenset[int] = frozenset()
    """Tokens of the prompt; only where the repetition penalty asks for it."""
    forbidden: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Choice:
    """A token; log probabilities where they are asked for."""

    token: int
    logprob: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of that position: the same on every device, in any batch, after any preemption."""
    digest = hashlib.blake2b(struct.pack("<QQ", seed, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def choose(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Choice | None]:
    """One choice for each row of float32 logits [rows, vocabulary]; None where a row is not finite."""
    with torch.inference_mode():
        return _choose(logits, draws)


def _choose(logits: torch.Tensor, draws: Sequence[Draw]) -> list[Choice | None]:
    if not draws:
        return []
    named = _log_probabilities(logits, draws)
    adjusted = _adjusted(logits, draws)
    best, tokens = adjusted.max(dim=-1)
    sane, greedy = torch.isfinite(best).tolist(), tokens.tolist()
    chosen: list[int] = greedy
    random = [n for n, draw in enumerate(draws) if draw.sampling.temperature > 0 and sane[n]]
    if random:
        picks = _sampled(adjusted[random] if len(random) < len(draws) else adjusted, [draws[n] for n in random])
        for n, token in zip(random, picks, strict=True):
            chosen[n] = token
    choices: list[Choice | None] = []
    for n, token in enumerate(chosen):
        if not sane[n]:
            choices.append(None)
        elif n in named:
            row, likeliest = named[n]
            choices.append(Choice(token, float(row[token]), likeliest))
        else:
            choices.append(Choice(token))
    return choices


def _log_probabilities(
    logits: torch.Tensor, draws: Sequence[Draw]
) -> dict[int, tuple[torch.Tensor, tuple[tuple[int, float], ...]]]:
    named = {}
    for n, draw in enumerate(draws):
        count = draw.sampling.logprobs
        if count is None:
            continue
        row = torch.log_softmax(logits[n], dim=-1)
        likeliest: tuple[tuple[int, float], ...] = ()
        if count:
            values, tokens = row.topk(min(count, row.numel()))
            likeliest = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
        named[n] = (row, likeliest)
    return named


def _adjusted(logits: torch.Tensor, draws: Sequence[Draw]) -> torch.Tensor:
    """With penalties, bias and what is forbidden; the same tensor when nobody asks for any."""
    changes = [n for n, draw in enumerate(draws) if _asks(draw)]
    if not changes:
        return logits
    logits = logits.clone()
    for n in changes:
        _penalise(logits[n], draws[n])
    return logits


def _asks(draw: Draw) -> bool:
    sampling = draw.sampling
    penalised = bool(sampling.presence_penalty or sampling.frequency_penalty or sampling.repetition_penalty != 1.0)
    return penalised or bool(sampling.logit_bias) or bool(draw.forbidden)


def _penalise(row: torch.Tensor, draw: Draw) -> None:
    sampling = draw.sampling
    if sampling.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(draw.prompt | draw.produced.keys()), device=row.device)
        values = row[seen]
        factor = sampling.repetition_penalty
        row[seen] = torch.where(values > 0, values / factor, values * factor)
    if draw.produced and (sampling.presence_penalty or sampling.frequency_penalty):
        tokens = torch.tensor(list(draw.produced), device=row.device)
        counts = torch.tensor(list(draw.produced.values()), dtype=row.dtype, device=row.device)
        row[tokens] -= sampling.presence_penalty + sampling.frequency_penalty * counts
    for token, bias in sampling.logit_bias.items():
        row[token] += bias
    if draw.forbidden:
        row[sorted(draw.forbidden)] = -torch.inf


def _sampled(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """By the inverse of the cumulated probabilities: one random number a token."""
    temperatures = torch.tensor([[draw.sampling.temperature] for draw in draws], device=logits.device)
    logits = logits / temperatures
    picks = [-1] * len(draws)
    plain = [n for n, draw in enumerate(draws) if not _filters(draw.sampling)]
    filtered = [n for n, draw in enumerate(draws) if _filters(draw.sampling)]
    if plain:
        weights = torch.softmax(logits[plain].double(), dim=-1)
        for n, pick in zip(plain, _pick(weights, [draws[n] for n in plain]), strict=True):
            picks[n] = pick
    if filtered:
        for n, token in zip(filtered, _pick_filtered(logits[filtered], [draws[n] for n in filtered]), strict=True):
            picks[n] = token
    return picks


def _filters(sampling: Sampling) -> bool:
    return sampling.top_p < 1.0 or sampling.top_k > 0 or sampling.min_p > 0.0


def _pick(weights: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """Index by row; weights need not add up to 1, and an index of weight 0 is never picked."""
    sums = weights.cumsum(dim=-1)
    shares = [[uniform(draw.seed, draw.position)] for draw in draws]
    targets = torch.tensor(shares, dtype=torch.float64, device=weights.device) * sums[:, -1:]
    found = torch.searchsorted(sums, targets, right=True).squeeze(-1)
    last = (weights > 0).long().cumsum(dim=-1).argmax(dim=-1)
    picks: list[int] = torch.minimum(found, last).tolist()
    return picks


def _pick_filtered(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int]:
    """top-k, then top-p and min-p of what is left, as vLLM and transformers do."""
    whole = torch.logsumexp(logits.double(), dim=-1, keepdim=True)
    values, tokens = logits.topk(min(CANDIDATES, logits.shape[-1]), dim=-1)
    kept = (values.double() - whole).exp()
    result = [-1] * len(draws)
    enough = (kept.sum(dim=-1)).tolist()
    few = [n for n, draw in enumerate(draws) if _within(draw.sampling, kept.shape[-1], enough[n])]
    many = [n for n in range(len(draws)) if n not in set(few)]
    for rows, ordered, names in (
        (few, kept[few], tokens[few]),
        (many, *_sorted(logits[many], whole[many])),
    ):
        if rows:
            weights = _filtered(ordered, [draws[n].sampling for n in rows])
            for n, index, line in zip(rows, _pick(weights, [draws[n] for n in rows]), names, strict=True):
                result[n] = int(line[index])
    return result


def _sorted(logits: torch.Tensor, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    values, tokens = logits.sort(dim=-1, descending=True)
    return (values.double() - whole).exp(), tokens


def _within(sampling: Sampling, candidates: int, mass: float) -> bool:
    """Whether the candidates hold everything that the filters leave."""
    if 0 < sampling.top_k <= candidates:
        return True
    return sampling.top_k == 0 and sampling.top_p < mass


def _filtered(weights: torch.Tensor, samplings: Sequence[Sampling]) -> torch.Tensor:
    """Probabilities in falling order, those that are filtered out at 0."""
    size = weights.shape[-1]
    top_k = torch.tensor([[one.top_k or size] for one in samplings], device=weights.device)
    index = torch.arange(size, device=weights.device)[None, :]
    limited = any(one.top_k for one in samplings)
    weights = weights.masked_fill(index >= top_k, 0.0)
    if limited:  # top-p counts within what top-k left
        by_k = torch.tensor([[bool(one.top_k)] for one in samplings], device=weights.device)
        weights = torch.where(by_k, weights / weights.sum(dim=-1, keepdim=True), weights)
    top_p = torch.tensor([[one.top_p] for one in samplings], dtype=weights.dtype, device=weights.device)
    before = weights.cumsum(dim=-1) - weights
    weights = weights.masked_fill((before >= top_p) & (index > 0), 0.0)
    min_p = torch.tensor([[one.min_p] for one in samplings], dtype=weights.dtype, device=weights.device)
    return weights.masked_fill(weights < min_p * weights[:, :1], 0.0)
