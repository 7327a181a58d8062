"""Airflow's libraries in the process of the tests, without Airflow: no database, no processes, an empty home."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile

# Airflow reads and writes its home as soon as it is imported, so this is set before any test module is.
if "AIRFLOW_HOME" not in os.environ:
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="airflow-home-")
    atexit.register(shutil.rmtree, os.environ["AIRFLOW_HOME"], ignore_errors=True)
