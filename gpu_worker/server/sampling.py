"""How a call wants its text made: OpenAI's parameters, and those that vLLM adds to them."""

import math
from collections.abc import Mapping
from typing import Any

from gpu_worker.engines.interface import Sampling
from gpu_worker.server.errors import invalid

MOST_STOPS = 16
LONGEST_STOP = 1000
MOST_LOGPROBS = 20
LARGEST_SEED = 2**63


def read_sampling(body: Mapping[str, Any], max_tokens: int | None, logprobs: int | None) -> Sampling:
    """Raises ApiError 400 that names the parameter. How long and how many log probabilities are asked for in other
    words by either endpoint."""
    most = max_tokens
    fewest = _whole(body, "min_tokens", 0, 2**31, 0)
    if most is not None and fewest > most:
        raise invalid("min_tokens must not exceed max_tokens", "min_tokens")
    top_k = _whole(body, "top_k", -1, 2**31, 0)
    return Sampling(
        max_tokens=most,
        min_tokens=fewest,
        temperature=_number(body, "temperature", 0.0, 100.0, 1.0),
        top_p=_number(body, "top_p", 0.0, 1.0, 1.0),
        top_k=max(0, top_k),
        min_p=_number(body, "min_p", 0.0, 1.0, 0.0),
        seed=_whole(body, "seed", -LARGEST_SEED, LARGEST_SEED - 1, None),
        presence_penalty=_number(body, "presence_penalty", -2.0, 2.0, 0.0),
        frequency_penalty=_number(body, "frequency_penalty", -2.0, 2.0, 0.0),
        repetition_penalty=_number(body, "repetition_penalty", 0.01, 100.0, 1.0),
        logit_bias=_logit_bias(body.get("logit_bias")),
        logprobs=logprobs,
        stop=_stop(body.get("stop")),
        ignore_eos=flag(body, "ignore_eos"),
    )


def flag(body: Mapping[str, Any], name: str) -> bool:
    """true, or false where it is not given."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{name} must be true or false", name)
    return bool(value)


def whole(body: Mapping[str, Any], name: str, least: int, most: int) -> int | None:
    """An integer, or None where it is not given."""
    value: int | None = _whole(body, name, least, most, None)
    return value


def refuse(body: Mapping[str, Any], **harmless: Any) -> None:
    """Parameters that would change the text and are not supported, each with the value that changes nothing."""
    for name, value in harmless.items():
        given = body.get(name)
        if given is not None and given != value and given not in ([], {}):
            raise invalid(f"{name} is not supported", name)


def _whole(body: Mapping[str, Any], name: str, least: int, most: int, otherwise: Any) -> Any:
    value = body.get(name)
    if value is None:
        return otherwise
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise invalid(f"{name} must be an integer from {least} to {most}", name)
    return value


def _number(body: Mapping[str, Any], name: str, least: float, most: float, otherwise: float) -> float:
    value = body.get(name)
    if value is None:
        return otherwise
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or not least <= value <= most:
        raise invalid(f"{name} must be a number from {least:g} to {most:g}", name)
    return float(value)


def _stop(value: Any) -> tuple[str, ...]:
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > MOST_STOPS:
        raise invalid(f"stop must be a text or a list of at most {MOST_STOPS}", "stop")
    if not all(isinstance(stop, str) and 0 < len(stop) <= LONGEST_STOP for stop in stops):
        raise invalid(f"stop must hold texts of 1 to {LONGEST_STOP} characters", "stop")
    return tuple(stops)


def _logit_bias(value: Any) -> dict[int, float]:
    if value is None:
        return {}
    message = "logit_bias must be an object of token ids and numbers from -100 to 100"
    if not isinstance(value, dict):
        raise invalid(message, "logit_bias")
    biases = {}
    for token, bias in value.items():
        good = isinstance(bias, int | float) and not isinstance(bias, bool) and -100 <= bias <= 100
        if not token.isdecimal() or len(token) > 9 or not good:
            raise invalid(message, "logit_bias")
        biases[int(token)] = float(bias)
    return biases
