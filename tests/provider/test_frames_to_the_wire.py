"""How many functions of the provider lie between `execute` and the transport that sends the first request."""

from __future__ import annotations

import sys
import threading
import traceback
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.http.transport import Transport

if TYPE_CHECKING:
    import pytest

FRAMES_MAX: Final = 20
"""A reader who follows one submission from the operator to the request passes this many functions at most."""


def frames_of_the_provider() -> list[str]:
    """Return the frames of the provider on the stack of the main thread, and then of the thread with the event loop."""
    stacks = [sys._current_frames()[threading.main_thread().ident or 0], sys._getframe()]
    frames = [frame for stack in stacks for frame in traceback.extract_stack(stack)]
    return [f"{frame.filename}:{frame.name}" for frame in frames if "airflow_provider_gangjobs" in frame.filename]


def test_a_submission_passes_few_functions(task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    send = Transport.send

    async def record(transport: Transport, *args: Any, **kwargs: Any) -> bytes:
        seen.append(frames_of_the_provider())
        return await send(transport, *args, **kwargs)

    monkeypatch.setattr(Transport, "send", record)
    one = task("true")
    one.operator().execute(one.next_try())
    way = seen[0][next(n for n, frame in enumerate(seen[0]) if frame.endswith(":execute")) :]
    assert len(way) <= FRAMES_MAX, "\n".join(way)
