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

    from airflow_provider_gangjobs.triggers.args import Watch

BACKSTOP_S: Final = 120.0
"""How much longer than `execution_timeout` Airflow itself waits, so that the trigger tells first, and why."""
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


def under_deadline(
    watch: Watch, execution_timeout: timedelta | None, started: datetime | None
) -> tuple[Watch, timedelta | None]:
    """The watch with the deadline of a try that `started` then, and how long Airflow itself is to wait.

    Airflow 3 ignores `execution_timeout` while a task is deferred. The deadline is one for all attempts of a try.
    """
    if execution_timeout is None:
        return watch, None
    limit_s = execution_timeout.total_seconds()
    deadline = (started.timestamp() if started else time.time()) + limit_s
    backstop = timedelta(seconds=max(0.0, deadline - time.time()) + BACKSTOP_S)
    return replace(watch, deadline=deadline, execution_timeout_s=limit_s), backstop
