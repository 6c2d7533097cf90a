"""How long a process that died is left alone. Pure."""

from dataclasses import dataclass
from typing import Final

FIRST_S: Final = 10.0
LONGEST_S: Final = 300.0
FORGET_S: Final = 600.0


@dataclass
class Backoff:
    """As the kubelet has it: anew at once, then after 10 s, twice as long each time up to five minutes; a process that
    ran for ten minutes begins from the start."""

    _next_s: float = 0.0

    def after(self, ran_s: float) -> float:
        """Seconds until the next start of a process that ran for so long."""
        wait_s = 0.0 if ran_s >= FORGET_S else self._next_s
        self._next_s = min(2 * wait_s, LONGEST_S) if wait_s else FIRST_S
        return wait_s
