"""Requests as they go over the wire: right JSON, right length of text, the tier's headers, other text each time."""

import json
from dataclasses import replace

import pytest

from tailkeeper.bench.plan import Api, Plan, Target
from tailkeeper.bench.wire import Model, bodies, head, kinds_of
from tailkeeper.bench.words import Words
from tailkeeper.model.load_mix import TierLoad
from tailkeeper.model.load_trace import LoadRequest
from tailkeeper.model.loads import LoadError, parse_arrivals


def plan(api: Api, stream: bool = True) -> Plan:
    loads = (TierLoad("a", parse_arrivals("poisson:1")),)
    return Plan(Target("http://h:81", api, stream=stream), loads)


def body(plan: Plan, index: int = 0, prompt: int = 12, output: int = 5) -> dict[str, object]:
    made = bodies(plan, Model("mini", v2_input="text_in"), longest_tokens=100).body(index, prompt, output)
    found: dict[str, object] = json.loads(made)
    return found


def test_embeddings() -> None:
    found = body(plan(Api.EMBEDDINGS))
    assert found["model"] == "mini"
    assert len(str(found["input"]).split()) == 12
    assert set(found) == {"model", "input"}


def test_chat_streams_with_usage() -> None:
    found = body(plan(Api.CHAT))
    assert found["stream"] is True
    assert found["stream_options"] == {"include_usage": True}
    assert found["max_tokens"] == 5
    (message,) = found["messages"]  # type: ignore[misc]
    assert message["role"] == "user"
    assert len(message["content"].split()) == 12


def test_completions_whole() -> None:
    found = body(plan(Api.COMPLETIONS, stream=False))
    assert len(str(found["prompt"]).split()) == 12
    assert "stream" not in found


def test_v2_takes_the_tensor_that_the_model_has() -> None:
    (tensor,) = body(plan(Api.V2))["inputs"]  # type: ignore[misc]
    assert (tensor["name"], tensor["shape"], tensor["datatype"]) == ("text_in", [1], "BYTES")
    assert len(tensor["data"][0].split()) == 12


def test_an_answer_is_never_asked_to_be_empty() -> None:
    assert body(plan(Api.CHAT), output=0)["max_tokens"] == 1


@pytest.mark.parametrize("api", list(Api))
def test_texts_of_a_file_are_sent_in_turn_whatever_signs_they_have(api: Api) -> None:
    texts = ('say "hi"\\', "tab\tü \u2028", "third")
    given = replace(plan(api), texts=texts)
    for n, text in enumerate((*texts, texts[0])):
        assert json.dumps(text)[1:-1] in json.dumps(body(given, index=n))


def test_bodies_of_a_file_are_sent_as_they_are() -> None:
    given = replace(plan(Api.V2), inputs=(b'{"x": 1}', b'{"x": 2}'))
    assert [body(given, n)["x"] for n in range(3)] == [1, 2, 1]


def test_texts_differ_and_the_seed_decides_them() -> None:
    words = Words(seed=1, longest_tokens=3000)
    texts = [words.cut(n, 20) for n in range(1000)]
    assert len(set(texts)) == 1000
    again = Words(seed=1, longest_tokens=3000)
    assert texts == [again.cut(n, 20) for n in range(1000)]
    assert texts[0] != Words(2, 3000).cut(0, 20)
    assert len(words.cut(50_020, 3000).split()) == 3000


def test_the_head_says_whom_it_is_for() -> None:
    target = Target("http://h:81/v1/embeddings", headers=(("authorization", "Bearer k"), ("Host", "other")))
    lines = head(target, Model("m"), "batch", 250, "reports").decode().split("\r\n")
    assert lines[0] == "POST /v1/embeddings HTTP/1.1"
    assert lines[-1] == "content-length: "
    assert {
        "x-tailkeeper-tier: batch",
        "x-tailkeeper-deadline-ms: 250",
        "x-tailkeeper-tenant: reports",
        "authorization: Bearer k",
        "Host: other",
    } <= set(lines)
    assert "host: h:81" not in lines


def test_the_host_of_an_ipv6_address_has_brackets() -> None:
    assert b"host: [::1]:8\r\n" in head(Target("http://[::1]:8", Api.CHAT), Model("m"), "a", None, None)
    assert b"host: h\r\n" in head(Target("http://h", Api.CHAT), Model("m"), "a", None, None)


def test_a_tenant_cannot_smuggle_lines() -> None:
    with pytest.raises(LoadError):
        head(Target("http://h", Api.CHAT), Model("m"), "a", None, "x\r\ny: z")


def test_requests_that_are_alike_share_their_head() -> None:
    requests = [
        LoadRequest(0, "a", 1, 1),
        LoadRequest(1, "b", 1, 1, 50),
        LoadRequest(2, "a", 9, 9),
        LoadRequest(3, "b", 1, 1),
    ]
    kinds, of_request = kinds_of(plan(Api.CHAT), Model("m"), requests)
    assert of_request == [0, 1, 0, 2]
    assert [kind.tier for kind in kinds] == ["a", "b", "b"]
