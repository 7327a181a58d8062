"""Airflow's libraries in the process of the tests, without Airflow: no database, no processes, an empty home."""

from __future__ import annotations

import os
import tempfile

# Airflow reads and writes its home as soon as it is imported, so this is set before any test module is.
os.environ.setdefault("AIRFLOW_HOME", tempfile.mkdtemp(prefix="airflow-home-"))
