"""How a command ends when it cannot do what it was asked to."""


class CommandError(Exception):
    """An error for the person at the terminal, with the exit code."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
