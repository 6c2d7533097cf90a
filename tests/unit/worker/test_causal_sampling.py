"""What a call may ask for: read as OpenAI and vLLM define it, or refused with the parameter's name."""

import pytest

from gpu_worker.engines.interface import Sampling
from gpu_worker.server.errors import ApiError
from gpu_worker.server.sampling import read_sampling, refuse


def test_nothing_said_is_openais_default() -> None:
    assert read_sampling({}, None, None) == Sampling()


def test_everything_said_is_taken() -> None:
    body = {
        "temperature": 0,
        "top_p": 0.5,
        "top_k": -1,
        "min_p": 0.1,
        "seed": -3,
        "stop": "\n",
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.1,
        "logit_bias": {"7": -100},
        "min_tokens": 2,
        "ignore_eos": True,
    }
    assert read_sampling(body, 5, 3) == Sampling(
        max_tokens=5,
        min_tokens=2,
        temperature=0.0,
        top_p=0.5,
        top_k=0,
        min_p=0.1,
        seed=-3,
        stop=("\n",),
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        repetition_penalty=1.1,
        logit_bias={7: -100.0},
        logprobs=3,
        ignore_eos=True,
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", True),
        ("temperature", "warm"),
        ("temperature", float("nan")),
        ("top_p", 1.1),
        ("top_k", 1.5),
        ("seed", "7"),
        ("stop", [""]),
        ("stop", ["x"] * 17),
        ("stop", 3),
        ("presence_penalty", 3),
        ("logit_bias", {"a": 1}),
        ("logit_bias", {"1": 101}),
        ("logit_bias", [1]),
        ("min_tokens", 9),
        ("ignore_eos", 1),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ApiError) as refused:
        read_sampling({name: value}, 8, None)
    assert refused.value.status == 400
    assert refused.value.param == name


def test_what_would_change_the_text_and_is_not_there_is_refused() -> None:
    refuse({"echo": False, "tools": [], "suffix": None}, echo=False, tools=[], suffix="")
    with pytest.raises(ApiError, match="tools is not supported"):
        refuse({"tools": [{"type": "function"}]}, tools=[])
