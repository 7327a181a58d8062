"""The exception of commands."""

__all__ = ["CommandError"]


class CommandError(Exception):
    """A command failed. The message says why, and what to do; the command exits with code 1."""
