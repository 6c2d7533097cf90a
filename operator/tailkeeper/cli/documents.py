"""Kubernetes objects from YAML files, read as strictly as `kubectl apply` reads them, with where each one stood."""

import sys
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tailkeeper.cli.errors import UserError

STDIN = "-"


@dataclass(frozen=True)
class Document:
    """One object of a file."""

    file: str
    number: int
    """Of the YAML document in the file, from 1."""
    content: Any
    item: int | None = None
    """Place in the `items` of a List, from 0."""

    @property
    def where(self) -> str:
        """As people read it."""
        item = "" if self.item is None else f", item {self.item}"
        return f"{self.file}: document {self.number}{item}"


class _StrictLoader(yaml.SafeLoader):
    """Refuses a key that is there twice: YAML readers keep the last and say nothing, kubectl refuses."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if key.value in seen:
                line = key.start_mark.line + 1
                raise yaml.constructor.ConstructorError(None, None, f"line {line}: {key.value} is there twice", None)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_documents(file: str) -> Iterator[Document]:
    """Every object of a file (`-`: standard input); empty documents are left out. Raises UserError when it cannot be
    read."""
    try:
        text = sys.stdin.read() if file == STDIN else Path(file).read_text("utf-8")
        contents = list(yaml.load_all(text, _StrictLoader))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UserError(f"{file}: not UTF-8 text") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UserError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    for number, content in enumerate(contents, 1):
        match content:
            case None:
                continue
            case {"kind": "List", "items": list(items)}:
                yield from (Document(file, number, item, place) for place, item in enumerate(items))
            case _:
                yield Document(file, number, content)
