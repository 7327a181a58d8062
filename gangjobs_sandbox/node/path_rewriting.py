"""Rewrites mount paths to host paths, for containers that share the node's file system.

The node rewrites paths if the operating system cannot give a container its own root. Only whole path components are
replaced, in the texts of the pod's spec (command, arguments, working directory, environment values). A path that a
program constructs itself is not rewritten.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Rewriter"]

_BEFORE = r"(?<![\w./-])"
_AFTER = r"(?![\w.-])"


class Rewriter:
    """Replaces each path of a table, and the paths below it. The longest matching path is used."""

    def __init__(self, folders: Mapping[str, str]) -> None:
        self._folders = {path.rstrip("/"): real for path, real in folders.items() if path.rstrip("/")}
        longest_first = sorted(self._folders, key=len, reverse=True)
        choices = "|".join(re.escape(path) for path in longest_first)
        self._pattern = re.compile(f"{_BEFORE}({choices}){_AFTER}") if choices else None

    def text(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._folders[match[1]], text)
