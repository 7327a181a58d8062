"""Keeps the positions of streamed logs on the Job, for a process that continues the stream.

A trigger has no state of its own that survives its process, and Airflow offers a trigger no place for one. The
positions are written every few seconds while lines arrive (`StreamLimits.save_every_s`), and when the stream is
stopped. After a process was killed, at most the lines of this time appear a second time, after a note that says so.
None is lost.
"""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_gangjobs.cluster.client_protocol import patch_uid
from airflow_provider_gangjobs.cluster.errors import ClusterError
from airflow_provider_gangjobs.cluster.resources import JOBS
from airflow_provider_gangjobs.gang.labels import ANNOTATION_STREAMED
from airflow_provider_gangjobs.tracking.logs.limits import SAVE_EVERY_MAX_S

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow_provider_gangjobs.cluster.client import Client
    from airflow_provider_gangjobs.gang.identity import GangRef

PROCESS: Final = secrets.token_hex(4)
"""Names this process. Airflow empties the log of a trigger that the same triggerer runs again."""


class PositionStore:
    """Reads and writes the positions of a gang's logs.

    :param log_id: Names the log of the task into which the logs are streamed, such as a try of the task. The positions
        for another log are of no use, because that log has none of the lines.
    """

    def __init__(self, client: Client, ref: GangRef, log_id: str, process: str = PROCESS) -> None:
        self._client = client
        self._ref = ref
        self._log_id = log_id
        self._process = process
        self._saved: dict[str, str] | None = None
        self._saved_exact = False
        self.repeated_s = 0.0
        """The time before the end of the stream whose lines the positions that were loaded may not include; 0 if the
        positions are the last ones of the stream."""

    async def load(self) -> dict[str, str]:
        """Return the positions by `LogSource.key`. An unreadable annotation is no position.

        Raises:
            ClusterError: the Job cannot be read.
        """
        job = await self._client.get(JOBS, self._ref.name, self._ref.namespace)
        metadata = job["metadata"]
        text = (metadata.get("annotations") or {}).get(ANNOTATION_STREAMED, "")
        try:
            stored: dict[str, Any] = json.loads(text)
            is_ours = metadata["uid"] == self._ref.uid and stored["log"] == self._log_id
            if not is_ours or stored["process"] == self._process:
                return {}
            positions = {str(key): str(value) for key, value in stored["positions"].items()}
            self.repeated_s = 0.0 if stored["exact"] else float(stored.get("every_s", SAVE_EVERY_MAX_S))
        except (ValueError, LookupError, TypeError, AttributeError):
            return {}
        return positions

    async def save(self, positions: Mapping[str, str], *, every_s: float) -> None:
        """Write the positions if they have changed. A failure is ignored, because the next call writes them again.

        The first call writes them also if there is none yet, so that a process that comes later knows of the stream.

        :param every_s: After how many seconds the positions are written again; 0 if the stream ends at them.
        """
        is_exact = not every_s
        if dict(positions) == self._saved and self._saved_exact >= is_exact:
            return
        record = {
            "log": self._log_id,
            "process": self._process,
            "exact": is_exact,
            "every_s": every_s,
            "positions": dict(positions),
        }
        annotations = {ANNOTATION_STREAMED: json.dumps(record, separators=(",", ":"))}
        ref = self._ref
        try:
            patch = {"metadata": {"annotations": annotations}}
            await patch_uid(self._client, JOBS, ref.name, ref.namespace, ref.uid, patch)
        except ClusterError:
            return
        self._saved, self._saved_exact = dict(positions), is_exact
