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
    from collections.abc import Sequence


class Stage(StrEnum):
    """How far a gang is, as far as a claim depends on it."""

    LIVE = "live"
    SUCCEEDED = "succeeded"
    HALTED = "halted"
    DELIVERED = "delivered"
    GONE = "gone"


@dataclass(frozen=True)
class ClaimedGang:
    """The model: who is responsible for the gang, and how far the gang is."""

    claim: str
    stage: Stage = Stage.LIVE

    def after(self, operation: Operation) -> tuple[ClaimedGang, Answer]:
        """Return the gang after the operation, and what the caller is told."""
        if operation.kind is Kind.END:
            ended = replace(self, stage=Stage.SUCCEEDED) if self.stage is Stage.LIVE else self
            return ended, Answer.DONE
        if operation.kind is Kind.ADOPT:
            if self.stage in {Stage.LIVE, Stage.SUCCEEDED}:
                return replace(self, claim=operation.claim), Answer.DONE
            return self, Answer.LEFT
        if self.stage is Stage.GONE or self.claim != operation.claim:
            return self, Answer.LEFT
        return self._after_own(operation.kind)

    def _after_own(self, kind: Kind) -> tuple[ClaimedGang, Answer]:
        """Return the same for an operation of the task instance that is responsible."""
        if kind is Kind.DELIVER:
            return replace(self, stage=Stage.DELIVERED), Answer.DONE
        if self.stage is not Stage.LIVE:
            return self, Answer.ENDED
        return replace(self, stage=Stage.HALTED if kind is Kind.HALT else Stage.GONE), Answer.DONE


def find_order(operations: Sequence[Operation], *, first_claim: str | None = None) -> list[Operation] | None:
    """Return an order of the operations of one gang that explains all answers; None if there is none.

    :param first_claim: The claim at the creation of the gang. By default each claim of the operations is tried.
    """
    claims = [first_claim] if first_claim is not None else sorted({one.claim for one in operations} | {""})
    orders = (_search(ClaimedGang(claim), frozenset(range(len(operations))), operations) for claim in claims)
    return next((order for order in orders if order is not None), None)


def _search(gang: ClaimedGang, left: frozenset[int], operations: Sequence[Operation]) -> list[Operation] | None:
    """Return an order of the operations that are left, from this state of the gang on."""
    if all(operations[number].answer is Answer.UNKNOWN for number in left):
        return []  # they never took effect
    # An operation that began after another one returned cannot come before it.
    returned = [operations[number].ended for number in left if operations[number].answer is not Answer.UNKNOWN]
    for number in sorted(left):
        operation = operations[number]
        if operation.began > min(returned):
            continue
        after, answer = gang.after(operation)
        if operation.answer not in {answer, Answer.UNKNOWN}:
            continue
        rest = _search(after, left - {number}, operations)
        if rest is not None:
            return [operation, *rest]
    return None
