"""Waits by cause out of a Server-Timing header; what is not said is not zero."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailkeeper.bench.server_timing import UNKNOWN, Waits, parse_server_timing


def same(found: Waits, wanted: tuple[float, float, float, float]) -> bool:
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in zip(found, wanted, strict=True))


NAN = math.nan


@pytest.mark.parametrize(
    ("header", "waits"),
    [
        ("hold;dur=1.5, busy;dur=2, slot;dur=0, exec;dur=9.25", (1.5, 2, 0, 9.25)),
        ('hold;desc="batch wait";dur="1.5",busy; dur=2', (1.5, 2, NAN, NAN)),
        ("Hold;DUR=1", (1, NAN, NAN, NAN)),
        ("cache;dur=3, db", (NAN, NAN, NAN, NAN)),
        ("hold;dur=-1, busy;dur=nan, slot;dur=x, exec", (NAN, NAN, NAN, NAN)),
        ("", UNKNOWN),
    ],
)
def test_causes_are_read(header: str, waits: tuple[float, float, float, float]) -> None:
    assert same(parse_server_timing(header), waits)


@given(st.text(max_size=60))
def test_no_header_breaks_it(header: str) -> None:
    assert all(math.isnan(ms) or ms >= 0 for ms in parse_server_timing(header))
