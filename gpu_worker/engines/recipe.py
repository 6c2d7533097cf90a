"""How a folder in the layout of sentence-transformers wants its vectors made: which modules, which pooling, how long
an input may be. A folder without those files is a plain encoder: mean pooling, not normalised, as that library takes
it."""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpu_worker.engines.interface import LoadError


class Pooling(StrEnum):
    """How token vectors become one vector."""

    CLS = "cls"
    MAX = "max"
    MEAN = "mean"
    MEAN_SQRT_LEN = "mean_sqrt_len_tokens"
    LAST_TOKEN = "lasttoken"


# In the order in which their vectors are joined when a config names several.
_LEGACY_KEYS = {
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_max_tokens": Pooling.MAX,
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": Pooling.MEAN_SQRT_LEN,
    "pooling_mode_lasttoken": Pooling.LAST_TOKEN,
}
_UNLIMITED = 1_000_000
"""`model_max_length` of a tokenizer that was never given one is about 1e30."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What the files of one folder say."""

    weights: Path
    """Folder that holds `config.json`, the weights and `tokenizer.json`."""
    pooling: tuple[Pooling, ...]
    normalise: bool
    max_tokens: int
    lower_case: bool
    prompt: str
    """Put before every text."""


def read_recipe(folder: Path) -> Recipe:
    """Raises LoadError with the file and what is wrong in it."""
    modules = _read(folder / "modules.json")
    pooling: tuple[Pooling, ...] = (Pooling.MEAN,)
    normalise = False
    weights = folder
    for module in modules if modules is not None else []:
        kind = str(module["type"]).rsplit(".", 1)[-1]
        path = folder / module["path"]
        if kind == "Transformer":
            weights = path
        elif kind == "Pooling":
            pooling = _pooling(path / "config.json")
        elif kind == "Normalize":
            normalise = True
        else:
            raise LoadError(f"{folder / 'modules.json'}: module {module['type']} is not supported")
    sentence = _read(weights / "sentence_bert_config.json") or {}
    return Recipe(
        weights=weights,
        pooling=pooling,
        normalise=normalise,
        max_tokens=_max_tokens(weights, sentence),
        lower_case=bool(sentence.get("do_lower_case", False)),
        prompt=_prompt(folder),
    )


def _pooling(file: Path) -> tuple[Pooling, ...]:
    config = _read(file)
    if config is None:
        raise LoadError(f"{file} is missing")
    if config.get("include_prompt", True) is False:
        raise LoadError(f"{file}: include_prompt false is not supported")
    named = config.get("pooling_mode")
    if named is None:
        unknown = [
            key for key, on in config.items() if key.startswith("pooling_mode_") and on and key not in _LEGACY_KEYS
        ]
        if unknown:
            raise LoadError(f"{file}: {', '.join(unknown)} is not supported")
        return tuple(mode for key, mode in _LEGACY_KEYS.items() if config.get(key)) or (Pooling.MEAN,)
    try:
        return tuple(Pooling(mode) for mode in ([named] if isinstance(named, str) else named))
    except ValueError as error:
        raise LoadError(f"{file}: {error}") from error


def _max_tokens(weights: Path, sentence: dict[str, Any]) -> int:
    config = _read(weights / "config.json")
    if config is None:
        raise LoadError(f"{weights / 'config.json'} is missing")
    tokenizer = _read(weights / "tokenizer_config.json") or {}
    positions = config.get("max_position_embeddings")
    limits = [sentence.get("max_seq_length") or tokenizer.get("model_max_length"), positions]
    known = [int(limit) for limit in limits if limit is not None and limit < _UNLIMITED]
    if not known:
        raise LoadError(f"{weights}: no file says how many tokens an input may have")
    return min(known)


def _prompt(folder: Path) -> str:
    config = _read(folder / "config_sentence_transformers.json") or {}
    name = config.get("default_prompt_name")
    return str(config.get("prompts", {})[name]) if name is not None else ""


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise LoadError(f"{file}: {error}") from error
