"""Whether a folder held all the weights of its model. transformers fills what is missing with random numbers and says
so in a log line: such a model would become ready and serve noise."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpu_worker.engines.interface import LoadError

MOST_NAMED = 5


def must_be_whole(folder: Path, found: Mapping[str, Any], unused: Callable[[str], bool] = lambda name: False) -> None:
    """`found` is the loading info of transformers; tied weights are not in it. Raises LoadError that names the weights
    which no file of the folder has in the right shape, but for those that this engine leaves `unused`."""
    # A mismatch is the name and two shapes.
    mismatched = {entry[0] if isinstance(entry, tuple | list) else entry for entry in found.get("mismatched_keys", ())}
    lacking = sorted(name for name in {*found.get("missing_keys", ()), *mismatched} if not unused(name))
    if lacking:
        rest = f" and {len(lacking) - MOST_NAMED} more" if len(lacking) > MOST_NAMED else ""
        raise LoadError(
            f"{folder}: its files lack the weights {', '.join(lacking[:MOST_NAMED])}{rest}: "
            "is this folder of a model for this engine?"
        )
