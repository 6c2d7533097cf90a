"""Several tiers' loads on one instance, merged into one stream of requests in order of arrival."""

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from tailkeeper.model.load_sizes import Fixed, Sizes
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import ArrivalProcess, RandomSource

SHORT: Final = Fixed(16)
"""A sentence: what is sent where no size is given."""


@dataclass(frozen=True)
class TierLoad:
    """What one tier sends. Two of them may name the same tier: then both are sent."""

    tier: str
    arrivals: ArrivalProcess
    prompt: Sizes = SHORT
    output: Sizes = SHORT
    deadline_ms: int | None = None
    """The callers' own deadline; None: the tier's."""
    tenant: str | None = None


def requests(
    loads: Sequence[TierLoad], rng_for: Callable[[str], RandomSource], until_s: float
) -> Iterator[LoadRequest]:
    """Yield the requests of all loads that arrive before `until_s`, in order of arrival.

    Args:
        loads: the tiers.
        rng_for: makes a source of randomness from a name, such as `lambda name: random.Random(f"{seed}/{name}")`.
            Arrivals and sizes of each load draw from one of their own, so that another size or one tier more leaves
            the arrivals of the others as they were.
        until_s: end of the load, exclusive.
    """
    streams = [_one(load, rng_for, f"{n}/{load.tier}", until_s) for n, load in enumerate(loads)]
    return heapq.merge(*streams, key=attrgetter("arrival_s"))


def _one(load: TierLoad, rng_for: Callable[[str], RandomSource], name: str, until_s: float) -> Iterator[LoadRequest]:
    sizes = rng_for(f"{name}/sizes")
    times = load.arrivals.times(rng_for(f"{name}/arrivals"))
    for arrival_s in itertools.takewhile(lambda t: t < until_s, times):
        prompt, output = load.prompt.draw(sizes), load.output.draw(sizes)
        yield LoadRequest(arrival_s, load.tier, prompt, output, load.deadline_ms, load.tenant)
