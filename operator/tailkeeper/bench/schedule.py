"""Turns a plan into the list of requests to send, each with its intended time: all drawn before the first is sent."""

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge
from operator import attrgetter

from tailkeeper.bench.plan import Plan
from tailkeeper.model.load_mix import requests
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import LoadError


@dataclass(frozen=True)
class Schedule:
    """The requests of a run in order of intended send time."""

    requests: tuple[LoadRequest, ...]
    cut: bool
    """There would have been more than `max_requests`."""


def draw_schedule(plan: Plan) -> Schedule:
    """Draw all requests of a plan; the same plan gives the same ones.

    Raises:
        LoadError: nothing at all would be sent.
    """
    drawn = tuple(itertools.islice(_all(plan), plan.max_requests + 1))
    if not any(r.arrival_s >= plan.warmup_s for r in drawn[: plan.max_requests]):
        raise LoadError(f"nothing to measure: no request falls between {plan.warmup_s:g} and {plan.end_s:g} s")
    return Schedule(drawn[: plan.max_requests], cut=len(drawn) > plan.max_requests)


def _all(plan: Plan) -> Iterator[LoadRequest]:
    made = requests(plan.loads, lambda name: random.Random(f"{plan.seed}/{name}"), plan.end_s)
    recorded = itertools.takewhile(lambda r: r.arrival_s < plan.end_s, plan.trace)
    return merge(made, recorded, key=attrgetter("arrival_s"))
