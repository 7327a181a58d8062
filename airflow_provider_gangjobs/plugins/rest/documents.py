"""The bodies of requests and responses of the REST interface. They consist of the values that the hook returns."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Struct

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.gang_lists import GangRow  # noqa: TC001 - msgspec reads annotations
from airflow_provider_gangjobs.gang.identity import parse_default_submission_id
from airflow_provider_gangjobs.gang.outcome.rank_rows import RankRow, merge_outcomes
from airflow_provider_gangjobs.gang.outcome.task_result import partial_results
from airflow_provider_gangjobs.gang.render.user_manifest import requested_namespace
from airflow_provider_gangjobs.gang.spec import RESULTS_LIMIT_BYTES, GangPolicy, GangSpec
from airflow_provider_gangjobs.gang.state.category import Category, Diagnosis
from airflow_provider_gangjobs.gang.state.phase import Phase
from airflow_provider_gangjobs.gang.validation.validate import read_spec, require_valid
from airflow_provider_gangjobs.submission.record import Submission, SubmissionRecord
from airflow_provider_gangjobs.tracking.explanation import GangReason, reason_of, state_of_snapshot
from airflow_provider_gangjobs.tracking.logs.last_lines import RankLog  # noqa: TC001 - msgspec reads annotations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from airflow_provider_gangjobs.gang.identity import GangRef
    from airflow_provider_gangjobs.gang.outcome.outcomes import Outcome
    from airflow_provider_gangjobs.plugins.view_model import GangView
    from airflow_provider_gangjobs.tracking.snapshot import GangSnapshot

NOT_IN_ADDRESSES: Final = frozenset({"", ".", ".."})
"""The parts of a path that clients and proxies remove."""


class GangDocument(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a gang does and why, and its ranks."""

    gang: GangRow | None = None
    """Absent if the Job does not exist any more. The rest is then what Airflow recorded of the end."""
    why: GangReason
    ranks: tuple[RankRow, ...]
    unread: tuple[str, ...] = ()
    """Plural names of resources that could not be read."""
    logs: tuple[RankLog, ...] = ()


class SubmissionDocument(GangDocument, frozen=True, kw_only=True, omit_defaults=True):
    """A submission, and beside it the gang of its newest attempt."""

    submission: SubmissionRecord
    results: dict[str, Any] | None = None
    """The result of each rank that succeeded and wrote one. Absent if all together have more than 1 MiB."""


class SubmissionList(Struct, frozen=True, rename={"continue_": "continue"}):
    """A page of the submissions of a namespace, with one item for each attempt."""

    items: tuple[SubmissionRecord, ...]
    continue_: str | None
    """The token of the next page; `null` on the last page."""


class NewSubmission(Struct, frozen=True):
    """A submission whose id is not in the address."""

    submission_id: str
    spec: dict[str, Any]


class NewUpload(Struct, frozen=True):
    """Files that several submissions share."""

    files: dict[str, Any]


class StoredUpload(Struct, frozen=True):
    """The content id of an upload, for the parameter `uploads` of a spec."""

    content_id: str


class BinaryFile(Struct, frozen=True):
    """The content of a file that is not text, in base64 (RFC 4648)."""

    base64: str


_IN_JSON: Final[dict[str, Any]] = {"files": Mapping[str, str | BinaryFile], "gang": GangPolicy}
"""The parameters of a spec whose types in JSON are narrower."""


def _field_in_json(field: msgspec.structs.FieldInfo) -> tuple[str, Any, Any]:
    default = field.default if field.default is not msgspec.NODEFAULT else {}
    return field.name, _IN_JSON.get(field.name, field.type), default


SpecDocument: Final = msgspec.defstruct("GangSpec", map(_field_in_json, msgspec.structs.fields(GangSpec)), kw_only=True)
"""The schema of a spec in the body of a request."""


RESPONSES: Final = (Submission, SubmissionDocument, SubmissionList, GangDocument, StoredUpload)
REQUESTS: Final = (SpecDocument, NewSubmission, NewUpload)


def decode(body: bytes, kind: type[Any]) -> Any:
    """Return the body of a request.

    Raises:
        InvalidGangSpec: the body is not JSON, or has another structure.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidGangSpec((Problem("body", f"cannot be read: {error}", "Send one JSON object"),)) from error


def spec_in(document: Mapping[str, Any], namespace: str) -> GangSpec:
    """Return the spec in the body of a request. A binary file is written as `{"base64": "..."}`.

    Raises:
        InvalidGangSpec: the error has all problems of the spec.
    """
    problems: list[Problem] = []
    if isinstance(document.get("files"), Mapping):
        document = {**document, "files": files_in(document["files"], problems)}
    try:
        spec = read_spec(document)
    except InvalidGangSpec as error:
        problems += error.problems
        spec = read_spec({name: value for name, value in document.items() if name in GangSpec.__struct_fields__})
    try:
        require_valid(spec)
        given = requested_namespace(spec)
    except InvalidGangSpec as error:
        raise InvalidGangSpec((*problems, *error.problems)) from None
    except RecursionError:
        raise InvalidGangSpec((Problem("body", "is nested too deeply", "Correct it"),)) from None
    if given not in {None, namespace}:
        problems.append(Problem("namespace", f"is {given!r:.80}", f"The address names {namespace!r}: leave it out"))
    if problems:
        raise InvalidGangSpec(tuple(problems))
    return msgspec.structs.replace(spec, namespace=namespace)


def files_in(files: Mapping[str, Any], problems: list[Problem]) -> dict[str, Any]:
    """Return the files with decoded contents, and add the problems of those that cannot be decoded."""
    found = {}
    for name, content in files.items():
        match content:
            case {"base64": str(text), **others} if not others:
                try:
                    found[name] = base64.b64decode(text, validate=True)
                except (binascii.Error, ValueError):
                    problems.append(Problem(f"files.{name}.base64", "is not base64 (RFC 4648)", "Correct it"))
            case _:
                found[name] = content
    return found


def problem_with_address(submission_id: str) -> Problem | None:
    """Return why an id cannot be a part of an address."""
    if not NOT_IN_ADDRESSES & set(submission_id.split("/")):
        return None
    remedy = "Programs shorten an address with such a part. Choose another id"
    return Problem("submission_id", f"{submission_id!r:.80} has a part that is empty, '.' or '..'", remedy)


def is_of_client(record: SubmissionRecord) -> bool:
    """Return whether the submission has an id that a client chose, and is not the gang of a task."""
    return bool(record.submission_id) and parse_default_submission_id(record.submission_id) is None


def describe_gang(snapshot: GangSnapshot, logs: Sequence[RankLog], now: datetime) -> GangDocument:
    """Return what a snapshot shows of a gang. Results are left out, because they are XComs of the task."""
    state = state_of_snapshot(snapshot, now)
    return GangDocument(gang=state.row, why=reason_of(state), ranks=state.ranks, unread=state.unread, logs=tuple(logs))


def describe_end(ref: GangRef, view: GangView) -> GangDocument:
    """Return what the tab shows of a gang whose Job does not exist any more."""
    category = next((one for one in Category if one == view.category), Category.UNKNOWN)
    found = Diagnosis(category, view.summary, view.remedy, since=view.since)
    why = GangReason(ref.namespace, ref.name, Phase(view.phase), view.since, view.summary, found, None)
    return GangDocument(why=why, ranks=view.rows)


def describe_submission(
    record: SubmissionRecord, snapshot: GangSnapshot, logs: Sequence[RankLog], now: datetime
) -> SubmissionDocument:
    """Return what is known about a submission and its gang."""
    shown = describe_gang(snapshot, logs, now)
    return SubmissionDocument(
        submission=record,
        results=_results(merge_outcomes(snapshot.pods, snapshot.outcomes)),
        **msgspec.structs.asdict(shown),
    )


def _results(outcomes: Sequence[Outcome]) -> dict[str, Any] | None:
    size = sum(len(outcome.message) for outcome in outcomes if outcome.result is not None)
    if size > RESULTS_LIMIT_BYTES:
        return None
    return {str(rank): result for rank, result in partial_results(outcomes).items()}
