"""Log lines that people read and programs take apart: what happened, then `key=value`.

    watch ended informer="pods in team with gangjobs.airflow/gang" why="closed by the server" lived_s=301.2 events=57

Airflow's handlers show a standard log record's message and nothing else of it, so the fields are in the message;
a formatter that wants them apart finds them as `record.fields`. `docs/operations.md` lists the lines.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

Field = str | float | int | None


def tell(log: logging.Logger, level: int, what: str, /, **fields: Field) -> None:
    """Log one line. Fields that are None or empty are left out. Never give it a credential or a body."""
    if not log.isEnabledFor(level):
        return
    said = {name: _rounded(value) for name, value in fields.items() if value not in (None, "")}
    text = " ".join([what, *(f"{name}={_quoted(value)}" for name, value in said.items())])
    log.log(level, "%s", text, extra={"what": what, "fields": said}, stacklevel=2)


def _rounded(value: Field) -> Field:
    return round(value, 1) if isinstance(value, float) else value


def _quoted(value: Field) -> str:
    text = str(value)
    plain = text.isprintable() and not any(character in text for character in ' ="')
    return text if plain else json.dumps(text, ensure_ascii=False)
