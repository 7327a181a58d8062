"""Random deletions: objects with finalizers stay, and released objects are removed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gangjobs_sandbox.clock import VirtualClock
from gangjobs_sandbox.errors import StatusError
from gangjobs_sandbox.registry import PatchKind, Propagation, Registry
from gangjobs_sandbox.resources import PODS
from tests.examples import examples

FINALIZERS = ("example.org/a", "example.org/b")
ORDERS = {"orphan", "foregroundDeletion"}


class OnePod(RuleBasedStateMachine):
    """One pod, and all writers that may affect its end."""

    @initialize(finalizers=st.lists(st.sampled_from(FINALIZERS), unique=True), on_node=st.booleans())
    def create(self, finalizers: list[str], on_node: bool) -> None:
        self.clock = VirtualClock()
        self.registry = Registry(clock=self.clock)
        spec: dict[str, Any] = {"containers": [{"name": "main", "image": "x:1"}]}
        if on_node:
            spec["nodeName"] = "n1"
        self.before = self.registry.create(PODS, {"metadata": {"name": "a", "finalizers": finalizers}, "spec": spec})

    @property
    def pod(self) -> dict[str, Any] | None:
        return self.registry.find(PODS, "default", "a")

    def exists(self) -> bool:
        return self.pod is not None

    @precondition(exists)
    @rule(grace=st.none() | st.integers(0, 60), propagation=st.none() | st.sampled_from(list(Propagation)))
    def delete(self, grace: int | None, propagation: Propagation | None) -> None:
        self.registry.delete(PODS, "a", "default", grace_period_s=grace, propagation=propagation)

    @precondition(exists)
    @rule(name=st.sampled_from([*FINALIZERS, *sorted(ORDERS)]))
    def release(self, name: str) -> None:
        patch = {"metadata": {"$deleteFromPrimitiveList/finalizers": [name]}}
        self.registry.patch(PODS, "a", "default", patch, PatchKind.STRATEGIC)

    @precondition(exists)
    @rule(name=st.sampled_from(FINALIZERS))
    def hold(self, name: str) -> None:
        metadata = (self.pod or {})["metadata"]
        finalizers_before = metadata.get("finalizers") or []
        patch = {"metadata": {"finalizers": [*finalizers_before, name]}}
        if "deletionTimestamp" in metadata and name not in finalizers_before:
            with pytest.raises(StatusError, match="no new finalizers can be added"):
                self.registry.patch(PODS, "a", "default", patch)
        else:
            self.registry.patch(PODS, "a", "default", patch)

    @precondition(exists)
    @rule(phase=st.sampled_from(["Running", "Succeeded", "Failed"]))
    def progress(self, phase: str) -> None:
        self.registry.patch(PODS, "a", "default", {"status": {"phase": phase}}, subresource="status")

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self.clock.advance(seconds)

    @invariant()
    def end_is_never_taken_back(self) -> None:
        pod = self.pod
        if pod is None:
            return
        earlier, now = self.before["metadata"], pod["metadata"]
        assert int(now["resourceVersion"]) >= int(earlier["resourceVersion"])
        assert now["generation"] >= earlier["generation"]
        if "deletionTimestamp" in earlier:
            assert now["deletionTimestamp"] <= earlier["deletionTimestamp"]
            assert now["deletionGracePeriodSeconds"] <= earlier["deletionGracePeriodSeconds"]
        self.before = pod

    @invariant()
    def nothing_that_is_released_stays(self) -> None:
        """A pod that was deleted without a grace period exists only while it has a finalizer."""
        pod = self.pod
        if pod is not None and pod["metadata"].get("deletionGracePeriodSeconds") == 0:
            assert pod["metadata"].get("finalizers")

    @invariant()
    def nothing_that_is_held_goes(self) -> None:
        """A removed pod was deleted, and its last version had at most one finalizer: the one that was released."""
        if self.pod is None:
            assert len(set(self.before["metadata"].get("finalizers") or [])) <= 1


OnePod.TestCase.settings = settings(max_examples=examples(80), stateful_step_count=20, deadline=None)
TestOnePod = OnePod.TestCase
