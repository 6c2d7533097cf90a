"""How a command says that it cannot go on: one line on standard error, and an exit code that scripts can tell apart."""

from typing import Final

EXIT_FAILED: Final = 1
"""The command did its work and the answer is no: a threshold was crossed, a check failed."""
EXIT_USAGE: Final = 2
"""What was asked for cannot be done: wrong arguments, unreachable target, bad file."""


class UserError(Exception):
    """What the user can mend. The message is one line: what is wrong, and what to do."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
