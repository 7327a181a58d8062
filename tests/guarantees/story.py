"""Histories that a test writes, for the tests of the checkers: one task, its Jobs, and their pods."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.kube.well_known import (
    COMPLETION_INDEX,
    FINALIZER_HARVEST,
    LABEL_GANG,
    LABEL_PURPOSE,
    LABEL_TASK,
    ObjectPurpose,
)
from tests.annotations import claimed
from tests.guarantees.history import CONFIGMAPS, JOBS, PODS, Answer, History, Kind, Look, Operation, TaskChange

if TYPE_CHECKING:
    from collections.abc import Iterator

Obj = dict[str, Any]
TASK = "task-digest"


@dataclass
class Story:
    """A history that a test writes, moment by moment. Each method happens at the time `now`, in seconds."""

    history: History = field(default_factory=History)
    now: float = 0.0
    _revisions: Iterator[int] = field(default_factory=lambda: count(1))
    _objects: dict[str, Obj] = field(default_factory=dict)

    def at(self, now: float) -> Story:
        """Continue at this time."""
        self.now = self.history.ended_at = now
        return self

    def task(self, state: str | None, claim: str = "try-1", **known: Any) -> Story:
        """Store this state of a task instance in Airflow."""
        self.history.tasks.append(TaskChange(self.now, TASK, claim, state, **known))
        return self

    def job(self, name: str = "train-0", claim: str = "try-1", **changes: Any) -> Story:
        """Create a Job, or change it.

        :param changes: `annotations` to add; `condition` that becomes true; `completed` indexes; `completions`;
            `deleting`.
        """
        job = self._objects.setdefault(name, _object(name, {LABEL_GANG: name, LABEL_TASK: TASK}))
        job["metadata"]["annotations"] |= {**claimed(claim), **changes.get("annotations", {})}
        if changes.get("deleting"):
            job["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        if "condition" in changes:
            job["status"]["conditions"] = [{"type": changes["condition"], "status": "True"}]
        if "completions" in changes:
            job["spec"]["completions"] = changes["completions"]
        if "completed" in changes:
            job["status"]["completedIndexes"] = changes["completed"]
        return self._store(JOBS, job)

    def pod(self, rank: int, phase: str = "Running", *, job: str = "train-0", held: bool = True, **said: Any) -> Story:
        """Create a pod of a Job, or change it.

        :param said: `message`: what the rank wrote as its result. `exit_code`: that of the main container.
        """
        name = f"{job}-{rank}"
        pod = self._objects.setdefault(name, _object(name, {LABEL_GANG: job, LABEL_TASK: TASK}))
        pod["metadata"] |= {"ownerReferences": [{"uid": f"uid-{job}", "controller": True}]}
        pod["metadata"]["annotations"][COMPLETION_INDEX] = str(rank)
        pod["metadata"]["finalizers"] = [FINALIZER_HARVEST] if held else []
        pod["spec"]["nodeName"] = "node-0"
        pod["status"]["phase"] = phase
        if phase in {"Succeeded", "Failed"} or "exit_code" in said:
            exit_code = said.get("exit_code", int(phase == "Failed"))
            ended = {"exitCode": exit_code, "message": said.get("message", json.dumps(rank))}
            pod["status"]["containerStatuses"] = [{"name": "main", "state": {"terminated": ended}}]
        return self._store(PODS, pod)

    def record(self, *ranks: int, job: str = "train-0") -> Story:
        """Store the outcomes of these ranks in the ledger."""
        name = f"{job}-ledger-0"
        ledger = self._objects.setdefault(name, _object(name, {LABEL_GANG: job, LABEL_PURPOSE: ObjectPurpose.LEDGER}))
        ledger.setdefault("data", {}).update({f"uid-{job}-{rank}": "{}" for rank in ranks})
        return self._store(CONFIGMAPS, ledger)

    def gone(self, name: str) -> Story:
        """Remove the object from the store."""
        plural = PODS if "containerStatuses" in self._objects[name]["status"] or "-0-" in name else JOBS
        return self._store(plural, self._objects[name], type_="DELETED")

    def call(self, kind: str, claim: str, answer: str, *, ended: float | None = None) -> Story:
        """Add an operation that begins now and returns at `ended`, or at once."""
        until = self.now if ended is None else ended
        self.history.operations.append(Operation(self.now, until, "uid-train-0", Kind(kind), claim, Answer(answer)))
        return self

    def begin(self, rank: int, restart: int, *alive: tuple[int, int]) -> Story:
        """Let a program begin, which sees that others are alive: each a rank and its restart."""
        self.history.looks.append(Look(self.now, rank, restart, is_beginning=True, alive=alive))
        return self

    def _store(self, plural: str, obj: Obj, *, type_: str = "MODIFIED") -> Story:
        obj["metadata"]["resourceVersion"] = str(next(self._revisions))
        self.history.add(plural, type_, json.loads(json.dumps(obj)), at=self.now)
        return self


def _object(name: str, labels: dict[str, str]) -> Obj:
    return {
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": labels, "annotations": {}},
        "spec": {},
        "status": {},
    }


def running() -> Story:
    """Return the history of a task that waits for a gang of two ranks, which runs."""
    return Story().task("deferred").job().pod(0).pod(1)


def ended() -> Story:
    """Return the history of such a task after both ranks have succeeded, and before any outcome is recorded."""
    story = running().at(10).pod(0, "Succeeded").pod(1, "Succeeded")
    return story.job(condition="Complete", completed="0,1")


def released(story: Story) -> Story:
    """Remove the finalizer from both pods."""
    return story.pod(0, "Succeeded", held=False).pod(1, "Succeeded", held=False)


def delivered() -> Story:
    """Return the history of a success without fault: outcomes recorded, pods released, and Job deleted."""
    story = released(ended().at(11).record(0, 1)).at(12).task("success", results=(0, 1))
    return story.at(13).job(deleting=True).gone("train-0-0").gone("train-0-1").gone("train-0").at(1000)
