"""Attention of a ragged batch over the KV memory: what a transformers model calls instead of its own.

All tokens of an iteration, of every sequence, stand in one line; each attends to its own sequence's extent. On a CPU
each sequence is read where it lies, by one call: a gather would copy all of its memory for every token. On a GPU a
launch costs more than the copy, so decoding sequences are gathered into one padded call."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

NAME = "tailkeeper"
QUERY_BLOCK = 256
"""Rows of a long chunk that attend together; bounds the mask, and skips most of what causality forbids."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one sequence forwards."""

    tokens: Sequence[int]
    first: int
    """Position of the first of them: so many stand in the KV memory before it."""
    extent: int
    """Where its KV memory begins."""

    @property
    def reach(self) -> int:
        """Tokens in memory afterwards."""
        return self.first + len(self.tokens)


@dataclass(frozen=True, slots=True)
class _Block:
    """Rows [begin, end) of the line attend to memory [start, stop); the mask is None when they see all of it."""

    begin: int
    end: int
    start: int
    stop: int
    mask: torch.Tensor | None


class KvMemory:
    """Keys and values of every layer, [layer][KV heads, tokens, head size]; allocated once."""

    def __init__(self, layers: int, heads: int, tokens: int, head_size: int, dtype: torch.dtype, device: Any) -> None:
        shape = (layers, 2, heads, tokens, head_size)
        self._whole = torch.zeros(shape, dtype=dtype, device=device)
        self.keys = [self._whole[layer, 0] for layer in range(layers)]
        self.values = [self._whole[layer, 1] for layer in range(layers)]

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copies what may overlap."""
        memory = self._whole
        memory[..., target : target + tokens, :] = memory[..., source : source + tokens, :].clone()


class Plan:
    """Where everything of one iteration is; the same for all layers."""

    def __init__(self, rows: Sequence[Row], memory: KvMemory, groups: int, dtype: torch.dtype, gathers: bool) -> None:
        self.memory = memory
        device = memory.keys[0].device
        places: list[int] = []
        positions: list[int] = []
        self.decoding: list[tuple[int, Row]] = []
        self.blocks: list[_Block] = []
        for row in rows:
            begin = len(places)
            places.extend(range(row.extent + row.first, row.extent + row.reach))
            positions.extend(range(row.first, row.reach))
            if len(row.tokens) == 1:
                self.decoding.append((begin, row))
                if not gathers:
                    self.blocks.append(_Block(begin, begin + 1, row.extent, row.extent + row.reach, None))
            else:
                self.blocks.extend(_blocks(row, begin, groups, dtype, device))
        self.places = torch.tensor(places, device=device)
        self.positions = torch.tensor([positions], device=device)
        self.gather: _Gather | None = _Gather(self.decoding, dtype, device) if gathers and self.decoding else None


class _Gather:
    """Decoding sequences as one padded batch."""

    def __init__(self, decoding: Sequence[tuple[int, Row]], dtype: torch.dtype, device: Any) -> None:
        longest = max(row.reach for _, row in decoding)
        lengths = torch.tensor([row.reach for _, row in decoding], device=device)
        extents = torch.tensor([row.extent for _, row in decoding], device=device)
        index = torch.arange(longest, device=device)
        beyond = index[None, :] >= lengths[:, None]
        self.lines = torch.tensor([begin for begin, _ in decoding], device=device)
        self.places = (extents[:, None] + index[None, :]).masked_fill(beyond, 0).flatten()
        self.shape = (len(decoding), longest)
        self.mask = torch.zeros(self.shape, dtype=dtype, device=device).masked_fill(beyond, -torch.inf)[:, None, None]


def _blocks(row: Row, begin: int, groups: int, dtype: torch.dtype, device: Any) -> list[_Block]:
    blocks = []
    for offset in range(0, len(row.tokens), QUERY_BLOCK):
        size = min(QUERY_BLOCK, len(row.tokens) - offset)
        reach = row.first + offset + size
        seen = torch.arange(reach, device=device)[None, :] <= torch.arange(reach - size, reach, device=device)[:, None]
        mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill(~seen, -torch.inf).repeat(groups, 1)
        blocks.append(_Block(begin + offset, begin + offset + size, row.extent, row.extent + reach, mask))
    return blocks


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    plan: Plan | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: query [1, heads, line, size], key and value [1, KV heads, line, size]; returns
    [1, line, heads, size]."""
    assert plan is not None
    layer: int = module.layer_idx
    keys, values = plan.memory.keys[layer], plan.memory.values[layer]
    keys.index_copy_(1, plan.places, key[0])
    values.index_copy_(1, plan.places, value[0])
    kv_heads, line, size = key.shape[1], key.shape[2], key.shape[3]
    heads = query.shape[1]
    groups = heads // kv_heads
    # Query heads that share a KV head become rows of one call: no key is copied for them.
    lines = query[0].transpose(0, 1).reshape(line, kv_heads, groups, size)
    keys, values = keys.unsqueeze(0), values.unsqueeze(0)
    done = [_attend_block(block, lines, keys, values, scaling) for block in plan.blocks]
    if plan.gather is None:
        out = torch.cat(done)
    else:
        out = torch.empty_like(lines)
        for block, result in zip(plan.blocks, done, strict=True):
            out[block.begin : block.end] = result
        out[plan.gather.lines] = _attend_gathered(plan.gather, lines, keys[0], values[0], scaling)
    return out.view(1, line, heads, size), None


def _attend_block(
    block: _Block, lines: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """[rows, KV heads, groups, size]. With one row, as for every sequence that decodes, nothing is moved."""
    rows, reach = block.end - block.begin, block.stop - block.start
    query = lines.narrow(0, block.begin, rows)
    if rows > 1:
        _, kv_heads, groups, size = lines.shape
        query = query.permute(1, 2, 0, 3).reshape(1, kv_heads, groups * rows, size)
    result = scaled_dot_product_attention(
        query,
        keys.narrow(2, block.start, reach),
        values.narrow(2, block.start, reach),
        attn_mask=block.mask,
        scale=scaling,
    )
    if rows == 1:
        return result
    return result.view(kv_heads, groups, rows, size).permute(2, 0, 1, 3)


def _attend_gathered(
    gather: _Gather, lines: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scaling: float | None
) -> torch.Tensor:
    """[decoding sequences, KV heads, groups, size]."""
    batch, longest = gather.shape
    kv_heads, size = lines.shape[1], lines.shape[3]
    return scaled_dot_product_attention(
        lines[gather.lines],
        keys.index_select(1, gather.places).view(kv_heads, batch, longest, size).transpose(0, 1),
        values.index_select(1, gather.places).view(kv_heads, batch, longest, size).transpose(0, 1),
        attn_mask=gather.mask,
        scale=scaling,
    )


AttentionInterface.register(NAME, attend)
