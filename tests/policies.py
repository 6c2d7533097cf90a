"""Policies for property tests, as the JSON that users send: valid ones, and valid ones with something changed."""

import copy
import json
from collections.abc import Iterator

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

Json = dict[str, object] | list[object] | str | int | float | bool | None

DAY_MS = 86_400_000
TIERS = ("interactive", "standard", "batch", "gold")
DURATIONS = st.sampled_from([1, 7, 100, 999, 1_000, 2_000, 60_000, 120_000, DAY_MS - 1, DAY_MS])
WINDOWS = st.sampled_from([1, 2, 8, 16, 64, 256, 65_536])
WEIGHTS: SearchStrategy[dict] = st.sampled_from(
    [
        {"path": "/models/m"},
        {"path": "/models/.cache/m/"},
        {"persistentVolumeClaim": {"claimName": "models", "path": "a/b"}},
        {"persistentVolumeClaim": {"claimName": "models"}},
        {"huggingFace": {"id": "org/name", "revision": "main", "tokenSecret": {"name": "hub"}}},
        {"huggingFace": {"id": "name", "tokenSecret": {"name": "hub", "key": "T_1"}}},
    ]
)


def _some(**fields: SearchStrategy) -> SearchStrategy[dict]:
    return st.fixed_dictionaries({}, optional=fields)


MODELS: SearchStrategy[dict] = st.one_of(
    WEIGHTS.map(lambda source: {"name": "m", "engine": "causal-lm", **source}),
    WEIGHTS.map(lambda source: {"name": "Org/m:1", "engine": "encoder", **source}),
    st.just({"name": "m", "engine": "module", "factory": "pkg.mod:make"}),
    WEIGHTS.map(lambda source: {"name": "m", "engine": "module", "factory": "a:b", **source}),
    st.just({"name": "m", "engine": "triton", "url": "grpc://triton:8001"}),
    st.just({"name": "m", "engine": "upstream", "url": "https://vllm.models.svc/v1"}),
)

BATCHING = _some(
    mode=st.sampled_from(["continuous", "request", "fixed"]),
    windowDynamic=st.booleans(),
    windowIdle=WINDOWS,
    windowBusy=WINDOWS,
    priorityQueue=st.booleans(),
    tailLatencySlaMs=DURATIONS,
    firstTokenSlaMs=DURATIONS,
    interTokenSlaMs=DURATIONS,
    timeoutTargetPerMille=st.sampled_from([0, 5, 1_000]),
    minEfficiencyPercent=st.sampled_from([0, 70, 100]),
)

TEMPLATE = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.just(1.5), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.sampled_from("abc"), inner, max_size=2)),
    max_leaves=4,
)


def _tiers(names: SearchStrategy[list[str]]) -> SearchStrategy[list[dict]]:
    fields = _some(
        deadlineMs=DURATIONS,
        timeoutMs=DURATIONS,
        maxHoldMs=st.sampled_from([0, 5, DAY_MS]),
        preempts=st.booleans(),
        reservePercent=st.sampled_from([0, 10, 40, 80, 90]),
    )
    return names.flatmap(
        lambda chosen: st.tuples(*[fields] * len(chosen)).map(
            lambda said: [{"name": name, **rest} for name, rest in zip(chosen, said, strict=True)]
        )
    )


def _names(least: int) -> SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(TIERS), min_size=least, max_size=4, unique=True)


@st.composite
def policies(draw: DrawFn) -> dict:
    """Near-valid policies: every field alone is valid, together they may contradict each other."""
    count = draw(st.sampled_from([1, 1, 1, 2, 3]))
    # Half of the policies say little, or hardly one would be free of contradictions.
    rich = draw(st.booleans())
    instance = st.fixed_dictionaries(
        {"model": MODELS},
        optional={
            "replicas": st.sampled_from([0, 1, 1_000]),
            "batching": BATCHING,
            "template": st.dictionaries(st.sampled_from(["spec", "metadata"]), TEMPLATE, max_size=2),
            **({"tiers": _tiers(_names(0)), "defaultTier": st.sampled_from(TIERS)} if rich else {}),
        },
    )
    spec: dict = {"instances": [{"name": f"i{number}", **draw(instance)} for number in range(count)]}
    spec |= draw(
        _some(
            trafficClass=st.sampled_from(["online", "offline"]),
            batching=BATCHING,
            retune=_some(
                mode=st.sampled_from(["Auto", "Recommend", "Off"]),
                intervalSeconds=st.sampled_from([1, 5, 300]),
                pin=st.lists(st.sampled_from(["ceiling", "margin", "maxHold"]), unique=True),
            ),
            rolloutStrategy=st.sampled_from(["SurgeFirst", "DrainFirst"]),
            profiles=_some(record=st.booleans(), startFrom=st.just("small.model")),
            review=_some(intervalDays=st.sampled_from([1, 90, 3_650])),
            apiKeys=st.just({"secretName": "keys"}),
            drainSeconds=st.sampled_from([1, 45, 3_600]),
            **({"tiers": _tiers(_names(1)), "defaultTier": st.sampled_from(TIERS)} if rich else {}),
        )
    )
    name = draw(st.sampled_from(["p", "chat-2", "a" * 50]))
    return {
        "apiVersion": "tailkeeper.dev/v1alpha1",
        "kind": "BatchingPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


ODD_NUMBERS: list[Json] = [0, -1, 1, 2.5, 91, 101, 3_601, 65_537, DAY_MS + 1, 2**31, 2**63, 1e300, True, "1", None]
ODD_TEXTS: list[Json] = [
    "", "a", "A", "a.b", "a-", "-a", "é", "a\n", "a b", "1", "/", "/a/../b", "../a", "/a/./b", "//a", "a/", "a:b",
    "a:b:c", "http://", "http://a", "http://a b", "gold", "batch", "continuous", "a" * 63, "a" * 64, "a" * 600,
    "\u00a0", "ℋ", 7, None,
]  # fmt: skip
ODD_REST: list[Json] = [None, True, False, 0, "on", [], {}, [None], [[]], {"a": None}, {"name": "a"}]


def profiles() -> SearchStrategy[dict]:
    """Valid profiles, without the status."""
    spec = st.fixed_dictionaries(
        {
            "model": st.sampled_from(["small", "Org/m:1", "é" * 128]),
            "engine": st.sampled_from(["encoder", "triton"]),
            "hardware": st.fixed_dictionaries(
                {"device": st.sampled_from(["cpu", "NVIDIA H200"])},
                optional={"deviceCount": st.sampled_from([1, 64]), "memoryMib": st.sampled_from([0, 2**53 - 1])},
            ),
        }
    )
    head = {"apiVersion": "tailkeeper.dev/v1alpha1", "kind": "BatchingProfile", "metadata": {"name": "small.on-cpu"}}
    return spec.map(lambda spec: head | {"spec": spec})


@st.composite
def changed(draw: DrawFn, valid: SearchStrategy[dict]) -> dict:
    """Objects with one or two places of their spec changed to something odd, taken out, doubled, or misspelt."""
    said = json.loads(json.dumps(draw(valid)))  # nothing in it is shared with another example
    for _ in range(draw(st.sampled_from([1, 1, 2]))):
        places = list(_places(said["spec"]))
        leaves = [(parent, key) for parent, key in places if not isinstance(parent[key], dict | list)]
        if not leaves:
            break
        parent, key = draw(st.sampled_from(draw(st.sampled_from([leaves, leaves, leaves, places]))))
        change = draw(st.sampled_from(["odd", "odd", "odd", "odd", "odd", "without", "twice", "misspelt"]))
        if change == "odd":
            parent[key] = copy.deepcopy(draw(st.sampled_from(_odd(parent[key]))))
        elif change == "without":
            del parent[key]
        elif change == "twice" and isinstance(parent, list):
            parent.append(copy.deepcopy(parent[key]))
        elif change == "misspelt" and isinstance(parent, dict):
            parent[f"{key}x"] = parent.pop(key)
    return said


def _odd(value: object) -> list[Json]:
    if isinstance(value, int) and not isinstance(value, bool):
        return ODD_NUMBERS
    return ODD_TEXTS if isinstance(value, str) else ODD_REST


def _places(value: object) -> Iterator[tuple]:
    """Every (container, key) inside."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(children):
        yield value, key
        yield from _places(child)
