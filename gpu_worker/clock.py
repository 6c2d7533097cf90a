"""The one clock of the worker: seconds, monotonic, never set back. Everything that measures takes it as an argument."""

import time
from collections.abc import Callable

Clock = Callable[[], float]

monotonic_s: Clock = time.monotonic
