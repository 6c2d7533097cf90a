"""What a virtual engine takes for a step, written as text.

| text | engine |
| --- | --- |
| `a=0.5ms,c=6ms` | one pass serves a whole batch, T(b) = c + a·b |
| `alpha=60ms,beta=2ms,gamma=2.7ms[,delta=0]` | iterations: α + β·prefill tokens + γ·decoding sequences + δ·KV tokens |

Units: s, ms (where none is given), us, ns."""

import re
from dataclasses import dataclass
from typing import Final

from gpu_worker.scheduling import EngineLimits
from tailkeeper.model.iterations import Cost
from tailkeeper.model.windows import Line


class ModelError(ValueError):
    """A model text that says nothing; the message is one line."""


@dataclass(frozen=True)
class EngineModel:
    """Exactly one of the two is there."""

    line: Line | None = None
    cost: Cost | None = None
    max_batch: int | None = None
    kv_tokens: int | None = None

    @property
    def limits(self) -> EngineLimits:
        """What the scheduler is told about the engine."""
        return EngineLimits(self.cost is not None, self.max_batch, self.kv_tokens)


_UNITS_S: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "": 1e-3}
_PASS: Final = ("a", "c")
_ITERATION: Final = ("alpha", "beta", "gamma", "delta")


def parse_model(text: str, max_batch: int | None = None, kv_tokens: int | None = None) -> EngineModel:
    """Reads the text above. Raises ModelError."""
    how = "write a=0.5ms,c=6ms or alpha=60ms,beta=2ms,gamma=2.7ms[,delta=0]"
    given: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name in given or name not in _PASS + _ITERATION:
            raise ModelError(f"model {text!r}: {part.strip()!r} is not understood; {how}")
        given[name] = _seconds(value, text)
    if set(given) == set(_PASS):
        if given["a"] <= 0.0:
            raise ModelError(f"model {text!r}: a must be above 0")
        return EngineModel(line=Line(given["c"], given["a"]), max_batch=max_batch)
    if set(_ITERATION[:3]) <= set(given) <= set(_ITERATION):
        if given["alpha"] <= 0.0 or given["gamma"] <= 0.0:
            raise ModelError(f"model {text!r}: alpha and gamma must be above 0")
        cost = Cost(given["alpha"], given["beta"], given["gamma"], given.get("delta", 0.0))
        return EngineModel(cost=cost, max_batch=max_batch, kv_tokens=kv_tokens)
    raise ModelError(f"model {text!r}: {how}")


def _seconds(text: str, model: str) -> float:
    match = re.fullmatch(r"\s*([0-9.]+(?:e-?[0-9]+)?)\s*(s|ms|us|µs|ns|)\s*", text)
    try:
        value = float(match[1]) if match else -1.0
    except ValueError:
        value = -1.0
    if match is None or value < 0.0:
        raise ModelError(f"model {model!r}: {text.strip()!r} is not a time, such as 0.5ms")
    return value * _UNITS_S[match[2]]
