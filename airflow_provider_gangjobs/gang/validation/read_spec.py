"""Reads a spec from a document, such as a YAML file or the body of a request."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.exceptions import InvalidGangSpec, Problem
from airflow_provider_gangjobs.gang.spec import GangSpec, Rendezvous

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_spec(document: Mapping[str, Any]) -> GangSpec:
    """Return the spec in a document: the parameters of a `GangSpec`, or a whole Job. The values are not validated.

    Raises:
        InvalidGangSpec: the document has names that are no parameters.
    """
    if document.get("kind") == "Job":
        return GangSpec(manifest=document)
    if problems := tuple(_unknown(name) for name in document if name not in GangSpec.__struct_fields__):
        raise InvalidGangSpec(problems)
    parameters = dict(document)
    match parameters.get("rendezvous"):
        case {"port": int(port), **others} if not others:
            parameters["rendezvous"] = Rendezvous(port)
    return GangSpec(**parameters)


def _unknown(name: object) -> Problem:
    close = difflib.get_close_matches(str(name), GangSpec.__struct_fields__, 1)
    remedy = f"Did you mean {close[0]}?" if close else "docs/submission.md names the parameters of a GangSpec"
    return Problem(f"{name!s:.80}", "is no parameter of a GangSpec", remedy)
