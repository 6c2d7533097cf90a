"""Where a worker finds its model when no cluster mounts it: a folder here stands for what would be mounted."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Final

from tailkeeper.api.policy import Instance, Model

MOUNT: Final = PurePosixPath("/models")
"""Where examples and images have their models."""


class NoModel(ValueError):
    """There is no such folder here. The message names the field and says what to do."""


def model_flags(instance: Instance, models: Path | None) -> list[str]:
    """The worker's flags for this model. `models` stands for `/models` and for every claim. Raises NoModel."""
    try:
        return list(_flags(instance.model, models))
    except NoModel as error:
        raise NoModel(f"spec.instances[{instance.name}].model.{error}") from None


def _flags(model: Model, models: Path | None) -> Iterator[str]:
    if model.path is not None:
        yield f"--model-path={_folder(model.path, models)}"
    if model.persistent_volume_claim is not None:
        claim = model.persistent_volume_claim
        yield f"--model-path={_claimed(claim.claim_name, claim.path or '', models)}"
    if model.hugging_face is not None:
        yield f"--hugging-face-id={model.hugging_face.id}"
        if model.hugging_face.revision is not None:
            yield f"--hugging-face-revision={model.hugging_face.revision}"
    if model.factory is not None:
        yield f"--model-factory={model.factory}"
    if model.url is not None:
        yield f"--model-url={model.url}"


def _folder(said: str, models: Path | None) -> Path:
    path = PurePosixPath(said)
    folder = Path(path)
    if models is not None and path.is_relative_to(MOUNT):
        folder = models.resolve() / path.relative_to(MOUNT)
    if not folder.is_dir():
        raise NoModel(f"path: there is no folder {folder} here; --models DIR takes DIR for {MOUNT}")
    return folder


def _claimed(claim: str, path: str, models: Path | None) -> Path:
    if models is None:
        raise NoModel(
            f"persistentVolumeClaim: a claim needs a cluster; --models DIR takes DIR for the volume of claim {claim}"
            + (f", with the model in DIR/{path}" if path else "")
        )
    folder = models.resolve() / path
    if not folder.is_dir():
        raise NoModel(
            f"persistentVolumeClaim: there is no folder {folder} here; --models must be what claim {claim} is"
        )
    return folder
