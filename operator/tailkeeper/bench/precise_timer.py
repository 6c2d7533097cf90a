"""A timer of one event loop that is good to some microseconds.

The loops round their timers to milliseconds (libuv counts in them, epoll's timeout is one), which is as much as the
lateness that we allow ourselves. Linux' timerfd wakes the loop through its poll instead. Elsewhere the loop's timers
must do.
"""

import asyncio
import ctypes
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol


class Timer(Protocol):
    """Calls its callback once at the time last set."""

    def at(self, when_s: float) -> None:
        """Set it to a time of `time.monotonic()`; one that has passed means at once."""
        ...

    def close(self) -> None:
        """Never call again."""
        ...


def timer(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> Timer:
    """Return the best timer of this system."""
    return _TimerFd(loop, callback) if sys.platform == "linux" else _LoopTimer(loop, callback)


class _TimerSpec(ctypes.Structure):
    """`struct itimerspec`: the interval, then the first expiry, in seconds and nanoseconds."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


_ABSOLUTE = 1  # TFD_TIMER_ABSTIME


class _TimerFd:
    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop, self._callback = loop, callback
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._spec = _TimerSpec()
        self._spec_at = ctypes.byref(self._spec)
        loop.add_reader(self._fd, self._expired)

    def at(self, when_s: float) -> None:
        # Zero would disarm it; any time in the past expires at once.
        when_ns = max(1, int(when_s * 1e9))
        self._spec.value_s, self._spec.value_ns = divmod(when_ns, 1_000_000_000)
        if self._libc.timerfd_settime(self._fd, _ABSOLUTE, self._spec_at, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)

    def _expired(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return  # set anew since
        self._callback()


class _LoopTimer:
    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop, self._callback = loop, callback
        self._handle: asyncio.TimerHandle | None = None

    def at(self, when_s: float) -> None:
        self.close()
        self._handle = self._loop.call_later(max(0.0, when_s - time.monotonic()), self._callback)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
