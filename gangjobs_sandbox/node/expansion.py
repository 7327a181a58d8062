"""Expands `$(VAR)` in commands, arguments and environment values, as Kubernetes does.

A reference to an unknown variable stays as it is, and `$$` is a dollar sign. Inserted values are not expanded again
(`k8s.io/kubernetes/third_party/forked/golang/expansion`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["expand"]

_REFERENCE = re.compile(r"\$(?:(\$)|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Return the text with its references replaced."""

    def replacement(match: re.Match[str]) -> str:
        return "$" if match[1] else variables.get(match[2], match[0])

    return _REFERENCE.sub(replacement, text)
