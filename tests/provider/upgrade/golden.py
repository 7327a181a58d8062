"""Golden files: what one release has left in Airflow's database and in a cluster while a task was in flight.

`write.py` writes them, one file for each task, and the tests of this folder read them. A file has

* the task: its parameters, its task instance, and the id of the Airflow installation,
* `deferrals`: what Airflow stores of each deferral, which are the class path and the arguments of the trigger, the
  method with which the task goes on, and the arguments of this method,
* `events`: the payload of each event that a trigger has sent,
* `ends`: what the worker of that release made of each event: a value, an error, or another deferral,
* `moments`: all objects of the gang in the cluster at some moments.

The times of a file are moved so that its gang was created at `CREATED`. `at` moves them to the present.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent
CREATED: Final = datetime(2026, 1, 1, tzinfo=UTC)
GATES: Final = Path("/tmp/gangjobs-golden")
"""The folder in which the ranks that write golden files wait for a file with the name of their rank."""
INSTALLATION: Final = "prod"
CONNECTION: Final = "golden"
VERSIONS: Final = tuple(sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and any(path.glob("*.json"))))
"""The releases that have golden files, one folder for each."""

_SECOND: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d")


def moved(value: Any, by: timedelta, key: str = "") -> Any:
    """Return a JSON value with all of its times moved by whole seconds: RFC 3339, deadlines, and starts of tries."""
    if isinstance(value, dict):
        return {name: moved(item, by, name) for name, item in value.items()}
    if isinstance(value, list):
        return [moved(item, by) for item in value]
    if key in ("deadline", "started") and isinstance(value, float):
        return value + by.total_seconds()
    if not isinstance(value, str):
        return value
    return _SECOND.sub(lambda found: (datetime.fromisoformat(found[0]) + by).isoformat(), value)


@dataclass(frozen=True)
class Golden:
    """One golden file."""

    name: str
    version: str
    data: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.version}/{self.name}"

    def at(self, taken: str, *, now: datetime | None = None) -> Golden:
        """Return the file as if the objects of this moment had been read now, or at the given time."""
        then = datetime.fromisoformat(self.data["moments"][taken]["taken_at"])
        by = timedelta(seconds=round(((now or datetime.now(UTC)) - then).total_seconds()))
        return Golden(self.name, self.version, moved(self.data, by))

    def objects(self, moment: str) -> dict[str, list[dict[str, Any]]]:
        """Return the objects of the gang at this moment, by the plural of their resource."""
        found: dict[str, list[dict[str, Any]]] = self.data["moments"][moment]["objects"]
        return found

    def ledger(self, moment: str) -> dict[str, dict[str, Any]]:
        """Return the entries of the ledger at this moment, by the uid of the pod."""
        maps = self.objects(moment).get("configmaps", [])
        shards = [each["data"] for each in maps if each["metadata"]["labels"].get("gangjobs.airflow/role") == "ledger"]
        return {uid: json.loads(text) for shard in shards for uid, text in shard.items()}


def read(version: str, name: str) -> Golden:
    """Return the golden file of a task that this release has run."""
    return Golden(name, version, json.loads((FOLDER / version / f"{name}.json").read_text()))


def names(version: str) -> list[str]:
    """Return the names of the golden files of a release."""
    return sorted(path.stem for path in (FOLDER / version).glob("*.json"))
