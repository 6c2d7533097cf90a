"""The encoder engine against sentence-transformers, on small models of its own with every pooling there is."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers import BertConfig, BertModel

from gpu_worker.engines.encoder import Encoder
from gpu_worker.engines.interface import InputError, LoadError, Task, Vector
from gpu_worker.engines.source import LocalFolder
from tests.integration.worker_process import MINILM

TOLERANCE = 1e-5
TEXTS = [
    "one",
    "two words",
    "Three Words Here",
    "x " * 60,
    "ends. With, punctuation!",
    *("w " * n for n in range(1, 20)),
]


def small_model(folder: Path, pooling: object, normalise: bool, safetensors: bool = True) -> Path:
    """A BERT of two layers with random weights and MiniLM's tokenizer, in the layout of sentence-transformers."""
    torch.manual_seed(7)
    config = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, max_position_embeddings=64
    )
    model = BertModel(config).eval()
    if safetensors:
        model.save_pretrained(folder)
    else:
        folder.mkdir(exist_ok=True)
        config.save_pretrained(folder)
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(MINILM / name, folder / name)
    types = ["Transformer", "Pooling", *(["Normalize"] if normalise else [])]
    paths = ["", "1_Pooling", "2_Normalize"]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(zip(types, paths, strict=False))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 48, "do_lower_case": False}))
    (folder / "1_Pooling").mkdir()
    described = {"word_embedding_dimension": 32, "pooling_mode": pooling}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(described))
    return folder


def loaded(folder: Path) -> Encoder:
    encoder = Encoder(LocalFolder(folder), device="cpu", threads=1)
    encoder.load(lambda share, what: None)
    return encoder


def embed(encoder: Encoder, texts: Sequence[str]) -> list[Vector]:
    prepared = [encoder.text(text, truncate=True) for text in texts]
    result = encoder.step([Task(str(index), given.content, given.tokens) for index, given in enumerate(prepared)], ())
    assert result.completed == {str(index) for index in range(len(texts))}
    return [result.outputs[str(index)] for index in range(len(texts))]


def furthest(ours: Sequence[Vector], theirs: Sequence[Vector]) -> float:
    return max(float(np.abs(one - other).max()) for one, other in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(
    ("pooling", "normalise"),
    [
        ("mean", True),
        ("mean", False),
        ("cls", True),
        ("max", False),
        ("mean_sqrt_len_tokens", True),
        ("lasttoken", False),
        (["cls", "mean"], True),
    ],
)
def test_every_pooling_equals_the_reference_library_one_text_at_a_time(
    tmp_path: Path, pooling: object, normalise: bool
) -> None:
    folder = small_model(tmp_path / "model", pooling, normalise)
    reference = SentenceTransformer(str(folder), device="cpu")
    theirs = [reference.encode([text])[0] for text in TEXTS]
    encoder = loaded(folder)
    assert encoder.dimensions == theirs[0].shape[0]
    assert furthest(embed(encoder, TEXTS), theirs) < TOLERANCE


def test_batch_mates_do_not_matter(tmp_path: Path) -> None:
    encoder = loaded(small_model(tmp_path / "model", "mean", normalise=True))
    alone = [embed(encoder, [text])[0] for text in TEXTS]
    for order in (TEXTS, TEXTS[::-1]):
        together = dict(zip(order, embed(encoder, order), strict=True))
        assert furthest([together[text] for text in TEXTS], alone) < TOLERANCE


def test_weights_in_torchs_own_format_are_read_too(tmp_path: Path) -> None:
    ours = embed(loaded(small_model(tmp_path / "a", "mean", True, safetensors=False)), TEXTS)
    theirs = embed(loaded(small_model(tmp_path / "b", "mean", True)), TEXTS)
    assert furthest(ours, theirs) == 0


def test_long_texts_are_cut_where_the_config_says_or_refused(tmp_path: Path) -> None:
    encoder = loaded(small_model(tmp_path / "model", "mean", True))
    long = "word " * 100
    cut = encoder.text(long, truncate=True)
    assert (cut.tokens, cut.truncated, encoder.max_tokens) == (48, True, 48)
    fits = encoder.text("word " * 46, truncate=False)
    assert (fits.tokens, fits.truncated) == (48, False)
    with pytest.raises(InputError, match="longer than this model's 48 tokens"):
        encoder.text(long, truncate=False)


def test_token_ids_are_checked_before_they_join_a_batch(tmp_path: Path) -> None:
    encoder = loaded(small_model(tmp_path / "model", "mean", True))
    assert encoder.tokens([101, 2023, 102]).tokens == 3
    for bad, says in (([30_522], "vocabulary"), ([-1], "vocabulary"), ([1] * 49, "49 tokens")):
        with pytest.raises(InputError, match=says):
            encoder.tokens(bad)


def test_a_folder_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    folder = small_model(tmp_path / "model", "mean", True)
    (folder / "model.safetensors").write_bytes(b"not weights")
    with pytest.raises(LoadError, match="model"):
        loaded(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(LoadError, match="model"):
        loaded(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(LoadError, match=r"tokenizer\.json is missing"):
        loaded(folder)


def test_missing_weights_are_refused_by_name_but_for_a_pooler_that_is_not_used(tmp_path: Path) -> None:
    folder = small_model(tmp_path / "model", "mean", True)
    whole = embed(loaded(folder), TEXTS)
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith("pooler.")}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    assert furthest(embed(loaded(folder), TEXTS), whole) == 0
    del kept["encoder.layer.1.output.dense.weight"]
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(LoadError, match=r"lack the weights encoder\.layer\.1\.output\.dense\.weight"):
        loaded(folder)


def test_a_device_that_is_not_there_is_said(tmp_path: Path) -> None:
    folder = small_model(tmp_path / "model", "mean", True)
    with pytest.raises(LoadError, match="offers no device cuda:99"):
        Encoder(LocalFolder(folder), device="cuda:99").load(lambda share, what: None)


def test_a_model_of_the_hub_is_loaded_from_its_cache(tmp_path: Path) -> None:
    """In the layout of the hub's cache, offline, in a process of its own: the client reads its environment once."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = tmp_path / "hub" / "models--someone--small"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text(commit)
    (cached / "snapshots").mkdir()
    small_model(cached / "snapshots" / commit, "mean", True)
    program = (
        "import sys\nfrom gpu_worker.engines.encoder import Encoder\n"
        "from gpu_worker.engines.source import HuggingFace\n"
        "encoder = Encoder(HuggingFace(sys.argv[1], sys.argv[2] or None), device='cpu')\n"
        "encoder.load(lambda share, what: None); print(encoder.dimensions)"
    )

    def load(name: str, revision: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-c", program, name, revision]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    for revision in ("", commit):
        assert load("someone/small", revision).stdout.strip() == "32"
    missing = load("someone/else", "")
    assert missing.returncode == 1
    assert "LoadError: Hugging Face someone/else@main" in missing.stderr


def test_a_warm_up_runs_any_batch(tmp_path: Path) -> None:
    encoder = loaded(small_model(tmp_path / "model", "mean", True))
    assert [len(encoder.warm_up(batch)) for batch in (1, 8)] == [1, 8]
