"""Checks of the parameters of a task that cannot be used together with `roles`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_gangjobs.exceptions import Problem
from airflow_provider_gangjobs.gang.spec import WaitUntil

if TYPE_CHECKING:
    from collections.abc import Iterator


def role_problems(roles: Any, wait_until: WaitUntil | str, launch: str) -> tuple[Problem, ...]:
    """Return the problems of the parameters of a task whose gang has roles; empty without roles.

    :param roles: The parameter of the same name.
    """
    return () if roles is None else tuple(_problems(wait_until, launch))


def _problems(wait_until: WaitUntil | str, launch: str) -> Iterator[Problem]:
    if wait_until in (WaitUntil.SUBMITTED, WaitUntil.RUNNING):
        # The API server fails one Job only, and somebody who follows the gang ends the others.
        what = f'is "{WaitUntil(wait_until)}" and roles are given: nobody would end the gang when one role fails'
        yield Problem("wait_until", what, 'Leave wait_until out, which means "ended"')
    if launch != "plain":
        yield Problem("launch", f"is {launch!r} and roles are given", "Start the program by the command of each role")


__all__ = ["role_problems"]
