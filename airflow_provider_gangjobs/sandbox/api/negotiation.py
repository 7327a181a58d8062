"""In which form a client wants objects: themselves, rows of a table, or their metadata only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from airflow_provider_gangjobs.sandbox.api.listing import Page, list_json
from airflow_provider_gangjobs.sandbox.api.tables import Table
from airflow_provider_gangjobs.sandbox.api.tables.table import partial
from airflow_provider_gangjobs.sandbox.api.versions import encode
from airflow_provider_gangjobs.sandbox.errors import StatusError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from airflow_provider_gangjobs.sandbox.api.routing import Target
    from airflow_provider_gangjobs.sandbox.clock import Clock
    from airflow_provider_gangjobs.sandbox.store import Stored

__all__ = ["Form", "accepts", "form_of"]

_JSON = {"application/json", "application/*", "*/*", ""}


@dataclass(frozen=True)
class Form:
    """How one object, a page, and the object of a watch event are written."""

    one: Callable[[Stored], bytes]
    page: Callable[[Page], bytes]


def form_of(accept: str, target: Target, query: Mapping[str, str], clock: Clock) -> Form:
    """The first form in the `Accept` header that this server knows.

    Raises:
        StatusError: 406, it knows none of them.
    """
    for choice in accepts(accept):
        if choice["type"] not in _JSON:
            continue
        if choice.get("as") == "Table" and choice.get("v", "v1") == "v1":
            table = Table(target, clock, include=query.get("includeObject") or "Metadata")
            return Form(table.render_one, table.render_page)
        if choice.get("as", "").startswith("PartialObjectMetadata"):
            return Form(_partial_json, _partial_page)
        if "as" not in choice:
            return Form(lambda stored: encode(stored, target), lambda page: list_json(page, target))
    message = "only the following media types are accepted: application/json"
    raise StatusError(406, "NotAcceptable", message)


def accepts(header: str) -> list[dict[str, str]]:
    """The choices of an `Accept` header in order, each with its parameters and its `type`."""
    choices = []
    for part in header.split(","):
        media, *parameters = [item.strip() for item in part.split(";")]
        pairs = (item.partition("=") for item in parameters)
        choices.append({"type": media.lower()} | {name: value for name, _, value in pairs})
    return choices


def _partial_json(stored: Stored) -> bytes:
    return msgspec.json.encode(partial(stored.obj))


def _partial_page(page: Page) -> bytes:
    listed: dict[str, Any] = {
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": page.metadata,
        "items": [partial(stored.obj) for stored in page.items],
    }
    return msgspec.json.encode(listed)
