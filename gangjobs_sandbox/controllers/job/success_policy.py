"""Success policy (KEP-3998): some indexes of an Indexed Job are enough for its success. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gangjobs_sandbox.controllers.job.indexes import Indexes

if TYPE_CHECKING:
    from collections.abc import Mapping


def message_of_met_rule(policy: Mapping[str, Any] | None, succeeded: Indexes, completions: int) -> str | None:
    """Return the message of the first rule that is met, or None if no rule is met."""
    if policy is None or not succeeded:
        return None
    for position, rule in enumerate(policy.get("rules") or ()):
        if _is_met(rule, succeeded, completions):
            return f"Matched rules at index {position}"
    return None


def _is_met(rule: Mapping[str, Any], succeeded: Indexes, completions: int) -> bool:
    count = rule.get("succeededCount")
    if rule.get("succeededIndexes") is None:
        return count is not None and len(succeeded) >= count
    wanted = Indexes.parse(rule["succeededIndexes"], completions)
    matched = sum(1 for index in wanted if index in succeeded)
    return bool(wanted) and (matched == len(wanted) or (count is not None and matched >= count))
