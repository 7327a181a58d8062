"""Deferral: whether operators defer unless told otherwise, and until when at most."""

from __future__ import annotations

import configparser
import os
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from airflow.configuration import conf

if TYPE_CHECKING:
    from datetime import datetime

    from airflow_provider_gangjobs.triggers.args import TriggerArgs

BACKSTOP_S: Final = 120.0
"""How much longer than `execution_timeout` Airflow itself waits, so that the trigger tells first, and why."""
ALARM_MARGIN_S: Final = 5.0
ALARM_MARGIN_PART: Final = 0.1
"""How much earlier than Airflow's alarm a waiting worker ends the wait: so long, or this part of the whole time."""
SECTION: Final = "operators"
OPTION: Final = "default_deferrable"
VARIABLE: Final = "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE"
# Nobody writes these by hand: nothing in Airflow 3 reads them except to fill BaseOperator's own `resources`.
GENERATED: Final = ("default_cpus", "default_ram", "default_disk", "default_gpus")


def default_deferrable(config: configparser.ConfigParser = conf) -> bool:
    """Airflow's `[operators] default_deferrable` if somebody set it, else true.

    Airflow writes an `airflow.cfg` with every option at its shipped value on first use, this one as false.
    That was nobody's choice, and is told by the options around it.
    """
    chosen = VARIABLE in os.environ or (_in_file(config, OPTION) and not all(_in_file(config, o) for o in GENERATED))
    return bool(config.getboolean(SECTION, OPTION)) if chosen else True


def _in_file(config: configparser.ConfigParser, option: str) -> bool:
    # Airflow's own `has_option` also finds the defaults.
    return configparser.ConfigParser.has_option(config, SECTION, option)


def with_deadline(
    args: TriggerArgs, execution_timeout: timedelta | None, started: datetime | None, *, server_ahead_s: float = 0.0
) -> tuple[TriggerArgs, timedelta | None]:
    """The watch with the deadline of a try that `started` then, and how long Airflow itself is to wait.

    Airflow 3 ignores `execution_timeout` while a task is deferred. The deadline is one for all attempts of a try.
    `started` is a time of the worker that began the try; the deadline is told in the API server's time, which worker
    and triggerer both know. If another worker defers the task again, its clock's difference to the first one's counts.
    """
    if execution_timeout is None:
        return args, None
    limit_s = execution_timeout.total_seconds()
    deadline = (started.timestamp() if started else time.time()) + limit_s
    backstop = timedelta(seconds=max(0.0, deadline - time.time()) + BACKSTOP_S)
    return replace(args, deadline=deadline + server_ahead_s, execution_timeout_s=limit_s), backstop


def worker_wait_limit_s(
    execution_timeout: timedelta | None, started: datetime | None, running_s: float
) -> float | None:
    """How long a worker may wait for a gang, in seconds: until just before Airflow's alarm, or the try's deadline.

    :param started: When the try began; earlier than this process's work if the task was deferred meanwhile.
    :param running_s: How long this process has worked on the task, which is when Airflow set its alarm.
    """
    if execution_timeout is None:
        return None
    limit_s = execution_timeout.total_seconds()
    before_s = max(running_s, time.time() - started.timestamp()) if started else running_s
    return max(0.0, limit_s - before_s - min(ALARM_MARGIN_S, limit_s * ALARM_MARGIN_PART))
