"""Writes a GGUF file as the model folder that people download: config.json, safetensors, tokenizer, chat template.

usage: convert_gguf.py FILE.gguf FOLDER    (needs torch, transformers, safetensors, gguf, accelerate)"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(file: Path, folder: Path) -> None:
    """The weights become float32: they are then exactly what the quantised file says."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    if tokenizer.chat_template is None:
        raise SystemExit(f"{file} has no chat template")
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    config = model.config
    if hasattr(config, "quantization_config"):  # they no longer are; a loader would dequantise them again
        del config.quantization_config
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name not in tied}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
