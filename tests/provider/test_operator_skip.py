"""A task whose gang has failed with an exit code that means "nothing to do" is skipped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from airflow_provider_gangjobs.airflow_api.exceptions import AirflowSkipException
from airflow_provider_gangjobs.exceptions import AppFailed

if TYPE_CHECKING:
    from tests.provider.task_runner import TaskMaker


def test_exit_code_of_all_failed_ranks_skips_the_task(task: TaskMaker) -> None:
    with pytest.raises(AirflowSkipException, match="because of skip_on_exit_code: Gang"):
        task("exit 99", skip_on_exit_code=99).execute()


def test_another_exit_code_fails_the_task(task: TaskMaker) -> None:
    with pytest.raises(AppFailed):
        task("exit 98", skip_on_exit_code=[99, 100]).execute()
