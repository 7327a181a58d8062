"""Whether operators defer unless told otherwise."""

from __future__ import annotations

import configparser
import os
from typing import Final

from airflow.configuration import conf

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
