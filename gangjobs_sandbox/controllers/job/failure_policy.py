"""Pod failure policy (KEP-3329): the first rule that a failed pod matches, and the action of the rule. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gangjobs_sandbox.controllers.meta import Obj, name_of, namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

Action = Literal["FailJob", "FailIndex", "Ignore", "Count"]


@dataclass(frozen=True)
class Match:
    """The result of the policy for one failed pod."""

    action: Action | None = None
    message: str | None = None
    """The reason for the Job's failure. Set for FailJob only."""

    @property
    def is_counted(self) -> bool:
        """Whether the failure counts towards backoffLimit."""
        return self.action != "Ignore"


def match(policy: Mapping[str, Any] | None, pod: Mapping[str, Any]) -> Match:
    """Apply the first matching rule. If no rule matches, the failure counts."""
    for position, rule in enumerate((policy or {}).get("rules") or ()):
        cause = _cause(rule, pod)
        if cause is None:
            continue
        action: Action = rule["action"]
        if action != "FailJob":
            return Match(action)
        return Match(action, f"{cause} matching {action} rule at index {position}")
    return Match()


def _cause(rule: Mapping[str, Any], pod: Mapping[str, Any]) -> str | None:
    """Return how the rule matches the pod, as the start of the Job's message."""
    where = f"{namespace_of(pod)}/{name_of(pod)}"
    status = pod.get("status") or {}
    if rule.get("onExitCodes") is not None:
        container = _by_exit_code(status, rule["onExitCodes"])
        if container is None:
            return None
        exit_code = container["state"]["terminated"]["exitCode"]
        return f"Container {container['name']} for pod {where} failed with exit code {exit_code}"
    kind = _by_condition(status, rule.get("onPodConditions") or ())
    return None if kind is None else f"Pod {where} has condition {kind}"


def _by_exit_code(status: Mapping[str, Any], requirement: Mapping[str, Any]) -> Obj | None:
    wanted_name = requirement.get("containerName")
    statuses = (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ()))
    for container in statuses:
        terminated = (container.get("state") or {}).get("terminated")
        if terminated is None or wanted_name not in (None, container["name"]):
            continue
        if terminated["exitCode"] != 0 and _is_listed(terminated["exitCode"], requirement):
            found: Obj = container
            return found
    return None


def _is_listed(exit_code: int, requirement: Mapping[str, Any]) -> bool:
    listed = exit_code in requirement["values"]
    return listed if requirement["operator"] == "In" else not listed


def _by_condition(status: Mapping[str, Any], patterns: Iterable[Mapping[str, Any]]) -> str | None:
    wanted = {(pattern["type"], pattern.get("status") or "True") for pattern in patterns}
    for condition in status.get("conditions") or ():
        if (condition["type"], condition["status"]) in wanted:
            return str(condition["type"])
    return None
