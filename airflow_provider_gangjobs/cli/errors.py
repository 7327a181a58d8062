"""What a command raises when it cannot do what was asked."""

__all__ = ["CommandError"]


class CommandError(Exception):
    """The message says why, and what to do; the command exits with 1."""
