"""A child process that never outlives us, and how its end is put into words."""

import asyncio
import ctypes
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None)


async def start(program: Sequence[str], environment: Mapping[str, str], log: Path) -> asyncio.subprocess.Process:
    """Starts it with both its outputs at the log's end.

    In a process group of its own: Ctrl-C in a terminal goes to the whole group, and who drains when is for us to say.
    """
    with log.open("ab") as file:
        return await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=dict(environment),
            process_group=0,
            preexec_fn=_dies_with(os.getpid()),
        )


def _dies_with(parent: int) -> Callable[[], None]:
    """The kernel kills the child when we are gone, also when that was SIGKILL, after which we can do nothing more."""

    def ask() -> None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # we were killed between the fork and this
            os._exit(1)

    return ask


def ended(status: int) -> str:
    """`was killed by SIGKILL`, `ended with exit status 1`."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
