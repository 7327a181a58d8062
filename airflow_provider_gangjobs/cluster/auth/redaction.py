"""Removes secrets from texts of other programs, such as the error output of an exec plugin."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

EVIDENCE_CHARACTERS_MAX = 256
_SECRET_CHARS_MIN = 6
"""Shorter texts (a group, "true") are not secrets and occur in ordinary sentences."""
_PUBLIC_FIELDS = frozenset(
    ("command", "apiVersion", "tokenFile", "client-certificate", "client-key", "installHint", "idp-issuer-url")
)
"""These fields help to find a fault and are not secret."""


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return `text` without mappings, tokens, and the given secrets, cut to `EVIDENCE_CHARACTERS_MAX`."""
    for secret in sorted((s for s in secrets if len(s) >= _SECRET_CHARS_MIN), key=len, reverse=True):
        text = text.replace(secret, "...")
    text = re.sub(r"\{.*\}", "{...}", text, flags=re.DOTALL)
    text = re.sub(r"\beyJ[\w.=-]+", "...", text)
    text = re.sub(r"(?i)\b(bearer|basic)\s+\S+", r"\1 ...", text)
    return " ".join(text.split())[:EVIDENCE_CHARACTERS_MAX]


def secrets_of(user: object) -> frozenset[str]:
    """Return every text of a user section that a message must not contain."""
    found: set[str] = set()
    pending, seen = [user], set()
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.add(value)
        # The aliases of YAML can refer to one mapping many times, and even to a mapping that contains the alias.
        elif isinstance(value, dict | list) and id(value) not in seen:
            seen.add(id(value))
            pending += value if isinstance(value, list) else [v for k, v in value.items() if k not in _PUBLIC_FIELDS]
    return frozenset(found)
