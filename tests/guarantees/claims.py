"""The model of a claim, and the search for an order of operations that explains their answers (Herlihy and Wing).

Operations on one gang are linear if there is an order in which each operation takes effect at one moment between its
beginning and its end, and in which the model gives each caller the answer that it got. An operation without an answer
may take effect at any later time, or never.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from tests.guarantees.history import Answer, Kind, Operation

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Stage(StrEnum):
    """How far a gang is, as far as a claim depends on it."""

    LIVE = "live"
    SUCCEEDED = "succeeded"
    STOPPED = "stopped"
    DELIVERED = "delivered"
    GONE = "gone"


@dataclass(frozen=True)
class ClaimedGang:
    """The model: who is responsible for the gang, and how far the gang is."""

    claim: str
    stage: Stage = Stage.LIVE

    def after(self, operation: Operation) -> tuple[ClaimedGang, set[Answer]]:
        """Return the gang after the operation, and what the caller may be told."""
        is_owner = self.claim == operation.claim
        match operation.kind:
            case Kind.END:
                return self._if_live(Stage.SUCCEEDED), {Answer.DONE}
            case Kind.ADOPT if self.stage in {Stage.LIVE, Stage.SUCCEEDED}:
                return replace(self, claim=operation.claim), {Answer.DONE}
            case Kind.ADOPT:
                return self, {Answer.LEFT}
            case _ if self.stage is Stage.GONE:
                # A Job is still visible while it is being deleted. To delete it again is no change.
                return self, {Answer.LEFT, Answer.DONE} if is_owner else {Answer.LEFT}
            case _ if not is_owner:
                return self, {Answer.LEFT}
            case Kind.DELIVER:
                return replace(self, stage=Stage.DELIVERED), {Answer.DONE}
            case Kind.STOP:
                # The note on a Job that has ended is no change either.
                answers = {Answer.DONE} if self.stage is Stage.LIVE else {Answer.DONE, Answer.LEFT}
                return self._if_live(Stage.STOPPED), answers
            case _:
                return self._if_live(Stage.GONE), {Answer.DONE if self.stage is Stage.LIVE else Answer.ENDED}

    def _if_live(self, stage: Stage) -> ClaimedGang:
        return replace(self, stage=stage) if self.stage is Stage.LIVE else self


def find_order(
    operations: Sequence[Operation],
    *,
    first: ClaimedGang | None = None,
    leaves: Callable[[ClaimedGang], bool] = lambda _: True,
) -> list[Operation] | None:
    """Return an order of the operations of one gang that explains all answers; None if there is none.

    :param first: The gang before the operations. By default it is live, and has the claim of any of the operations.
    :param leaves: Whether the gang may be in this state after the operations.
    """
    firsts = [first] if first is not None else [ClaimedGang(claim) for claim in sorted({o.claim for o in operations})]
    orders = (_search(gang, frozenset(range(len(operations))), operations, leaves) for gang in firsts)
    return next((order for order in orders if order is not None), None)


def _search(
    gang: ClaimedGang,
    left: frozenset[int],
    operations: Sequence[Operation],
    leaves: Callable[[ClaimedGang], bool],
) -> list[Operation] | None:
    """Return an order of the operations that are left, from this state of the gang on."""
    if all(operations[number].answer is Answer.UNKNOWN for number in left) and leaves(gang):
        return []  # an operation without an answer may never take effect
    # An operation that began after another one returned cannot come before it.
    returned = [operations[number].ended for number in left if operations[number].answer is not Answer.UNKNOWN]
    for number in sorted(left):
        operation = operations[number]
        if operation.began > min(returned, default=operation.began):
            continue
        after, answers = gang.after(operation)
        if operation.answer not in {*answers, Answer.UNKNOWN}:
            continue
        rest = _search(after, left - {number}, operations, leaves)
        if rest is not None:
            return [operation, *rest]
    return None
