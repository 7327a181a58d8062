"""The history of the pods of a namespace, from a watch of its own. The provider is not asked."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cluster.control_plane import ControlPlane

LABEL_JOB: Final = "batch.kubernetes.io/job-name"


@dataclass(frozen=True)
class Moment:
    """The pods of one gang that had a node, and the pods that were being deleted, at one moment."""

    at: float
    bound: frozenset[str]
    deleted: frozenset[str]


@dataclass
class History:
    """The moments of each gang, by the name of its Job."""

    moments: dict[str, list[Moment]] = field(default_factory=dict)
    problem: str = ""

    def most_bound(self, gang: str) -> int:
        """How many pods of the gang had a node and were not being deleted at the same moment, at most."""
        return max((len(moment.bound - moment.deleted) for moment in self._of(gang)), default=0)

    def longest_partial_s(self, gang: str, size: int) -> float:
        """For how long the gang was bound in part without a pause, before its first pod was deleted, or until now."""
        longest, since = 0.0, None
        for moment in self._of(gang):
            if since is not None:
                longest = max(longest, moment.at - since)
            if moment.deleted:
                return longest
            is_partial = 0 < len(moment.bound) < size
            since = (moment.at if since is None else since) if is_partial else None
        return longest if since is None else max(longest, time.monotonic() - since)

    def _of(self, gang: str) -> list[Moment]:
        assert not self.problem, self.problem
        return list(self.moments.get(gang, ()))

    def note(self, event: dict[str, Any]) -> None:
        """Add one event of the watch."""
        if event["type"] == "ERROR":
            raise ValueError(event["object"].get("message"))
        metadata = event["object"]["metadata"]
        gang, name = metadata.get("labels", {}).get(LABEL_JOB, ""), metadata["name"]
        moments = self.moments.setdefault(gang, [])
        last = moments[-1] if moments else Moment(0.0, frozenset(), frozenset())
        is_bound = "nodeName" in event["object"]["spec"]
        is_deleted = "deletionTimestamp" in metadata or event["type"] == "DELETED"
        bound = last.bound | {name} if is_bound else last.bound - {name}
        deleted = last.deleted | {name} if is_deleted else last.deleted
        moments.append(Moment(time.monotonic(), bound, deleted))


@contextmanager
def watched_pods(plane: ControlPlane, namespace: str) -> Iterator[History]:
    """Watch all pods of the namespace while the block runs."""
    history, ready, is_over = History(), threading.Event(), threading.Event()

    def watch() -> None:
        query: dict[str, str] = {"watch": "true", "resourceVersion": "0"}
        path = f"/api/v1/namespaces/{namespace}/pods"
        try:
            # The thread may outlive the control plane, whose stop closes the client that the tests share.
            with plane.client(plane.admin_token) as client:
                # The server ends a watch whose events are not read fast enough. The next watch continues after it.
                while not is_over.is_set():
                    with client.stream("GET", path, params=query, timeout=None) as stream:
                        ready.set()
                        for line in stream.iter_lines():
                            if is_over.is_set():
                                return
                            event = json.loads(line)
                            history.note(event)
                            query["resourceVersion"] = event["object"]["metadata"]["resourceVersion"]
        except Exception as error:  # the test must see it
            history.problem = f"the watch of the test failed: {error!r}"
        finally:
            ready.set()

    thread = threading.Thread(target=watch, name="history", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield history
    finally:
        is_over.set()
