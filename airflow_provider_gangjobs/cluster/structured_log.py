"""Log lines that people read and programs parse: a message, followed by `key=value` fields.

    watch ended informer="pods in team with gangjobs.airflow/gang" why="closed by the server" lived_s=301.2 events=57

Airflow's handlers write only the message of a standard log record, so the message contains the fields. A formatter
that needs the fields separately reads `record.fields`. `docs/operations.md` lists the log lines.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

Field = str | float | int | None


def log_fields(log: logging.Logger, level: int, message: str, /, **fields: Field) -> None:
    """Log one line of a message and fields. Fields that are None or empty are left out.

    Callers never pass a credential or the body of a request.
    """
    if not log.isEnabledFor(level):
        return
    present = {name: _rounded(value) for name, value in fields.items() if value not in (None, "")}
    line = " ".join([message, *(f"{name}={_quoted(value)}" for name, value in present.items())])
    log.log(level, "%s", line, extra={"what": message, "fields": present}, stacklevel=2)


def _rounded(value: Field) -> Field:
    return round(value, 1) if isinstance(value, float) else value


def _quoted(value: Field) -> str:
    text = str(value)
    is_plain = text.isprintable() and not any(character in text for character in ' ="')
    return text if is_plain else json.dumps(text, ensure_ascii=False)
