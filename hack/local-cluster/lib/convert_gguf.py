"""Writes a GGUF file as the model folder that people download: config.json, safetensors, tokenizer, chat template.

usage: convert_gguf.py FILE.gguf FOLDER    (needs torch, transformers, gguf)"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def convert(file: Path, folder: Path) -> None:
    """The weights become float32: they are then exactly what the quantised file says."""
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    if tokenizer.chat_template is None:
        raise SystemExit(f"{file} has no chat template")
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
