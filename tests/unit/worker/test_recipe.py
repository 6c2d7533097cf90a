"""What the files of a model folder say, and that a folder which cannot be served says why."""

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_worker.engines.interface import LoadError
from gpu_worker.engines.recipe import Pooling, read_recipe
from gpu_worker.engines.source import LocalFolder

TRANSFORMER = {"type": "sentence_transformers.models.Transformer", "path": ""}
POOLING = {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"}
NORMALIZE = {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"}


def folder(root: Path, files: dict[str, Any]) -> Path:
    for name, content in ({"config.json": {"max_position_embeddings": 512}} | files).items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(content))
    return root


def test_a_sentence_transformers_folder(tmp_path: Path) -> None:
    recipe = read_recipe(
        folder(
            tmp_path,
            {
                "modules.json": [TRANSFORMER, POOLING, NORMALIZE],
                "1_Pooling/config.json": {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True},
                "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": True},
                "config_sentence_transformers.json": {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
            },
        )
    )
    assert recipe.pooling == (Pooling.CLS,)
    assert (recipe.normalise, recipe.max_tokens, recipe.lower_case, recipe.prompt) == (True, 256, True, "query: ")


def test_the_newer_way_to_name_the_pooling(tmp_path: Path) -> None:
    files = {"modules.json": [TRANSFORMER, POOLING], "1_Pooling/config.json": {"pooling_mode": ["mean", "lasttoken"]}}
    recipe = read_recipe(folder(tmp_path, files))
    assert recipe.pooling == (Pooling.MEAN, Pooling.LAST_TOKEN)
    assert recipe.normalise is False


def test_a_plain_encoder_is_mean_pooled_up_to_its_positions(tmp_path: Path) -> None:
    recipe = read_recipe(folder(tmp_path, {"tokenizer_config.json": {"model_max_length": 1e30}}))
    assert (recipe.pooling, recipe.normalise, recipe.max_tokens) == ((Pooling.MEAN,), False, 512)


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"modules.json": [TRANSFORMER, {"type": "x.Dense", "path": "2"}]}, "module x.Dense is not supported"),
        ({"modules.json": [TRANSFORMER, POOLING]}, "1_Pooling/config.json is missing"),
        ({"modules.json": [POOLING], "1_Pooling/config.json": {"pooling_mode": "median"}}, "median"),
        (
            {"modules.json": [POOLING], "1_Pooling/config.json": {"pooling_mode_weightedmean_tokens": True}},
            "weightedmean",
        ),
        ({"modules.json": [POOLING], "1_Pooling/config.json": {"include_prompt": False}}, "include_prompt"),
        ({"config.json": {}}, "how many tokens"),
    ],
)
def test_what_cannot_be_served_as_the_files_say_is_refused_with_the_reason(
    tmp_path: Path, files: dict[str, Any], says: str
) -> None:
    with pytest.raises(LoadError, match=says):
        read_recipe(folder(tmp_path, files))


def test_a_missing_folder_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"nowhere does not exist"):
        LocalFolder(tmp_path / "nowhere").folder(lambda share, what: None)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LoadError, match=r"config\.json"):
        read_recipe(tmp_path)
