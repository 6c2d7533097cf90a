"""The forward pass of a sentence encoder: torch and the model classes of transformers. Imported when a model is
loaded and not before, as importing torch takes seconds."""

from collections.abc import Sequence

import numpy as np
import torch
from transformers import AutoModel
from transformers.utils import logging as transformers_logging

from gpu_worker.engines.interface import LoadError, Vector
from gpu_worker.engines.padding import padded
from gpu_worker.engines.recipe import Pooling, Recipe
from gpu_worker.engines.weights import must_be_whole


class SentenceModel:
    """One model on one device, in float32."""

    def __init__(self, recipe: Recipe, device: str, threads: int, pad_id: int) -> None:
        transformers_logging.disable_progress_bar()
        torch.set_num_threads(threads)
        self._device = _device(device)
        self._recipe = recipe
        self._pad_id = pad_id
        try:
            model, found = AutoModel.from_pretrained(
                recipe.weights, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
        except Exception as error:  # whatever is wrong with the files, transformers has its own exception for it
            raise LoadError(f"{recipe.weights}: {error}") from error
        must_be_whole(recipe.weights, found, unused=_of_the_pooler)
        self._model = model.eval().to(self._device)
        self.vocabulary = int(model.config.vocab_size)
        self.dimensions = int(model.config.hidden_size) * len(recipe.pooling)

    def forward(self, inputs: Sequence[Sequence[int]]) -> Vector:
        """Vectors of one group, shape [inputs, dimensions]. The first input is the longest."""
        width = padded(len(inputs[0]), self._recipe.max_tokens)
        ids = np.full((len(inputs), width), self._pad_id, dtype=np.int64)
        mask = np.zeros((len(inputs), width), dtype=np.int64)
        for row, tokens in enumerate(inputs):
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        with torch.inference_mode():
            on_device = torch.from_numpy(mask).to(self._device)
            hidden = self._model(input_ids=torch.from_numpy(ids).to(self._device), attention_mask=on_device)[0]
            vectors = torch.cat([_pool(hidden, on_device, pooling) for pooling in self._recipe.pooling], dim=1)
            if self._recipe.normalise:
                vectors = torch.nn.functional.normalize(vectors, dim=1)
        result: Vector = vectors.cpu().numpy()
        return result


def _pool(hidden: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """[batch, tokens, width] and [batch, tokens] to [batch, width]."""
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    match pooling:
        case Pooling.CLS:
            return hidden[:, 0]
        case Pooling.MAX:
            return hidden.masked_fill(weights == 0, float("-inf")).amax(dim=1)
        case Pooling.MEAN:
            return (hidden * weights).sum(dim=1) / weights.sum(dim=1)
        case Pooling.MEAN_SQRT_LEN:
            return (hidden * weights).sum(dim=1) / weights.sum(dim=1).sqrt()
        case Pooling.LAST_TOKEN:
            last = mask.sum(dim=1) - 1
            return hidden[torch.arange(hidden.shape[0], device=hidden.device), last]


def _of_the_pooler(weight: str) -> bool:
    """Its own vector of the whole text, which no pooling of ours reads."""
    return weight.startswith("pooler.")


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise LoadError(f"this machine offers no device {name}")
    return device
