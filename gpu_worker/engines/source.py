"""Where a model's files come from: a folder, or the Hugging Face hub through its cache on disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_worker.engines.interface import LoadError, Progress

OTHER_FRAMEWORKS = ("*.onnx", "*.h5", "*.msgpack", "*.ot", "*.tflite", "onnx/*", "openvino/*", "coreml/*", "*.mlmodel")
"""Files of other frameworks, which would multiply the download."""


class ModelSource(Protocol):
    """Gives the folder that holds a model's files."""

    def folder(self, progress: Progress) -> Path:
        """Fetches what is not there yet. Raises LoadError."""
        ...


@dataclass(frozen=True, slots=True)
class LocalFolder:
    """A path in the container, or a mounted volume."""

    path: Path

    def folder(self, progress: Progress) -> Path:
        """The path itself."""
        if not self.path.is_dir():
            raise LoadError(f"model folder {self.path} does not exist")
        return self.path


@dataclass(frozen=True, slots=True)
class HuggingFace:
    """A repository of the hub. HF_HOME says where its cache is, HF_TOKEN who asks, HF_HUB_OFFLINE=1 to stay offline."""

    id: str
    revision: str | None = None

    def folder(self, progress: Progress) -> Path:
        """The snapshot in the cache; downloaded first when it is not complete there."""
        from huggingface_hub import snapshot_download

        progress(0.0, f"fetching {self.id}@{self.revision or 'main'} from the hub")
        try:
            return Path(snapshot_download(self.id, revision=self.revision, ignore_patterns=list(OTHER_FRAMEWORKS)))
        except Exception as error:  # the hub's client has a dozen exceptions, and each of them means the same here
            raise LoadError(f"Hugging Face {self.id}@{self.revision or 'main'}: {error}") from error
