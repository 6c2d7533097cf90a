"""The causal-lm engine: what it makes is the model's, whatever comes beside it, before it, or between its tokens."""

import os
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, BertConfig, BertModel

from gpu_worker.engines.causal.sampler import Choice, Draw, choose
from gpu_worker.engines.causal_lm import CausalLm
from gpu_worker.engines.interface import Finish, InputError, LoadError, Sampling, Task
from tests.integration.tiny_causal import END, Driver, alone, loaded, tiny_model

CACHE = Path(os.environ.get("TAILKEEPER_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "tailkeeper")
SMOLLM2 = CACHE.expanduser() / "models" / "smollm2-135m-instruct"

GREEDY = Sampling(max_tokens=24, temperature=0.0)
PROMPTS = ["a", "hello there", "Ünïcödé 🎉", "x" * 90, "the quick brown fox jumps over the lazy dog"]
KINDS = [
    Sampling(max_tokens=30, seed=1, ignore_eos=True),
    Sampling(max_tokens=30, seed=2, temperature=0.7, top_p=0.8, ignore_eos=True),
    Sampling(max_tokens=30, seed=3, top_k=5, ignore_eos=True),
    Sampling(max_tokens=30, seed=4, min_p=0.05, presence_penalty=1.0, frequency_penalty=0.5, ignore_eos=True),
    Sampling(max_tokens=30, temperature=0.0, repetition_penalty=1.3, logprobs=2, ignore_eos=True),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def engine(folder: Path) -> CausalLm:
    return loaded(folder)


def test_smollm2_continues_as_the_reference_does_token_for_token() -> None:
    """Five prompts that come one after the other, in chunks, while the others decode."""
    if not SMOLLM2.is_dir():
        raise FileNotFoundError(f"{SMOLLM2} is missing: run hack/local-cluster/models")
    engine = loaded(SMOLLM2, kv_tokens=2048)
    driver = Driver(engine)
    questions = [
        "What is the capital of France?",
        "Count to ten.",
        "Why is the sky blue? " * 6,
        "Écris un haïku 🎉",
        "?",
    ]
    for number, question in enumerate(questions):
        driver.add(str(number), engine.chat([{"role": "user", "content": question}]), GREEDY)
        driver.step(driver.open(), chunk=16)
    driver.finish(chunk=16)
    model = AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32)
    for run in driver.runs.values():
        content = run.prepared.content
        prompt = torch.tensor([content.tokens[: content.prompt_tokens]])
        expected = model.generate(prompt, max_new_tokens=24, do_sample=False, pad_token_id=2)
        assert content.tokens == expected[0].tolist()


def test_a_request_is_the_same_alone_and_in_any_company(engine: CausalLm) -> None:
    driver = Driver(engine)
    chance = random.Random(3)
    for number in range(15):
        driver.add(str(number), PROMPTS[number % 5], KINDS[number // 3])
        if number % 2:
            driver.step(chance.sample(driver.open(), len(driver.open())), chunk=7)
    driver.finish(chunk=7)
    for number in range(15):
        expected = alone(engine, PROMPTS[number % 5], KINDS[number // 3])
        run = driver.runs[str(number)]
        assert run.tokens == expected.tokens
        assert run.text == expected.text
    assert not engine.held


def test_without_a_seed_no_two_are_alike(engine: CausalLm) -> None:
    sampling = Sampling(max_tokens=30, ignore_eos=True)
    assert alone(engine, "hello", sampling).tokens != alone(engine, "hello", sampling).tokens


def test_paused_evicted_and_reloaded_it_goes_on_where_it_was(engine: CausalLm) -> None:
    """No token is lost, none is made twice."""
    driver = Driver(engine)
    for number, sampling in enumerate(KINDS):
        driver.add(str(number), PROMPTS[number], sampling)
    chance = random.Random(5)
    for turn in range(120):
        names = driver.open()
        if not names:
            break
        working = chance.sample(names, chance.randint(1, len(names)))
        idle = [name for name in names if name not in working and driver.runs[name].prefilled]
        gone = idle if turn % 4 == 0 else []
        driver.step(working, chunk=9)
        if gone and working:
            again = [name for name in driver.open() if name not in gone][:1] or gone[:1]
            driver.step(again, chunk=9, evicted=gone)
        if turn == 20:
            engine.load(lambda share, what: None)
    driver.finish()
    for number, sampling in enumerate(KINDS):
        assert driver.runs[str(number)].tokens == alone(engine, PROMPTS[number], sampling).tokens
    assert not engine.held


def test_exactly_prompt_and_output_are_forwarded_and_a_newcomer_does_not_wait(engine: CausalLm) -> None:
    driver = Driver(engine)
    first = driver.add("first", "hello", Sampling(max_tokens=20, temperature=0.0, ignore_eos=True))
    for _ in range(5):
        driver.step(["first"])
    driver.add("second", "b" * 30, Sampling(max_tokens=3, temperature=0.0, ignore_eos=True))
    made = driver.step(["first", "second"])
    assert set(made) == {"first", "second"}
    assert first.finish is None
    driver.finish()
    # The last token of each is never forwarded: nobody asks what would follow it.
    assert driver.forwarded == (5 + 20 - 1) + (30 + 3 - 1)


def test_memory_is_counted_ahead_and_never_exceeded(folder: Path) -> None:
    engine = loaded(folder, kv_tokens=300, most_sequences=8)
    assert engine.limits.kv_tokens == 300
    assert engine.max_tokens == 300
    with pytest.raises(InputError, match="longest text is 300 tokens"):
        engine.generation([1] * 200, Sampling(max_tokens=101))
    allocated = engine._model.memory.keys[0].data_ptr()
    chance = random.Random(11)
    driver = Driver(engine)
    budget: dict[str, int] = {}
    for number in range(60):
        prompt, most = chance.randint(1, 60), chance.randint(1, 40)
        while sum(budget.values()) + prompt + most > 300 or len(budget) >= 8:
            driver.step(driver.open(), chunk=13)
            budget = {name: size for name, size in budget.items() if name in driver.open()}
        name = str(number)
        driver.add(name, [number] * prompt, Sampling(max_tokens=most, temperature=0.0, ignore_eos=True))
        budget[name] = prompt + most
        driver.step([name], chunk=13)
    driver.finish()
    assert engine._model.memory.keys[0].data_ptr() == allocated
    assert not engine.held
    for number in (3, 40, 59):
        run = driver.runs[str(number)]
        content = run.prepared.content
        assert run.tokens == alone(engine, content.tokens[: content.prompt_tokens], content.sampling).tokens


def test_how_a_text_ends(engine: CausalLm) -> None:
    whole = alone(engine, "hello", Sampling(max_tokens=40, temperature=0.0, ignore_eos=True))
    assert whole.finish is Finish.LENGTH
    assert len(whole.tokens) == 40
    stop = next(piece.text for piece in whole.pieces[5:] if piece.text)
    stopped = alone(engine, "hello", Sampling(max_tokens=40, temperature=0.0, ignore_eos=True, stop=(stop,)))
    assert stopped.finish is Finish.STOP
    assert stopped.text == whole.text[: whole.text.index(stop)]
    ended = alone(engine, "hello", Sampling(max_tokens=40, temperature=0.0, logit_bias={END: 100.0}))
    assert (ended.finish, ended.tokens, ended.text) == (Finish.STOP, [END], "")
    later = alone(engine, "hello", Sampling(max_tokens=40, min_tokens=3, temperature=0.0, logit_bias={END: 100.0}))
    assert len(later.tokens) == 4
    assert later.tokens[3] == END


def test_log_probabilities_are_the_models(engine: CausalLm, folder: Path) -> None:
    run = alone(engine, "hello", Sampling(max_tokens=6, temperature=0.0, ignore_eos=True, logprobs=3))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = run.prepared.content.tokens
    with torch.inference_mode():
        expected = torch.log_softmax(model(torch.tensor([tokens])).logits[0], dim=-1)
    for index, piece in enumerate(run.pieces):
        row = expected[5 + index - 1]
        assert piece.chosen is not None
        assert piece.chosen.logprob == pytest.approx(float(row[piece.chosen.token]), abs=1e-4)
        assert [one.token for one in piece.likeliest] == row.topk(3).indices.tolist()


def test_one_that_breaks_fails_alone(engine: CausalLm) -> None:
    driver = Driver(engine)
    good = driver.add("good", "hello", GREEDY)
    bad = engine.generation(engine.encode("bad"), Sampling(temperature=0.0, logit_bias={1: float("nan")}))
    tasks = [Task("good", good.prepared.content, 5), Task("bad", bad.content, 3)]
    result = engine.step(tasks, ())
    assert set(result.outputs) == {"good"}
    assert set(result.failed) == {"bad"}
    assert engine.held == {"good"}


def test_what_is_not_in_the_vocabulary_or_too_long_is_refused_before_it_joins(engine: CausalLm) -> None:
    for prompt, sampling in (
        ([], GREEDY),
        ([258], GREEDY),
        ([1] * 512, GREEDY),
        ([1], Sampling(logit_bias={300: 1.0})),
    ):
        with pytest.raises(InputError):
            engine.generation(prompt, sampling)


def test_a_folder_that_is_no_model_is_said(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"missing|tokenizer"):
        loaded(tmp_path)


def test_a_folder_without_the_head_of_a_text_model_is_refused_with_the_weights_named(tmp_path: Path) -> None:
    """transformers would fill the head with random numbers, and the worker would become ready and serve noise."""
    folder = tiny_model(tmp_path / "encoder")
    config = BertConfig(
        vocab_size=258,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=6,
        is_decoder=True,
    )
    BertModel(config).save_pretrained(folder)
    with pytest.raises(LoadError, match=r"lack the weights cls\.predictions"):
        loaded(folder)


def test_tied_weights_are_not_missing(folder: Path) -> None:
    with safe_open(folder / "model.safetensors", "pt") as stored:
        assert "lm_head.weight" not in stored.keys()  # noqa: SIM118 - it is no mapping
    loaded(folder)


def test_sampled_frequencies_are_the_probabilities() -> None:
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, -3.0]).repeat(8000, 1)

    def shares(sampling: Sampling) -> list[float]:
        chosen = choose(logits, [Draw(sampling, seed, 0) for seed in range(8000)])
        tokens = torch.tensor([choice.token for choice in chosen if isinstance(choice, Choice)])
        counted: list[float] = (torch.bincount(tokens, minlength=5) / 8000).tolist()
        return counted

    whole = torch.softmax(logits[0], dim=-1)
    assert shares(Sampling()) == pytest.approx(whole.tolist(), abs=0.02)
    assert shares(Sampling(top_k=2)) == pytest.approx([0.731, 0.269, 0, 0, 0], abs=0.02)
    assert shares(Sampling(top_p=0.7)) == pytest.approx([0.731, 0.269, 0, 0, 0], abs=0.02)
    assert shares(Sampling(top_p=0.6)) == [1, 0, 0, 0, 0]
    assert shares(Sampling(min_p=0.1))[3:] == [0, 0]
    hot = torch.softmax(logits[0] / 3, dim=-1)
    assert shares(Sampling(temperature=3.0)) == pytest.approx(hot.tolist(), abs=0.02)


def test_filters_over_a_large_vocabulary_look_at_all_of_it_where_needed() -> None:
    flat = torch.zeros(1, 5000)
    picks = {choose(flat, [Draw(Sampling(top_p=0.9), seed, 0)])[0].token for seed in range(40)}
    assert len(picks) > 30
