"""Replaces the secrets that Airflow knows in texts that come from ranks.

A termination message may be the end of a log (`FallbackToLogsOnError`), and a program may log anything. Airflow masks
the log of a task, but neither XComs nor the events of triggers, which are stored as plain text. Only free texts are
masked: a secret may equal a name or a state, such as the password "airflow".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

try:
    from airflow.sdk._shared.secrets_masker import redact
except ImportError:  # Airflow 3.1. Remove this branch when 3.2 is the oldest supported version.
    from airflow.sdk.execution_time.secrets_masker import redact  # type: ignore[no-redef]

if TYPE_CHECKING:
    from airflow_provider_gangjobs.gang.outcome.event import GangEvent


def mask(text: str) -> str:
    """Return the text with `***` in the place of each secret that Airflow knows in this process."""
    return str(redact(text)) if text else text


def mask_event(event: GangEvent) -> GangEvent:
    """Return the event with masked texts, within its limits. Names, states, and numbers stay.

    The texts are masked before they are cut. If the event was cut before, a secret that the cut has
    shortened is not recognized.
    """
    masked = replace(
        event,
        message=mask(event.message),
        notes=tuple(map(mask, event.notes)),
        ranks=tuple(replace(rank, message=mask(rank.message)) for rank in event.ranks),
    )
    return masked.within_limits()


__all__ = ["mask", "mask_event"]
